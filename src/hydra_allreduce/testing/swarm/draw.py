"""Schedules by chance: from a seeded generator, and as a Hypothesis strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

from hydra_allreduce.testing.swarm.faults import (
    COORDINATOR,
    Cut,
    Fault,
    Kill,
    Partition,
    Pause,
    Reset,
    Schedule,
    Slow,
    Vanish,
    Who,
)
from hydra_allreduce.testing.swarm.run import Swarm
from hydra_allreduce.testing.swarm.trace import Trace

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

KINDS = ("kill", "byte", "vanish", "pause", "partition", "cut", "reset", "slow")


def random_fault(rng: Random, kind: str, peers: int, span: float, traffic: int) -> Fault:
    """Draw a fault of that kind; it begins within ``span`` seconds, or after up to ``traffic`` bytes."""
    at = round(rng.uniform(0.0, span), 4)
    seconds = round(rng.choice((rng.uniform(0.01, 0.5), rng.uniform(0.5, 2.0), rng.uniform(2.0, 12.0))), 3)

    def who() -> Who:
        return COORDINATOR if rng.random() < 0.25 else rng.randrange(peers)

    match kind:
        case "kill":
            return Kill(at, who())
        case "byte":
            return Kill(at if rng.random() < 0.5 else 0.0, who(), rng.randrange(1, traffic))
        case "vanish":
            return Vanish(at, who())
        case "pause":
            return Pause(at, who(), seconds)
        case "partition":
            return Partition(at, tuple(rng.randrange(2) for _ in range(peers)), seconds)
        case "cut":
            return Cut(at, who(), who(), seconds)
        case "reset":
            return Reset(at, who(), who())
        case "slow":
            return Slow(at, who(), who(), seconds, rng.choice((0.05, 0.3)), rng.choice((1e4, 1e5, 1e6)))
    raise ValueError(f"no fault of kind {kind!r}; there are {', '.join(KINDS)}")


def random_schedule(
    rng: Random, swarm: Swarm, kinds: Iterable[str] = KINDS, faults: int | None = None, *, early: bool = False
) -> Schedule:
    """Draw a schedule for that swarm, with faults of these kinds: ``faults`` of them, or one to four; ``early``: some
    of them while the group is being founded."""
    latency = rng.choice((0.0, 0.001, 0.005, 0.02))
    jitter = rng.choice((0.0, latency, 0.08))  # much of it makes members finish a ring at different times
    compute = tuple(rng.choice((0.0, 0.0, 0.01, 0.1, 0.4)) for _ in range(rng.randint(1, swarm.n)))
    # About how long the rounds take, and how much each peer sends in them: what the faults have to fall into.
    span = swarm.rounds * (max(compute) + 2 * (swarm.n + 1) * (latency + jitter / 2)) + 0.05
    span += 2.0 if early else 0.0  # founding takes one to two seconds
    traffic = swarm.rounds * (500 * swarm.n + 20 * swarm.elements)
    chosen = tuple(kinds)
    count = rng.choice((1, 1, 2, 2, 3, 4)) if faults is None else faults
    return Schedule(
        seed=rng.getrandbits(32),
        latency=latency,
        jitter=jitter,
        bandwidth=rng.choice((1e9, 1e7, 1e6)),
        window=rng.choice((1024, 8192, 65536)),
        compute=compute,
        faults=tuple(random_fault(rng, rng.choice(chosen), swarm.n, span, traffic) for _ in range(count)),
        early=early,
    )


def random_swarm(rng: Random, sizes: tuple[int, ...] = (1, 2, 2, 3, 3, 3, 4, 4, 5, 6)) -> Swarm:
    """Draw a swarm of one of these sizes."""
    n = rng.choice(sizes)
    return Swarm(
        n,
        rounds=rng.choice((2, 4, 6)),
        settle=rng.choice((0.0, 0.0, 0.0, 25.0)),
        elements=rng.choice((1, 60, 60, 1000, 5000)),
        op=rng.choice(("mean", "sum")),
        founders=rng.choice((n, n, n, rng.randint(1, n))),
        min_peers=rng.choice((1, 1, 1, 2)) if n > 1 else 1,
    )


def random_run(seed: int, kinds: Iterable[str] = KINDS, faults: int | None = None, *, early: bool = False) -> Trace:
    """Draw a swarm of up to six peers and a schedule for it, and run it."""
    rng = Random(seed)
    swarm = random_swarm(rng)
    return swarm.run(random_schedule(rng, swarm, kinds, faults, early=early))


def schedules(swarm: Swarm, kinds: Iterable[str] = KINDS, max_faults: int = 4) -> SearchStrategy[Schedule]:
    """A Hypothesis strategy for schedules of that swarm. Use it on a plain function: the simulation is inside."""
    from hypothesis import strategies as st  # noqa: PLC0415 - the only thing here that needs it

    chosen = tuple(kinds)
    times = st.floats(0.0, 3.0).map(lambda t: round(t, 4))
    seconds = st.floats(0.01, 12.0).map(lambda t: round(t, 3))
    who = st.integers(0, swarm.n - 1) | st.just(COORDINATOR)
    traffic = swarm.rounds * (500 * swarm.n + 20 * swarm.elements)
    faults: dict[str, Callable[[], SearchStrategy[Fault]]] = {
        "kill": lambda: st.builds(Kill, times, who),
        "byte": lambda: st.builds(Kill, times, who, st.integers(1, traffic)),
        "vanish": lambda: st.builds(Vanish, times, who),
        "pause": lambda: st.builds(Pause, times, who, seconds),
        "partition": lambda: st.builds(
            Partition, times, st.tuples(*[st.integers(0, 1)] * swarm.n), seconds | st.just(math.inf)
        ),
        "cut": lambda: st.builds(Cut, times, who, who, seconds),
        "reset": lambda: st.builds(Reset, times, who, who),
        "slow": lambda: st.builds(
            Slow, times, who, who, seconds, st.sampled_from((0.05, 0.3)), st.sampled_from((1e4, 1e5, 1e6))
        ),
    }
    return st.builds(
        Schedule,
        seed=st.integers(0, 2**32 - 1),
        latency=st.sampled_from((0.0, 0.001, 0.005, 0.02)),
        jitter=st.sampled_from((0.0, 0.01, 0.08)),
        window=st.sampled_from((1024, 8192, 65536)),
        compute=st.lists(st.sampled_from((0.0, 0.01, 0.1, 0.4)), min_size=1, max_size=swarm.n).map(tuple),
        faults=st.lists(st.one_of([faults[kind]() for kind in chosen]), max_size=max_faults).map(tuple),
    )
