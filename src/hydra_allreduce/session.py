"""One membership of one run: carries out what the agreement decides, and tells it what happened.

``MemberMachine`` decides and knows no I/O. The session feeds it with frames, timers and what rings and fetches came to,
and turns its actions into frames, rings, fetches and returned calls. Everything here happens in one event loop; the
machine is only ever entered through ``_drive``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

import anyio
import anyio.abc

from hydra_allreduce.agreement import (
    Contribution,
    Genesis,
    Member,
    MemberId,
    RecordHead,
    RoundRecord,
    View,
    events,
)
from hydra_allreduce.agreement.detector import Detector
from hydra_allreduce.agreement.member import MemberMachine
from hydra_allreduce.agreement.messages import decode_message, encode_message
from hydra_allreduce.agreement.view import MAX_ADDRESS, MAX_ADDRESSES
from hydra_allreduce.attempt import Attempt, Start
from hydra_allreduce.calls import Call, Calls
from hydra_allreduce.contacts import Contacts
from hydra_allreduce.errors import Diverged, FellBehind, GroupClosed, GroupError, Mismatch, Superseded, TooFewPeers
from hydra_allreduce.group_events import (
    GroupEvent,
    MemberJoined,
    MemberLost,
    PlanChanged,
    RoundsSuperseded,
    ViewChanged,
)
from hydra_allreduce.planning import Plan, PlanError, Planner
from hydra_allreduce.results import Result, Results
from hydra_allreduce.ring.links import RingLinks
from hydra_net import (
    STREAM_ERRORS,
    Address,
    Caller,
    Cbor,
    ConnectFailed,
    EventsLost,
    HydraError,
    Node,
    PeerDisconnected,
    PeerId,
    RemoteProtocolError,
)

logger = logging.getLogger("hydra_allreduce")

_MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class Terms:
    """What this member brings to a run: whom to ask for it, and its own limits (seconds)."""

    contacts: Sequence[PeerId | Address]
    min_peers: int
    stall: float
    lease: float


class Session:
    """See the module's docstring. ``run`` does the work until it is cancelled."""

    def __init__(self, node: Node, genesis: Genesis, terms: Terms, planner: Planner | None, rng: Random) -> None:
        run = genesis.run_id.hex()
        addresses = [str(address.without_peer()) for address in node.addresses]
        self._node = node
        self._terms = terms
        self._planner = planner
        self._method = f"hydra/group/{run}"
        self._me = Member(
            node.id,
            rng.getrandbits(63),
            "follower",
            tuple(a for a in addresses if a.isascii() and len(a) <= MAX_ADDRESS)[:MAX_ADDRESSES],
        )
        self._machine = MemberMachine(
            self._me,
            genesis,
            min_peers=terms.min_peers,
            period=min(terms.stall / 6, 1.0),
            newcomers_follow=False,  # the group has no state of its own: equal copies are the caller's business
            rng=rng,
            make_plan=self._make_plan if planner else None,
        )
        self._detector = Detector(stall=terms.stall, lease=terms.lease)
        self._contacts = Contacts(
            node,
            patience=terms.stall,
            found=lambda peer: self._drive(events.Contact(peer)),
            dead=lambda member, cause: self._drive(events.Suspected(member, cause)),
        )
        self._links = RingLinks(node, run)
        self._results = Results(node, run, self._machine.serve, patience=terms.stall)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._attempt: Attempt | None = None
        self._fetching: RecordHead | None = None
        self._fetch_scope = anyio.CancelScope()
        self._inbox: deque[events.Event] = deque()
        self._driving = False
        self._timer_changed = anyio.Event()
        self._watchers: list[Callable[[GroupEvent], None]] = []
        self._short_since: float | None = None
        self._short_of = ""
        self._told_of_jump = False
        self._offered: _Offer | None = None
        self._observed = 0  # the round of the record that the planner has seen last

        self.calls = Calls()
        self.view: View | None = None
        self.plan: Plan | None = None
        self.joined = anyio.Event()
        self.left = anyio.Event()

    @property
    def me(self) -> MemberId:
        """This process as a member of the run."""
        return self._me.id

    # ------------------------------------------------------------------------------------------ for the group

    async def run(self) -> None:
        """Take part until cancelled. Raises what is a bug here or in the planner, and NodeFailed."""
        with ExitStack() as stack:
            stack.enter_context(self._node.handle_inline(self._method, self._receive))
            stack.enter_context(self._links.serving())
            stack.enter_context(self._results.serving())
            async with self._node.events() as changes, anyio.create_task_group() as self._tasks:
                # Founding waits for this: who was told of others asks them before beginning a run of its own.
                await self._contacts.ask(self._terms.contacts, self._tasks)
                self._tasks.start_soon(self._tick)
                async for change in changes:
                    match change:
                        case PeerDisconnected(peer, cause):
                            for member in self._members_of(peer):
                                self._check(member, f"connection lost: {cause}")
                        case ConnectFailed(peer, failure):
                            for member in self._members_of(peer):
                                self._drive(events.Suspected(member, str(failure)[:_MAX_WORDS]))
                        case EventsLost():
                            for member in self._members_of(None):
                                self._check(member, "its connection may have been lost")

    def begin(self, call: Call) -> None:
        """Enter ``call`` into the next round. Only one can be pending."""
        self.calls.begin(call)
        if self._short_since is not None:
            self._short_since = self._now()  # this caller, too, waits for the whole lease
        self._drive(events.Called(call.number))

    def leave(self) -> None:
        """Ask to be let go at the next round boundary; ``left`` says when."""
        self._drive(events.LeaveRequested())

    def close(self) -> None:
        """Go at once, and tell the others."""
        self._drive(events.Closing())

    def watch(self, watcher: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Call ``watcher`` with every event from now on; returns how to stop that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    # ------------------------------------------------------------------------------------------ driving the machine

    def _drive(self, event: events.Event) -> None:
        self._inbox.append(event)
        if self._driving:
            return
        self._driving = True
        try:
            while self._inbox:
                for action in self._machine.handle(self._inbox.popleft(), self._now()):
                    self._perform(action)
        finally:
            self._driving = False
        self._detector.watch(self._machine.watched, self._now())
        held = self._machine.held
        self._results.keep_only([self._machine.rec.id, *([held.id] if held else [])])
        self._timer_changed.set()

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.Send(to, incarnation, message):
                if to == self._node.id:
                    return  # to an earlier process of this peer: nobody is there any more
                self._node.post(to, self._method, [self._me.incarnation, incarnation, encode_message(message)])
            case events.StartRing(_, round, base, number):
                call, attempt = self.calls.pending, self._attempt
                assert call is not None
                assert attempt is not None
                assert call.number == number
                attempt.start(Start(round, base, call))
            case events.StopRing():
                self._stop_attempt()
            case events.Install(view, reason):
                self._install(view, reason)
            case events.Commit(record, _, jumped):
                self._commit(record, jumped)
            case events.CallFailed(_, kind, round, detail):
                self._fail_call(kind, round, detail)
            case events.StartFetch(head, _, holders):
                self._start_fetch(head, holders)
            case events.StopFetch():
                self._fetch_scope.cancel()
                self._fetching = None
            case events.PlanReceived(plan, coordinator, _, round):
                self._offered = _Offer(plan, coordinator, round)
                self._take_plan()
            case events.Introduced(member):
                self._node.learn(member.peer, _addresses(member))
            case events.Entered(member):
                self._detector.entered(member)
            case events.Superseded(rounds):
                self._tell(RoundsSuperseded(rounds))
                self._fail_caller(Superseded(rounds))
            case events.Diverged(round, results):
                who = ", ".join(f"{member} has {record.hex()[:12]}" for member, record in results)
                self.calls.fail(Diverged(f"members finished round {round} with different results: {who}"))
                self._inbox.append(events.Closing())  # nothing that this member says of the round can be relied on
            case events.Waiting(_, detail):
                if self._short_since is None:
                    self._short_since = self._now()
                self._short_of = detail
            case events.Dropped(sender, why, forged):
                logger.log(logging.WARNING if forged else logging.INFO, "ignored a message of %s: %s", sender, why)
            case events.Left(reason):
                logger.info("left the run: %s", reason)
                self._stop_attempt()
                self.calls.fail(GroupClosed(f"this member has left the run ({reason})"))
                self.left.set()

    def _now(self) -> float:
        return self._node.clock.monotonic()

    async def _tick(self) -> None:
        self._drive(events.Tick())
        while not self.left.is_set():
            self._timer_changed = anyio.Event()
            lease_over = self._short_since + self._terms.lease if self._short_since is not None else float("inf")
            with anyio.CancelScope(deadline=min(self._machine.next_timer, self._detector.deadline, lease_over)):
                await self._timer_changed.wait()
                continue
            now = self._now()
            for member, cause in list(self._detector.suspects(now)):
                self._drive(events.Suspected(member, cause))
            if now >= lease_over:
                self._short_since = now
                self.calls.interrupt(TooFewPeers(self._terms.min_peers, self._short_of))
            if now >= self._machine.next_timer:
                self._drive(events.Tick())

    # ------------------------------------------------------------------------------------------ peers

    def _receive(self, caller: Caller, body: Cbor) -> None:
        match body:
            case [int(incarnation), int() | None as to, message]:
                pass
            case _:
                raise RemoteProtocolError(caller.peer, "sent something that is no message of a group")
        if to is not None and to != self._me.incarnation:
            return  # meant for an earlier process of this peer
        sender = MemberId(caller.peer, incarnation)
        try:
            decoded = decode_message(message)
        except ValueError as error:
            raise RemoteProtocolError(caller.peer, f"sent a malformed message of a group: {error}") from error
        self._detector.heard(sender, self._now())
        self._drive(events.Received(sender, decoded))

    def _members_of(self, peer: PeerId | None) -> list[MemberId]:
        """The processes of ``peer`` (None: of everybody) that matter and are not given up already."""
        known = self._machine.watched if self.view else tuple(self._machine.joiners)
        return [m for m in known if peer in (None, m.peer) and m not in self._machine.suspects]

    def _check(self, member: MemberId, cause: str) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._contacts.check, member, cause[:_MAX_WORDS])

    def _tell(self, event: GroupEvent) -> None:
        for watcher in list(self._watchers):
            watcher(event)

    # ------------------------------------------------------------------------------------------ views and rings

    def _install(self, view: View, reason: str) -> None:
        assert self._tasks is not None
        before, self.view = self.view, view
        logger.info("view %s: %d members, %d in the ring: %s", view.ballot, len(view.members), view.world_size, reason)
        for departure in view.lost:
            self.calls.gone(departure.member.peer, departure.cause)
        self._short_since = None
        self._detector.round_over()
        self._stop_attempt()
        if view.rank is not None:
            self._attempt = Attempt(view, self._links, self, self._node.clock)
            self._tasks.start_soon(self._attempt.run)
        for member in view.members:
            if member.id != self.me:
                self._node.learn(member.peer, _addresses(member))
                if not self._node.connected(member.peer):
                    self._check(member.id, "no connection to it could be had")
        if before is None:
            self.calls.joined_at(view.base.round)
        self._announce(before, view)
        self._check_joined()

    def _check_joined(self) -> None:
        if self.view is not None and self._machine.rec.round >= self.view.base.round:
            self.joined.set()

    def _announce(self, before: View | None, view: View) -> None:
        old = before.by_id if before else {}
        causes = {departure.member: departure.cause for departure in view.lost}
        for member in view.members:
            if member.id not in old:
                self._tell(MemberJoined(member.peer, view))
        for gone in old:
            if gone not in view.by_id:
                self._tell(MemberLost(gone.peer, causes.get(gone, "no longer a member"), view))
        self._tell(ViewChanged(view))

    def _stop_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.stop()
            self._attempt = None

    def make_record(self, contributions: Sequence[Contribution], digest: bytes) -> RoundRecord:
        """See ``attempt.Reports``."""
        return self._machine.make_record(contributions, digest)

    def ring_finished(self, attempt: Attempt, result: Result) -> None:
        """See ``attempt.Reports``."""
        if attempt is self._attempt:
            self._results.add(result)
            self._drive(events.RingFinished(attempt.view.attempt, result.record))

    def ring_failed(self, attempt: Attempt, neighbour: MemberId, dial_failed: bool, why: str) -> None:
        """See ``attempt.Reports``."""
        if attempt is self._attempt:
            self._drive(events.RingFailed(attempt.view.attempt, neighbour, dial_failed, why[:_MAX_WORDS]))

    def ring_mismatched(self, attempt: Attempt, round: int, mismatch: Mismatch) -> None:
        """See ``attempt.Reports``."""
        if attempt is self._attempt:
            words = (mismatch.field, str(mismatch.theirs), str(mismatch.ours))
            reason: list[Cbor] = [bytes(mismatch.peer), bytes(mismatch.other), *(text[:_MAX_WORDS] for text in words)]
            self._drive(events.RoundVoid(attempt.view.attempt, round, reason))

    # ------------------------------------------------------------------------------------------ results

    def _commit(self, record: RoundRecord, jumped: bool) -> None:
        result = self._results.get(record.id)
        assert result is not None
        assert self.view is not None
        self._detector.round_over()
        self._short_since = None
        if self._planner is not None:
            self._planner.observe(record)
            self._observed = record.round
            self._take_plan()
        if jumped or record.round <= self.calls.rounds:
            if self.joined.is_set() and not self._told_of_jump:
                self._fail_caller(FellBehind(self.calls.rounds + 1, record.round))
            self.calls.jumped_to(max(record.round, self.calls.rounds))
        else:
            self.calls.committed(record, result, self.view, self.plan, self._now())
        self._told_of_jump = False
        self._check_joined()

    def _fail_caller(self, error: GroupError) -> None:
        """Rounds of this member were missed or given up: its pending call says so, or the next one."""
        self._told_of_jump = True
        self.calls.fail(error)

    def _fail_call(self, kind: str, round: int, detail: Cbor) -> None:
        match kind, detail:
            case "void", [bytes(peer), bytes(other), str(field), str(theirs), str(ours)] if len(peer + other) == 64:
                self.calls.fail(Mismatch(PeerId(peer), PeerId(other), field, theirs, ours))
            case "void", _:
                self.calls.fail(GroupError(f"round {round} was called off by a member, for no reason that can be read"))
            case "fell_behind", _:
                self._fail_caller(FellBehind(round, self._machine.rec.round))

    def _start_fetch(self, head: RecordHead, holders: Sequence[MemberId]) -> None:
        assert self._tasks is not None
        if self._fetching != head:
            self._fetch_scope.cancel()
            self._fetching, self._fetch_scope = head, anyio.CancelScope()
            self._tasks.start_soon(self._fetch, head, holders, self._fetch_scope)

    async def _fetch(self, head: RecordHead, holders: Sequence[MemberId], scope: anyio.CancelScope) -> None:
        with scope:
            for holder in holders:
                try:
                    fetched = await self._results.fetch(head, holder.peer)
                except (HydraError, MemoryError, *STREAM_ERRORS) as error:
                    logger.info("cannot get the result of round %d from %s: %s", head.round, holder, error)
                    continue
                if fetched is not None and not scope.cancel_called:
                    self._fetching = None
                    result, lineage = fetched
                    self._drive(events.Fetched(head.id, result.record, lineage))
                    return
            if self._fetching == head and self._fetch_scope is scope:
                self._fetching = None  # the machine's timer asks again

    # ------------------------------------------------------------------------------------------ plans

    def _make_plan(self, record: RoundRecord | None, view: View) -> Cbor:
        assert self._planner is not None
        plan = self._planner.plan(record, view.members)
        return plan.renumbered(view.ballot.n, record.round + 1 if record else 1).to_cbor()

    def _take_plan(self) -> None:
        """Use the plan that was offered, once the record that it follows is here: the planner checks growth by it."""
        offered, planner = self._offered, self._planner
        if offered is None or planner is None or self.view is None or offered.round > self._observed + 1:
            return
        self._offered = None
        try:
            plan = Plan.from_cbor(offered.content)
            planner.check(plan, self.view.members)
        except PlanError as error:
            logger.warning("kept the last plan, that of coordinator %s was refused: %s", offered.coordinator, error)
            return
        self.plan = plan
        self._tell(PlanChanged(plan))


@dataclass(frozen=True, slots=True)
class _Offer:
    """A coordinator's plan that was not looked at yet."""

    content: Cbor
    coordinator: MemberId
    round: int


def _addresses(member: Member) -> list[Address]:
    parsed = []
    for text in member.addresses:
        try:
            parsed.append(Address.parse(text).with_peer(member.peer))
        except ValueError as error:
            logger.info("ignored an address of %s: %s", member.id, error)
    return parsed
