"""A fault schedule for a swarm as data: what goes wrong, when, and the seed of everything that is left to chance.

Times are virtual seconds since all peers were in the group; if the schedule is ``early``, since they started. A peer is
named by its index, taken modulo the number of peers, or is ``COORDINATOR``: whoever coordinates when the fault strikes.
A fault that makes no sense then does nothing, so that any schedule runs in any swarm and can be shrunk freely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Who: TypeAlias = int | Literal["coordinator"]
COORDINATOR: Literal["coordinator"] = "coordinator"


@dataclass(frozen=True, slots=True)
class Kill:
    """The process dies: at once, or in the middle of a write when it has sent ``after_bytes`` more. What it has sent
    arrives, then its peers see their connections end."""

    at: float
    peer: Who
    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Vanish:
    """The machine loses power: silence, and no end of any connection."""

    at: float
    peer: Who


@dataclass(frozen=True, slots=True)
class Pause:
    """All traffic to and from the peer's machine is held for a while, then it passes. Its own clock goes on."""

    at: float
    peer: Who
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """For a while peers reach only those of their own side; ``sides`` repeat cyclically over the peers."""

    at: float
    sides: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """For a while nothing gets from ``a`` to ``b``; the other way it does until the window is full."""

    at: float
    a: Who
    b: Who
    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Every connection between two peers breaks; both are well and can connect again."""

    at: float
    a: Who
    b: Who


@dataclass(frozen=True, slots=True)
class Slow:
    """For a while the link between two peers, both ways, has this latency (s) and bandwidth (bytes per second)."""

    at: float
    a: Who
    b: Who
    seconds: float
    latency: float
    bandwidth: float


Fault: TypeAlias = Kill | Vanish | Pause | Partition | Cut | Reset | Slow


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to a swarm.

    Attributes:
        seed: of the peers' identities and timers, the network, and the order in which tasks run.
        latency: seconds from one peer to another.
        jitter: up to so many seconds more, drawn for each write.
        bandwidth: bytes per second between two peers, each way.
        window: bytes of a stream that may be in flight or unread; small ones make for many partial writes.
        compute: seconds that each peer thinks before each call; repeats cyclically over the peers.
        faults: in any order.
        early: faults may strike while the group is being founded, and nobody waits for the others to be in it.
    """

    seed: int
    latency: float = 0.005
    jitter: float = 0.0
    bandwidth: float = 1e9
    window: int = 64 * 1024
    compute: tuple[float, ...] = (0.0,)
    faults: tuple[Fault, ...] = ()
    early: bool = False

    @property
    def calm(self) -> bool:
        """Whether nobody can be suspected who is well: all that happens is that processes or machines stop."""
        quick = self.latency + self.jitter <= 0.1 and self.window <= 0.2 * self.bandwidth
        return quick and all(isinstance(fault, Kill | Vanish) for fault in self.faults)

    @property
    def heals(self) -> bool:
        """Whether every fault that can end does."""
        return all(getattr(fault, "seconds", 0.0) < math.inf for fault in self.faults)

    @property
    def over(self) -> float:
        """When the last fault has ended: all that follows is up to the group. A fault that lasts for ever counts from
        its beginning, a ``Kill`` in the middle of a write from when it is set up."""
        ends = (fault.at + getattr(fault, "seconds", 0.0) for fault in self.faults)
        begins = (fault.at for fault in self.faults)
        return max((*begins, *(end for end in ends if end < math.inf)), default=0.0)

    def as_code(self, swarm: str = "Swarm(3)") -> str:
        """Return a snippet that runs this schedule again, in ``swarm``, and checks the trace."""
        names = sorted({type(fault).__name__ for fault in self.faults} | {"Schedule", "Swarm", "check"})
        shown = repr(self) if len(self.faults) < 2 else _laid_out(self)
        return f"from hydra_allreduce.testing.swarm import {', '.join(names)}\n\ncheck({swarm}.run({shown}))\n"


def _laid_out(schedule: Schedule) -> str:
    lines = "".join(f"\n        {fault!r}," for fault in schedule.faults)
    return repr(replace(schedule, faults=())).replace("faults=()", f"faults=({lines}\n    )")
