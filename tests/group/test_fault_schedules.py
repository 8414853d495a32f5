"""Groups under fault schedules: deaths at any byte and any time, silence, partitions, several at once.

Each schedule is a real group of up to six nodes on a simulated network. The tests below run about 380 of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from hydra_allreduce.testing.swarm import (
    COORDINATOR,
    Kill,
    Partition,
    Pause,
    Peer,
    Reset,
    Schedule,
    Swarm,
    Vanish,
    check,
    random_run,
    random_schedule,
    random_swarm,
    schedules,
    violations,
)
from hydra_allreduce.testing.swarm.faults import Fault

BLOCK = 10
KINDS = ("kill", "byte", "byte", "vanish", "pause", "partition", "cut", "reset", "slow")


def run_block(first: int, kinds: Iterable[str], faults: int | None = None, *, early: bool = False) -> None:
    for seed in range(first, first + BLOCK):
        check(random_run(seed, kinds, faults, early=early))


@pytest.mark.parametrize("block", range(3))
def test_a_process_dies_at_any_moment(block: int) -> None:
    run_block(1000 + BLOCK * block, ["kill"], faults=1)


@pytest.mark.parametrize("block", range(5))
def test_a_process_dies_at_any_byte(block: int) -> None:
    run_block(2000 + BLOCK * block, ["byte"], faults=1)


@pytest.mark.parametrize("victim", [COORDINATOR, 0, 1, 2])
def test_a_process_dies_in_the_middle_of_a_round_byte_by_byte(victim: int | str) -> None:
    """One round of a small group moves some 2,000 bytes per member: one death every 170 of them."""
    for sent in range(1, 2040, 170):
        kill = Kill(0.0, victim, sent)  # type: ignore[arg-type]
        trace = Swarm(3, rounds=2, elements=40).run(Schedule(sent, window=512, faults=(kill,)))
        check(trace)
        assert trace.died


@pytest.mark.parametrize("block", range(3))
def test_the_coordinator_dies(block: int) -> None:
    for seed in range(3000 + BLOCK * block, 3000 + BLOCK * (block + 1)):
        rng = Random(seed)
        swarm = random_swarm(rng, (2, 3, 4, 5, 6))
        drawn = random_schedule(rng, swarm, ["byte"], faults=rng.choice((1, 1, 2)))
        check(swarm.run(aimed(drawn, COORDINATOR)))


@pytest.mark.parametrize("block", range(3))
def test_several_die_at_once(block: int) -> None:
    for seed in range(4000 + BLOCK * block, 4000 + BLOCK * (block + 1)):
        rng = Random(seed)
        swarm = random_swarm(rng, (3, 4, 5, 6))
        drawn = random_schedule(rng, swarm, ["kill"], faults=1)
        at = drawn.faults[0].at
        victims = rng.sample(range(swarm.n), rng.randint(2, swarm.n - 1))
        deaths: tuple[Fault, ...] = tuple(
            Vanish(at, victim) if rng.random() < 0.3 else Kill(at, victim, rng.choice((0, rng.randrange(5000))))
            for victim in victims
        )
        check(swarm.run(changed(drawn, faults=deaths)))


@pytest.mark.parametrize("block", range(2))
def test_a_machine_loses_power(block: int) -> None:
    run_block(5000 + BLOCK * block, ["vanish"])


@pytest.mark.parametrize("block", range(3))
def test_machines_stand_still_for_a_while(block: int) -> None:
    run_block(6000 + BLOCK * block, ["pause"])


@pytest.mark.parametrize("block", range(3))
def test_the_network_splits_and_heals(block: int) -> None:
    run_block(7000 + BLOCK * block, ["partition"])


@pytest.mark.parametrize("block", range(2))
def test_links_break_block_and_slow_down(block: int) -> None:
    run_block(8000 + BLOCK * block, ["cut", "reset", "slow"])


@pytest.mark.parametrize("block", range(3))
def test_everything_at_once(block: int) -> None:
    run_block(9000 + BLOCK * block, ["kill", "byte", "byte", "vanish", "pause", "partition", "cut", "reset", "slow"])


@pytest.mark.parametrize("block", range(3))
def test_faults_strike_while_the_group_is_founded(block: int) -> None:
    run_block(10_000 + BLOCK * block, KINDS, early=True)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(schedules(Swarm(3, rounds=4)))
def test_three_peers_under_whatever_hypothesis_comes_up_with(schedule: Schedule) -> None:
    check(Swarm(3, rounds=4).run(schedule))


def aimed(schedule: Schedule, victim: int | str) -> Schedule:
    """The same deaths, all of them of ``victim``."""
    kills = [fault for fault in schedule.faults if isinstance(fault, Kill)]
    return changed(schedule, faults=tuple(Kill(k.at, victim, k.after_bytes) for k in kills))  # type: ignore[arg-type]


def changed(schedule: Schedule, *, faults: tuple[Fault, ...]) -> Schedule:
    return Schedule(
        schedule.seed,
        latency=schedule.latency,
        jitter=schedule.jitter,
        bandwidth=schedule.bandwidth,
        window=schedule.window,
        compute=schedule.compute,
        faults=faults,
    )


# ------------------------------------------------------------------------------------------------ the kit itself


def test_without_faults_every_peer_returns_every_round_at_the_first_attempt() -> None:
    trace = Swarm(4, rounds=5).run(Schedule(1))
    check(trace)
    assert not trace.raised
    assert not trace.died
    assert [(r.round, r.attempts, r.contributed) for r in trace.returned if r.peer == 2] == [
        (number, 1, True) for number in range(1, 6)
    ]


def test_survivors_return_every_round_and_say_who_died() -> None:
    trace = Swarm(4, rounds=5).run(Schedule(2, compute=(0.1,), faults=(Kill(0.25, 1), Vanish(0.31, 2))))
    check(trace)
    assert list(trace.died) == [1, 2]
    assert not trace.raised
    for peer in (0, 3):
        mine = [r for r in trace.returned if r.peer == peer]
        assert [r.round for r in mine] == [1, 2, 3, 4, 5]
        lost = {who for r in mine for who, _ in r.lost}
        assert {trace.peers[1], trace.peers[2]} <= lost
        assert {who for who, _ in mine[-1].contributors} == {trace.peers[0], trace.peers[3]}


def test_the_coordinator_is_whoever_coordinates_then() -> None:
    trace = Swarm(5, rounds=6).run(
        Schedule(3, compute=(0.2,), faults=(Kill(0.3, COORDINATOR), Kill(0.6, COORDINATOR), Kill(0.9, COORDINATOR)))
    )
    check(trace)
    assert len(trace.died) == 3


def test_a_kill_after_some_bytes_strikes_in_the_middle_of_a_write() -> None:
    quiet = Swarm(2, rounds=2).run(Schedule(4))
    trace = Swarm(2, rounds=2).run(Schedule(4, faults=(Kill(0.0, 1, 1500),)))
    check(trace)
    assert list(trace.died) == [1]
    assert trace.began < trace.died[1] < quiet.finished[1]


def test_a_long_partition_forks_the_group_and_one_part_gives_its_rounds_up() -> None:
    trace = Swarm(4, rounds=4, settle=25.0).run(
        Schedule(5, compute=(0.3,), faults=(Partition(0.5, (0, 0, 1, 1), 12.0),))
    )
    check(trace)
    assert any(raised.error == "Superseded" for raised in trace.raised)


def test_a_pause_that_nobody_notices_delays_a_round_and_changes_nothing() -> None:
    trace = Swarm(3, rounds=4).run(Schedule(6, compute=(0.1,), faults=(Pause(0.15, 1, 0.4),)))
    check(trace)
    assert not trace.raised
    assert all(r.attempts == 1 for r in trace.returned)


def test_two_live_peers_whose_connections_break_go_on() -> None:
    trace = Swarm(3, rounds=6).run(Schedule(7, compute=(0.05,), faults=tuple(Reset(0.1 * i, 0, 1) for i in range(4))))
    check(trace)
    assert sorted(trace.finished) == [0, 1, 2]


def test_who_is_left_alone_before_the_group_is_founded_waits_and_that_is_no_violation() -> None:
    trace = Swarm(3).run(Schedule(8, faults=(Kill(0.5, 0),), early=True))
    check(trace)
    assert trace.stranded
    assert not trace.returned


def test_a_loop_of_ones_own_is_checked_like_the_kits() -> None:
    """One that adds numbers up, and one that raises what no group raises."""

    async def sums(peer: Peer) -> None:
        total = 0.0
        while peer.group.rounds < peer.rounds:
            result = await peer.group.all_reduce([np.array(1.0 + peer.index)], op="sum")
            total += float(result.arrays[0])

    async def gives_up(peer: Peer) -> None:
        await sums(peer)
        raise ValueError("lost the thread")

    deaths = Schedule(9, compute=(0.1,), faults=(Kill(0.0, 1, 2500),))
    check(Swarm(3, sums).run(deaths))
    broken = violations(Swarm(3, gives_up).run(deaths))
    assert len(broken) == 2
    assert all("raised ValueError" in text for text in broken)


HARD = (
    "Swarm(4, rounds=4, settle=1.0).run(Schedule(8, jitter=0.01, window=1024, compute=(0.05, 0.0), faults=("
    "Kill(0.1, COORDINATOR, 900), Pause(0.2, 3, 3.0), Partition(0.3, (0, 1, 0, 0), 4.0), Vanish(2.0, 2))))"
)


def hard_digest() -> str:
    names = {"Swarm": Swarm, "Schedule": Schedule, "Kill": Kill, "COORDINATOR": COORDINATOR}
    names |= {"Pause": Pause, "Partition": Partition, "Vanish": Vanish}
    digest: str = eval(HARD, names).digest
    return digest


def test_a_seed_replays_exactly_and_another_one_does_not() -> None:
    assert hard_digest() == hard_digest()
    assert Swarm(3).run(Schedule(1)).digest != Swarm(3).run(Schedule(2)).digest


@pytest.mark.real
def test_a_seed_replays_exactly_in_another_process() -> None:
    code = f"from hydra_allreduce.testing.swarm import *\nprint({HARD}.digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hard_digest()


def test_a_schedule_prints_code_that_runs_it_again() -> None:
    swarm = Swarm(2, rounds=3, op="sum")
    schedule = Schedule(9, compute=(0.01,), faults=(Kill(0.02, COORDINATOR, 700), Pause(0.1, 0, 0.2)))
    trace = swarm.run(schedule)
    namespace: dict[str, object] = {}
    exec(trace.as_code(), namespace)  # checks the trace, too
    again: Swarm = eval(repr(swarm), namespace)
    assert again.run(schedule).digest == trace.digest
