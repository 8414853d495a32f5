"""Moments between states: cancelled in the very turn of a commit, left but not closed, stalled in the middle."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anyio
import numpy as np
import pytest

from hydra_allreduce import Group, GroupClosed, GroupError
from hydra_allreduce.agreement import Ballot, MemberId, RecordHead, RoundRecord
from hydra_allreduce.arrays import Layout
from hydra_allreduce.calls import Call, Calls
from hydra_allreduce.contribution import MAX_WEIGHT, check_weight
from hydra_allreduce.planning import Plan
from hydra_allreduce.results import Result, Results, hash_segments, record_digest
from hydra_allreduce.ring.links import RingLinks
from hydra_net import HydraError, PeerId, RemoteProtocolError
from hydra_net.testing import simulate
from hydra_policy import planner
from tests.group.harness import Net, Peer, over_tcp, together

ME = MemberId(PeerId(bytes(32)), 1)


def record(number: int) -> RoundRecord:
    return RoundRecord(number, bytes(32), Ballot(1, ME), (), b"", ())


def call(number: int) -> Call:
    array = np.zeros(1)
    return Call(number, Layout.of(array), array, 1.0, {}, 0.0)


def commit(calls: Calls, number: int) -> None:
    calls.committed(record(number), None, None, None, 0.0)  # type: ignore[arg-type]


def test_a_caller_cancelled_in_the_turn_of_the_commit_gets_its_round_next() -> None:
    calls = Calls()
    first = call(calls.next_number())
    calls.begin(first)
    commit(calls, 1)
    calls.abandon(first)
    assert calls.rounds == 0
    delivery = calls.take()
    assert delivery is not None
    assert delivery.record.round == 1
    assert calls.rounds == 1


def test_a_caller_cancelled_in_the_turn_of_an_error_gets_it_next() -> None:
    calls = Calls()
    first = call(calls.next_number())
    calls.begin(first)
    calls.fail(GroupError("why"))
    calls.abandon(first)
    with pytest.raises(GroupError, match="why"):
        calls.take()
    assert calls.take() is None


@pytest.mark.real
def test_asyncios_own_cancellation_loses_no_round() -> None:
    async def body(peer: Peer) -> list[int]:
        rounds = []
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.003, 0.004):
            task = asyncio.ensure_future(peer.group.all_reduce(np.ones(2)))
            await asyncio.sleep(delay)
            task.cancel()
            try:
                rounds.append((await task).round)
            except asyncio.CancelledError:
                rounds.append((await peer.group.all_reduce(np.ones(2))).round)
        return rounds

    assert asyncio.run(over_tcp(1, body)) == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.anyio
@pytest.mark.real
async def test_a_group_that_was_left_costs_nothing() -> None:
    async def body(peer: Peer) -> float:
        await peer.group.leave()
        began = time.process_time()
        for _ in range(20):
            await anyio.sleep(0.01)
        return time.process_time() - began

    assert max(await over_tcp(1, body)) < 0.1


def test_a_cancelled_leave_closes_all_the_same() -> None:
    async def body(peer: Peer) -> None:
        await peer.group.all_reduce(np.ones(1))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await peer.group.leave()
        await anyio.sleep(10)
        for _ in range(2):
            with pytest.raises(GroupClosed):
                await peer.group.all_reduce(np.ones(1))

    simulate(together, 0, 2, body)


def test_each_caller_of_a_closed_group_gets_an_exception_of_its_own() -> None:
    async def main() -> None:
        async with Net().node(0) as node:
            group = Group(node, "test")
            async with group:
                pass
            errors = []
            for _ in range(2):
                with pytest.raises(GroupClosed) as caught:
                    await group.all_reduce(np.ones(1))
                errors.append(caught.value)
            assert errors[0] is not errors[1]

    simulate(main)


def test_watching_ends_with_the_group() -> None:
    async def main() -> None:
        async with Net().node(0) as node, anyio.create_task_group() as tasks:
            over = anyio.Event()

            async def watch(group: Group, started: anyio.Event) -> None:
                async with group.events() as changes:
                    started.set()
                    async for _ in changes:
                        pass
                over.set()

            async with Group(node, "test") as group:
                started = anyio.Event()
                tasks.start_soon(watch, group, started)
                await started.wait()
            await over.wait()

    simulate(main)


@pytest.mark.parametrize("out", [np.zeros(3), np.zeros(2, np.float32), [np.zeros(2)]])
def test_an_out_that_does_not_fit_enters_no_round(out: Any) -> None:
    async def body(peer: Peer) -> None:
        with pytest.raises(ValueError, match="the arrays do not fit"):
            await peer.group.all_reduce(np.ones(2), out=out)
        frozen = np.zeros(2)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            await peer.group.all_reduce(np.ones(2), out=frozen)
        assert (await peer.group.all_reduce(np.ones(2))).round == 1

    simulate(together, 0, 1, body)


@pytest.mark.parametrize("weight", [np.float32(3), np.int64(3), 3, 2**53, MAX_WEIGHT])
def test_numpys_numbers_are_weights(weight: Any) -> None:
    assert check_weight(weight) == float(weight)


@pytest.mark.parametrize("weight", [10**400, 1e20, -1, 0, np.nan, np.bool_(True), "3", None, 1j])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight must be"):
        check_weight(weight)


def test_a_holder_that_stalls_is_given_up() -> None:
    async def main() -> None:
        net = Net()
        async with net.node(0) as node, net.node(1) as staller:

            async def stall(stream: Any) -> None:
                await anyio.sleep_forever()

            with staller.serve_streams("hydra/result/run", stall):
                await node.connect(net.address(1))
                results = Results(node, "run", lambda head: None, patience=3.0)
                began = anyio.current_time()
                with pytest.raises(TimeoutError):
                    await results.fetch(RecordHead(1, bytes(32), bytes(32)), staller.id)
                assert anyio.current_time() - began == pytest.approx(3.0, abs=0.5)

    simulate(main)


def test_what_a_holder_makes_up_is_refused_before_it_is_allocated() -> None:
    async def main() -> None:
        net = Net()
        array = np.ones(4)
        layout = Layout.of(array)
        segments = layout.allocate()
        layout.pack(array, segments, None)
        digest = await hash_segments(segments)
        truth = RoundRecord(1, bytes(32), Ballot(1, ME), (), record_digest(layout, digest), ())

        async def fetch(wanted: RecordHead, served: Any, result: Result) -> None:
            async with net.node(0) as node, net.node(1) as holder:
                kept = Results(holder, "run", lambda head: served, patience=3.0)
                kept.add(result)
                with kept.serving():
                    await node.connect(net.address(1))
                    got = await Results(node, "run", lambda head: None, patience=3.0).fetch(wanted, holder.id)
                    assert got is not None
                    np.testing.assert_array_equal(got[0].segments[0], array)

        from hydra_allreduce.agreement import Lineage
        from hydra_allreduce.agreement.events import Served

        served = Served(truth, Lineage(1, (bytes(32), truth.id)))
        await fetch(truth.head, served, Result(truth, layout, segments, digest))
        with pytest.raises(RemoteProtocolError, match="another record"):
            await fetch(RecordHead(1, b"x" * 32, bytes(32)), served, Result(truth, layout, segments, digest))
        with pytest.raises(RemoteProtocolError, match="does not fit"):
            await fetch(RecordHead(0, b"y" * 32, bytes(32)), served, Result(truth, layout, segments, digest))
        with pytest.raises(RemoteProtocolError, match="does not fit"):
            await fetch(truth.head, served, Result(truth, Layout.of(np.ones(9)), segments, digest))
        broken = [segment * 2 for segment in segments]
        with pytest.raises(RemoteProtocolError, match="not the result"):
            await fetch(truth.head, served, Result(truth, layout, broken, digest))

    simulate(main)


def test_streams_that_say_nothing_or_that_nobody_wants_are_dropped() -> None:
    async def main() -> None:
        net = Net()
        async with net.node(0) as node, net.node(1) as other:
            links = RingLinks(node, "run")
            with links.serving():
                await other.connect(net.address(0))
                silent = await other.open_stream(node.id, "hydra/ring/run")
                unwanted = await other.open_stream(node.id, "hydra/ring/run")
                await unwanted.send(bytes(32))
                for stream in (silent, unwanted):
                    with anyio.fail_after(30), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                        await stream.receive()

    simulate(main)


def test_a_plan_is_checked_by_the_record_that_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator whose job sizes leap from round to round is not obeyed, in its ordinary COMMITs either."""
    refused: list[int] = []

    async def body(peer: Peer) -> None:
        if peer.group.view.coordinator.peer == peer.node.id:
            mine = peer.group._session._planner
            others = [m.peer for m in peer.group.view.members if m.peer != peer.node.id]

            def leap(record: RoundRecord | None, members: Any) -> Plan:
                number = record.round + 1 if record else 1
                sizes = {peer.node.id: 999, others[0]: 1} if number % 2 else {peer.node.id: 1, others[0]: 999}
                return Plan.of((1, number), 1000, sizes)

            monkeypatch.setattr(mine, "plan", leap)
        before = peer.group.plan
        for _ in range(6):
            await anyio.sleep(0.01)  # what a job takes
            await peer.group.all_reduce(np.ones(1), weight=max(1, peer.group.plan.size(peer.node.id)))  # type: ignore[union-attr]
            if peer.group.plan == before:
                refused.append(peer.number)
            before = peer.group.plan

    async def main() -> None:
        net = Net()

        async def run(number: int) -> None:
            chosen = planner("proportional", batch=1000)
            async with net.node(number) as node, net.group(node, number, founders=2, planner=chosen) as group:
                await body(Peer(number, node, group))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 0)
            tasks.start_soon(run, 1)

    simulate(main)
    assert refused


def test_a_node_that_fails_fails_its_group_with_the_cause() -> None:
    async def main() -> None:
        async with Net().node(0) as node, Group(node, "test") as group:
            await group.all_reduce(np.ones(1))
            node._crashed(RuntimeError("the node broke"))
            await anyio.sleep(1)

    with pytest.raises(HydraError, match="the node broke"):
        simulate(main)
