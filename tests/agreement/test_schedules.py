"""Thousands of random fault schedules: crashes, restarts, pauses, partitions, cuts, false suspicions, duels, demotions,
joins, leaves, broken links, void rounds, lost and reordered frames; groups of 1 to 8 and both quorum modes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydra_allreduce.testing import (
    Cut,
    Heal,
    Model,
    Partition,
    Schedule,
    Suspect,
    check,
    random_run,
)
from hydra_allreduce.testing.strategies import schedules

BLOCKS, BLOCK = 14, 400


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_schedules(block: int):
    decided = views = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        trace = random_run(seed)
        check(trace)
        decided += len(trace.certified)
        views += trace.views
    assert decided > 2 * BLOCK, "the schedules leave room for rounds"
    assert views > 1.5 * BLOCK, "and they do disturb the group"


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedules(),
    st.integers(1, 6),
    st.sampled_from(["survivors", "majority"]),
    st.booleans(),
)
def test_drawn_schedules(schedule: Schedule, n: int, quorum: str, tie_break: bool):
    check(Model(n, joiners=2, quorum=quorum, tie_break=tie_break).run(schedule))


def test_a_run_is_the_same_every_time():
    model = Model(5, joiners=2)
    schedule = Schedule(seed=11, steps=160, drop=0.02, faults=(Suspect(20, 1, 0), Partition(50, (0, 1)), Heal(90)))
    one, two = model.run(schedule), model.run(schedule)
    assert one.returned == two.returned
    assert one.certified == two.certified
    assert one.frames == two.frames
    assert model.run(Schedule(seed=12, steps=160)).frames != one.frames


def test_a_schedule_prints_code_that_runs_it_again():
    schedule = Schedule(seed=5, steps=60, faults=(Cut(3, 0, 1), Heal(30)))
    trace = Model(3, quorum="majority").run(schedule)
    seen: dict[str, object] = {}
    exec(trace.as_code().replace("check(", "trace = (", 1), seen)
    assert seen["trace"].returned == trace.returned  # type: ignore[attr-defined]


def test_without_faults_everybody_returns_every_round():
    for n in range(1, 9):
        trace = Model(n).run(Schedule(seed=n, steps=400, rounds=4))
        check(trace)
        assert trace.views == 1
        calls = [r for r in trace.returned if r.call is not None]
        assert len(calls) == n * max(trace.records[r.record].round for r in calls)


def test_a_hundred_members():
    trace = Model(100).run(Schedule(seed=1, steps=200, rounds=2))
    check(trace)
    assert len(trace.certified) >= 2
