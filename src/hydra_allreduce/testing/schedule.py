"""A fault schedule as data: what goes wrong, when, and the seed of everything that is left to chance.

Faults name members by index: founders first, then joiners, then restarted processes in order of appearance. An index is
taken modulo the number of processes, and a fault that makes no sense when its step comes does nothing, so that any
schedule runs in any group and can be shrunk freely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

Moment = Literal["once", "ready", "commit", "promise", "install"]
"""When a process is struck: at the step itself, or as soon as it has next finished a round, committed one, promised a
ballot or installed a view: what it sent about that is under way or lost."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies. ``loses``: half of what it had sent and was under way is lost with it."""

    step: int
    member: int
    loses: bool = True
    at: Moment = "once"


@dataclass(frozen=True, slots=True)
class Restart:
    """The process dies if it has not yet, and another process of the same peer starts and asks to be let in."""

    step: int
    member: int


@dataclass(frozen=True, slots=True)
class Close:
    """The process goes at once, and says so."""

    step: int
    member: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The process stands still for a number of steps; others may come to suspect it."""

    step: int
    member: int
    steps: int
    at: Moment = "once"


@dataclass(frozen=True, slots=True)
class Partition:
    """The network splits: processes hear only those of their own side until ``Heal``. Sides repeat cyclically."""

    step: int
    sides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heal:
    """Partitions and one-way cuts end."""

    step: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing gets from ``a`` to ``b`` any more; the other way everything does."""

    step: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """The detector of ``by`` is wrong about ``of``."""

    step: int
    by: int
    of: int


@dataclass(frozen=True, slots=True)
class Duel:
    """Two members suspect each other at once: two proposers compete."""

    step: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Late:
    """The coordinator's patience with ``member`` is over."""

    step: int
    member: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The member wants to leave at the next boundary."""

    step: int
    member: int


@dataclass(frozen=True, slots=True)
class Join:
    """The next joiner starts and asks ``contact``."""

    step: int
    contact: int


@dataclass(frozen=True, slots=True)
class Break:
    """The data link from ``a`` to ``b`` breaks under a running ring while both are well."""

    step: int
    a: int
    b: int
    dial_failed: bool = False


@dataclass(frozen=True, slots=True)
class Void:
    """The ring finds that the member's call does not fit to its neighbour's."""

    step: int
    member: int


Fault: TypeAlias = (
    Crash | Restart | Close | Pause | Partition | Heal | Cut | Suspect | Duel | Late | Leave | Join | Break | Void
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to a group.

    Attributes:
        seed: of the order of everything: deliveries, calls, timers.
        steps: how long faults may happen; then they stop, and everybody must get on.
        rounds: how many rounds the members call for while faults happen.
        drop: the share of frames that get lost.
        tick: the share of steps in which a timer fires.
        fifo: frames arrive in the order in which they were sent.
        founding: "calm": the first view is made before the schedule begins, and "warm": the first round as well.
            "wild": the group is founded while faults happen.
        heal: whether partitions end with the faults.
        codec: every message goes through the codec.
        faults: in any order.
    """

    seed: int
    steps: int = 100
    rounds: int = 2
    drop: float = 0.0
    tick: float = 0.03
    fifo: bool = False
    founding: str = "warm"
    heal: bool = True
    codec: bool = False
    faults: tuple[Fault, ...] = ()

    def as_code(self, model: str = "Model(3)") -> str:
        """Return a snippet that runs this schedule again, in ``model``, and checks the trace."""
        names = sorted({type(fault).__name__ for fault in self.faults} | {"Model", "Schedule", "check"})
        shown = repr(self) if len(self.faults) < 2 else _laid_out(self)
        return f"from hydra_allreduce.testing import {', '.join(names)}\n\ncheck({model}.run({shown}))\n"


def _laid_out(schedule: Schedule) -> str:
    lines = "".join(f"\n        {fault!r}," for fault in schedule.faults)
    return repr(replace(schedule, faults=())).replace("faults=()", f"faults=({lines}\n    )")


_MOMENTS: tuple[Moment, ...] = ("once", "once", "ready", "ready", "commit", "commit", "promise", "install")


def random_schedule(rng: Random, members: int, joiners: int = 0) -> Schedule:
    """Draw a schedule for a group of that size: anything from quiet to hopeless."""
    steps = rng.choice((30, 60, 100, 160))
    faults: list[Fault] = []

    def some(chances: tuple[int, ...]) -> range:
        return range(rng.choice(chances))

    def when() -> int:
        return rng.randrange(steps)

    def who() -> int:
        return rng.randrange(members + joiners)

    for _ in some((0, 1, 1, 2, 3)):
        fate = rng.random()
        if fate < 0.7:
            faults.append(Crash(when(), who(), rng.random() < 0.7, rng.choice(_MOMENTS)))
        elif fate < 0.85:
            faults.append(Restart(when(), who()))
        else:
            faults.append(Close(when(), who()))
    for _ in some((0, 0, 1, 1, 2, 3)):
        if rng.random() < 0.8:
            faults.append(Suspect(when(), who(), who()))
        else:
            faults.append(Duel(when(), who(), who()))
    for _ in some((0, 0, 0, 1, 2)):
        begin = when()
        faults.append(Partition(begin, tuple(rng.randrange(2) for _ in range(members + joiners))))
        if rng.random() < 0.6:
            faults.append(Heal(rng.randrange(begin, steps)))
    for _ in some((0, 0, 1, 2)):
        faults.append(Late(when(), who()))
    for _ in some((0, 0, 0, 1)):
        faults.append(Leave(when(), who()))
    for _ in some((0, 0, 1, 2)):
        faults.append(Pause(when(), who(), rng.choice((10, 30, 60)), rng.choice(_MOMENTS)))
    if rng.random() < 0.2:
        # One is cut off and comes back while the others go on.
        begin, alone = when(), who()
        faults.append(Partition(begin, tuple(int(i == alone) for i in range(members + joiners))))
        faults.append(Heal(min(begin + rng.choice((10, 30, 60)), steps - 1)))
    for _ in some((0, 0, 0, 1)):
        faults.append(Cut(when(), who(), who()))
    for _ in some((0, 0, 0, 1)):
        faults.append(Break(when(), who(), who(), rng.random() < 0.5))
    for _ in some((0, 0, 0, 0, 1)):
        faults.append(Void(when(), who()))
    for _ in range(joiners):
        faults.append(Join(when(), who()))
    return Schedule(
        seed=rng.getrandbits(32),
        steps=steps,
        rounds=rng.choice((1, 2, 3, 6)),
        drop=rng.choice((0.0, 0.0, 0.02, 0.1)),
        tick=rng.choice((0.01, 0.03, 0.08)),
        fifo=rng.random() < 0.25,
        founding=rng.choice(("warm", "warm", "warm", "calm", "calm", "wild")),
        heal=rng.random() < 0.6,
        codec=rng.random() < 0.02,
        faults=tuple(faults),
    )
