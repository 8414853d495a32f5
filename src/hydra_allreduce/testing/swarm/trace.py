"""What a run of a swarm leaves behind, for the checks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hydra_allreduce.agreement import MemberId, RoundRecord, View
from hydra_allreduce.reduction import Lost
from hydra_allreduce.testing.swarm.faults import Schedule
from hydra_net import PeerId

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Input:
    """What a peer called with: copies of its arrays by name, their weight and the operation."""

    arrays: dict[str, Array]
    weight: float
    op: str


@dataclass(frozen=True, slots=True)
class Returned:
    """A call that returned a round.

    Attributes:
        peer: index of the peer.
        call: which of the peer's calls, from 1.
        time: virtual seconds since the simulation started.
        committed: when the round was committed at this member; None if that was before the call.
        arrays: the result by name.
        digest: SHA-256 over names, dtypes, shapes and bytes of the result.
        contributors: peers and their weights, in ring order.
    """

    peer: int
    call: int
    time: float
    committed: float | None
    round: int
    record: RoundRecord
    arrays: dict[str, Array] = field(compare=False, repr=False)
    digest: str
    contributed: bool
    contributors: tuple[tuple[PeerId, float], ...]
    total_weight: float
    lost: tuple[tuple[PeerId, Lost], ...]
    attempts: int
    view: View


@dataclass(frozen=True, slots=True)
class Raised:
    """A call that raised, or what a peer's program ended with (``call`` 0)."""

    peer: int
    call: int
    time: float
    error: str
    text: str
    typed: bool


@dataclass(frozen=True, slots=True)
class Viewed:
    """A peer was told of a new view."""

    peer: int
    time: float
    view: View


@dataclass(frozen=True, slots=True)
class Gone:
    """A peer was told that a member had gone, and why."""

    peer: int
    time: float
    who: PeerId
    cause: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """A peer was told that rounds it had committed were given up."""

    peer: int
    time: float
    rounds: tuple[int, ...]


Happening: TypeAlias = Returned | Raised | Viewed | Gone | Superseded


@dataclass(slots=True)
class Trace:
    """All that happened in one run.

    Attributes:
        swarm: code that makes the swarm.
        schedule: what it ran.
        peers: the peers' ids, by index.
        founders, min_peers: of the groups.
        settled: whether the peers went on for long enough after the faults to agree again.
        calm: whether nobody can have been suspected, or left out, who was well.
        members: which process each peer was, once it was in a view.
        joined: the last round that was over when each peer came into a view.
        happenings: in order. Nothing that a peer did after its death is in here.
        inputs: what each peer called with: (peer, call) -> input.
        written: calls in which the caller's own arrays were changed.
        died: when each dead peer died.
        finished: when each peer's program, with its group and node, had ended in good order.
        hung: peers that were alive and had not finished when the run was broken off, and what they waited in.
        began: when all were in the group: the zero of the schedule's times.
        ended: when the run was over.
    """

    swarm: str
    schedule: Schedule
    peers: tuple[PeerId, ...]
    founders: int = 1
    min_peers: int = 1
    settled: bool = False
    calm: bool = False
    members: dict[int, MemberId] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    inputs: dict[tuple[int, int], Input] = field(default_factory=dict)
    written: list[tuple[int, int]] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    hung: dict[int, str] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0

    @property
    def returned(self) -> list[Returned]:
        """The calls that returned, in order."""
        return [h for h in self.happenings if isinstance(h, Returned)]

    @property
    def raised(self) -> list[Raised]:
        """What was raised, in order."""
        return [h for h in self.happenings if isinstance(h, Raised)]

    @property
    def digest(self) -> str:
        """SHA-256 over everything that happened: equal for two runs that took the same course."""
        parts = [*map(repr, self.happenings), repr(self.died), repr(self.finished), repr(self.hung), repr(self.ended)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def stranded(self) -> bool:
        """Whether those that are left are too few to found a group and know of none."""
        needed = max(self.founders, self.min_peers)
        return 0 < len(self.hung) < needed and not any(index in self.members for index in self.hung)

    def as_code(self) -> str:
        """Return a snippet that runs this again."""
        return self.schedule.as_code(self.swarm)


def named(arrays: Any) -> dict[str, Array]:
    """A caller's arrays by name: a sequence's by position, a single one under the empty name."""
    if isinstance(arrays, np.ndarray):
        return {"": arrays}
    if isinstance(arrays, dict):
        return dict(sorted(arrays.items()))
    return {str(i): array for i, array in enumerate(arrays)}


def digest_of(arrays: dict[str, Array]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
