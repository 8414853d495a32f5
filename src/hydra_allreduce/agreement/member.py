"""One member of a group: fed with events and the time, it returns what to do. It knows no clock, socket or task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.agreement.ids import MemberId
from hydra_allreduce.agreement.joining import Joining

JOIN_LAPSE = 4
"""Periods after which the wish to be let in lapses: two that ask each other must not wait for ever."""


MAX_LEAP = 2**32
"""How far ahead of all ballots known one may be: a stranger must not be able to use the numbers up. A run that made a
hundred views a second would take a year to get that far without its newcomers."""


class MemberMachine(Joining):
    """A member's side of the agreement on views and rounds.

    Args:
        me: this process; its role is of no account.
        genesis: the run.
        min_peers: "survivors": this member makes no view, and runs no round, with fewer members.
        period: a timer's wait is drawn from [period, 2 period), in seconds.
        founding_time: how long to look for others before making the first view, in seconds (up to twice that);
            infinity: this process only joins a run that exists.
        newcomers_follow: whether a newcomer has to catch up with the state of the run before it contributes.
        rng: the source of all that is random here.
        make_plan: called with the last record (None before the first) and the view when this member coordinates, at
            each commit and each new view; what it returns travels beside the result.

    ``handle`` is deterministic given ``rng``, and nothing that a peer sends makes it raise: what no correct member can
    have sent is dropped with a reason. It raises ``LocalProtocolError`` on events that contradict its actions.

    Readable at any time: ``view``, ``rec`` (the last committed record), ``held`` (a finished, uncommitted record),
    ``lineage``, ``promised``, ``sealed``, ``suspects``, ``watched``, ``next_timer``. The bytes of ``rec`` and ``held``
    must be kept for those that fetch; ``serve`` says which to give.
    """

    def _wire(self) -> None:
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Received: self._received,
            events.Contact: self._contact,
            events.Called: self._called,
            events.RingFinished: self._ring_finished,
            events.RingFailed: self._ring_failed,
            events.RoundVoid: self._round_void,
            events.Fetched: self._fetched,
            events.Suspected: lambda event: self._suspect(event.member, event.cause),
            events.Late: self._late,
            events.LeaveRequested: lambda _: self._leave(),
            events.Closing: lambda _: self._depart("closed"),
            events.Tick: lambda _: self._tick(),
        }
        self._receivers: dict[type, Callable[[MemberId, Any], None]] = {
            messages.Join: self._on_join,
            messages.Joiners: self._on_joiners,
            messages.Propose: self._on_propose,
            messages.Promise: self._on_promise,
            messages.Refuse: self._on_refuse,
            messages.Install: self._on_install,
            messages.Enter: self._on_enter,
            messages.Ready: self._on_ready,
            messages.Commit: self._on_commit,
            messages.Status: self._on_status,
            messages.Suspect: self._on_suspect,
            messages.Takeover: lambda sender, _: self._on_takeover(sender),
            messages.Broken: self._on_broken,
            messages.Void: self._on_void,
            messages.Bye: lambda sender, _: self._on_bye(sender),
        }

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
        """Take one event and return the actions, in order. After ``Left`` there are none any more."""
        if self.left:
            return []
        self._now = now
        self._out = []
        if self._founding_at is None:
            self._founding_at = now + self.founding_time * (1.0 + self._rng.random())
            self._rearm()
        self._handlers[type(event)](event)
        actions, self._out = self._out, []
        return actions

    def _received(self, event: events.Received) -> None:
        sender = event.sender
        if sender == self.id:
            self._drop(sender, "a frame from a stranger in this member's name")
            return
        ballot = messages.highest_ballot(event.message)
        if ballot is not None and ballot.n > max(self.promised, self.seen).n + MAX_LEAP:
            self._drop(sender, f"ballot {ballot} is further ahead than any run can have got")
            return
        if sender in self.suspects:
            del self.suspects[sender]
        self._receivers[type(event.message)](sender, event.message)

    def _rearm(self) -> None:
        # Drawn anew each time: in lock-step two proposers can refuse each other for ever.
        self._timer = self._now + self.period * (1.0 + self._rng.random())

    # --------------------------------------------------------------------------------------------------- the timer

    def _tick(self) -> None:
        """Level-triggered: whatever single message was lost, this makes up for it."""
        self._rearm()
        if self.view is None or self.join_to:
            self._tick_outside()
        if self.view is None or self.left:
            return
        self._ask_again()
        if self.proposal:
            self._propose_again()
            self._look_for_islands()
        elif self.leader() == self.id:
            self._tick_leader()
        else:
            self._status()

    def _tick_outside(self) -> None:
        join = self._join_message()
        if self.join_to:
            self._send(self.join_to, join)
            self._join_periods += 1
            if self._join_periods >= JOIN_LAPSE:
                self._join_periods = 0
                self.join_to = None  # nobody let it in: act as a member (or a founder) again
        elif self.view is None:
            for peer in self.contacts:
                self._out.append(events.Send(peer, None, join))
        if self.view is None:
            if self.proposal:
                self._propose_again()
            else:
                self._found()

    def _tick_leader(self) -> None:
        view = self.view
        assert view
        if self.join_to and self.sealed:
            return
        if self.leaving and view.coordinator == self.id and not self.sealed and self.want is None:
            self._hand_over()
            return
        if (
            self.sealed
            or view.coordinator != self.id
            or self._spoiled
            or self.joins
            or any(m in self.suspects for m in view.by_id)
            or self._may_let_go()
            or (self.want is None and self._cannot_certify())
        ):
            self.propose()
        else:
            heartbeat = messages.Install(view, self.top(), self.plan)
            for m in view.by_id:
                if m != self.id:
                    self._send(m, heartbeat)
            self._enter()
        self._look_for_islands()

    def _may_let_go(self) -> bool:
        """Whether a view change may free somebody who wants to leave; one was refused if it is marked in the view."""
        view = self.view
        assert view
        stuck = self.rec.id == view.base.id and self.round_running()
        return any(m in view.by_id and not (stuck and m in view.leaving) for m in self.leavers)

    def _look_for_islands(self) -> None:
        """Show the view to one peer that is not in it, another one each time."""
        assert self.view
        inside = self._inside()
        for peer in self.contacts:
            if peer not in inside:
                del self.contacts[peer]
                self.contacts[peer] = None  # to the end of the queue
                self._show(peer)
                return
