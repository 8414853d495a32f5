"""The schedule, simulated symbolically: what each chunk holds, step by step, without any data."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_allreduce.ring import schedule

SIZES = range(2, 10)


def check_schedule(module, size):
    """Run the schedule of ``size`` ranks on multisets of contributions; assert that it all-reduces."""
    plans = [module.steps(rank, size) for rank in range(size)]
    assert {len(plan) for plan in plans} == {2 * (size - 1)}
    chunks = [[Counter([rank]) for _ in range(size)] for rank in range(size)]
    metas = [{rank} for rank in range(size)]
    everyone = Counter(range(size))
    for number in range(2 * (size - 1)):
        before = [[Counter(c) for c in mine] for mine in chunks]
        known = [set(m) for m in metas]
        for rank, plan in enumerate(plans):
            step, sender = plan[number], plans[rank - 1][number]
            assert (step.reduces, step.receives) == (sender.reduces, sender.sends)
            assert step.receives_meta == sender.sends_meta
            assert step.reduces is (number < size - 1)
            arrived = before[rank - 1][step.receives]
            if step.reduces:
                assert step.receives_meta not in known[rank]
                assert step.receives_meta in known[rank - 1]
                metas[rank].add(step.receives_meta)
                assert not chunks[rank][step.receives] & arrived, "a contribution would count twice"
                chunks[rank][step.receives] += arrived
            else:
                assert step.receives_meta is None
                assert step.sends_meta is None
                assert arrived == everyone, "an unfinished chunk went round as finished"
                chunks[rank][step.receives] = Counter(arrived)
            if number + 1 < len(plan):
                assert plan[number + 1].sends == step.receives, "what is received is what is sent next"
        if number == size - 2:
            for rank in range(size):
                assert chunks[rank][rank] == everyone, "rank r owns the finished chunk r after the reduce-scatter"
                assert metas[rank] == set(range(size))
    assert all(chunk == everyone for mine in chunks for chunk in mine)


@pytest.mark.parametrize("size", SIZES)
def test_each_chunk_is_reduced_exactly_once_from_each_rank_and_reaches_everyone(size):
    check_schedule(schedule, size)


def test_a_ring_of_one_has_no_steps():
    assert schedule.steps(0, 1) == ()


def check_cut(module, lengths, itemsizes, size, sub_chunk):
    """Assert that the spans of all chunks cover every element of every segment exactly once, in order and bounds."""
    covered = [Counter() for _ in lengths]
    largest = 0
    for chunk in range(size):
        spans = list(module.chunk_spans(lengths, itemsizes, size, chunk, sub_chunk))
        assert spans == sorted(spans, key=lambda s: (s.segment, s.start))
        for span in spans:
            assert 0 <= span.start < span.stop <= lengths[span.segment]
            nbytes = (span.stop - span.start) * itemsizes[span.segment]
            assert nbytes <= max(sub_chunk, itemsizes[span.segment])
            largest = max(largest, nbytes)
            covered[span.segment].update(range(span.start, span.stop))
    assert covered == [Counter(range(length)) for length in lengths]
    assert module.max_span_bytes(lengths, itemsizes, size, sub_chunk) == largest


SEGMENTS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([4, 8])), max_size=3)


@settings(deadline=None)
@given(SEGMENTS, st.integers(1, 9), st.integers(1, 300))
def test_the_spans_of_all_chunks_cover_everything_exactly_once(segments, size, sub_chunk):
    check_cut(schedule, [length for length, _ in segments], [itemsize for _, itemsize in segments], size, sub_chunk)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 64))
def test_chunks_differ_by_at_most_one_element(length, size):
    bounds = [schedule.chunk_bounds(length, size, chunk) for chunk in range(size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1
