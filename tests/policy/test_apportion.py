"""Shares of a batch: they add up, stay in bounds, are proportional to within one sample, and depend on no order."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_policy import Bounds
from hydra_policy.sizing import apportion

from .runs import peer


@st.composite
def problems(draw, peers=8, batch=2000):
    """Weights, a total and bounds that can be met."""
    count = draw(st.integers(1, peers))
    numbers = [peer(i) for i in range(count)]
    weights = {p: draw(st.integers(1, 10**13)) for p in numbers}
    bounds = {}
    for p in numbers:
        low = draw(st.integers(0, batch // peers))
        bounds[p] = Bounds(low, draw(st.integers(low, batch)))
    total = draw(st.integers(sum(b.low for b in bounds.values()), sum(b.high for b in bounds.values())))
    return weights, total, bounds


@given(problems())
def test_parts_add_up_and_stay_in_bounds(problem):
    weights, total, bounds = problem
    parts = apportion(weights, total, bounds)
    assert sum(parts.values()) == total
    assert list(parts) == list(weights)
    assert all(bounds[p].low <= part <= bounds[p].high for p, part in parts.items())


@given(problems(), st.randoms())
def test_the_order_of_the_peers_does_not_matter(problem, random):
    weights, total, bounds = problem
    shuffled = list(weights)
    random.shuffle(shuffled)
    assert apportion({p: weights[p] for p in shuffled}, total, bounds) == apportion(weights, total, bounds)


@given(problems())
def test_a_common_factor_does_not_matter(problem):
    weights, total, bounds = problem
    assert apportion({p: 7 * w for p, w in weights.items()}, total, bounds) == apportion(weights, total, bounds)


@given(problems())
def test_between_its_bounds_a_part_is_within_one_of_the_waterfilling_solution(problem):
    weights, total, bounds = problem
    parts = apportion(weights, total, bounds)
    # The exact solution: clip(level * weight) for the one level at which the parts add up.
    inside = {p: part for p, part in parts.items() if bounds[p].low < part < bounds[p].high}
    for p, part in inside.items():
        for q, other in inside.items():
            low, high = Fraction(part - 1, weights[p]), Fraction(part + 1, weights[p])
            assert low < Fraction(other + 1, weights[q])
            assert high > Fraction(other - 1, weights[q])
    # A peer at its lower bound would get no more, one at its upper bound no less, at the level of those in between.
    for p, part in inside.items():
        level_low, level_high = Fraction(part - 1, weights[p]), Fraction(part + 1, weights[p])
        for q in weights:
            if bounds[q].low < bounds[q].high and parts[q] == bounds[q].low:
                assert bounds[q].low > level_low * weights[q] - 1
            if bounds[q].low < bounds[q].high and parts[q] == bounds[q].high:
                assert bounds[q].high < level_high * weights[q] + 1


@given(problems(peers=3, batch=12))
def test_no_other_parts_are_nearer_to_proportional(problem):
    weights, total, bounds = problem
    parts = apportion(weights, total, bounds)

    def badness(candidate):
        # Sum of (part - share)^2 / weight: without bounds it is least where parts are proportional.
        scale = sum(weights.values())
        return sum(
            (Fraction(part) - Fraction(total * w, scale)) ** 2 / w
            for part, w in zip(candidate, weights.values(), strict=True)
        )

    ranges = [range(bounds[p].low, bounds[p].high + 1) for p in weights]
    best = min(badness(c) for c in product(*ranges) if sum(c) == total)
    # Largest remainder is not the minimiser of this measure, but is never more than one sample per peer away from it.
    slack = sum(Fraction(1, w) for w in weights.values())
    assert badness(tuple(parts.values())) <= best + slack


def test_largest_remainders_are_rounded_up():
    a, b, c = peer(0), peer(1), peer(2)
    free = dict.fromkeys((a, b, c), Bounds(0, 100))
    assert apportion({a: 5, b: 3, c: 1}, 10, free) == {a: 6, b: 3, c: 1}  # 5.56, 3.33, 1.11
    assert apportion({a: 50, b: 49, c: 1}, 10, free) == {a: 5, b: 5, c: 0}  # 5, 4.9, 0.1


def test_equal_remainders_go_to_the_smallest_ids():
    peers = [peer(i) for i in range(4)]
    parts = apportion(dict.fromkeys(peers, 1), 6, dict.fromkeys(peers, Bounds(0, 6)))
    assert {p for p, part in parts.items() if part == 2} == set(sorted(peers)[:2])


def test_what_a_bound_cuts_off_goes_to_the_others_in_proportion():
    a, b, c = peer(0), peer(1), peer(2)
    bounds = {a: Bounds(0, 10), b: Bounds(0, 100), c: Bounds(0, 100)}
    assert apportion({a: 8, b: 2, c: 1}, 40, bounds) == {a: 10, b: 20, c: 10}


@pytest.mark.parametrize("total", [2, 21])
def test_bounds_that_cannot_be_met_are_an_error(total):
    peers = [peer(0), peer(1)]
    with pytest.raises(ValueError, match="cannot be shared out"):
        apportion(dict.fromkeys(peers, 1), total, dict.fromkeys(peers, Bounds(2, 10)))
