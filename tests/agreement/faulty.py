"""Members that break one rule each: the schedules must catch every one of them, or they would prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hydra_allreduce.agreement import Ballot, MemberMachine, messages
from hydra_allreduce.agreement.core import Proposal
from hydra_allreduce.agreement.decide import Decision, Wishes
from hydra_allreduce.agreement.record import Lineage, RoundRecord


def _with(proposal: Proposal, reports: Mapping) -> Proposal:
    return Proposal(proposal.ballot, proposal.targets, dict(reports), proposal.given_up, proposal.periods)


def _without_held(report):
    return replace(report, held=None, held_ballot=None)


class NoFence(MemberMachine):
    """A member that has promised a later view goes on in the old one."""

    @property
    def sealed(self) -> bool:
        return self.view is None


class HeldDroppedAtInstall(MemberMachine):
    """A finished result is forgotten when a view is installed that does not carry it."""

    def _install(self, new, *args):
        if self.held and self.held.head != new.carry:
            self.held = self.held_ballot = None
        super()._install(new, *args)


class CommitByAnyReady(MemberMachine):
    """One READY is enough."""

    def _try_commit(self) -> None:
        if self.view and self.view.coordinator == self.id and self.ready:
            head = next(iter(self.ready.values()))
            for m in self.view.ring:
                self.ready.setdefault(m, head)
        super()._try_commit()


class CarryAtOnce(MemberMachine):
    """What a view carries counts as decided when the view is made: whoever holds it commits."""

    def _install(self, new, *args):
        super()._install(new, *args)
        if self.held and self.view and self.held.head == self.view.carry and self.held.prev == self.rec.id:
            self._commit(self.held, self.lineage.extended(self.held.head))


class CarryNeedsAllHolders(MemberMachine):
    """A finished result is carried only if everybody who reports holds it."""

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        reports = proposal.reports
        if len({r.held for r in reports.values()}) > 1:
            proposal = _with(proposal, {m: _without_held(r) for m, r in reports.items()})
        return super()._decide(proposal, wishes)


class CarryIgnored(MemberMachine):
    """The ring always runs again."""

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        reports = {m: _without_held(r) for m, r in proposal.reports.items()}
        return super()._decide(_with(proposal, reports), wishes)


class LowestHeldBallotWins(MemberMachine):
    """Of two finished results the one made ready in the earlier view is carried."""

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        reports = {
            m: replace(r, held_ballot=Ballot(2**40 - r.held_ballot.n, r.held_ballot.proposer)) if r.held_ballot else r
            for m, r in proposal.reports.items()
        }
        return super()._decide(_with(proposal, reports), wishes)


class LowestBase(MemberMachine):
    """A view starts from the least that anybody has committed."""

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        least = min(proposal.reports.values(), key=lambda r: r.rec.round)
        reports = {m: replace(r, rec=least.rec, voters=least.voters) for m, r in proposal.reports.items()}
        return super()._decide(_with(proposal, reports), wishes)


class CallRollsOver(MemberMachine):
    """A call that missed its round is entered in the next one."""

    def _commit(self, record: RoundRecord, lineage: Lineage) -> None:
        if self.call and self.call.round is not None and self.call.round <= record.round:
            share = record.contribution(self.id)
            if share is None or self.call.round < record.round:
                self.call.round = record.round + 1
        super()._commit(record, lineage)


class PromisesLowerBallots(MemberMachine):
    """A promise is given to whoever asks last."""

    def _on_propose(self, sender, message: messages.Propose) -> None:
        if message.ballot < self.promised and (self.view is None or message.ballot > self.view.ballot):
            self.promised = self.view.ballot if self.view else Ballot(0, message.ballot.proposer)
        super()._on_propose(sender, message)


class DecidesWithoutWaiting(MemberMachine):
    """A proposer does not wait for the reports of all that it asked."""

    def _silent(self):
        return []


class AsksOnlyTheUnsuspected(MemberMachine):
    """Suspicion expels: a suspect is not asked."""

    def _begin(self, targets) -> None:
        super()._begin({m: None for m in targets if m not in self.suspects})


class FetchesWhileSealed(MemberMachine):
    """Bytes that arrive after a promise are applied all the same."""

    def _stop_fetch(self) -> None:
        if not self.sealed:
            super()._stop_fetch()

    def _fetched(self, event) -> None:
        promised = self.promised
        if self.view:
            self.promised = self.view.ballot
        super()._fetched(event)
        self.promised = max(promised, self.promised)


class EntersTwice(MemberMachine):
    """A member whose ring was stopped enters it again in the same view."""

    def _enter(self) -> None:
        if not self._ring_running and self.held is None:
            self.entered = None
        super()._enter()


class SmallerQuorum(MemberMachine):
    """Under "majority" any two reports make a view."""

    def _decide(self, proposal: Proposal, wishes: Wishes) -> Decision:
        reports = {m: replace(r, voters=tuple(proposal.reports)) for m, r in proposal.reports.items()}
        return super()._decide(_with(proposal, reports), wishes)


class DeafToJoins(MemberMachine):
    """Nobody is ever let in."""

    def _on_join(self, sender, message) -> None:
        if self.view is None:
            super()._on_join(sender, message)


class NeverRepeats(MemberMachine):
    """The timer does nothing: a lost frame is lost."""

    def _tick(self) -> None:
        self._rearm()


FAULTS: tuple[type[MemberMachine], ...] = (
    NoFence,
    HeldDroppedAtInstall,
    CommitByAnyReady,
    CarryAtOnce,
    CarryNeedsAllHolders,
    CarryIgnored,
    LowestBase,
    CallRollsOver,
    PromisesLowerBallots,
    DecidesWithoutWaiting,
    AsksOnlyTheUnsuspected,
    FetchesWhileSealed,
    EntersTwice,
    SmallerQuorum,
    DeafToJoins,
    NeverRepeats,
)
