"""What members of a group say to each other, strictly and boundedly coded.

A frame is an array: the message's number, then its fields. ``decode_message`` raises ``ValueError`` on everything that
``encode_message`` cannot have made; what the content means for the receiver is the member's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hydra_allreduce.agreement.decide import Report
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.record import Lineage, RecordHead
from hydra_allreduce.agreement.shape import array, blob, boolean, items, number, optional, text
from hydra_allreduce.agreement.view import MAX_CAUSE, Member, View
from hydra_net.codec import Cbor

MAX_HOPS = 3


@dataclass(frozen=True, slots=True)
class Roster:
    """A view by name, with those who are in it."""

    ballot: Ballot
    members: tuple[MemberId, ...]

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.ballot.to_cbor(), [m.to_cbor() for m in self.members]]

    @staticmethod
    def from_cbor(value: Cbor) -> Roster:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        ballot, members = array(value, 2, "roster")
        return Roster(Ballot.from_cbor(ballot), tuple(items(members, MemberId.from_cbor, "roster")))


@dataclass(frozen=True, slots=True)
class Plan:
    """The coordinator's plan for a round: the agreement carries it and never looks inside."""

    ballot: Ballot
    round: int
    content: Cbor

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.ballot.to_cbor(), self.round, self.content]

    @staticmethod
    def from_cbor(value: Cbor) -> Plan:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        ballot, round_, content = array(value, 3, "plan")
        return Plan(Ballot.from_cbor(ballot), number(round_, "round"), content)


@dataclass(frozen=True, slots=True)
class Join:
    """Let ``member`` in.

    Attributes:
        founds: it would help to make the first view if there is none.
        hops: how often it was passed on to a leader, for two can take each other for one.
    """

    member: Member
    promised: Ballot
    founds: bool
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Joiners:
    """There is no view here either: these want in, the sender among them."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Promise me this ballot, and report. ``view`` is the proposer's, if it has one."""

    ballot: Ballot
    view: Roster | None


@dataclass(frozen=True, slots=True)
class Promise:
    """I obey nothing below this ballot any more; this is what I have."""

    ballot: Ballot
    report: Report


@dataclass(frozen=True, slots=True)
class Refuse:
    """I have promised a higher ballot."""

    ballot: Ballot
    promised: Ballot


@dataclass(frozen=True, slots=True)
class Install:
    """The view, and the sender's last committed record in it: new view, heartbeat and repeated commit in one."""

    view: View
    top: Lineage
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Enter:
    """I have entered this round: from now on I have nothing to do but answer."""

    ballot: Ballot
    attempt: bytes
    round: int


@dataclass(frozen=True, slots=True)
class Ready:
    """I hold this finished record."""

    ballot: Ballot
    attempt: bytes
    head: RecordHead


@dataclass(frozen=True, slots=True)
class Commit:
    """All contributors hold this record: it is the round's."""

    ballot: Ballot
    attempt: bytes
    head: RecordHead
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A member to its leader, again and again: what it has, so that any single message may be lost.

    Attributes:
        spoiled: its ring for the round after ``rec`` broke or was void: only a new view can run it again.
    """

    view: Roster
    promised: Ballot
    rec: RecordHead
    held: RecordHead | None
    held_ballot: Ballot | None
    leaving: bool
    spoiled: bool


@dataclass(frozen=True, slots=True)
class Suspect:
    """I think that ``member`` is gone: ask everybody."""

    member: MemberId
    cause: str


@dataclass(frozen=True, slots=True)
class Takeover:
    """I coordinate and want to leave: propose."""


@dataclass(frozen=True, slots=True)
class Broken:
    """My data link to ``other`` broke in this attempt; ``dial_failed``: it cannot be had at all."""

    ballot: Ballot
    attempt: bytes
    round: int
    other: MemberId
    dial_failed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Void:
    """Two members called this round with things that do not fit together: it cannot be finished in this view."""

    ballot: Ballot
    attempt: bytes
    round: int
    reason: Cbor


@dataclass(frozen=True, slots=True)
class Bye:
    """I am gone."""


Message = (
    Join
    | Joiners
    | Propose
    | Promise
    | Refuse
    | Install
    | Enter
    | Ready
    | Commit
    | Status
    | Suspect
    | Takeover
    | Broken
    | Void
    | Bye
)


def _plan(plan: Plan | None) -> Cbor:
    return None if plan is None else plan.to_cbor()


def _roster(roster: Roster | None) -> Cbor:
    return None if roster is None else roster.to_cbor()


def _head(head: RecordHead | None) -> Cbor:
    return None if head is None else head.to_cbor()


def _ballot(ballot: Ballot | None) -> Cbor:
    return None if ballot is None else ballot.to_cbor()


def _attempt(value: Cbor) -> bytes:
    return blob(value, "attempt", size=32)


# One row per message: its number on the wire, how to write its fields, and how to read them.
_WRITE: dict[type, Callable[..., list[Cbor]]] = {
    Join: lambda m: [1, m.member.to_cbor(), m.promised.to_cbor(), m.founds, m.hops],
    Joiners: lambda m: [2, [member.to_cbor() for member in m.members]],
    Propose: lambda m: [3, m.ballot.to_cbor(), _roster(m.view)],
    Promise: lambda m: [4, m.ballot.to_cbor(), m.report.to_cbor()],
    Refuse: lambda m: [5, m.ballot.to_cbor(), m.promised.to_cbor()],
    Install: lambda m: [6, m.view.to_cbor(), m.top.to_cbor(), _plan(m.plan)],
    Enter: lambda m: [7, m.ballot.to_cbor(), m.attempt, m.round],
    Ready: lambda m: [8, m.ballot.to_cbor(), m.attempt, m.head.to_cbor()],
    Commit: lambda m: [9, m.ballot.to_cbor(), m.attempt, m.head.to_cbor(), _plan(m.plan)],
    Status: lambda m: [
        10,
        m.view.to_cbor(),
        m.promised.to_cbor(),
        m.rec.to_cbor(),
        _head(m.held),
        _ballot(m.held_ballot),
        m.leaving,
        m.spoiled,
    ],
    Suspect: lambda m: [11, m.member.to_cbor(), m.cause],
    Takeover: lambda m: [12],
    Broken: lambda m: [13, m.ballot.to_cbor(), m.attempt, m.round, m.other.to_cbor(), m.dial_failed, m.why],
    Void: lambda m: [14, m.ballot.to_cbor(), m.attempt, m.round, m.reason],
    Bye: lambda m: [15],
}


def _read_install(fields: Sequence[Cbor]) -> Install:
    view, top = View.from_cbor(fields[0]), Lineage.from_cbor(fields[1])
    if top.round < view.base.round or (top.round == view.base.round and top.head != view.base):
        raise ValueError("the sender's history does not reach its view's base")
    return Install(view, top, optional(fields[2], Plan.from_cbor))


_READ: dict[int, tuple[int, Callable[[Sequence[Cbor]], Message]]] = {
    1: (
        4,
        lambda f: Join(
            Member.from_cbor(f[0]),
            Ballot.from_cbor(f[1]),
            boolean(f[2], "founds"),
            number(f[3], "hops", at_most=MAX_HOPS),
        ),
    ),
    2: (1, lambda f: Joiners(tuple(items(f[0], Member.from_cbor, "joiners")))),
    3: (2, lambda f: Propose(Ballot.from_cbor(f[0]), optional(f[1], Roster.from_cbor))),
    4: (2, lambda f: Promise(Ballot.from_cbor(f[0]), Report.from_cbor(f[1]))),
    5: (2, lambda f: Refuse(Ballot.from_cbor(f[0]), Ballot.from_cbor(f[1]))),
    6: (3, _read_install),
    7: (3, lambda f: Enter(Ballot.from_cbor(f[0]), _attempt(f[1]), number(f[2], "round"))),
    8: (3, lambda f: Ready(Ballot.from_cbor(f[0]), _attempt(f[1]), RecordHead.from_cbor(f[2]))),
    9: (
        4,
        lambda f: Commit(
            Ballot.from_cbor(f[0]), _attempt(f[1]), RecordHead.from_cbor(f[2]), optional(f[3], Plan.from_cbor)
        ),
    ),
    10: (
        7,
        lambda f: Status(
            Roster.from_cbor(f[0]),
            Ballot.from_cbor(f[1]),
            RecordHead.from_cbor(f[2]),
            optional(f[3], RecordHead.from_cbor),
            optional(f[4], Ballot.from_cbor),
            boolean(f[5], "leaving"),
            boolean(f[6], "spoiled"),
        ),
    ),
    11: (2, lambda f: Suspect(MemberId.from_cbor(f[0]), text(f[1], "cause", at_most=MAX_CAUSE))),
    12: (0, lambda f: Takeover()),
    13: (
        6,
        lambda f: Broken(
            Ballot.from_cbor(f[0]),
            _attempt(f[1]),
            number(f[2], "round"),
            MemberId.from_cbor(f[3]),
            boolean(f[4], "dial_failed"),
            text(f[5], "why", at_most=MAX_CAUSE),
        ),
    ),
    14: (4, lambda f: Void(Ballot.from_cbor(f[0]), _attempt(f[1]), number(f[2], "round"), f[3])),
    15: (0, lambda f: Bye()),
}


def highest_ballot(message: Message) -> Ballot | None:
    """Return the highest ballot that a message speaks of, among those that a member takes over from others."""
    match message:
        case Join(_, promised) | Refuse(_, promised):
            return promised
        case Propose(ballot, view):
            return max(ballot, view.ballot) if view else ballot
        case Install(view):
            return view.ballot
        case Status(view, promised):
            return max(view.ballot, promised)
        case Promise(_, report) if report.view:
            return report.view.ballot
    return None


def encode_message(message: Message) -> Cbor:
    """Return the message as a value for the codec."""
    return _WRITE[type(message)](message)


def decode_message(value: Cbor) -> Message:
    """Read what ``encode_message`` made. Raises ValueError, and nothing else, on what it cannot have made."""
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise ValueError("a message is an array that begins with its number")
    known = _READ.get(value[0])
    if known is None:
        raise ValueError(f"there is no message {value[0]}")
    count, read = known
    return read(array(value[1:], count, "fields"))
