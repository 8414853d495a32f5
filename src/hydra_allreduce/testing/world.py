"""A group in a box: real members, a network that is a list of frames, and a ring that is a set of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from random import Random
from typing import Any

from hydra_allreduce.agreement import (
    Ballot,
    Contribution,
    Genesis,
    Member,
    MemberId,
    MemberMachine,
    RecordHead,
    RecordId,
    RoundRecord,
    View,
    decode_message,
    encode_message,
    events,
    messages,
)
from hydra_allreduce.testing.trace import Certified, Returned, Trace
from hydra_net.codec import decode, encode
from hydra_net.identity import PeerId

HOLDERS = 3
"""How many holders are asked at once. The real one asks one after the other."""

RingKey = tuple[bytes, int, RecordId]


@lru_cache(maxsize=64)
def peer(index: int) -> PeerId:
    """The name of the peer with that index: in no order that means anything."""
    return PeerId(sha256(b"peer %d" % index).digest())


@dataclass(slots=True)
class Ring:
    """Who has put which call's input into a ring."""

    view: View
    inputs: dict[MemberId, int] = field(default_factory=dict)
    record: RoundRecord | None = None
    void: bool = False


class Process:
    """One process: a member and what the model knows of it."""

    __slots__ = (
        "alive",
        "calls",
        "fence",
        "fetching",
        "holds",
        "id",
        "index",
        "kept",
        "machine",
        "peer_index",
        "ready",
        "rec",
        "resumes",
        "ring",
        "side",
        "started",
        "struck",
        "view",
    )

    def __init__(self, index: int, peer_index: int, machine: MemberMachine) -> None:
        self.index = index
        self.peer_index = peer_index
        self.machine = machine
        self.id = machine.id
        self.alive = False
        self.started = False
        self.side = 0
        self.resumes = 0  # the step in which a paused process goes on
        self.struck: list[tuple[str, Callable[[], None]]] = []  # what happens to it, and at which moment
        self.calls = 0
        self.ring: RingKey | None = None
        self.fetching: RecordId | None = None
        self.ready: dict[tuple[Ballot, RecordId], None] = {}  # what it has certified, and in which view
        self.kept: RoundRecord | None = None  # what it held last
        self.view: View | None = None
        self.fence: Ballot = machine.promised
        self.rec: RoundRecord = machine.rec


# What is under way: from, to (an index), incarnation or None, and what.
Frame = tuple[int, int, int | None, Any]


@dataclass(frozen=True, slots=True)
class _Ask:
    head: RecordHead


@dataclass(frozen=True, slots=True)
class _Answer:
    wanted: RecordId
    served: events.Served


class World:
    """State of one run, and how actions change it."""

    def __init__(
        self, trace: Trace, genesis: Genesis, make: Callable[..., MemberMachine], options: dict[str, Any], verbose: bool
    ) -> None:
        self.trace = trace
        self.genesis = genesis
        self.schedule = trace.schedule
        self.processes: list[Process] = []
        self.by_peer: dict[PeerId, int] = {}  # the process that a peer runs now
        self.net: list[Frame] = []
        self.cuts: dict[tuple[int, int], None] = {}
        self.rings: dict[RingKey, Ring] = {}
        self.decided: dict[tuple[Ballot, int, RecordId], None] = {}
        self.certified: dict[RecordId, None] = {}
        self.faulty = False
        self.step = 0
        self.now = 0.0
        self.verbose = verbose
        self._make = make
        self._options = options
        self._apply: dict[type, Callable[[Process, Any], None]] = {
            events.Send: self._sent,
            events.StartRing: self._start_ring,
            events.StopRing: self._stop_ring,
            events.Install: self._installed,
            events.Commit: self._committed,
            events.StartFetch: self._start_fetch,
            events.StopFetch: self._stop_fetch,
            events.CallFailed: self._call_failed,
            events.Superseded: self._superseded,
            events.Diverged: self._diverged,
            events.Dropped: self._dropped,
            events.Left: self._left,
        }

    # ---------------------------------------------------------------------------------------------------- processes

    def add(self, peer_index: int, *, founds: bool = True) -> Process:
        """Make a process of that peer. It does nothing until it is started.

        Where whoever comes later and finds nobody must not begin anew, ``founds`` is false for it.
        """
        options = {**self._options, "founding_time": 1.0 if founds else float("inf")}
        index = len(self.processes)
        me = Member(peer(peer_index), index + 1)
        rng = Random(self.schedule.seed * 1000 + index)
        process = Process(index, peer_index, self._make(me, self.genesis, rng=rng, **options))
        self.processes.append(process)
        return process

    def start(self, process: Process, contacts: tuple[Process, ...] = ()) -> None:
        """Let a process live, and tell it of others."""
        process.alive = process.started = True
        self.by_peer[process.id.peer] = process.index
        self.tell(process, events.Tick())
        for contact in contacts:
            if contact is not process:
                self.tell(process, events.Contact(contact.id.peer))

    def tell(self, process: Process, event: events.Event) -> None:
        """Feed an event to a member and do what it wants done."""
        if self.verbose and not isinstance(event, events.Received):
            self.note(f"{process.index} {event}")
        machine = process.machine
        reporters: list[MemberId] = []
        moments: list[type] = []
        for action in machine.handle(event, self.now):
            kind = type(action)
            if kind is events.Send:
                message = action.message  # type: ignore[union-attr]
                if type(message) is messages.Install and message.view.coordinator == process.id:
                    reporters.append(MemberId(action.to, action.incarnation or 0))  # type: ignore[union-attr]
            elif kind is events.Install:
                view: View = action.view  # type: ignore[union-attr]
                if view.coordinator == process.id and view.ballot not in self.trace.reporters:
                    self.trace.reporters[view.ballot] = (process.id, *reporters)
            handler = self._apply.get(kind)
            if handler:
                handler(process, action)
            moments.append(kind)
            if self.verbose and kind not in (events.Send, events.Introduced):
                self.note(f"    {process.index} does {_short(action)}")
        if machine.held is not process.kept:
            self._held_changed(process)
        if process.struck:
            self._strike(process, event, moments)

    def _strike(self, process: Process, event: events.Event, moments: list[type]) -> None:
        """Let a blow fall that was waiting for its moment."""
        moment, blow = process.struck[0]
        reached = {
            "ready": isinstance(event, events.RingFinished),
            "commit": events.Commit in moments,
            "promise": isinstance(event, events.Received) and isinstance(event.message, messages.Propose),
            "install": events.Install in moments,
        }
        if reached.get(moment, True):
            del process.struck[0]
            blow()

    def note(self, text: str) -> None:
        """Write a line of the log."""
        self.trace.log.append(f"{self.step}: {text}")

    def broken(self, text: str) -> None:
        """Note that a member broke a rule."""
        if len(self.trace.broken) < 16:
            self.trace.broken.append(f"step {self.step}: {text}")

    def live(self) -> list[Process]:
        """The processes that are alive and have not left."""
        return [p for p in self.processes if p.alive and not p.machine.left]

    # ----------------------------------------------------------------------------------------------------- network

    def _sent(self, process: Process, action: events.Send) -> None:
        message = action.message
        kind = type(message)
        if kind is messages.Promise or kind is messages.Propose:
            process.fence = max(process.fence, message.ballot)  # type: ignore[union-attr]
        elif kind is messages.Join and message.member.id == process.id:  # type: ignore[union-attr]
            process.fence = max(process.fence, message.promised)  # type: ignore[union-attr]
        elif kind is messages.Ready:
            process.ready[message.ballot, message.head.id] = None  # type: ignore[union-attr]
        elif kind is messages.Status and message.held and message.held_ballot:  # type: ignore[union-attr]
            process.ready[message.held_ballot, message.held.id] = None  # type: ignore[union-attr]
        elif kind is messages.Commit:
            self._decided(process, message.ballot, message.head)  # type: ignore[union-attr]
        to = self.by_peer.get(action.to)
        if to is None:
            return
        if action.incarnation is not None:
            to = next((p.index for p in self.processes if p.id == (action.to, action.incarnation)), to)
        if self.schedule.codec:
            message = decode_message(decode(encode(encode_message(message)), limit=65536))
        self.net.append((process.index, to, action.incarnation, message))

    def reachable(self, a: int, b: int) -> bool:
        """Whether frames get from one process to another."""
        processes = self.processes
        return processes[a].side == processes[b].side and (a, b) not in self.cuts

    def deliver(self, frame: Frame) -> None:
        """Let a frame arrive."""
        source, to, incarnation, what = frame
        process = self.processes[to]
        if not process.alive or process.machine.left:
            return
        if incarnation is not None and incarnation != process.id.incarnation:
            return
        self.trace.frames += 1
        kind = type(what)
        if kind is _Ask:
            served = process.machine.serve(what.head)
            if served:
                self.net.append((to, source, None, _Answer(what.head.id, served)))
        elif kind is _Answer:
            if process.fetching == what.wanted:
                self.tell(process, events.Fetched(what.wanted, what.served.record, what.served.lineage))
        else:
            if self.verbose:
                self.note(f"{source} -> {to} {_short(what)}")
            self.tell(process, events.Received(self.processes[source].id, what))

    # -------------------------------------------------------------------------------------------------- the data plane

    def _start_ring(self, process: Process, action: events.StartRing) -> None:
        view = action.view
        if action.base.id != process.rec.id or action.round != process.rec.round + 1:
            self.broken(f"{process.id} entered round {action.round} from another record than its last")
        if process.id not in view.ring:
            self.broken(f"{process.id} entered a ring that it is not in")
        key = (view.attempt, action.round, action.base.id)
        ring = self.rings.get(key)
        if ring is None:
            ring = self.rings[key] = Ring(view)
        if ring.inputs.setdefault(process.id, action.call) != action.call:
            self.broken(f"{process.id} entered one ring twice")
        self.trace.entered[process.id, view.ballot, action.round] = action.call
        process.ring = key

    def _stop_ring(self, process: Process, action: events.StopRing) -> None:
        process.ring = None

    def can_finish(self, process: Process) -> bool:
        """Whether the ring that the process is in has the inputs of all its contributors."""
        if process.ring is None:
            return False
        ring = self.rings[process.ring]
        return len(ring.inputs) == len(ring.view.ring) and not ring.void

    def finish(self, process: Process) -> None:
        """Complete the ring for one of its members."""
        key = process.ring
        assert key
        ring = self.rings[key]
        shares = [Contribution(m, ring.inputs[m], 1.0, {}) for m in ring.view.ring]
        record = process.machine.make_record(shares, b"%d" % key[1])
        if ring.record is None:
            ring.record = record
            self.trace.records[record.id] = record
        elif ring.record != record:
            self.broken(f"{process.id} made another record than the others of one ring")
        process.ring = None
        self.tell(process, events.RingFinished(key[0], ring.record))

    def _held_changed(self, process: Process) -> None:
        machine = process.machine
        before, process.kept = process.kept, machine.held
        if machine.held is None and before and before.round > machine.rec.round:
            self.broken(f"{process.id} threw a finished result of round {before.round} away")

    def _start_fetch(self, process: Process, action: events.StartFetch) -> None:
        process.fetching = action.head.id
        known = {p.id: p.index for p in self.processes}
        for holder in action.holders[:HOLDERS]:
            if holder in known:
                self.net.append((process.index, known[holder], holder.incarnation, _Ask(action.head)))

    def _stop_fetch(self, process: Process, action: events.StopFetch) -> None:
        process.fetching = None

    # ------------------------------------------------------------------------------------------------------- decisions

    def _installed(self, process: Process, action: events.Install) -> None:
        view = action.view
        if process.view and view.ballot <= process.view.ballot:
            self.broken(f"{process.id} went back from view {process.view.ballot} to {view.ballot}")
        if process.id not in view.by_id:
            self.broken(f"{process.id} installed a view that it is not in")
        if view.ballot not in self.trace.rings:
            self.trace.rings[view.ballot] = view.ring
            self.trace.views += 1
        elif self.trace.rings[view.ballot] != view.ring:
            self.broken(f"two views were installed under ballot {view.ballot}")
        process.view = view

    def _decided(self, process: Process, ballot: Ballot, head: RecordHead) -> None:
        key = (ballot, head.round, head.id)
        if key in self.decided:
            return
        self.decided[key] = None
        ring = self.trace.rings[ballot]
        ready = {p.id: p.ready for p in self.processes}
        for m in ring:
            # The coordinator says nothing to itself; that it has what it commits is checked when it commits.
            if (ballot, head.id) not in ready[m] and m != ballot.proposer:
                self.broken(f"{process.id} decided round {head.round} without the certificate of {m}")
        self.certified[head.id] = None
        live = tuple(p.id for p in self.live())
        self.trace.certified.append(Certified(self.step, ballot, head.id, ring, self.faulty, live))

    def _committed(self, process: Process, action: events.Commit) -> None:
        record, view = action.record, process.view
        if view is None:
            self.broken(f"{process.id} committed a round outside of any view")
            return
        if len(view.members) == 1 and record.id not in self.certified:
            self._decided(process, view.ballot, record.head)  # there is nobody to send COMMIT to
        process.rec = record
        self.trace.records.setdefault(record.id, record)
        live = tuple(p.id for p in self.live())
        self.trace.returned.append(
            Returned(self.step, process.id, record.id, action.call, view.ballot, process.fence, self.faulty, live)
        )

    def _call_failed(self, process: Process, action: events.CallFailed) -> None:
        if action.kind == "void":
            self.trace.voided[process.id, action.call] = None

    def _superseded(self, process: Process, action: events.Superseded) -> None:
        self.trace.superseded.append((process.id, action.rounds))

    def _diverged(self, process: Process, action: events.Diverged) -> None:
        self.broken(f"{process.id} saw two results of round {action.round}")

    def _dropped(self, process: Process, action: events.Dropped) -> None:
        if action.forged:
            self.broken(f"{process.id} dropped what a correct member sent: {action.why}")

    def _left(self, process: Process, action: events.Left) -> None:
        process.ring = process.fetching = None


def _short(what: object) -> str:
    text = repr(what)
    return text if len(text) < 4000 else text[:4000] + "..."
