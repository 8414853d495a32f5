"""Who is in: founding, joining, leaving, dying, splitting and meeting again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import numpy as np
import pytest

from hydra_allreduce import (
    Genesis,
    Group,
    GroupClosed,
    GroupEvent,
    GroupFailed,
    MemberJoined,
    MemberLost,
    Reduction,
    RoundsSuperseded,
    Superseded,
    TooFewPeers,
    ViewChanged,
)
from hydra_net import HydraError
from hydra_net.testing import simulate
from tests.group.harness import Net, Peer, together


def one(value: float = 1.0) -> np.ndarray:
    return np.full(4, float(value))


async def until_dead(net: Net, number: int, run: Callable[[], Awaitable[Any]]) -> None:
    """Run a peer's program until its host dies: a dead process runs nothing and returns nothing."""
    dead = net.network.host(f"p{number}").dead
    async with anyio.create_task_group() as tasks:

        async def reap() -> None:
            await dead.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(reap)
        try:
            await run()
        except HydraError:
            if not dead.is_set():
                raise
        tasks.cancel_scope.cancel()


class Swarm:
    """``count`` peers that reduce for ever; ``log[n]`` has what peer n returned."""

    def __init__(self, net: Net, tasks: anyio.abc.TaskGroup) -> None:
        self.pace = 0.1
        self.net = net
        self.tasks = tasks
        self.log: dict[int, list[Reduction[np.ndarray]]] = {}
        self.events: dict[int, list[GroupEvent]] = {}
        self.errors: dict[int, list[Exception]] = {}
        self.groups: dict[int, Group] = {}

    def start(self, number: int, **options: Any) -> None:
        self.log[number], self.events[number], self.errors[number] = [], [], []
        self.tasks.start_soon(until_dead, self.net, number, lambda: self._run(number, options))

    async def _run(self, number: int, options: dict[str, Any]) -> None:
        async with self.net.node(number) as node, self.net.group(node, number, **options) as group:
            self.groups[number] = group
            async with group.events() as changes, anyio.create_task_group() as tasks:
                tasks.start_soon(self._note, number, changes)
                while True:
                    try:
                        self.log[number].append(await group.all_reduce(one(number), op="sum"))
                    except (Superseded, TooFewPeers) as error:
                        self.errors[number].append(error)
                    except GroupClosed:
                        tasks.cancel_scope.cancel()
                        return
                    await anyio.sleep(self.pace)

    async def _note(self, number: int, changes: Any) -> None:
        async for change in changes:
            self.events[number].append(change)

    async def wait(self, number: int, condition: Callable[[Reduction[np.ndarray]], bool]) -> Reduction[np.ndarray]:
        """The first result of peer ``number`` that satisfies ``condition``."""
        with anyio.fail_after(300):
            seen = 0
            while True:
                while seen < len(self.log[number]):
                    if condition(self.log[number][seen]):
                        return self.log[number][seen]
                    seen += 1
                await anyio.sleep(0.05)


def scenario(story: Callable[[Swarm], Awaitable[None]], seed: int = 0, latency: float = 0.01) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            await story(Swarm(Net(seed, latency), tasks))
            tasks.cancel_scope.cancel()

    simulate(main, seed)


def test_the_first_round_waits_for_the_founders() -> None:
    async def body(peer: Peer) -> tuple[float, int]:
        result = await peer.group.all_reduce(one())
        return anyio.current_time(), len(result.contributors)

    async def main() -> list[tuple[float, int]]:
        net = Net()
        results = []

        async def late(number: int, delay: float) -> None:
            await anyio.sleep(delay)
            async with net.node(number) as node, net.group(node, number, founders=3) as group:
                results.append(await body(Peer(number, node, group)))

        async with anyio.create_task_group() as tasks:
            for number, delay in enumerate([0.0, 3.0, 20.0]):
                tasks.start_soon(late, number, delay)
        return results

    results = simulate(main)
    assert all(time >= 20 and count == 3 for time, count in results)


def test_a_contact_that_comes_up_late_is_found() -> None:
    """The contact does not exist when the others ask for the run."""

    async def story(swarm: Swarm) -> None:
        swarm.start(1, founders=2)
        await anyio.sleep(10)
        swarm.start(0, founders=2)
        result = await swarm.wait(1, lambda r: len(r.contributors) == 2)
        assert result.round == 1

    scenario(story)


def test_members_with_other_terms_are_in_another_run() -> None:
    assert Genesis("a").run_id != Genesis("a", founders=2).run_id != Genesis("a", salt=b"x").run_id


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("how", ["kill", "vanish"])
def test_survivors_go_on_and_say_who_was_lost_and_why(victim: int, how: str) -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(4):
            swarm.start(number, founders=4)
        await swarm.wait(3, lambda r: r.round == 3)
        coordinator = min(range(4), key=lambda n: swarm.net.node(n).id)  # the lowest id founds the run
        dead = (coordinator + victim) % 4
        getattr(swarm.net.network, how)(f"p{dead}")
        died = anyio.current_time()
        gone = swarm.net.node(dead).id
        alive = [n for n in range(4) if n != dead]
        firsts = [await swarm.wait(n, lambda r: gone not in r.contributors) for n in alive]
        assert len({r.record.id for r in firsts}) == 1
        assert anyio.current_time() - died < (1 if how == "kill" else 35)
        for number in alive:
            told = [lost for r in swarm.log[number] for peer, lost in r.lost.items() if peer == gone]
            assert len(told) == 1
            assert told[0].cause
            assert [e.peer for e in swarm.events[number] if isinstance(e, MemberLost)] == [gone]

    scenario(story)


def test_two_die_at_once() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(5):
            swarm.start(number, founders=5)
        await swarm.wait(0, lambda r: r.round == 2)
        for number in (1, 2):
            swarm.net.network.kill(f"p{number}")
        for number in (0, 3, 4):
            result = await swarm.wait(number, lambda r: len(r.contributors) == 3)
            assert float(result.arrays[0]) == 0 + 3 + 4

    scenario(story)


def test_the_last_survivor_goes_on_alone() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(3):
            swarm.start(number, founders=3)
        await swarm.wait(2, lambda r: r.round == 2)
        swarm.net.network.kill("p0")
        swarm.net.network.kill("p1")
        result = await swarm.wait(2, lambda r: len(r.contributors) == 1)
        assert float(result.arrays[0]) == 2

    scenario(story)


def test_a_newcomer_contributes_from_the_round_after_it_is_let_in() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(2):
            swarm.start(number, founders=2)
        await swarm.wait(0, lambda r: r.round == 5)
        swarm.start(2, founders=2)
        result = await swarm.wait(0, lambda r: len(r.contributors) == 3)
        assert float(result.arrays[0]) == 0 + 1 + 2
        mine = await swarm.wait(2, lambda r: r.round == result.round)
        assert mine.record == result.record
        first = swarm.log[2][0].round
        assert [r.round for r in swarm.log[2]] == list(range(first, first + len(swarm.log[2])))
        assert any(isinstance(e, MemberJoined) and e.peer == swarm.net.node(2).id for e in swarm.events[0])

    scenario(story)


def test_a_restarted_process_is_a_new_member() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(3):
            swarm.start(number, founders=3)
        await swarm.wait(0, lambda r: r.round == 3)
        swarm.net.network.kill("p2")
        await anyio.sleep(0.02)
        swarm.net.network.restart("p2")
        swarm.start(2, founders=3)
        result = await swarm.wait(2, lambda r: len(r.contributors) == 3)
        assert float(result.arrays[0]) == 0 + 1 + 2
        assert swarm.net.node(2).id in {peer for r in swarm.log[0] for peer in r.lost}

    scenario(story)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_who_leaves_is_let_go_at_a_round_boundary_and_nobody_retries(leaver: int) -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(3):
            swarm.start(number, founders=3)
        await swarm.wait(leaver, lambda r: r.round == 3)
        began = anyio.current_time()
        await swarm.groups[leaver].leave()
        assert anyio.current_time() - began < 2
        with pytest.raises(GroupClosed):
            await swarm.groups[leaver].all_reduce(one())
        gone = swarm.net.node(leaver).id
        for number in {0, 1, 2} - {leaver}:
            result = await swarm.wait(number, lambda r: len(r.contributors) == 2)
            lost = [r.lost[gone] for r in swarm.log[number] if gone in r.lost]
            assert [entry.cause for entry in lost] == ["left"]
            assert result.attempts == 1

    scenario(story)


def test_everybody_leaves_at_once_without_waiting_for_timers() -> None:
    async def body(peer: Peer) -> float:
        for _ in range(3):
            await peer.group.all_reduce(one())
        began = anyio.current_time()
        await peer.group.leave()
        return anyio.current_time() - began

    for seed in range(5):
        assert max(simulate(together, seed, 4, body)) < 0.5


def test_too_few_peers_is_said_after_the_lease_and_the_group_goes_on_when_there_are_enough() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(2):
            swarm.start(number, founders=2, min_peers=2)
        await swarm.wait(0, lambda r: r.round == 3)
        swarm.net.network.kill("p1")
        before = len(swarm.log[0])
        await anyio.sleep(100)
        assert len(swarm.log[0]) <= before + 1
        assert swarm.errors[0]
        assert all(isinstance(error, TooFewPeers) for error in swarm.errors[0])
        assert "min_peers=2" in str(swarm.errors[0][0])
        swarm.net.network.restart("p1")
        swarm.start(1, founders=2, min_peers=2)
        await swarm.wait(1, lambda r: len(r.contributors) == 2)

    scenario(story)


def test_a_partition_that_heals_ends_in_one_lineage_and_the_rounds_given_up_are_reported() -> None:
    async def story(swarm: Swarm) -> None:
        swarm.pace = 2.0
        for number in range(5):
            swarm.start(number, founders=5)
        await swarm.wait(0, lambda r: r.round == 3)
        swarm.net.network.partition([["p0", "p1", "p2"], ["p3", "p4"]])
        await swarm.wait(0, lambda r: len(r.contributors) == 3)
        await swarm.wait(4, lambda r: len(r.contributors) == 2)
        swarm.net.network.heal()
        healed = anyio.current_time()
        result = await swarm.wait(0, lambda r: len(r.contributors) == 5 and r.round > 5)
        assert anyio.current_time() - healed < 60
        after = [await swarm.wait(n, lambda r: r.round == result.round) for n in range(5)]
        assert len({r.record.id for r in after}) == 1
        gave_up = [n for n in range(5) if any(isinstance(e, RoundsSuperseded) for e in swarm.events[n])]
        assert gave_up in ([0, 1, 2], [3, 4])
        for number in range(5):
            assert bool(swarm.errors[number]) == (number in gave_up)
            assert all(isinstance(error, Superseded) for error in swarm.errors[number])

    scenario(story)


def test_a_planner_that_breaks_fails_the_group_with_its_cause() -> None:
    class Broken:
        def observe(self, record: object) -> None:
            raise RuntimeError("no idea")

        def plan(self, record: object, members: object) -> object:
            raise RuntimeError("no idea")

        check = load_state_dict = observe

        def state_dict(self) -> None:
            return None

    async def main() -> None:
        with pytest.raises(GroupFailed, match="no idea") as caught:
            async with Net().node(0) as node, Group(node, "test", planner=Broken()) as group:  # type: ignore[arg-type]
                await group.all_reduce(one())
        assert isinstance(caught.value.__cause__, RuntimeError)

    simulate(main)


def test_events_tell_of_views_in_order() -> None:
    async def story(swarm: Swarm) -> None:
        for number in range(3):
            swarm.start(number, founders=3)
        await swarm.wait(0, lambda r: r.round == 2)
        swarm.net.network.kill("p1")
        await swarm.wait(0, lambda r: len(r.contributors) == 2)
        ballots = [e.view.ballot for e in swarm.events[0] if isinstance(e, ViewChanged)]
        assert ballots == sorted(set(ballots))
        assert ballots

    scenario(story)
