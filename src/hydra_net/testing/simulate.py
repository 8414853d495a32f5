"""Running a program under a virtual clock, so that a seed replays it exactly."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing

from hydra_net.clock import ambient_clock
from hydra_net.threads import in_line

__all__ = ["EPOCH", "HORIZON", "SimulatedClock", "simulate"]

_T = TypeVar("_T")

EPOCH = 1_767_225_600.0
"""The date at which every simulation starts: 2026-01-01 00:00 UTC, in Unix seconds."""

HORIZON = 86_400.0
"""Virtual seconds after which a simulation is stopped. One in which every task waits for another gets there at once."""


class SimulatedClock:
    """Virtual time, and the date that goes with it."""

    def monotonic(self) -> float:
        """Virtual seconds since the simulation started."""
        return trio.current_time()

    def wall(self) -> float:
        """Unix seconds: a fixed date plus the virtual time."""
        return EPOCH + trio.current_time()


def simulate(main: Callable[..., Awaitable[_T]], seed: int = 0, *args: Any) -> _T:
    """Run ``main(*args)`` under trio with a virtual clock and a seeded scheduler, and return what it returns.

    Whenever every task waits, the clock jumps to the next deadline, so virtual hours take real milliseconds. The order
    in which tasks run is shuffled by ``seed``: the same seed gives the same run, in any process, and another seed
    another interleaving. That holds for what draws its randomness from seeded generators, iterates over no sets, and
    does its blocking work through :func:`hydra_net.run_blocking`, which here runs in the event loop: a real thread,
    process or socket is invisible to the virtual clock.

    The default :class:`~hydra_net.Clock` inside says :data:`EPOCH` plus the virtual time. An exception of ``main``
    comes out as it is. Raises TimeoutError when the virtual time reaches :data:`HORIZON`: so a deadlock shows.
    """

    async def run() -> _T:
        in_line.set(True)
        ambient_clock.set(SimulatedClock())
        with trio.move_on_at(HORIZON) as scope:
            return await main(*args)
        assert scope.cancelled_caught
        raise TimeoutError(f"still running after {HORIZON:.0f} virtual seconds: does every task wait for another?")

    with _seeded_scheduler(seed):
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _seeded_scheduler(seed: int) -> Iterator[None]:
    """Have trio order and shuffle its batches of runnable tasks by a generator of our own.

    trio has no public way to do this; its own Hypothesis plugin sets the same two names.
    """
    scheduler = trio._core._run
    saved = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    vars(scheduler).update(_ALLOW_DETERMINISTIC_SCHEDULING=True, _r=random.Random(seed))
    try:
        yield
    finally:
        vars(scheduler).update(_ALLOW_DETERMINISTIC_SCHEDULING=saved[0], _r=saved[1])
