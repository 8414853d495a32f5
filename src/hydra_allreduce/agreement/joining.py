"""Coming and going: founding a run, letting members in, leaving, and being told that somebody is gone."""

from __future__ import annotations

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.agreement.changes import Changes
from hydra_allreduce.agreement.decide import is_fresh
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.quorum import is_certified
from hydra_allreduce.agreement.shape import MAX_MEMBERS
from hydra_allreduce.agreement.view import Member
from hydra_net.identity import PeerId

MAX_SUSPECTS = 4 * MAX_MEMBERS


class Joining(Changes):
    """The rules of membership beside the view changes themselves."""

    # --------------------------------------------------------------------------------------------------- founding

    def _contact(self, event: events.Contact) -> None:
        if event.peer == self.me.peer:
            return
        self._remember(event.peer)
        if self.view is None:
            self._out.append(events.Send(event.peer, None, self._join_message()))
        elif event.peer not in self._inside():
            self._show(event.peer)

    def _inside(self) -> dict[PeerId, None]:
        """The peers that are in the view. One whose process is suspected may have started another."""
        return {m.peer: None for m in self.view.members if m.id not in self.suspects} if self.view else {}

    def _show(self, peer: bytes) -> None:
        """Show a peer that is not in it the view: islands meet this way."""
        assert self.view
        for known in self.contacts:
            if known == peer:
                self._out.append(events.Send(known, None, messages.Install(self.view, self.top(), self.plan)))

    def _know_joiner(self, member: Member) -> bool:
        """Note a member that wants in while there is no view. Returns whether it is new."""
        if member.id == self.id or member.id in self.joiners or member.id in self.suspects:
            return False
        if len(self.joiners) >= MAX_MEMBERS - 1:
            return False
        self.joiners[member.id] = member
        self._meet(member)
        if self.proposal:
            self._add_targets((member.id,))
        return True

    def _on_joiners(self, sender: MemberId, message: messages.Joiners) -> None:
        if self.view is not None:
            return
        for member in message.members:
            self._remember(member.peer)  # even if suspected: when it answers it is not
            if self._know_joiner(member):
                self._send(member.id, self._join_message())
        self._found()

    def _found(self) -> None:
        """Propose the first view, if enough joiners are there, they had time to meet, and this is the lowest."""
        if self.view or self.join_to or self.proposal or not self.founds or self._founding_at is None:
            return
        if self._now < self._founding_at or len(self.joiners) + 1 < self.genesis.founders:
            if self._now >= self._founding_at:
                self._wait("founders", f"{len(self.joiners) + 1} of {self.genesis.founders} founders are here")
            return
        if any(m < self.id for m in self.joiners):
            return
        self._promise(Ballot(max(self.promised, self.seen).n + 1, self.id))
        self._begin(dict.fromkeys(self.joiners))

    # ---------------------------------------------------------------------------------------------------- letting in

    def _on_join(self, sender: MemberId, message: messages.Join) -> None:
        member = message.member
        k = member.id
        if k == self.id or member.peer == self.me.peer:
            return
        self.seen = max(self.seen, message.promised)
        self._replaced(k)
        if self.view is None:
            if sender == k:
                self.suspects.pop(k, None)
            self._remember(member.peer)
            if message.founds:
                self._know_joiner(member)
            else:
                self._meet(member)
            mine = (self.me,) if self.founds else ()
            self._send(k, messages.Joiners((*mine, *self.joiners.values())))
            if self.join_to and self.join_to != k:
                self._pass_on(self.join_to, sender, message)  # it knows more
            self._found()
            return
        self._meet(member)
        view, leader = self.view, self.leader()
        if leader not in (self.id, k):
            self._pass_on(leader, sender, message)
        elif k in view.by_id or leader == k:
            # Its own leader asks to be let in: it does not know the view, or has promised beyond it.
            if message.promised <= view.ballot:
                self._send(k, messages.Install(view, self.top(), self.plan))
            elif not self.proposal:
                self.propose()
        elif len(view.members) + len(self.joins) < MAX_MEMBERS:
            self.joins[k] = member
            if self.proposal:
                if self.proposal.given_up.pop(k, False) is None:
                    self._send(k, messages.Propose(self.proposal.ballot, self.roster()))
                self._add_targets((k,))
            elif not self.round_running():
                self.propose()

    def _pass_on(self, to: MemberId, sender: MemberId, message: messages.Join) -> None:
        if to != sender and message.hops < messages.MAX_HOPS:
            self._send(to, messages.Join(message.member, message.promised, message.founds, message.hops + 1))

    def _replaced(self, k: MemberId) -> None:
        """A process of a peer asks to be let in: the peer's other processes are gone."""
        for known in (self.joiners, self.joins):
            for m in [m for m in known if m.peer == k.peer and m != k]:
                del known[m]
                self._note_suspect(m, "restarted")
        if self.view and k not in self.view.by_id:
            for m in [m for m in self.view.by_id if m.peer == k.peer and m != self.id and m not in self.suspects]:
                self._suspect(m, "restarted")

    # ------------------------------------------------------------------------------------------------------- leaving

    def _leave(self) -> None:
        self.leaving = True
        if self.view is None:
            self._depart("left before a view was made")
        elif self.leader() != self.id:
            self._status()
        elif self.view.coordinator == self.id and not self.sealed and self.want is None and not self.round_running():
            self._hand_over()

    def _hand_over(self) -> None:
        """The coordinator leaves: somebody else has to propose the view without it."""
        view = self.view
        assert view
        heirs = [m for m in view.by_id if m != self.id and m not in self.suspects]
        staying = [m for m in heirs if m not in self.leavers]
        if staying:
            self._send(staying[0], messages.Takeover())
        else:
            if heirs:
                self._send(heirs[0], messages.Install(view, self.top(), self.plan))
            self._depart("left")

    def _on_takeover(self, sender: MemberId) -> None:
        if self.view and sender not in self.view.by_id:
            self._send(sender, messages.Install(self.view, self.top(), self.plan))  # it is out already
        elif not self.proposal and not self.leaving:
            self.propose()

    def _on_bye(self, sender: MemberId) -> None:
        self.contacts.pop(sender.peer, None)
        if self._matters(sender):
            self._suspect(sender, "left")

    def _matters(self, member: MemberId) -> bool:
        """Whether this member waits for that one in any way: strangers must not fill the list of suspects."""
        view, proposal = self.view, self.proposal
        return (
            (view is not None and member in view.by_id)
            or (proposal is not None and member in proposal.targets)
            or member in self.joins
            or member in self.joiners
            or member == self.join_to
        )

    # ----------------------------------------------------------------------------------------------------- suspicions

    def _suspect(self, member: MemberId, cause: str) -> None:
        if member == self.id:
            return
        self._note_suspect(member, cause)
        self.joins.pop(member, None)
        self.joiners.pop(member, None)
        self.leavers.pop(member, None)
        if self.join_to == member:
            self.join_to = None
        if self.proposal:
            self._try_install()
        elif self.view and member in self.view.by_id:
            leader = self.leader()
            if leader == self.id:
                self.propose()
            else:
                self._send(leader, messages.Suspect(member, cause[:200]))

    def _note_suspect(self, member: MemberId, cause: str) -> None:
        if len(self.suspects) >= MAX_SUSPECTS and member not in self.suspects:
            del self.suspects[next(iter(self.suspects))]
        self.suspects[member] = cause[:200]

    def _on_suspect(self, sender: MemberId, message: messages.Suspect) -> None:
        if self.view and sender in self.view.by_id and self.leader() == self.id and not self.proposal:
            if message.member in self.view.by_id:
                self._causes[message.member] = message.cause
            self.propose()

    def _late(self, event: events.Late) -> None:
        view = self.view
        if view and view.coordinator == self.id and event.member in view.ring and (self.proposal or not self.sealed):
            # It stays late until the round is decided: of several late members each would else let the other in again.
            self.late[event.member] = None
            if not self.proposal:
                self.propose()

    # ------------------------------------------------------------------------------------------------------- wishes

    def _boundary(self) -> None:
        view = self.view
        if view is None or view.coordinator != self.id or self.sealed or self.want or self.leader() != self.id:
            return
        if self.leaving:
            self._hand_over()
        elif self.joins or self.leavers or self._promotable() or self._cannot_certify():
            self.propose()

    def _settled(self) -> None:
        # No more than that: a leaver that this view had to keep must not make the next one at once, and again.
        view = self.view
        if (
            self.leaving
            and view
            and view.coordinator == self.id
            and view.base.id == self.rec.id
            and not self.sealed
            and not self.round_running()
        ):
            self._hand_over()

    def _promotable(self) -> bool:
        """Whether a follower is known to have caught up, or all but."""
        view = self.view
        assert view
        unlinked = {m for link in view.avoid if is_fresh(link, self.rec.round) for m in (link.a, link.b)}
        near = {**self.caught_up, self.id: self.rec.id}
        return any(m not in unlinked and near.get(m) in (self.rec.id, self.rec.prev) for m in view.followers)

    def _cannot_certify(self) -> bool:
        """Whether the view's contributors are too few for the next round: its voters are others than the base's."""
        return self.majority and not is_certified(self._ring(), self.voters(), self.genesis)

    def _status(self) -> None:
        """Tell the leader what this member has."""
        roster = self.roster()
        if roster:
            held = self.held.head if self.held else None
            self._send(
                self.leader(),
                messages.Status(
                    roster, self.promised, self.rec.head, held, self.held_ballot, self.leaving, self._spoiled
                ),
            )

    def _on_status(self, sender: MemberId, message: messages.Status) -> None:
        view = self.view
        if view is None:
            return
        self.seen = max(self.seen, message.promised)
        theirs = message.view
        if theirs.ballot > view.ballot and self.id in theirs.members:
            # The sender lives in a later view that lists this member: lead it, if that falls to this one.
            first = next(m for m in theirs.members if m == self.id or m not in self.suspects)
            if first == self.id:
                if self.proposal:
                    self._add_targets(theirs.members)
                else:
                    self.propose(theirs.members)
        elif sender not in view.by_id:
            self._send(sender, messages.Install(view, self.top(), self.plan))
        elif self.leader() == self.id:
            self._note(sender, message)
            if self.proposal:
                return
            if message.promised > view.ballot or self.sealed or view.coordinator != self.id:
                self.propose()
                return
            if message.spoiled and theirs.ballot == view.ballot and message.rec.round == self.rec.round:
                self._spoiled = True  # the timer proposes
            if theirs.ballot < view.ballot or message.rec.round < self.rec.round:
                self._send(sender, messages.Install(view, self.top(), self.plan))
            if message.held and message.held_ballot == view.ballot:
                self._on_ready(sender, messages.Ready(view.ballot, view.attempt, message.held))

    def _note(self, sender: MemberId, message: messages.Status) -> None:
        assert self.view
        if message.leaving:
            new = sender not in self.leavers
            self.leavers[sender] = None
            if new and not self.proposal and not self.round_running():
                self.propose()
        if message.view.ballot == self.view.ballot:
            self.caught_up[sender] = message.rec.id
