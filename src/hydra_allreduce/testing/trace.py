"""What a run of the model leaves behind, for the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hydra_allreduce.agreement import Ballot, MemberId, RecordId, RoundRecord
from hydra_allreduce.testing.schedule import Schedule


class Certified(NamedTuple):
    """A round was decided in a view.

    Attributes:
        step: when.
        ballot: of the view that decided it.
        record: what was decided.
        certifiers: the contributors of that view.
        faulty: whether there had been a false suspicion, a partition, a cut or a pause by then.
        live: the processes alive then.
    """

    step: int
    ballot: Ballot
    record: RecordId
    certifiers: tuple[MemberId, ...]
    faulty: bool
    live: tuple[MemberId, ...]


class Returned(NamedTuple):
    """A member committed a round, and perhaps answered a call with it.

    Attributes:
        step: when.
        member: who.
        record: with what.
        call: the call that it answered, or None.
        view: ballot of the member's view.
        fence: the highest ballot that it had promised or proposed.
        faulty: as in ``Certified``.
        live: the processes alive then.
    """

    step: int
    member: MemberId
    record: RecordId
    call: int | None
    view: Ballot
    fence: Ballot
    faulty: bool
    live: tuple[MemberId, ...]


@dataclass(slots=True)
class Trace:
    """All that happened in one run.

    Attributes:
        model: code that makes the model.
        schedule: what it ran.
        majority: the quorum mode.
        records: every record seen, by id.
        certified: decisions, in order.
        returned: commits, in order.
        entered: the call that each member entered each ring with: (member, attempt ballot, round) -> call.
        reporters: who reported to each view: ballot -> members.
        rings: the contributors of each view.
        voided: calls that failed because the members' calls did not fit together: (member, call).
        superseded: members that gave up committed rounds.
        broken: what the model saw itself: rules that a member broke, and liveness.
        excused: pairs of decisions that trace 20 of the protocol's limits explains.
        views: how many views were installed, counting each once.
        frames: how many frames were delivered.
        log: everything in words, if it was asked for.
    """

    model: str
    schedule: Schedule
    majority: bool
    records: dict[RecordId, RoundRecord] = field(default_factory=dict)
    certified: list[Certified] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    entered: dict[tuple[MemberId, Ballot, int], int] = field(default_factory=dict)
    reporters: dict[Ballot, tuple[MemberId, ...]] = field(default_factory=dict)
    rings: dict[Ballot, tuple[MemberId, ...]] = field(default_factory=dict)
    voided: dict[tuple[MemberId, int], None] = field(default_factory=dict)
    superseded: list[tuple[MemberId, tuple[int, ...]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    excused: list[tuple[RecordId, RecordId]] = field(default_factory=list)
    views: int = 0
    frames: int = 0
    log: list[str] = field(default_factory=list)

    def as_code(self) -> str:
        """Return a snippet that runs this again."""
        return self.schedule.as_code(self.model)
