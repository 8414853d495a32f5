"""The plan of a round: how many samples each member works on, decided by the coordinator, checked by everybody.

A plan is integers only. Floating point differs between processors, so nobody recomputes a plan: the coordinator makes
it with a ``Planner`` and sends its integers beside the record in COMMIT (and beside the view in INSTALL); the others
check it and use it. ``hydra_policy.planner`` makes planners; any class with the five methods will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hydra_allreduce.agreement.shape import MAX_MEMBERS
from hydra_net import PeerId

if TYPE_CHECKING:
    from hydra_allreduce.agreement import Member, RoundRecord
    from hydra_net.codec import Cbor

MAX_BATCH = 2**31 - 1
_MAX_NUMBER = 2**63 - 1
_PEER_ID_BYTES = 32


class PlanError(ValueError):
    """A plan that does not hold together or that the planner refuses.

    Attributes:
        field: what is wrong with it: "batch", "sizes", "number", ...
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"plan refused: {field}: {problem}")
        self.field = field
        self.problem = problem


class PlanNumber(NamedTuple):
    """Which plan: the ``n`` of the ballot of the view it was made in, and the round it is for."""

    ballot: int
    round: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Job sizes for one round.

    Attributes:
        number: the view and the round it is for.
        batch: samples in the whole round, at least 1.
        jobs: (peer, samples) in the order in which the batch is cut up; samples >= 0, their sum is ``batch``.
            A peer with 0 samples has no share in the round.

    Raises:
        PlanError: if the values do not hold together; it names the field.
    """

    number: PlanNumber
    batch: int
    jobs: tuple[tuple[PeerId, int], ...]

    def __post_init__(self) -> None:
        ballot, round = self.number
        if not _whole(ballot, 0, _MAX_NUMBER) or not _whole(round, 1, _MAX_NUMBER):
            raise PlanError("number", f"({ballot!r}, {round!r}) is no ballot and round")
        if not _whole(self.batch, 1, MAX_BATCH):
            raise PlanError("batch", f"{self.batch!r} is not a whole number from 1 to {MAX_BATCH}")
        if not 1 <= len(self.jobs) <= MAX_MEMBERS:
            raise PlanError("sizes", f"{len(self.jobs)} members, from 1 to {MAX_MEMBERS} are possible")
        for peer, size in self.jobs:
            if not _whole(size, 0, self.batch):
                raise PlanError("sizes", f"{size!r} for {peer} is not a whole number from 0 to {self.batch}")
        if len({peer for peer, _ in self.jobs}) != len(self.jobs):
            raise PlanError("sizes", "a member is listed twice")
        if (total := sum(size for _, size in self.jobs)) != self.batch:
            raise PlanError("sizes", f"they add up to {total}, the batch is {self.batch}")

    @classmethod
    def of(cls, number: tuple[int, int], batch: int, sizes: Mapping[PeerId, int]) -> Plan:
        """The plan with these sizes, cut up in the order of the mapping."""
        return cls(PlanNumber(*number), batch, tuple(sizes.items()))

    @property
    def round(self) -> int:
        """The round that the plan is for."""
        return self.number.round

    @property
    def sizes(self) -> Mapping[PeerId, int]:
        """Samples per peer, in plan order."""
        return MappingProxyType(dict(self.jobs))

    def size(self, peer: PeerId) -> int:
        """Samples of ``peer``; 0 if the plan does not list it."""
        return next((size for listed, size in self.jobs if listed == peer), 0)

    def slice(self, peer: PeerId) -> slice:
        """Where the samples of ``peer`` lie in the round's batch; empty if it has none.

        The slices of all peers are disjoint and cover ``range(batch)``.
        """
        start = 0
        for listed, size in self.jobs:
            if listed == peer:
                return slice(start, start + size)
            start += size
        return slice(0, 0)

    def renumbered(self, ballot: int, round: int) -> Plan:
        """The same job sizes under another number: a coordinator that took over repeats the last plan it knows."""
        return replace(self, number=PlanNumber(ballot, round))

    def to_cbor(self) -> Cbor:
        """``[ballot, round, batch, [[peer, samples], ...]]``."""
        return [*self.number, self.batch, [[bytes(peer), size] for peer, size in self.jobs]]

    @classmethod
    def from_cbor(cls, value: Cbor) -> Plan:
        """The plan that ``to_cbor`` described; ``value`` may be anything that a peer could send.

        Raises:
            PlanError: if it is no plan; it names the field.
        """
        if not isinstance(value, list) or len(value) != 4:
            raise PlanError("shape", "not a list of four")
        ballot, round, batch, jobs = value
        if not isinstance(ballot, int) or not isinstance(round, int):
            raise PlanError("number", "not whole numbers")
        if not isinstance(batch, int):
            raise PlanError("batch", "not a whole number")
        if not isinstance(jobs, list) or len(jobs) > MAX_MEMBERS:
            raise PlanError("sizes", f"not a list of at most {MAX_MEMBERS}")
        return cls(PlanNumber(ballot, round), batch, tuple(_job(job) for job in jobs))


class Planner(Protocol):
    """Decides the job sizes. The coordinator plans; every member observes every record and checks every plan."""

    def observe(self, record: RoundRecord) -> None:
        """Learn from a committed round. Every member sees every record, so that a take-over goes on from here.

        What is in the record comes from peers: nothing in it makes this raise.
        """
        ...

    def plan(self, record: RoundRecord | None, members: Sequence[Member]) -> Plan:
        """The plan for the round after ``record``, the last one committed (None before the first).

        ``members`` are the members of the view, most senior first; followers get no samples.

        Raises:
            ValueError: no member is a contributor.
        """
        ...

    def check(self, plan: Plan, members: Sequence[Member]) -> None:
        """Refuse a coordinator's plan that this member would not work by.

        Raises:
            PlanError: names the field that is wrong.
        """
        ...

    def state_dict(self) -> Cbor:
        """What was learnt, as CBOR: handed to newcomers with the run's state."""
        ...

    def load_state_dict(self, state: Cbor) -> None:
        """Go on from another member's ``state_dict``.

        Raises:
            ValueError: the state is malformed; nothing has changed then.
        """
        ...


def contributors(members: Iterable[Member]) -> tuple[PeerId, ...]:
    """The members that get samples, in the order given."""
    return tuple(member.peer for member in members if member.role == "contributor")


def _whole(value: object, low: int, high: int) -> bool:
    # bool is an int in Python; True as a job size is a sender's mistake.
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _job(value: Cbor) -> tuple[PeerId, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise PlanError("sizes", "an entry is not a pair of peer and samples")
    peer, size = value
    if not isinstance(peer, bytes) or len(peer) != _PEER_ID_BYTES:
        raise PlanError("sizes", "a peer id is not 32 bytes")
    if not isinstance(size, int):
        raise PlanError("sizes", "a size is not a whole number")
    return PeerId(peer), size
