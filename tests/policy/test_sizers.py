"""Equal and speed-proportional sizes; what peers report of themselves is not trusted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_net.codec import decode, encode
from hydra_policy import Bounds, Equal, PeerInfo, SpeedProportional
from hydra_policy.sizing import Measurement, measurements

from .runs import contribution, job, peer, record


def infos(count, *, low=1, high=10**6):
    return {peer(i): PeerInfo(Bounds(low, high)) for i in range(count)}


def sizes(sizer, count, batch, **bounds):
    decision = sizer.propose(infos(count, **bounds), batch)
    return [decision.sizes[peer(i)] for i in range(count)]


# ------------------------------------------------------------------------------------------------- equal


@given(st.integers(1, 50), st.integers(50, 5000))
def test_equal_sizes_differ_by_one_at_most(count, batch):
    decided = sizes(Equal(), count, batch)
    assert sum(decided) == batch
    assert max(decided) - min(decided) <= 1


def test_fewer_samples_than_peers_leave_the_last_ones_out_and_say_why():
    decision = Equal().propose(infos(5), 3)
    assert sorted(decision.sizes.values()) == [0, 0, 1, 1, 1]
    assert set(decision.left_out) == {p for p, size in decision.sizes.items() if size == 0}
    assert all("batch of 3 is smaller than the 5 peers" in why for why in decision.left_out.values())


# ------------------------------------------------------------------------------------------ proportional


def test_before_anything_is_measured_sizes_are_equal():
    decision = SpeedProportional().propose(infos(4), 64)
    assert set(decision.sizes.values()) == {16}
    assert "nobody has been measured" in decision.reason


def test_sizes_are_proportional_to_measured_speed():
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 10, 10_000), job(1, 10, 20_000), job(2, 10, 50_000)]))
    assert sizes(sizer, 3, 170) == [100, 50, 20]
    assert "3 of 3" in sizer.propose(infos(3), 170).reason


def test_a_peer_never_seen_gets_the_median_speed():
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 10, 10_000), job(1, 10, 20_000), job(2, 10, 40_000)]))
    assert sizes(sizer, 4, 90) == [40, 20, 10, 20]


def test_one_bad_measurement_among_five_changes_nothing():
    sizer = SpeedProportional()
    for number in range(5):
        slow = 500_000 if number == 3 else 10_000
        sizer.observe(record(number + 1, [job(0, 10, slow), job(1, 10, 10_000)]))
    assert sizes(sizer, 2, 20) == [10, 10]


def test_a_lasting_slow_down_is_followed_within_three_rounds():
    sizer = SpeedProportional()
    for number in range(10):
        sizer.observe(record(number + 1, [job(0, 10, 10_000), job(1, 10, 10_000)]))
    for number in range(10, 13):
        sizer.observe(record(number + 1, [job(0, 10, 40_000), job(1, 10, 10_000)]))
    assert sizes(sizer, 2, 50) == [10, 40]


def test_a_peer_that_pretends_to_be_endlessly_fast_stays_within_its_bound():
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 2**31 - 1, 1), job(1, 10, 10_000)]))
    assert sizes(sizer, 2, 100, high=60) == [60, 40]


def test_the_slowest_possible_peer_still_gets_a_sample():
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 1, 24 * 3600 * 10**6), job(1, 1000, 1)]))
    assert sizes(sizer, 2, 100) == [1, 99]


HOSTILE = [
    {},
    {"us": 5000},
    {"n": 10},
    {"n": 10, "us": 0},
    {"n": 10, "us": -5},
    {"n": 10, "us": 24 * 3600 * 10**6 + 1},
    {"n": 10, "us": math.nan},
    {"n": 10, "us": math.inf},
    {"n": 10, "us": 5000.0},
    {"n": 10, "us": "5000"},
    {"n": 10, "us": None},
    {"n": 10, "us": [5000]},
    {"n": 10, "us": True},
    {"n": True, "us": 5000},
    {"n": 0, "us": 5000},
    {"n": -10, "us": 5000},
    {"n": 10.0, "us": 5000},
    {"n": "10", "us": 5000},
    {"n": 2**63, "us": 5000},
    {"n": 11, "us": 5000},  # not the weight
    {"n": [10], "us": {"a": 1}},
]


@pytest.mark.parametrize("meta", HOSTILE, ids=repr)
def test_what_cannot_be_believed_is_ignored(meta):
    bad = contribution(0, 10.0, meta)
    assert measurements(record(1, [bad, job(1, 10, 10_000)])) == {peer(1): Measurement(10, 10_000)}
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 10, 10_000), job(1, 10, 20_000)]))
    before = sizer.state_dict()
    sizer.observe(record(2, [bad]))
    assert sizer.state_dict() == before


@pytest.mark.parametrize("weight", [10.5, math.nan, math.inf, 0.0])
def test_a_weight_that_is_no_whole_number_of_samples_is_no_measurement(weight):
    assert measurements(record(1, [contribution(0, weight, {"n": 10, "us": 5000})])) == {}


cbor = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=3), children, max_size=4),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.sampled_from(["n", "us", "x"]), cbor), max_size=5), st.floats(0, 1e9))
def test_no_report_makes_a_sizer_raise(metas, weight):
    sizer = SpeedProportional()
    sizer.observe(record(1, [contribution(i, weight, meta) for i, meta in enumerate(metas)]))
    decision = sizer.propose(infos(6), 100)
    assert sum(decision.sizes.values()) == 100
    assert min(decision.sizes.values()) >= 1


def test_peers_that_have_long_gone_are_forgotten():
    sizer = SpeedProportional()
    sizer.CAPACITY = 3
    for number in range(5):
        sizer.observe(record(number + 1, [job(number, 10, 1000)]))
    assert [entry[0] for entry in sizer.state_dict()] == [peer(2), peer(3), peer(4)]


# --------------------------------------------------------------------------------------------- the state


@given(st.lists(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 10**6)), min_size=3, max_size=3), max_size=8))
def test_a_sizer_goes_on_from_anothers_state(rounds):
    sizer, other = SpeedProportional(), SpeedProportional()
    for number, jobs in enumerate(rounds):
        sizer.observe(record(number + 1, [job(i, n, us) for i, (n, us) in enumerate(jobs)]))
    other.load_state_dict(decode(encode(sizer.state_dict()), limit=10**6))
    assert other.propose(infos(4), 77) == sizer.propose(infos(4), 77)
    assert other.state_dict() == sizer.state_dict()
    last = record(9, [job(0, 5, 700)])
    sizer.observe(last)
    other.observe(last)
    assert other.propose(infos(4), 77) == sizer.propose(infos(4), 77)


@given(cbor)
def test_a_malformed_state_is_refused_and_changes_nothing(state):
    sizer = SpeedProportional()
    sizer.observe(record(1, [job(0, 10, 1000)]))
    before = sizer.state_dict()
    try:
        sizer.load_state_dict(state)
    except ValueError:
        assert sizer.state_dict() == before
    else:
        assert sizer.state_dict() == state


@pytest.mark.parametrize(
    "state",
    [
        [[peer(0), [[0, 5]]]],
        [[peer(0), [[1, 0]]]],
        [[b"short", [[1, 1]]]],
        [[peer(0), [[1, 1]] * 6]],
        [[peer(0), [[1]]]],
        5,
    ],
    ids=repr,
)
def test_states_with_one_thing_wrong(state):
    with pytest.raises(ValueError):
        SpeedProportional().load_state_dict(state)


def test_an_equal_sizer_has_no_state():
    sizer = Equal()
    sizer.load_state_dict(sizer.state_dict())
    with pytest.raises(ValueError, match="equal"):
        sizer.load_state_dict([])
