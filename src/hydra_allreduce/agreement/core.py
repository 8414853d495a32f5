"""What a member knows, and the small questions that all its parts ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.agreement.decide import Reason, Report
from hydra_allreduce.agreement.genesis import Genesis
from hydra_allreduce.agreement.ids import NO_BALLOT, Ballot, MemberId
from hydra_allreduce.agreement.quorum import Side
from hydra_allreduce.agreement.record import Kind, Lineage, RecordHead, RecordId, RoundRecord, genesis_record
from hydra_allreduce.agreement.view import Link, Member, View
from hydra_net.codec import Cbor
from hydra_net.identity import PeerId

MAX_CONTACTS = 64
MAX_PEOPLE = 1024

PlanMaker = Callable[[RoundRecord | None, View], Cbor]


@dataclass(slots=True)
class Call:
    """The pending call. ``round`` is None until this member has reached a base for the first time."""

    number: int
    round: int | None


@dataclass(slots=True)
class Want:
    """The record that is being fetched."""

    head: RecordHead
    kind: Kind
    tries: int = 0


@dataclass(slots=True)
class Proposal:
    """A view change that this member has begun and that waits for reports."""

    ballot: Ballot
    targets: dict[MemberId, None]
    reports: dict[MemberId, Report]
    given_up: dict[MemberId, None]
    periods: int = 0


class Core(ABC):
    """State of one member, and helpers. The rules are in the classes that extend it."""

    def __init__(
        self,
        me: Member,
        genesis: Genesis,
        *,
        min_peers: int = 1,
        period: float = 1.0,
        founding_time: float = 1.0,
        newcomers_follow: bool = True,
        rng: Random,
        make_plan: PlanMaker | None = None,
    ) -> None:
        self.me = me
        self.id = me.id
        self.genesis = genesis
        self.majority = genesis.quorum == "majority"
        self.min_peers = min_peers
        self.period = period
        self.founding_time = founding_time
        self.newcomers_follow = newcomers_follow
        self.founds = founding_time < float("inf")
        self.make_plan = make_plan
        self._rng = rng
        self._out: list[events.Action] = []
        # Views.
        self.view: View | None = None
        self.promised: Ballot = NO_BALLOT
        self.seen: Ballot = NO_BALLOT
        self.proposal: Proposal | None = None
        self.suspects: dict[MemberId, str] = {}
        self.left = False
        self.leaving = False
        # Rounds.
        self.rec: RoundRecord = genesis_record(genesis)
        self.lineage = Lineage(0, (self.rec.prev, self.rec.id))
        self.held: RoundRecord | None = None
        self.held_ballot: Ballot | None = None
        self.call: Call | None = None
        self.want: Want | None = None
        self.entered: tuple[Ballot, int] | None = None
        self.ready: dict[MemberId, RecordHead] = {}
        self.in_round: dict[MemberId, int] = {}
        self._ring_running = False
        self._spoiled = False  # the view's next round cannot finish in it: the ring broke or was void
        self._void_in: Ballot | None = None  # the view in which its next round was void
        self._breaks = 0  # views made because a ring broke since the last commit
        self._on_base = False  # rec is the view's base or follows it
        self._joined = False  # has been on a base once
        self._base = self.lineage  # the history up to the view's base
        self._goal: Lineage | None = None  # the furthest commit that is known in this view
        self._committed: RecordId | None = None  # the last record for which COMMIT was sent
        self._diverged: int | None = None
        self.plan: messages.Plan | None = None
        # Wishes for the next view, and the way into one.
        self.joins: dict[MemberId, Member] = {}
        self.late: dict[MemberId, None] = {}
        self.leavers: dict[MemberId, None] = {}
        self.links: dict[tuple[MemberId, MemberId], Link] = {}
        self.caught_up: dict[MemberId, RecordId] = {}
        self.join_to: MemberId | None = None
        self._join_periods = 0
        self.contacts: dict[PeerId, None] = {}
        self.joiners: dict[MemberId, Member] = {}
        self.people: dict[MemberId, Member] = {}
        self._causes: dict[MemberId, str] = {}
        self._waiting: str | None = None
        # Time.
        self._now = float("-inf")
        self._timer = float("-inf")
        self._founding_at: float | None = None
        self._wire()

    # ------------------------------------------------------------------------------------------ what it is asked

    @property
    def sealed(self) -> bool:
        """Whether a higher ballot than the view's was promised: then nothing of the view is obeyed any more."""
        return self.view is None or self.promised > self.view.ballot

    @property
    def next_timer(self) -> float:
        """When ``Tick`` is due, in the clock of ``now``. Changes with every event."""
        if self._founding_at is not None and self.view is None and self._founding_at > self._now:
            return min(self._timer, self._founding_at)
        return self._timer

    @property
    def watched(self) -> tuple[MemberId, ...]:
        """Whose silence means something, for the failure detector: who leads hears from everybody, as does who waits
        for reports or founds; the others hear from their leader alone, and from whom they ask to be let in."""
        wanted: dict[MemberId, None] = {}
        if self.proposal:
            wanted.update(self.proposal.targets)
        elif self.view:
            leader = self.leader()
            wanted.update(dict.fromkeys(self.view.by_id) if leader == self.id else {leader: None})
        else:
            wanted.update(dict.fromkeys(self.joiners))
        if self.join_to:
            wanted[self.join_to] = None
        wanted.pop(self.id, None)
        return tuple(wanted)

    def leader(self) -> MemberId:
        """The first member of the view that is not suspected."""
        if self.view:
            for m in self.view.by_id:
                if m == self.id or m not in self.suspects:
                    return m
        return self.id

    def top(self) -> Lineage:
        """The history that this member's view stands for: never a record that the view has given up."""
        return self.lineage if self._on_base else self._base

    def side(self) -> Side:
        """This member's view as one of two that meet."""
        assert self.view
        return Side(self.top(), self.view.ballot, len(self.view.members))

    def report(self) -> Report:
        """What a proposer has to know."""
        return Report(
            self.me,
            self.view,
            self.lineage,
            self.voters(),
            self.held.head if self.held else None,
            self.held_ballot,
            None if self.view is None or self._on_base else self._base,
            self.leaving,
        )

    def roster(self) -> messages.Roster | None:
        """The view by name, with those who are in it."""
        return messages.Roster(self.view.ballot, tuple(self.view.by_id)) if self.view else None

    def voters(self) -> tuple[MemberId, ...]:
        """Who counts for the next round's quorum ("majority" only)."""
        return self.rec.voters if self.rec.round or self.view is None else self.view.founders

    def serve(self, wanted: RecordHead) -> events.Served | None:
        """What this member gives to one that fetches ``wanted``, or None. It keeps ``rec`` and ``held``."""
        if self.rec.id == wanted.id:
            return events.Served(self.rec, self.lineage)
        if self.held and self.held.id == wanted.id:
            return events.Served(self.held, self.lineage.extended(self.held.head))
        if wanted.round < self.rec.round and self.lineage.contains(wanted):
            return events.Served(self.rec, self.lineage)
        return None

    # ------------------------------------------------------------------------------------------------- what it does

    def _do(self, action: events.Action) -> None:
        self._out.append(action)

    def _send(self, to: MemberId, message: messages.Message) -> None:
        self._out.append(events.Send(to.peer, to.incarnation, message))

    def _drop(self, sender: MemberId, why: str, *, forged: bool = True) -> None:
        self._out.append(events.Dropped(sender, why, forged))

    def _join_message(self) -> messages.Join:
        return messages.Join(self.me, self.promised, self.founds)

    def _meet(self, member: Member) -> None:
        """Remember where a member can be dialled."""
        if member.id == self.id or self.people.get(member.id) == member:
            return
        if len(self.people) >= MAX_PEOPLE:
            del self.people[next(iter(self.people))]
        self.people[member.id] = member
        self._do(events.Introduced(member))

    def _remember(self, peer: PeerId) -> None:
        """Remember a peer that may know of the run."""
        if peer == self.me.peer or peer in self.contacts:
            return
        if len(self.contacts) >= MAX_CONTACTS:
            del self.contacts[next(iter(self.contacts))]
        self.contacts[peer] = None

    def _promise(self, ballot: Ballot) -> None:
        """Raise the fence: from here on nothing of the installed view counts."""
        self.promised = ballot
        self.seen = max(self.seen, ballot)
        if self.sealed:
            self._stop_ring("a new view is being made")
            self._stop_fetch()

    def _stop_ring(self, reason: str) -> None:
        if self._ring_running:
            self._ring_running = False
            self._do(events.StopRing(reason))

    def _stop_fetch(self) -> None:
        if self.want:
            self.want = None
            self._do(events.StopFetch())

    def _wait(self, reason: Reason, detail: str) -> None:
        if self._waiting != detail:
            self._waiting = detail
            self._do(events.Waiting(reason, detail))

    def _depart(self, reason: str) -> None:
        """Out for good. Whoever still counts on this member is told."""
        self._stop_ring(reason)
        self._stop_fetch()
        told = dict.fromkeys(self.view.by_id) if self.view else {}
        if self.proposal:
            told.update(self.proposal.targets)
        for m in told:
            if m != self.id:
                self._send(m, messages.Bye())
        self.left = True
        self._do(events.Left(reason))

    # ------------------------------------------------------------------ what a rule needs of those that are built on it

    @abstractmethod
    def _wire(self) -> None:
        """Say which method takes which event and message."""

    @abstractmethod
    def propose(self, extra: tuple[MemberId, ...] = ()) -> None:
        """Begin a view change."""

    @abstractmethod
    def _suspect(self, member: MemberId, cause: str) -> None: ...
