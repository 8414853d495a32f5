"""Plans: integers that hold together, whatever a peer sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_allreduce.planning import MAX_BATCH, Plan, PlanError, PlanNumber
from hydra_net.codec import decode, encode

from .runs import peer


@st.composite
def plans(draw):
    sizes = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any))
    numbers = draw(st.permutations(range(len(sizes))))
    number = (draw(st.integers(0, 2**63 - 1)), draw(st.integers(1, 2**63 - 1)))
    return Plan.of(number, sum(sizes), {peer(i): size for i, size in zip(numbers, sizes, strict=True)})


@given(plans())
def test_a_plan_survives_the_wire(plan):
    again = Plan.from_cbor(decode(encode(plan.to_cbor()), limit=64 * 1024))
    assert again == plan
    assert hash(again) == hash(plan)
    assert list(again.sizes.items()) == list(plan.sizes.items())


@given(plans())
def test_the_slices_are_disjoint_in_order_and_cover_the_batch(plan):
    slices = [plan.slice(p) for p in plan.sizes if plan.size(p)]
    assert [part.start for part in slices] == [0, *(part.stop for part in slices[:-1])]
    assert slices[-1].stop == plan.batch
    assert all(plan.slice(p).stop - plan.slice(p).start == plan.size(p) == plan.sizes[p] for p in plan.sizes)


def test_a_stranger_has_no_share():
    plan = Plan.of((1, 1), 5, {peer(0): 5})
    assert plan.size(peer(1)) == 0
    assert plan.slice(peer(1)) == slice(0, 0)


def test_another_order_is_another_plan():
    forth = Plan.of((1, 1), 5, {peer(0): 3, peer(1): 2})
    back = Plan.of((1, 1), 5, {peer(1): 2, peer(0): 3})
    assert forth != back


def test_renumbered_keeps_the_sizes():
    plan = Plan.of((1, 4), 5, {peer(0): 3, peer(1): 2})
    again = plan.renumbered(7, 5)
    assert again.number == PlanNumber(7, 5)
    assert again.round == 5
    assert again.jobs == plan.jobs


def test_sizes_cannot_be_written():
    plan = Plan.of((1, 1), 5, {peer(0): 5})
    with pytest.raises(TypeError):
        plan.sizes[peer(0)] = 6


A, B = bytes(peer(0)), bytes(peer(1))
MALFORMED = {
    "not a list": (None, "shape"),
    "too short": ([1, 1, 5], "shape"),
    "too long": ([1, 1, 5, [[A, 5]], 0], "shape"),
    "ballot of text": (["1", 1, 5, [[A, 5]]], "number"),
    "negative ballot": ([-1, 1, 5, [[A, 5]]], "number"),
    "boolean ballot": ([True, 1, 5, [[A, 5]]], "number"),
    "round zero": ([1, 0, 5, [[A, 5]]], "number"),
    "round as a float": ([1, 1.0, 5, [[A, 5]]], "number"),
    "batch zero": ([1, 1, 0, [[A, 0]]], "batch"),
    "batch as a float": ([1, 1, 5.0, [[A, 5]]], "batch"),
    "boolean batch": ([1, 1, True, [[A, 1]]], "batch"),
    "huge batch": ([1, 1, MAX_BATCH + 1, [[A, MAX_BATCH + 1]]], "batch"),
    "nobody": ([1, 1, 5, []], "sizes"),
    "a crowd": ([1, 1, 5, [[A, 5]] * 257], "sizes"),
    "jobs as a mapping": ([1, 1, 5, {A: 5}], "sizes"),
    "no pair": ([1, 1, 5, [[A, 5, 0]]], "sizes"),
    "no list": ([1, 1, 5, [A]], "sizes"),
    "short peer id": ([1, 1, 5, [[A[:-1], 5]]], "sizes"),
    "peer id of text": ([1, 1, 5, [["a" * 32, 5]]], "sizes"),
    "negative size": ([1, 1, 5, [[A, 6], [B, -1]]], "sizes"),
    "fractional size": ([1, 1, 5, [[A, 2.5], [B, 2.5]]], "sizes"),
    "boolean size": ([1, 1, 5, [[A, 4], [B, True]]], "sizes"),
    "twice the same": ([1, 1, 5, [[A, 4], [A, 1]]], "sizes"),
    "too little": ([1, 1, 5, [[A, 4]]], "sizes"),
    "too much": ([1, 1, 5, [[A, 4], [B, 4]]], "sizes"),
}


@pytest.mark.parametrize(("value", "field"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_plan_is_refused_by_the_name_of_the_field(value, field):
    with pytest.raises(PlanError) as caught:
        Plan.from_cbor(value)
    assert caught.value.field == field
    assert field in str(caught.value)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.binary(max_size=33) | st.just(A),
    lambda children: st.lists(children, max_size=5),
    max_leaves=12,
)


@given(junk | st.tuples(junk, junk, junk, junk).map(list))
def test_from_cbor_makes_a_plan_or_a_plan_error(value):
    try:
        plan = Plan.from_cbor(value)
    except PlanError:
        return
    assert plan.to_cbor() == value
