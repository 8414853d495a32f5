"""The calls of one member and the committed rounds on their way back to them.

A call belongs to one round for ever. The n-th call returns the n-th round committed since joining: a round that was
committed while nobody waited (the caller was cancelled, or had not called yet) is kept for the next call, which returns
it at once and enters no round of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import anyio

from hydra_allreduce.agreement import RoundRecord, View
from hydra_allreduce.arrays import Arrays, Layout
from hydra_allreduce.errors import FellBehind, GroupError
from hydra_allreduce.planning import Plan
from hydra_allreduce.reduction import Lost, Timings
from hydra_allreduce.results import Result
from hydra_net import Cbor, PeerId

KEPT = 2
"""Committed rounds that wait for this member's next calls; with one more the oldest is given up (``FellBehind``)."""


@dataclass(slots=True)
class Call:
    """One member's inputs for one round. The arrays are only read; each attempt starts from them anew."""

    number: int
    layout: Layout
    arrays: Arrays
    weight: float
    meta: dict[str, Cbor]
    made: float
    attempts: int = 0
    ring_began: float | None = None
    ring_ended: float | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    delivery: Delivery | None = None
    error: GroupError | None = None

    def detach(self) -> None:
        """The caller has gone and its arrays are its own again: copy them, another attempt may need them."""
        segments = self.layout.allocate()
        self.layout.pack(self.arrays, segments, None)
        self.arrays = self.layout.unpack(segments)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A committed round on its way to a caller. ``committed`` is when, in seconds of the node's clock."""

    record: RoundRecord
    result: Result
    view: View
    plan: Plan | None
    lost: dict[PeerId, Lost]
    attempts: int
    committed: float
    ring_began: float | None
    ring_ended: float | None

    def timings(self, made: float) -> Timings:
        """Where the time went of a call that was made at ``made``."""
        began = max(made, self.ring_began if self.ring_began is not None else self.committed)
        ended = max(began, self.ring_ended if self.ring_ended is not None else self.committed)
        committed = max(ended, self.committed)
        return Timings(committed - made, began - made, ended - began, committed - ended)


class Calls:
    """Keeps what one member has called and not got back yet. Knows no I/O."""

    def __init__(self) -> None:
        self._numbers = 0
        self._pending: Call | None = None
        self._abandoned = False
        self._undelivered: deque[Delivery] = deque()
        self._error: GroupError | None = None
        self._lost: dict[PeerId, str] = {}
        self.rounds = 0
        """The last round that a call has returned, or that was over before this member joined."""

    @property
    def pending(self) -> Call | None:
        """The call that is waiting for its round, if there is one; its caller may have been cancelled."""
        return self._pending

    def next_number(self) -> int:
        """Numbers are never used twice."""
        self._numbers += 1
        return self._numbers

    def begin(self, call: Call) -> None:
        """``call`` waits for its round from now on."""
        assert self._pending is None
        self._pending, self._abandoned = call, False

    def abandon(self, call: Call) -> None:
        """Its caller was cancelled: what it would have returned or raised is kept for the next call."""
        if self._pending is call:
            call.detach()
            self._abandoned = True
        elif call.delivery is not None:  # asyncio can cancel in the very turn in which the round was decided
            self._undelivered.appendleft(call.delivery)
            self.rounds = call.delivery.record.round - 1
        elif call.error is not None:
            self._error = call.error

    def interrupt(self, error: GroupError) -> None:
        """Raise ``error`` in the caller; its share stays in the round, which the next call waits for."""
        call = self._pending
        if call is not None and not self._abandoned:
            self.abandon(call)
            call.error = error
            call.done.set()

    def readopt(self) -> Call | None:
        """The call whose caller has gone and whose round is still open: the next caller waits for that round."""
        call = self._pending
        if call is not None and self._abandoned:
            self._abandoned = False
            call.error, call.done = None, anyio.Event()
            return call
        return None

    def take(self) -> Delivery | None:
        """The oldest committed round that no call has returned. Raises what happened to those before it."""
        if (error := self._error) is not None:
            self._error = None
            raise error
        if not self._undelivered:
            return None
        return self._returned(self._undelivered.popleft())

    def gone(self, peer: PeerId, cause: str) -> None:
        """``peer`` is no longer a member: the next round to be committed says so."""
        self._lost.setdefault(peer, cause)

    def joined_at(self, round: int) -> None:
        """Rounds up to this one were over before this member joined."""
        self.rounds = round

    def committed(self, record: RoundRecord, result: Result, view: View, plan: Plan | None, now: float) -> None:
        """The next round is decided: give it to its call, or keep it for the next one."""
        contributors = [contribution.member.peer for contribution in record.contributions]
        lost = {peer: Lost(cause, peer in contributors) for peer, cause in self._lost.items()}
        self._lost = {}
        call, self._pending = self._pending, None
        attempts, began, ended = (call.attempts, call.ring_began, call.ring_ended) if call else (0, None, None)
        delivery = Delivery(record, result, view, plan, lost, attempts, now, began, ended)
        if call is not None and not self._abandoned:
            call.delivery = self._returned(delivery)
            call.done.set()
            return
        self._undelivered.append(delivery)
        if len(self._undelivered) > KEPT:
            oldest = self._undelivered.popleft()
            self._error = FellBehind(oldest.record.round, record.round)

    def jumped_to(self, round: int) -> None:
        """Rounds up to this one cannot be had any more: go on after it."""
        self._undelivered.clear()
        self.rounds = round

    def fail(self, error: GroupError) -> None:
        """The pending call cannot return a result; if its caller was cancelled, the next call says so."""
        call, self._pending = self._pending, None
        if call is None or self._abandoned:
            self._error = error
            return
        call.error = error
        call.done.set()

    def _returned(self, delivery: Delivery) -> Delivery:
        self.rounds = delivery.record.round
        return delivery
