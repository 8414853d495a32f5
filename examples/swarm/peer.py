"""One peer: joins the group, works on its share of each batch, and takes the same step as all the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import anyio.to_thread
import numpy as np

from hydra_allreduce import Group, Reduction
from hydra_net import Address, Caller, Cbor, Identity, Node, RemoteError, TcpTransport, Transport
from hydra_net.testing.faults import TripwireTransport
from hydra_policy import planner
from swarm import data
from swarm.batches import Batches
from swarm.data import Dataset
from swarm.errors import LateJoin, UserError
from swarm.killing import Doom
from swarm.model import Network
from swarm.options import PeerOptions
from swarm.reports import Death, Finished, Joined, Listening, PrintText, Reporter, RoundDone
from swarm.settings import Settings
from swarm.work import Work

RUN = "mnist-swarm"
SETTINGS = "mnist-swarm/settings"  # the method that tells a newcomer what the run is about


async def run_child(work: Work, dataset: Dataset, join: Sequence[str], report: Reporter) -> None:
    """A peer that a launcher has started."""
    identity = Identity.from_seed(bytes.fromhex(work.secret))
    tripwire = TripwireTransport(TcpTransport()) if work.kill_round else None
    transports: list[Transport] = [tripwire or TcpTransport()]
    async with Node(listen=[work.listen], identity=identity, transports=transports) as node:
        report(_listening(node))
        trainer = Trainer(node, work.settings, dataset, report, delay=work.delay, slow=work.slow)
        trainer.siblings = work.siblings
        if tripwire is not None:
            trainer.before_reduce = Doom(tripwire, work, report).before_reduce
        await trainer.run(join)


async def run_by_hand(options: PeerOptions) -> None:
    """A peer that a person has started: it asks the peers that it joins what the run is about.

    Raises:
        LateJoin: the run has begun.
        UserError: the data here are not those of the run.
    """
    report = PrintText()
    async with Node(listen=[options.listen or _reachable(options.join)]) as node:
        settings = options.settings
        if options.join:
            settings = await _ask(node, options.join)
        here = options.data or settings.data
        dataset = await anyio.to_thread.run_sync(data.load, here)
        if settings.digest and dataset.digest != settings.digest:
            raise UserError(f"the run trains on other images than {dataset.name} here; name the same data with --data")
        settings = replace(settings, data=here, digest=dataset.digest)
        report.rounds = settings.rounds
        report(_listening(node))
        await Trainer(node, settings, dataset, report, delay=options.delay, slow=options.slow).run(options.join)


class Trainer:
    """The training loop of one peer.

    Attributes:
        siblings: peers whose reports go to one place; of these the first one left measures the accuracy on the way.
        before_reduce: called before each all-reduce with the round, the number of peers and the bytes of a gradient.
    """

    def __init__(
        self, node: Node, settings: Settings, dataset: Dataset, report: Reporter, *, delay: float, slow: float
    ) -> None:
        self._node = node
        self._settings = settings
        self._data = dataset
        self._report = report
        self._delay = delay
        self._slow = slow
        self._rounds = 0
        self._network = Network(dataset.train_x.shape[1], seed=settings.seed)
        self._batches = Batches(len(dataset.train_x), seed=settings.seed)
        self.siblings: Sequence[str] = ()
        self.before_reduce: Callable[[int, int, int], None] | None = None

    async def run(self, join: Sequence[str]) -> None:
        """Train all rounds of the run, with the peers at the addresses ``join`` (or whoever joins us).

        Raises:
            LateJoin: the run has begun without us.
            HydraError: the group cannot go on; the message says why.
        """
        settings = self._settings
        plans = planner(settings.sizer, batch=settings.batch)
        with self._node.handle(SETTINGS, self._answer):
            async with Group(self._node, RUN, peers=join, founders=settings.founders, planner=plans) as group:
                if group.rounds:
                    raise LateJoin(group.rounds)
                self._report(Joined(group.view.world_size, str(group.view.members[0].peer)))
                while group.rounds < settings.rounds:
                    await self._round(group)
                    self._rounds = group.rounds
                accuracy = self._network.accuracy(self._data.test_x, self._data.test_y)
                self._report(Finished(group.rounds, self._network.digest(), accuracy))
                await group.leave()

    async def _round(self, group: Group) -> None:
        began = time.perf_counter()
        plan, number = group.plan, group.rounds + 1
        assert plan is not None  # the group has a planner
        job = self._batches.job(number, plan, self._node.id)
        if not len(job):
            # Without a share in the plan we follow. Should the others take us into the ring after all, for one of them
            # dies, what we bring is a gradient like any other.
            job = self._batches.batch(number, plan.batch)[:1]
        gradient, loss, busy = await group.compute(self._gradient, job)
        if self.before_reduce is not None:
            self.before_reduce(number, group.view.world_size, self._network.nbytes)
        result = await group.all_reduce(gradient, weight=len(job), metrics={"loss": loss})
        self._network.step(result.arrays)
        self._report(self._done(result, busy, time.perf_counter() - began))

    def _gradient(self, job: np.ndarray) -> tuple[dict[str, np.ndarray], float, float]:
        """The mean gradient over the job, its mean loss, and the seconds that it took."""
        began = time.perf_counter()
        gradient, loss = self._network.gradient(self._data.train_x[job], self._data.train_y[job])
        time.sleep(self._delay + (self._slow - 1) * (time.perf_counter() - began))
        return gradient, loss, time.perf_counter() - began

    def _done(self, result: Reduction[dict[str, np.ndarray]], busy: float, seconds: float) -> RoundDone:
        present = [str(member.peer) for member in result.view.members]
        first = next((peer for peer in self.siblings if peer in present), None)
        # Not often: whoever measures falls behind the others by it.
        due = result.round == 1 or result.round % max(5, self._settings.rounds // 40) == 0
        measure = due and first == str(self._node.id)
        return RoundDone(
            round=result.round,
            loss=result.metrics.get("loss", 0.0),
            attempts=result.attempts,
            world_size=result.view.world_size,
            coordinator=present[0],
            sizes={str(peer): round(weight) for peer, weight in result.contributors.items()},
            lost={str(peer): Death(lost.cause, lost.contributed) for peer, lost in result.lost.items()},
            seconds=seconds,
            busy=busy,
            accuracy=self._network.accuracy(self._data.test_x, self._data.test_y) if measure else None,
        )

    async def _answer(self, _caller: Caller, _body: Cbor) -> Cbor:
        return [self._settings.to_cbor(), self._rounds]


async def _ask(node: Node, join: Sequence[str]) -> Settings:
    peer = await node.connect(Address.parse(join[0]))
    try:
        answer = await node.call(peer, SETTINGS)
    except RemoteError as error:
        raise UserError(f"the peer at {join[0]} is not training here: {error}") from None
    match answer:
        case [settings, int(rounds)]:
            if rounds:
                raise LateJoin(rounds)
            return Settings.from_cbor(settings)
        case _:
            raise UserError(f"the peer at {join[0]} answers in another way than this program; use the same version")


def _reachable(join: Sequence[str]) -> str:
    """Where the others can reach us too: on this machine alone if they are on it."""
    here = all(Address.parse(address).host in {"127.0.0.1", "localhost"} for address in join)
    return "tcp://127.0.0.1:0" if here else "tcp://0.0.0.0:0"


def _listening(node: Node) -> Listening:
    return Listening(str(node.id), os.getpid(), [str(address) for address in node.addresses])
