"""The planner: plans add up and hold their bounds whatever the sizer wants; members refuse what they would not do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_allreduce.planning import Plan, PlanError, PlanNumber
from hydra_net.codec import decode, encode
from hydra_policy import Decision, Safety, planner

from .runs import contribution, job, member, members, peer, record

SIZERS = ["equal", "proportional"]


class Scripted:
    """A sizer that proposes what it is told to."""

    def __init__(self, sizes, left_out=()):
        self.decision = Decision(sizes, dict.fromkeys(left_out, "told so"))

    def propose(self, peers, batch):
        return self.decision

    def observe(self, record):
        pass

    def state_dict(self):
        return None

    def load_state_dict(self, state):
        pass


@st.composite
def histories(draw, count=6):
    """Rounds of honest and less honest reports."""
    rounds = []
    for number in range(draw(st.integers(0, 6))):
        present = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
        jobs = [job(i, draw(st.integers(1, 300)), draw(st.integers(1, 10**9))) for i in present]
        rounds.append(record(number + 1, jobs))
    return rounds


# ------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("name", SIZERS)
@given(rounds=histories(), count=st.integers(1, 6), batch=st.integers(1, 700), followers=st.integers(0, 2))
def test_every_plan_adds_up_and_passes_the_check_of_every_member(name, rounds, count, batch, followers):
    coordinator, other = planner(name, batch=batch), planner(name, batch=batch)
    for one in rounds:
        coordinator.observe(one)
        other.observe(one)
    view = [*members(count), *(member(10 + i, "follower") for i in range(followers))]
    plan = coordinator.plan(rounds[-1] if rounds else None, view)
    assert sum(plan.sizes.values()) == plan.batch == batch
    assert list(plan.sizes) == [peer(i) for i in range(count)]
    assert min(plan.sizes.values()) >= (1 if batch >= count else 0)
    assert plan.round == len(rounds) + 1
    other.check(Plan.from_cbor(decode(encode(plan.to_cbor()), limit=64 * 1024)), view)
    assert planner(name, batch=batch).plan(rounds[-1] if rounds else None, view).batch == batch


@pytest.mark.parametrize("name", SIZERS)
@given(rounds=histories(), random=st.randoms())
def test_sizes_depend_neither_on_seniority_nor_on_who_plans(name, rounds, random):
    shuffled = members(6)
    random.shuffle(shuffled)
    one, other = planner(name, batch=100), planner(name, batch=100)
    last = other_last = None
    for last in rounds:
        other_last = replace(last, contributions=tuple(random.sample(last.contributions, len(last.contributions))))
        one.observe(last)
        other.observe(other_last)
    plan, again = one.plan(last, members(6)), other.plan(other_last, shuffled)
    assert dict(plan.sizes) == dict(again.sizes)
    assert list(again.sizes) == [m.peer for m in shuffled]


def test_the_number_names_the_ballot_and_the_round():
    plans = planner(batch=10)
    assert plans.plan(None, members(2)).number == PlanNumber(0, 1)
    assert plans.plan(record(6, [job(0, 5, 100)], ballot=3), members(2)).number == PlanNumber(3, 7)


def test_without_a_contributor_there_is_nothing_to_plan():
    with pytest.raises(ValueError, match="no contributor"):
        planner(batch=10).plan(None, [member(0, "follower")])


def test_the_same_record_twice_counts_once():
    plans = planner("proportional", batch=10)
    one = record(1, [job(0, 5, 100), job(1, 5, 900)])
    plans.observe(one)
    before = plans.state_dict()
    plans.observe(one)
    plans.plan(one, members(2))
    assert plans.state_dict() == before


def test_a_name_that_is_no_sizer():
    with pytest.raises(ValueError, match=r"'fastest'.*'equal', 'proportional'"):
        planner("fastest", batch=10)


@pytest.mark.parametrize("batch", [0, -1, 2**31, True])
def test_a_batch_that_is_none(batch):
    with pytest.raises(ValueError, match="batch"):
        planner(batch=batch)


# ------------------------------------------------------------------------------------------------ safety

GREEDY = {
    "sum too small": [1, 1, 1],
    "sum too large": [100, 100, 100],
    "negative": [-50, 75, 75],
    "zero for all": [0, 0, 0],
    "not a number": [math.nan, 50, 50],
    "fractions": [33.3, 33.3, 33.4],
    "text": ["100", 0, 0],
    "booleans": [True, True, True],
    "beyond all bounds": [10**30, 1, 1],
}


@pytest.mark.parametrize("wanted", GREEDY.values(), ids=GREEDY)
def test_whatever_a_sizer_proposes_the_plan_holds(wanted):
    plans = planner(Scripted({peer(i): size for i, size in enumerate(wanted)}), batch=100)
    plan = plans.plan(None, members(3))
    assert sum(plan.sizes.values()) == 100
    assert min(plan.sizes.values()) >= 1


def test_peers_that_a_sizer_forgets_or_invents():
    plan = planner(Scripted({peer(0): 60, peer(9): 40}), batch=100).plan(None, members(2))
    assert dict(plan.sizes) == {peer(0): 98, peer(1): 2}  # in proportion 60 : 1


def test_a_good_proposal_is_taken_as_it_is():
    wanted = {peer(0): 7, peer(1): 92, peer(2): 1}
    plans = planner(Scripted(wanted), batch=100)
    assert dict(plans.plan(None, members(3)).sizes) == wanted
    assert plans.decision.sizes == wanted


def test_a_peer_that_is_left_out_gets_nothing_and_the_others_accept_that():
    plans = planner(Scripted({peer(0): 50, peer(1): 50}, left_out=[peer(2)]), batch=100)
    plan = plans.plan(None, members(3))
    assert dict(plan.sizes) == {peer(0): 50, peer(1): 50, peer(2): 0}
    planner(batch=100).check(plan, members(3))


def test_not_everybody_can_be_left_out():
    plan = planner(Scripted({}, left_out=[peer(0), peer(1)]), batch=100).plan(None, members(2))
    assert dict(plan.sizes) == {peer(0): 50, peer(1): 50}


def test_a_job_grows_fourfold_at_most_from_one_round_to_the_next():
    plans = planner("proportional", batch=100)
    sizes = []
    last = record(1, [job(0, 2, 10**6), job(1, 98, 10**6)])
    for number in range(2, 7):  # peer 0 turns out to be a hundred times faster
        plan = plans.plan(last, members(2))
        sizes.append(plan.size(peer(0)))
        jobs = [job(0, sizes[-1], 100 * sizes[-1]), job(1, 100 - sizes[-1], 10_000 * (100 - sizes[-1]))]
        last = record(number, jobs)
    assert sizes[0] <= 8
    assert all(after <= 4 * before for before, after in zip([2, *sizes], sizes, strict=False))
    assert sizes[-1] > 90


def test_growth_gives_way_where_the_batch_has_to_be_taken_by_the_few_who_are_left():
    plans, check = planner(batch=800), planner(batch=800)
    last = record(1, [job(i, 100, 1000) for i in range(8)])
    check.observe(last)
    plan = plans.plan(last, members(1))
    assert dict(plan.sizes) == {peer(0): 800}
    check.check(plan, members(1))


def test_a_newcomer_is_not_bound_by_growth():
    plan = planner(batch=100).plan(record(1, [job(0, 100, 1000)]), members(2))
    assert dict(plan.sizes) == {peer(0): 50, peer(1): 50}


def test_a_growth_that_forbids_all_change():
    with pytest.raises(ValueError, match="growth"):
        Safety(growth=1)


# ------------------------------------------------------------------------------------------------- check


def refused(plan, view, *, last=None, batch=100):
    plans = planner(batch=batch)
    if last is not None:
        plans.observe(last)
    with pytest.raises(PlanError) as caught:
        plans.check(plan, view)
    return caught.value


def test_check_refuses_another_batch():
    error = refused(Plan.of((1, 1), 99, {peer(0): 99}), members(1))
    assert error.field == "batch"
    assert "99" in str(error)
    assert "100" in str(error)


def test_check_refuses_a_stranger():
    error = refused(Plan.of((1, 1), 100, {peer(0): 50, peer(7): 50}), members(1))
    assert error.field == "sizes"
    assert str(peer(7)) in str(error)


def test_check_refuses_work_for_a_follower():
    error = refused(Plan.of((1, 1), 100, {peer(0): 50, peer(1): 50}), [member(0), member(1, "follower")])
    assert error.field == "sizes"
    assert str(peer(1)) in str(error)


def test_check_refuses_to_pass_over_a_contributor():
    error = refused(Plan.of((1, 1), 100, {peer(0): 100}), members(2))
    assert error.field == "sizes"
    assert str(peer(1)) in str(error)


def test_check_refuses_sudden_growth():
    last = record(4, [job(0, 10, 1000), job(1, 90, 1000)])
    error = refused(Plan.of((1, 5), 100, {peer(0): 41, peer(1): 59}), members(2), last=last)
    assert error.field == "growth"
    assert str(peer(0)) in str(error)
    assert "40" in str(error)


def test_check_measures_growth_only_from_the_round_just_before():
    plans = planner(batch=100)
    plans.observe(record(4, [job(0, 10, 1000), job(1, 90, 1000)]))
    plans.check(Plan.of((1, 6), 100, {peer(0): 41, peer(1): 59}), members(2))
    plans.check(Plan.of((1, 5), 100, {peer(0): 40, peer(1): 60}), members(2))


def test_a_lie_about_ones_samples_bounds_nobody_else():
    plans = planner(batch=100)
    plans.observe(record(1, [contribution(0, 101.0, {"n": 101, "us": 1}), job(1, 50, 1000)]))
    plans.check(Plan.of((1, 2), 100, {peer(0): 50, peer(1): 50}), members(2))


# ------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("name", SIZERS)
@given(rounds=histories())
def test_a_take_over_goes_on_from_the_state(name, rounds):
    one, other = planner(name, batch=100), planner(name, batch=100)
    for committed in rounds:
        one.observe(committed)
    other.load_state_dict(decode(encode(one.state_dict()), limit=10**6))
    assert other.state_dict() == one.state_dict()
    following = record(len(rounds) + 1, [job(0, 30, 4000), job(5, 70, 2000)])
    assert other.plan(following, members(6)) == one.plan(following, members(6))


GOOD = planner("proportional", batch=100)
GOOD.observe(record(3, [job(0, 30, 4000)]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: None,
        lambda s: s[:3],
        lambda s: [*s, 1],
        lambda s: [-1, *s[1:]],
        lambda s: ["3", *s[1:]],
        lambda s: [s[0], "x", *s[2:]],
        lambda s: [s[0], s[1], [[b"short", 1]], s[3]],
        lambda s: [s[0], s[1], [[bytes(peer(0)), 0]], s[3]],
        lambda s: [s[0], s[1], [[bytes(peer(0)), 101]], s[3]],
        lambda s: [s[0], s[1], [[bytes(peer(0)), 5]] * 257, s[3]],
        lambda s: [s[0], s[1], s[2], "x"],
    ],
)
def test_a_malformed_state_is_refused_and_changes_nothing(spoil):
    plans = planner("proportional", batch=100)
    plans.observe(record(1, [job(1, 10, 1000)]))
    before = plans.state_dict()
    with pytest.raises(ValueError):
        plans.load_state_dict(spoil(GOOD.state_dict()))
    assert plans.state_dict() == before


# --------------------------------------------------------------------------------- what it is all for


@given(
    st.integers(1, 5).flatmap(lambda k: st.lists(st.integers(1, 40), min_size=k, max_size=k)), st.integers(0, 2**32 - 1)
)
def test_the_sample_weighted_mean_of_gradients_is_the_gradient_of_the_union(jobs, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(sum(jobs), 7)), rng.normal(size=sum(jobs))
    at = rng.normal(size=7)
    plan = Plan.of((1, 1), sum(jobs), {peer(i): size for i, size in enumerate(jobs)})

    def gradient(rows):
        return x[rows].T @ (x[rows] @ at - y[rows]) / len(y[rows])

    weighted = sum(plan.size(p) * gradient(plan.slice(p)) for p in plan.sizes) / sum(plan.sizes.values())
    union = gradient(slice(None))
    assert np.abs(weighted - union).max() <= 1e-12 * max(1.0, np.abs(union).max())
