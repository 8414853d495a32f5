"""View changes: proposing, promising, deciding, installing."""

from __future__ import annotations

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.agreement.core import Proposal
from hydra_allreduce.agreement.decide import Decision, Report, Wishes, decide
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.quorum import Side, loses
from hydra_allreduce.agreement.record import Lineage
from hydra_allreduce.agreement.rounds import Rounds
from hydra_allreduce.agreement.shape import MAX_MEMBERS
from hydra_allreduce.agreement.view import View

JOIN_PATIENCE = 2
"""Periods that a proposal waits for somebody who only wants in and has gone silent."""


class Changes(Rounds):
    """The rules of a view change."""

    # ------------------------------------------------------------------------------------------------- proposing

    def propose(self, extra: tuple[MemberId, ...] = ()) -> None:
        """Ask everybody for a promise and a report: suspects too, for silence expels and suspicion does not."""
        view = self.view
        if view is None or self.left or self.join_to:
            return  # who asks to be let in does not propose: the group goes on without it, and it would only disturb
        self._promise(Ballot(max(self.promised, self.seen).n + 1, self.id))
        targets = dict.fromkeys((*view.by_id, *self.joins, *extra))
        if self.majority:
            targets.update(dict.fromkeys(self.voters()))
        self._begin(targets)

    def _begin(self, targets: dict[MemberId, None]) -> None:
        targets.pop(self.id, None)
        self.proposal = Proposal(self.promised, {}, {self.id: self.report()}, {})
        self._add_targets(tuple(targets))
        self._try_install()

    def _add_targets(self, members: tuple[MemberId, ...]) -> None:
        """Ask these as well, if they have not been asked yet."""
        proposal = self.proposal
        assert proposal
        for m in members:
            if m != self.id and m not in proposal.targets and len(proposal.targets) < MAX_MEMBERS:
                proposal.targets[m] = None
                self._send(m, messages.Propose(proposal.ballot, self.roster()))

    def _silent(self) -> list[MemberId]:
        """Whose report is still waited for: silence expels, but only once it is found to be silence."""
        proposal = self.proposal
        assert proposal
        known = (proposal.reports, self.suspects, proposal.given_up)
        return [m for m in proposal.targets if not any(m in done for done in known)]

    def _propose_again(self) -> None:
        """The timer of one who waits for reports."""
        proposal = self.proposal
        assert proposal
        proposal.periods += 1
        for m in [m for m in proposal.targets if m not in proposal.reports and m not in proposal.given_up]:
            # Suspects too: two that suspect each other, and wait for want of members, must hear of each other again.
            stranger = (self.view is None or m not in self.view.by_id) and m not in self.voters()
            if stranger and m in self.joins and proposal.periods > JOIN_PATIENCE:
                # It asked to be let in and does not answer: a joiner must not hold the group up.
                proposal.given_up[m] = None
                del self.joins[m]
            else:
                self._send(m, messages.Propose(proposal.ballot, self.roster()))
        self._try_install()

    def _on_propose(self, sender: MemberId, message: messages.Propose) -> None:
        view, ballot = self.view, message.ballot
        if ballot.proposer != sender:
            self._drop(sender, "PROPOSE under somebody else's ballot")
            return
        if view is not None and not self.join_to and sender not in view.by_id:
            missed = message.view and message.view.ballot > view.ballot and self.id in message.view.members
            if not missed and not (self.majority and sender in self.voters()):
                self._send(sender, messages.Install(view, self.top(), self.plan))
                return
        if view is None and message.view is not None and self.join_to is None:
            self._ask_to_join(sender, send=False)  # it is being let in: no need to found a run of its own
        if ballot > self.promised:
            self._forget_silent_joiners()
            self.proposal = None
            self._promise(ballot)
            self._send(sender, messages.Promise(ballot, self.report()))
        elif ballot < self.promised:
            self._send(sender, messages.Refuse(ballot, self.promised))
        elif view is None or view.ballot < ballot:
            self._send(sender, messages.Promise(ballot, self.report()))

    def _forget_silent_joiners(self) -> None:
        """A proposal gives way. Had it waited for a joiner that is gone, so would the next: two leaders would take
        turns for ever. One that is alive asks again."""
        if self.proposal:
            for m in [m for m in self.joins if m in self.proposal.targets and m not in self.proposal.reports]:
                del self.joins[m]

    def _on_refuse(self, sender: MemberId, message: messages.Refuse) -> None:
        self.seen = max(self.seen, message.promised)
        if self.proposal and self.proposal.ballot == message.ballot:
            self._forget_silent_joiners()
            self.proposal = None  # the timer tries again, if this member leads

    def _on_promise(self, sender: MemberId, message: messages.Promise) -> None:
        proposal, report = self.proposal, message.report
        if proposal is None or proposal.ballot != message.ballot:
            return
        if report.member.id != sender:
            self._drop(sender, "PROMISE with somebody else's report")
            return
        if sender not in proposal.targets:
            self._drop(sender, "PROMISE from a member that was not asked")
            return
        self._meet(report.member)
        proposal.reports[sender] = report
        if self.view and report.view and sender in self.view.by_id and report.view.ballot > self.view.ballot:
            for member in report.view.members:
                self._meet(member)
            theirs = Side(report.top, report.view.ballot, len(report.view.members))
            if self.id in report.view.by_id:
                self._add_targets(tuple(report.view.by_id))
            elif loses(self.side(), theirs):
                self.proposal = None
                self._ask_to_join(sender)
                return
            # Else it left a fork that gives way to this one: its report counts like a joiner's.
        if self.majority:
            self._add_targets(report.voters)
        self._try_install()

    def _try_install(self) -> None:
        proposal = self.proposal
        if proposal is None:
            return
        if self._silent():
            return
        causes = {**self._causes, **self.suspects}
        wishes = Wishes(tuple(self.late), tuple(self.links.values()), causes)
        decision = self._decide(proposal, wishes)
        made = decision.view
        if made is None:
            if decision.verdict == "diverged":
                heads = [(m, r.held) for m, r in proposal.reports.items() if r.held]
                number = max(r.rec.round for r in proposal.reports.values()) + 1
                self._two_results(number, heads)
            else:
                self._wait(decision.reason, decision.detail)
            return
        base = decision.base
        assert base
        for m in [m for m in self.joins if m in self.suspects and m not in proposal.reports]:
            # It was asked, and suspicion did not wait for it. If it is alive it asks again; if the wish is an old one
            # that was passed on late, keeping it would make one view after another.
            del self.joins[m]
        self.proposal = None
        # A plan needs the base's record, which may still have to be fetched.
        mine = (
            self.rec
            if self.rec.id == made.base.id
            else self.held
            if self.held and self.held.id == made.base.id
            else None
        )
        old, self.view = self.view, made.seen_by(self.id)
        plan = self._make_plan(mine) if mine else None
        self.view = old
        for m in proposal.reports:
            if m != self.id:
                self._send(m, messages.Install(made, base, plan))
        self._install(made, base, plan, decision.reason)

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        reports: dict[MemberId, Report] = proposal.reports
        return decide(
            proposal.ballot,
            self.view,
            reports,
            wishes,
            genesis=self.genesis,
            min_peers=self.min_peers,
            newcomers_follow=self.newcomers_follow,
        )

    # ------------------------------------------------------------------------------------------------- installing

    def _on_install(self, sender: MemberId, message: messages.Install) -> None:
        view, new, top = self.view, message.view, message.top
        for member in new.members:
            self._meet(member)
        if self.id not in new.by_id:
            self._foreign(sender, message)
        elif view and new.ballot <= view.ballot:
            if new.ballot == view.ballot and new.attempt != view.attempt:
                self._drop(sender, f"{view.coordinator} has sent out two views under ballot {new.ballot}")
            elif new.ballot != view.ballot and sender not in view.by_id:
                self._foreign(sender, message)
            elif new.ballot == view.ballot and not self.sealed:
                self._take_plan(message.plan)
                self._learn(top)
        elif new.ballot == self.promised:
            if self.lineage.round > new.base.round and self.lineage.contains(new.base):
                self._drop(sender, "INSTALL of a view that forgets what was committed here")
                return
            self._install(new, top, message.plan, "carry" if new.carry else "ring")
        elif self.promised > new.ballot and self.proposal:
            # This member's own proposal waits, perhaps for want of those: ask the members of the view that it missed.
            self._add_targets(tuple(new.by_id))

    def _install(self, new: View, top: Lineage, plan: messages.Plan | None, reason: str) -> None:
        old = self.view
        self._stop_ring("a new view is installed")
        self._stop_fetch()
        self.view = view = new.seen_by(self.id)
        self.proposal = None
        self.join_to = None
        self._join_periods = 0
        self.entered = None
        self.ready = {}
        self.in_round = {}
        if view.coordinator != self.id:
            self.late = {}
        self.links = {}
        self.caught_up = {}
        self.joins = {m: member for m, member in self.joins.items() if m not in view.by_id}
        self.leavers = {m: None for m in view.leaving if m != self.id}
        self.joiners = {}
        self._causes = {}
        self._spoiled = False
        self._goal = self._committed = self._diverged = self._waiting = None
        self._base = top.upto(view.base)
        self._part_with(old, view)
        self.plan = None
        self._do(events.Install(view, reason))
        self._take_plan(plan)
        if self.rec.id == view.base.id:
            self._on_base = self._joined = True
        elif self.held and self.held.id == view.base.id and view.base.prev == self.rec.id:
            self._commit(self.held, self.lineage.extended(view.base))
        else:
            self._on_base = False
            self._fetch(view.base, "committed")
        self._learn(top)
        self._enter()
        self._settled()

    def _settled(self) -> None:
        """A view was installed: the moment for what waited for one."""

    def _part_with(self, old: View | None, new: View) -> None:
        """Remember the peers of those who were lost: a healed partition shows in that one of them answers."""
        for member in new.members:
            self._remember(member.peer)
        gone = {d.member: d.cause for d in new.lost}
        for member in old.members if old else ():
            if gone.get(member.id) == "left":
                self.contacts.pop(member.peer, None)

    def _foreign(self, sender: MemberId, message: messages.Install) -> None:
        """A view that this member is not in, or that comes from somebody who is not in its own: islands meet."""
        view, new = self.view, message.view
        if view is None:
            self.proposal = None
            self._ask_to_join(sender)
            return
        if new.attempt == view.attempt:
            return
        if self.leaving and new.ballot > view.ballot:
            self._depart("left")
            return
        if loses(self.side(), Side(message.top, new.ballot, len(new.members))):
            self.proposal = None
            # This seals the old view: from here on nothing of it is returned any more.
            self._promise(max(self.promised, new.ballot))
            self._ask_to_join(sender)
        else:
            self._send(sender, messages.Install(view, self.top(), self.plan))

    # ---------------------------------------------------------------------------------------------------- joining

    def _ask_to_join(self, sponsor: MemberId, *, send: bool = True) -> None:
        self._remember(sponsor.peer)
        if self.join_to != sponsor:
            self.join_to = sponsor
            self._join_periods = 0
        if send:
            self._send(sponsor, self._join_message())
