"""Real nodes and groups on a network in memory, under a virtual clock."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

import anyio
import numpy as np
from anyio.abc import TaskGroup

from hydra_allreduce.errors import FellBehind, Superseded, TooFewPeers
from hydra_allreduce.testing.swarm.faults import Schedule
from hydra_allreduce.testing.swarm.injector import Injector
from hydra_allreduce.testing.swarm.recording import RecordedGroup, Recorder
from hydra_allreduce.testing.swarm.trace import Array, Trace
from hydra_net import Address, Identity, Node, PeerId
from hydra_net.testing import simulate
from hydra_net.transports.memory import MemoryNetwork, MemoryTransport

PATIENCE = 120.0
"""Virtual seconds after the last fault, or death, within which every live peer must have got on."""

SETTLED = 4
"""Leases without faults after which all live peers must be in one group again."""

LINGERING = 0.5
"""Seconds between calls of the default loop when it has done its rounds and only waits for the faults to be over."""

MAX_CALLS = 400


@dataclass(slots=True)
class Peer:
    """What a peer's program gets.

    Attributes:
        index: which peer.
        node: its node.
        group: its group; whatever is called on it is written into the trace.
        rng: seeded, its own.
        thinks: seconds that the schedule wants it to take before each call.
        rounds: how many rounds to run.
        until: go on at least until then (virtual seconds since the simulation began).
        swarm: whose peer it is.
    """

    index: int
    node: Node
    group: RecordedGroup
    rng: Random
    thinks: float
    rounds: int
    until: float
    swarm: Swarm


Loop: TypeAlias = Callable[[Peer], Awaitable[None]]


async def reduce_codes(peer: Peer) -> None:
    """Reduce arrays whose result shows exactly whose call is in it and which call, until there are enough rounds.

    Peer p of n puts a number that names its call into each n-th element, from the p-th on; the rest is zero.
    """
    group, swarm = peer.group, peer.swarm
    for call in range(1, MAX_CALLS):
        thinks = peer.thinks
        if group.rounds >= peer.rounds:
            if anyio.current_time() >= peer.until:
                return
            thinks = max(thinks, LINGERING)
        if thinks:
            await anyio.sleep(thinks)
        codes = np.zeros(swarm.elements)
        codes[peer.index :: swarm.n] = (call << 24) + np.arange(peer.index, swarm.elements, swarm.n)
        arrays: dict[str, Array] = {"codes": codes, "ones": np.ones(7, np.float32)}
        try:
            await group.all_reduce(arrays, weight=peer.rng.choice((0.5, 1.0, 2.0, 3.0)), op=swarm.op)
        except (FellBehind, Superseded):
            continue  # the next call is for a later round
        except TooFewPeers:
            return


class Swarm:
    """``n`` peers, each a node and a group of its own, that run the same program.

    Args:
        n: how many; the schedule begins once all are in the group, if it is not an early one.
        loop: what each peer runs; by default it reduces small arrays until ``rounds`` are done.
        rounds: for the loop.
        settle: the loop goes on for at least so many virtual seconds after the faults.
        elements: how many numbers the default loop reduces.
        op: the default loop's operation.
        founders: how many must be there to found the group; None: all.
        min_peers, stall, lease: as of a ``Group``.
        group: the class of the groups; tests put broken ones here.
    """

    def __init__(
        self,
        n: int,
        loop: Loop = reduce_codes,
        *,
        rounds: int = 6,
        settle: float = 0.0,
        elements: int = 60,
        op: Literal["mean", "sum"] = "mean",
        founders: int | None = None,
        min_peers: int = 1,
        stall: float = 1.0,
        lease: float = 5.0,
        group: type[RecordedGroup] = RecordedGroup,
    ) -> None:
        self.n = n
        self.loop = loop
        self.rounds = rounds
        self.settle = settle
        self.elements = elements
        self.op: Literal["mean", "sum"] = op
        self.founders = n if founders is None else founders
        self.min_peers = min_peers
        self.stall = stall
        self.lease = lease
        self.group = group

    def __repr__(self) -> str:
        named = {"rounds": 6, "settle": 0.0, "elements": 60, "op": "mean", "min_peers": 1, "stall": 1.0, "lease": 5.0}
        given = [f"{name}={getattr(self, name)!r}" for name, usual in named.items() if getattr(self, name) != usual]
        if self.founders != self.n:
            given.append(f"founders={self.founders}")
        loop = [] if self.loop is reduce_codes else [getattr(self.loop, "__name__", repr(self.loop))]
        group = [] if self.group is RecordedGroup else [f"group={self.group.__name__}"]
        return f"Swarm({', '.join([str(self.n), *loop, *given, *group])})"

    def run(self, schedule: Schedule) -> Trace:
        """Run a schedule to its end and return what happened; ``check`` says whether it may."""
        return simulate(self._main, schedule.seed, schedule)

    async def _main(self, schedule: Schedule) -> Trace:
        run = _Run(self, schedule)
        await run.run()
        return run.trace


class _Run:
    """One run of a swarm."""

    def __init__(self, swarm: Swarm, schedule: Schedule) -> None:
        n = swarm.n
        self.swarm = swarm
        self.schedule = schedule
        self.identities = [_identity(schedule.seed, index) for index in range(n)]
        self.names = [f"peer{index}" for index in range(n)]
        self.index: dict[PeerId, int] = {identity.id: i for i, identity in enumerate(self.identities)}
        settled = swarm.settle >= SETTLED * swarm.lease
        # With fewer founders than peers, a death while they meet may leave two parts that found a group each.
        calm = schedule.calm and (not schedule.early or swarm.founders == n)
        self.trace = Trace(repr(swarm), schedule, tuple(self.index), swarm.founders, swarm.min_peers, settled, calm)
        self.network = MemoryNetwork(
            seed=schedule.seed,
            latency=schedule.latency,
            jitter=schedule.jitter,
            bandwidth=schedule.bandwidth,
            window=schedule.window,
        )
        self.hosts = [self.network.host(name) for name in self.names]
        self.recorders = [Recorder(self.trace, i, host.dead.is_set) for i, host in enumerate(self.hosts)]
        self.groups: dict[int, RecordedGroup] = {}
        self.not_listening = dict.fromkeys(range(n))
        self.all_listen = anyio.Event()
        self.all_joined = anyio.Event()
        self.begun = anyio.Event()
        self.running = dict.fromkeys(range(n))
        self.all_over = anyio.Event()
        self.limit = anyio.CancelScope()
        self.until = 0.0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for index in range(self.swarm.n):
                tasks.start_soon(self._process, index)
            with self.limit:
                self._extend()
                if not self.schedule.early:
                    await self.all_joined.wait()
                self.trace.began = anyio.current_time()
                self.until = self.trace.began + self.schedule.over + self.swarm.settle
                self._extend()
                self.begun.set()
                tasks.start_soon(Injector(self.network, self.names, self.schedule, self._coordinator).run)
                await self.all_over.wait()
            self.trace.ended = anyio.current_time()
            self.trace.hung = {index: self.recorders[index].waiting for index in self.running}
            tasks.cancel_scope.cancel()

    def _extend(self) -> None:
        """Something was done to the group: it has all its time to get over it."""
        schedule, swarm = self.schedule, self.swarm
        needed = (swarm.rounds + 10) * (max(schedule.compute) + 20 * swarm.n * (schedule.latency + schedule.jitter))
        start = max(anyio.current_time(), self.trace.began + schedule.over)
        self.limit.deadline = start + swarm.settle + needed + PATIENCE

    def _coordinator(self) -> int | None:
        views = [group.view for index, group in self.groups.items() if not self.hosts[index].dead.is_set()]
        newest = max(views, key=lambda view: view.ballot, default=None)
        return None if newest is None else self.index[newest.coordinator.peer]

    # ------------------------------------------------------------------------------------------ one peer's process

    async def _process(self, index: int) -> None:
        host = self.hosts[index]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._die_with, index, host, tasks.cancel_scope)
            try:
                await self._live(index, host, tasks)
            except Exception as error:  # noqa: BLE001 - whatever a program ends with belongs into the trace
                self.recorders[index].raised(0, error)
            if not host.dead.is_set():
                self.trace.finished[index] = anyio.current_time()
            tasks.cancel_scope.cancel()
        self.running.pop(index, None)
        needed = max(self.swarm.founders, self.swarm.min_peers)
        if len(self.running) < needed and not any(other in self.trace.members for other in self.running):
            self.all_over.set()  # nobody is left, or too few to found a group

    def _listens(self, index: int) -> None:
        self.not_listening.pop(index, None)
        if not self.not_listening:
            self.all_listen.set()

    async def _die_with(self, index: int, host: MemoryTransport, life: anyio.CancelScope) -> None:
        await host.dead.wait()
        if index not in self.trace.finished:
            self.trace.died[index] = anyio.current_time()
            self._extend()
            self._listens(index)  # nobody waits for it
        life.cancel()

    async def _live(self, index: int, host: MemoryTransport, tasks: TaskGroup) -> None:
        swarm, seed = self.swarm, self.schedule.seed
        recorder = self.recorders[index]
        async with Node(
            listen=(f"memory://{host.name}:1",),
            identity=self.identities[index],
            transports=(host,),
            rng=Random(f"{seed} node {index}"),
        ) as node:
            self._listens(index)
            await self.all_listen.wait()
            recorder.waiting = "the group, to be founded"
            group = swarm.group(
                node,
                "swarm",
                peers=[self._address(other) for other in range(swarm.n) if other != index],
                founders=swarm.founders,
                min_peers=swarm.min_peers,
                stall=swarm.stall,
                lease=swarm.lease,
                rng=Random(f"{seed} group {index}"),
            )
            group.recorder = recorder
            async with group:
                assert group.view.me is not None
                self.trace.members[index] = group.view.me
                self.trace.joined[index] = group.rounds
                self.groups[index] = group
                try:
                    await tasks.start(recorder.watch, group)
                    recorder.waiting = "the others, to be in the group"
                    if len(self.groups) == swarm.n:
                        self.all_joined.set()
                    await self.begun.wait()
                    compute = self.schedule.compute
                    recorder.waiting = "its program"
                    peer = Peer(
                        index=index,
                        node=node,
                        group=group,
                        rng=Random(f"{seed} loop {index}"),
                        thinks=compute[index % len(compute)],
                        rounds=swarm.rounds,
                        until=self.until,
                        swarm=swarm,
                    )
                    await swarm.loop(peer)
                    recorder.waiting = "its group, to be left"
                finally:
                    del self.groups[index]

    def _address(self, index: int) -> Address:
        return Address.parse(f"memory://{self.names[index]}:1").with_peer(self.identities[index].id)


def _identity(seed: int, index: int) -> Identity:
    return Identity.from_seed(hashlib.sha256(f"{seed} identity {index}".encode()).digest())
