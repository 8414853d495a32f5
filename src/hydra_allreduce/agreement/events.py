"""What a member is told (events) and what it wants done (actions).

``MemberMachine.handle(event, now)`` takes one event and returns the actions in the order in which they must be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hydra_allreduce.agreement.decide import Reason
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.messages import Message
from hydra_allreduce.agreement.record import Kind, Lineage, RecordHead, RecordId, RoundRecord
from hydra_allreduce.agreement.view import Member, View
from hydra_net.codec import Cbor
from hydra_net.identity import PeerId

# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived, on a connection that is known to be ``sender.peer``'s."""

    sender: MemberId
    message: Message


@dataclass(frozen=True, slots=True)
class Contact:
    """A peer that may know of the run; may be told at any time and again."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Called:
    """The application calls for a round. Only one call may be pending; numbers are never used twice."""

    number: int


@dataclass(frozen=True, slots=True)
class RingFinished:
    """The ring of this attempt is complete. ``record`` is what ``MemberMachine.make_record`` gave."""

    attempt: bytes
    record: RoundRecord


@dataclass(frozen=True, slots=True)
class RingFailed:
    """The ring of this attempt broke at the link to ``peer``; ``dial_failed``: that link cannot be had at all."""

    attempt: bytes
    peer: MemberId
    dial_failed: bool
    why: str


@dataclass(frozen=True, slots=True)
class RoundVoid:
    """The ring found two members' calls of this round not to fit together; ``reason`` is passed to all callers."""

    attempt: bytes
    round: int
    reason: Cbor


@dataclass(frozen=True, slots=True)
class Fetched:
    """A holder answered a fetch: with the record that was wanted, or with its own committed one if it is further on.

    Attributes:
        wanted: id of the record that ``StartFetch`` named.
        record: what came (its bytes are here too).
        lineage: the history that the holder gave with it (``Served.lineage``).
    """

    wanted: RecordId
    record: RoundRecord
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Suspected:
    """The detector says that a member is gone. Any frame from it withdraws that."""

    member: MemberId
    cause: str


@dataclass(frozen=True, slots=True)
class Late:
    """Coordinator only: others wait for this member in a round, patience is over, and it answers pings."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The application wants to leave at the next round boundary."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The process goes at once, in good order: tell the others."""


@dataclass(frozen=True, slots=True)
class Tick:
    """``next_timer`` has come, or a connection came back."""


Event = (
    Received
    | Contact
    | Called
    | RingFinished
    | RingFailed
    | RoundVoid
    | Fetched
    | Suspected
    | Late
    | LeaveRequested
    | Closing
    | Tick
)

# --------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; it may get lost. ``incarnation`` None: whichever process that peer runs now."""

    to: PeerId
    incarnation: int | None
    message: Message


@dataclass(frozen=True, slots=True)
class Introduced:
    """Frames may go to this member soon: here is where it can be dialled."""

    member: Member


@dataclass(frozen=True, slots=True)
class StartRing:
    """Take part in the ring of ``view`` for ``round``, with the input of call ``call``."""

    view: View
    round: int
    base: RecordHead
    call: int


@dataclass(frozen=True, slots=True)
class StopRing:
    """Leave the ring that is running; nothing that it still does counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Install:
    """This is the view now."""

    view: View
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The round is decided.

    Attributes:
        record: the committed record; its bytes are those of the held or fetched result.
        call: number of the call that it answers, or None.
        jumped: rounds before it were missed (fetched from a holder that was further on).
    """

    record: RoundRecord
    call: int | None
    jumped: bool


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The pending call gets no result.

    Attributes:
        call: its number.
        kind: "fell_behind": the group is past its round. "superseded": the history that it built on was given up.
            "void": the members' calls of that round did not fit together; the round can be called again. (If somebody
            had finished the round before, with this call in it, that is what the next call may get: the record says.)
        round: the round that the call belonged to.
        detail: of "void" the reason that was found, of the others the round that the group is at.
    """

    call: int
    kind: Literal["fell_behind", "superseded", "void"]
    round: int
    detail: Cbor


@dataclass(frozen=True, slots=True)
class StartFetch:
    """Get this record and its bytes from one of the holders, tried in order. Repeated by the timer, in another order:
    a fetch of the same record that is still getting bytes goes on."""

    head: RecordHead
    kind: Kind
    holders: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class StopFetch:
    """Stop the fetch that is running."""


@dataclass(frozen=True, slots=True)
class PlanReceived:
    """The coordinator's plan for a round."""

    plan: Cbor
    coordinator: MemberId
    ballot: Ballot
    round: int


@dataclass(frozen=True, slots=True)
class Entered:
    """A member has entered the round: until the commit it has nothing to do but answer."""

    member: MemberId
    round: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """These rounds were committed here and are given up: the group had split and the other part goes on."""

    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Diverged:
    """Members finished one round with different results: it is never decided, by anybody."""

    round: int
    results: tuple[tuple[MemberId, RecordId], ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """No view or round can be had at the moment, and why: "too_few_peers", "no_quorum", "founders" or "no_holder"."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something from ``sender`` was not obeyed. ``forged``: no correct member can have sent it."""

    sender: MemberId
    why: str
    forged: bool = True


@dataclass(frozen=True, slots=True)
class Left:
    """This member is out, for good; the machine ignores everything from now on."""

    reason: str


Action = (
    Send
    | Introduced
    | StartRing
    | StopRing
    | Install
    | Commit
    | CallFailed
    | StartFetch
    | StopFetch
    | PlanReceived
    | Entered
    | Superseded
    | Diverged
    | Waiting
    | Dropped
    | Left
)


@dataclass(frozen=True, slots=True)
class Served:
    """What a holder gives to one that fetches: a record whose bytes it keeps, and the history up to it."""

    record: RoundRecord
    lineage: Lineage
