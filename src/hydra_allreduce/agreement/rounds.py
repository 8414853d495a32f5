"""Rounds: entering the ring, certifying its result, committing, and fetching what was missed."""

from __future__ import annotations

from collections.abc import Sequence

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.agreement.core import Call, Core, Want
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.quorum import is_certified, next_voters
from hydra_allreduce.agreement.record import Contribution, Kind, Lineage, RecordHead, RoundRecord
from hydra_allreduce.agreement.view import Link
from hydra_net.codec import Cbor
from hydra_net.errors import LocalProtocolError

MAX_BREAKS = 3
RETARGET = 3


class Rounds(Core):
    """The rules of a round. Nothing here happens while the member is sealed."""

    # ------------------------------------------------------------------------------------------------- the caller

    def _called(self, event: events.Called) -> None:
        if self.call is not None:
            raise LocalProtocolError(f"call {event.number} was made while call {self.call.number} is pending")
        # A call belongs to a round for ever; one that was made before there was anything to belong to waits for that.
        self.call = Call(event.number, self.rec.round + 1 if self._joined else None)
        self._enter()

    def round_running(self) -> bool:
        """Whether the next round has begun here or elsewhere, as far as is known."""
        view = self.view
        if view is None or self.sealed or self._spoiled:
            return False
        if view.carry and view.carry.prev == self.rec.id:
            return True
        number = self.rec.round + 1
        return self.entered == (view.ballot, number) or any(r == number for r in self.in_round.values())

    def _enter(self) -> None:
        """Do what the view and the pending call ask for, if anything. Harmless when repeated."""
        view = self.view
        if view is None or self.sealed or self.want or not self._on_base:
            return
        if self.call and self.call.round is None:
            self.call.round = self.rec.round + 1
        number = self.rec.round + 1
        if view.carry and view.carry.prev == self.rec.id:
            # The round is decided but for its certificate: no ring, no call needed.
            if self.id in view.ring:
                if self.held and self.held.id == view.carry.id:
                    self.held_ballot = view.ballot
                    self._send_ready(self.held.head)
                else:
                    self._fetch(view.carry, "held")
        elif self.id in view.ring and self.call and self.call.round == number and self.entered != (view.ballot, number):
            if not self.majority and len(view.members) < self.min_peers:
                self._wait("too_few_peers", f"the view has {len(view.members)} members, min_peers is {self.min_peers}")
                return
            self.entered = (view.ballot, number)
            self._ring_running = True
            self._do(events.StartRing(view, number, self.lineage.head, self.call.number))
            enter = messages.Enter(view.ballot, view.attempt, number)
            if view.coordinator == self.id:
                # Everybody watches the coordinator; the others are watched by it and by their neighbours in the ring.
                self.in_round[self.id] = number
                for m in view.by_id:
                    if m != self.id:
                        self._send(m, enter)
            else:
                self._send(view.coordinator, enter)
        if view.coordinator == self.id:
            self._try_commit()

    def _on_enter(self, sender: MemberId, message: messages.Enter) -> None:
        if self._ours(sender, message.ballot, message.attempt) and sender in self._ring():
            self.in_round[sender] = message.round
            if message.round == self.rec.round + 1:
                self._do(events.Entered(sender, message.round))

    # --------------------------------------------------------------------------------------------------- the ring

    def make_record(self, contributions: Sequence[Contribution], digest: bytes) -> RoundRecord:
        """Return the record of the round that the ring has just finished, complete: nothing is added at commit time."""
        view = self.view
        if view is None:
            raise LocalProtocolError("a record was asked for without a view")
        voters = next_voters(view, self.voters()) if self.majority else ()
        return RoundRecord(self.rec.round + 1, self.rec.id, view.ballot, tuple(contributions), digest, voters)

    def _ring_finished(self, event: events.RingFinished) -> None:
        view, record = self.view, event.record
        if view is None or self.sealed or event.attempt != view.attempt or not self._ring_running:
            return  # the ring of another view, or one that was stopped
        if (
            record.round != self.rec.round + 1
            or record.prev != self.rec.id
            or record.ballot != view.ballot
            or tuple(c.member for c in record.contributions) != view.ring
        ):
            raise LocalProtocolError("the finished record is not that of the round that runs")
        self._ring_running = False
        self.held = record
        self.held_ballot = view.ballot
        self._send_ready(record.head)

    def _ring_failed(self, event: events.RingFailed) -> None:
        view = self.view
        if view is None or self.sealed or event.attempt != view.attempt or not self._ring_running:
            return
        self._ring_running = False
        self._spoiled = True
        number = self.rec.round + 1
        broken = messages.Broken(view.ballot, view.attempt, number, event.peer, event.dial_failed, event.why[:200])
        if self.leader() == self.id:
            self._broken(self.id, broken)
        else:
            self._send(self.leader(), broken)

    def _on_broken(self, sender: MemberId, message: messages.Broken) -> None:
        if self._ours(sender, message.ballot, message.attempt) and message.round == self.rec.round + 1:
            self._broken(sender, message)

    def _broken(self, sender: MemberId, message: messages.Broken) -> None:
        """A ring broke while both ends may be well: nobody is expelled for it, but the ring needs a new view."""
        view = self.view
        assert view
        if sender not in view.by_id or message.other not in view.by_id or sender == message.other:
            self._drop(sender, "a link was reported broken that is none of this view's")
            return
        self._spoiled = True
        a, b = min(sender, message.other), max(sender, message.other)
        again = any({link.a, link.b} == {a, b} for link in view.avoid)
        if message.dial_failed:
            self.links[a, b] = Link(a, b, view.base.round)
        if self.leader() != self.id or self.proposal or again or self._breaks >= MAX_BREAKS:
            return  # the timer asks again: what breaks over and over must not keep everybody busy
        self._breaks += 1
        self.propose()

    def _round_void(self, event: events.RoundVoid) -> None:
        view = self.view
        if view is None or self.sealed or event.attempt != view.attempt or event.round != self.rec.round + 1:
            return
        void = messages.Void(view.ballot, view.attempt, event.round, event.reason)
        for m in view.by_id:
            if m != self.id:
                self._send(m, void)
        self._void(event.round, event.reason)

    def _on_void(self, sender: MemberId, message: messages.Void) -> None:
        if self._ours(sender, message.ballot, message.attempt) and message.round == self.rec.round + 1:
            if sender in self._ring():
                self._void(message.round, message.reason)
            else:
                self._drop(sender, "a round was called void by a member that is not in its ring")

    def _void(self, number: int, reason: Cbor) -> None:
        view = self.view
        assert view
        if (self.held and self.held.prev == self.rec.id) or (view.carry and view.carry.prev == self.rec.id):
            return  # finished, so it cannot be void
        if self._void_in == view.ballot:
            return  # said already: a call made since then is for the next view
        self._void_in = view.ballot
        self._spoiled = True
        self._stop_ring("the members' calls do not fit together")
        if self.call and self.call.round == number:
            call, self.call = self.call, None
            self._do(events.CallFailed(call.number, "void", number, reason))
        if self.leader() == self.id and not self.proposal:
            self.propose()

    # -------------------------------------------------------------------------------------------------- certifying

    def _send_ready(self, head: RecordHead) -> None:
        view = self.view
        assert view
        if view.coordinator == self.id:
            self.ready[self.id] = head
            self._try_commit()
        else:
            self._send(view.coordinator, messages.Ready(view.ballot, view.attempt, head))

    def _on_ready(self, sender: MemberId, message: messages.Ready) -> None:
        view = self.view
        if view is None or view.coordinator != self.id or not self._ours(sender, message.ballot, message.attempt):
            return
        if sender not in view.ring:
            self._drop(sender, "READY from a member that is not in the ring")
            return
        known = self.ready.get(sender)
        if known is None or known.round < message.head.round:
            self.ready[sender] = message.head
        elif known.round == message.head.round and known != message.head:
            self._two_results(known.round, (*self.ready.items(), (sender, message.head)))
            return
        self._try_commit()

    def _two_results(self, number: int, heads: Sequence[tuple[MemberId, RecordHead]]) -> None:
        if self._diverged != number:
            self._diverged = number
            found = tuple((m, head.id) for m, head in heads if head.round == number)
            self._do(events.Diverged(number, found))

    def _try_commit(self) -> None:
        """The only place where a round is decided: every contributor of this view holds the same record."""
        view = self.view
        if view is None or view.coordinator != self.id or self.sealed:
            return
        heads = [(m, head) for m, head in self.ready.items() if head.prev == self.rec.id]
        if not heads:
            return
        head = heads[0][1]
        if any(other != head for _, other in heads) or self._diverged == head.round:
            self._two_results(head.round, heads)
            return
        ready = {m: None for m, _ in heads}
        if any(m not in ready for m in view.ring):
            return
        if self.majority and not is_certified(ready, self.voters(), self.genesis):
            return
        if self._committed == head.id:
            return  # said already; this member is still fetching it
        self._committed = head.id
        mine = self.held if self.held and self.held.id == head.id else None
        self.plan = self._make_plan(mine) if mine else None
        commit = messages.Commit(view.ballot, view.attempt, head, self.plan)
        for m in view.by_id:
            if m != self.id:
                self._send(m, commit)
        if self.plan:
            self._announce_plan(self.plan)
        self._learn(self.lineage.extended(head))

    def _on_commit(self, sender: MemberId, message: messages.Commit) -> None:
        view = self.view
        if view is None or self.sealed or not self._ours(sender, message.ballot, message.attempt):
            return
        if sender != view.coordinator:
            self._drop(sender, "COMMIT from a member that does not coordinate")
            return
        self._take_plan(message.plan)
        self._learn(self.lineage.extended(message.head))

    # ---------------------------------------------------------------------------------------------------- committing

    def _learn(self, top: Lineage) -> None:
        """``top`` is committed in this view: commit it, or get it."""
        if self.sealed or top.round <= self.rec.round:
            return
        head = top.head
        if self.held and self.held.id == head.id and head.prev == self.rec.id:
            self._commit(self.held, self.lineage.extended(head))
            return
        if self._goal is None or top.round > self._goal.round:
            self._goal = top
        if self.want is None or self.want.kind == "held":
            self._fetch(self._goal.head, "committed")

    def _commit(self, record: RoundRecord, lineage: Lineage) -> None:
        jumped = record.prev != self.rec.id
        given_up = self.lineage.given_up_for(lineage)
        call, answered = self.call, None
        if given_up:
            self._do(events.Superseded(given_up))
        if call and call.round is not None:
            if given_up:
                self.call = None
                self._do(events.CallFailed(call.number, "superseded", call.round, record.round))
            elif call.round < record.round:
                self.call = None
                self._do(events.CallFailed(call.number, "fell_behind", call.round, record.round))
            elif call.round == record.round:
                self.call = None
                answered = call.number
        if self.held and self.held.round <= record.round:
            self.held = self.held_ballot = None
        self.rec = record
        self.lineage = lineage
        self._stop_fetch()
        self._stop_ring("the round was decided")
        self._on_base = self._joined = True
        self._void_in = None
        self._spoiled = False
        self._breaks = 0
        self.late = {}
        self._waiting = None
        self.ready = {m: head for m, head in self.ready.items() if head.round > record.round}
        self._do(events.Commit(record, answered, jumped))
        view = self.view
        if view and view.coordinator == self.id and self.plan is None and not self.sealed:
            self.plan = self._make_plan(record)
            if self.plan:
                self._announce_plan(self.plan)
        if self._goal and self._goal.round > record.round:
            self._learn(self._goal)
        else:
            self._goal = None
        self._enter()
        self._boundary()

    def _boundary(self) -> None:
        """A round was committed: the moment for everything that would disturb one."""

    # ----------------------------------------------------------------------------------------------------- fetching

    def _fetch(self, head: RecordHead, kind: Kind) -> None:
        self.want = Want(head, kind)
        self._ask()

    def _ask(self) -> None:
        """Ask the holders, beginning with another one each time."""
        view, want = self.view, self.want
        assert view
        assert want
        first = (view.coordinator,) if want.kind == "committed" else ()
        others = dict.fromkeys((*first, *view.ring, *view.by_id))
        others.pop(self.id, None)
        likely = [m for m in others if m not in self.suspects]
        turn = want.tries % len(likely) if likely else 0
        self._do(events.StartFetch(want.head, want.kind, tuple(likely[turn:] + likely[:turn])))

    def _ask_again(self) -> None:
        want = self.want
        if want is None or self.sealed:
            return
        want.tries += 1
        if want.kind == "committed" and self._goal and self._goal.round > want.head.round and want.tries >= RETARGET:
            self._fetch(self._goal.head, "committed")
        else:
            self._ask()

    def _fetched(self, event: events.Fetched) -> None:
        view, want, record = self.view, self.want, event.record
        if view is None or self.sealed or want is None or want.head.id != event.wanted:
            return
        if event.lineage.head != record.head or not event.lineage.contains(want.head):
            self._drop(self.id, "a holder answered a fetch with a record that does not follow the one wanted")
            return
        if want.kind == "held" and record.id == want.head.id:
            self.want = None
            self.held = record
            self.held_ballot = view.ballot
            self._enter()
        elif self.lineage.contains(record.head):
            self.want = None
            self._on_base = self._joined = True
            self._enter()
        else:
            self.want = None
            follows = record.prev == self.rec.id
            self._commit(record, self.lineage.extended(record.head) if follows else event.lineage)

    # -------------------------------------------------------------------------------------------------------- plans

    def _make_plan(self, record: RoundRecord) -> messages.Plan | None:
        view = self.view
        if self.make_plan is None or view is None:
            return None
        content = self.make_plan(record if record.round else None, view)
        return None if content is None else messages.Plan(view.ballot, record.round + 1, content)

    def _take_plan(self, plan: messages.Plan | None) -> None:
        """Take the coordinator's plan if it is of this view and newer than the last."""
        if plan is None or self.view is None or plan.ballot != self.view.ballot:
            return
        if self.plan is None or (plan.ballot, plan.round) > (self.plan.ballot, self.plan.round):
            self.plan = plan
            self._announce_plan(plan)

    def _announce_plan(self, plan: messages.Plan) -> None:
        self._do(events.PlanReceived(plan.content, plan.ballot.proposer, plan.ballot, plan.round))

    # ------------------------------------------------------------------------------------------------------- helpers

    def _ring(self) -> tuple[MemberId, ...]:
        return self.view.ring if self.view else ()

    def _ours(self, sender: MemberId, ballot: Ballot, attempt: bytes) -> bool:
        """Whether a frame belongs to the installed view, and that is still in force."""
        view = self.view
        if view is None or ballot != view.ballot or self.sealed:
            return False
        if attempt != view.attempt:
            self._drop(sender, f"{view.coordinator} has sent out two views under ballot {ballot}")
            return False
        return True
