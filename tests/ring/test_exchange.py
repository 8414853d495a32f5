"""The exchange: whole rings without I/O, their wire layout, and what hostile neighbours can do."""

import struct
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_allreduce.ring.errors import RingProtocolError
from hydra_allreduce.ring.exchange import MAX_HEADER, MAX_META, SUB_CHUNK, Exchange
from hydra_net.errors import LocalProtocolError

from .harness import Inputs, Stuck, exchanges, join, random_inputs

LENGTHS = st.lists(st.tuples(st.integers(0, 70), st.sampled_from(["f4", "f8"])), max_size=4)


def check_ring(inputs, random, *, window=64, capacity=64, rounds=1, **how):
    """Run ``rounds`` rings over the same links and check the results."""
    links = [bytearray() for _ in range(inputs.size)]
    for _ in range(rounds):
        segments = [inputs.segments(rank) for rank in range(inputs.size)]
        ring = exchanges(inputs, segments, **how)
        join(ring, random, window=window, capacity=capacity, links=links)
        inputs.check(segments)
        assert [e.metas for e in ring] == [tuple(inputs.meta(rank) for rank in range(inputs.size))] * inputs.size


@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    size=st.integers(2, 8),
    lengths=LENGTHS,
    op=st.sampled_from(["mean", "sum"]),
    random=st.integers(0, 1 << 32).map(Random),
    window=st.integers(1, 64),
    capacity=st.integers(1, 64),
    sub_chunk=st.integers(1, 64),
)
def test_every_rank_gets_the_same_weighted_mean(*, seed, size, lengths, op, random, window, capacity, sub_chunk):
    check_ring(
        random_inputs(seed, size, lengths, op), random, window=window, capacity=capacity, rounds=2, sub_chunk=sub_chunk
    )


def test_ranks_may_cut_their_sub_chunks_differently():
    inputs = random_inputs(1, 3, [(50, "f4"), (33, "f8")])
    segments = [inputs.segments(rank) for rank in range(3)]
    ring = [exchanges(inputs, segments, sub_chunk=cut)[rank] for rank, cut in enumerate((8, 64, SUB_CHUNK))]
    join(ring, Random(0), window=50, capacity=100)
    inputs.check(segments)


def test_what_overflows_or_is_no_number_comes_out_as_in_numpy_and_without_a_warning():
    arrays = [
        np.array(values, np.float32)
        for values in ([np.inf, 1, np.nan, 3e38, -0.0, 1e-45], [-np.inf, 2, 1, 3e38, -0.0, 0])
    ]
    inputs = Inputs(arrays, [1.0, 1.0], "sum")
    segments = [inputs.segments(rank) for rank in range(2)]
    join(exchanges(inputs, segments), Random(0), window=9, capacity=9)
    assert segments[0][0].tobytes() == segments[1][0].tobytes()
    np.testing.assert_array_equal(segments[0][0], np.array([np.nan, 3, np.nan, np.inf, -0.0, 1e-45], np.float32))


def wire(exchange):
    return b"".join(exchange.outgoing)


def test_the_wire_layout_is_as_documented():
    """Rank 0 of 2, byte by byte: nothing here is computed by the code under test."""
    inputs = Inputs([np.array([1.0, 2.0, 3.0], np.float32), np.array([10.0, 20.0, 30.0], np.float32)], [1.0, 3.0])
    mine = inputs.segments(0)
    ring = exchanges(inputs, [mine, inputs.segments(1)], header=b"run 7")
    first = b"HRG1" + struct.pack("<I", 5) + b"run 7" + struct.pack("<I", 5) + b"0:1.0" + struct.pack("<2f", 2.0, 3.0)
    assert wire(ring[0]) == first
    ring[0].sent(len(first))
    theirs = b"HRG1" + struct.pack("<I", 5) + b"run 7" + struct.pack("<I", 5) + b"1:3.0" + struct.pack("<f", 30.0)
    assert wire(ring[1]) == theirs
    feed(ring[0], theirs)
    assert wire(ring[0]) == struct.pack("<f", 31.0 / 4)
    feed(ring[0], struct.pack("<2f", 15.5, 23.25))
    assert ring[0].wanted is None
    assert wire(ring[0]) == struct.pack("<f", 31.0 / 4)
    np.testing.assert_array_equal(mine[0], np.array([7.75, 15.5, 23.25], np.float32))


def feed(exchange, data):
    """Give an exchange bytes from its previous rank, as many as it wants."""
    while data:
        assert exchange.wanted is not None, "it wants no more"
        count = min(len(exchange.wanted), len(data))
        exchange.wanted[:count] = data[:count]
        exchange.filled(count)
        data = data[count:]


def victim(*, size=3, **overrides):
    inputs = random_inputs(0, size, [(12, "f4")])
    segments = [inputs.segments(rank) for rank in range(size)]
    return exchanges(inputs, segments, **overrides)[0], segments[0]


OPENING = b"HRG1" + struct.pack("<I", 4) + b"head"


def test_a_wrong_beginning_is_refused():
    exchange, _ = victim()
    with pytest.raises(RingProtocolError, match=r"b'GET '") as caught:
        feed(exchange, b"GET / HTTP/1.1")
    assert caught.value.side == "previous"


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 1 << 31, (1 << 32) - 1])
def test_a_header_that_is_too_long_is_refused_before_anything_is_allocated(length):
    exchange, _ = victim()
    with pytest.raises(RingProtocolError, match=f"header of {length} bytes"):
        feed(exchange, b"HRG1" + struct.pack("<I", length))


@pytest.mark.parametrize("length", [MAX_META + 1, 1 << 31, (1 << 32) - 1])
def test_a_meta_that_is_too_long_is_refused_before_anything_is_allocated(length):
    exchange, _ = victim()
    with pytest.raises(RingProtocolError, match=f"meta of {length} bytes"):
        feed(exchange, OPENING + struct.pack("<I", length))


def test_nothing_after_a_refused_header_is_looked_at():
    class Refused(Exception):
        pass

    def refuse(header):
        assert header == b"head"
        raise Refused

    exchange, segments = victim(check_header=refuse)
    before = segments[0].tobytes()
    with pytest.raises(Refused):
        feed(exchange, OPENING)
    assert segments[0].tobytes() == before
    assert exchange.metas == (b"0:" + exchange.metas[0].split(b":")[1],)


def test_what_finish_raises_ends_the_run_before_the_all_gather():
    def refuse(metas):
        assert metas == (b"0:" + metas[0].split(b":")[1], b"one", b"two")
        raise ValueError("a weight of -1")

    exchange, _ = victim(finish=refuse)
    meta = struct.pack("<I", 3)
    before = wire(exchange)
    feed(exchange, OPENING + meta + b"two" + bytes(16))
    with pytest.raises(ValueError, match="weight"):
        feed(exchange, meta + b"one")
    assert wire(exchange).startswith(before)
    assert len(wire(exchange)) == len(before) + 4 + 3 + 16, "the forwarded meta and partial sum, no finished chunk"


def test_the_longest_header_and_metas_pass():
    inputs = random_inputs(0, 3, [(5, "f4")])
    segments = [inputs.segments(rank) for rank in range(3)]
    ring = exchanges(inputs, segments, header=bytes(MAX_HEADER), meta=bytes(MAX_META), finish=lambda metas: None)
    join(ring, Random(0), window=5000, capacity=10_000)
    assert [e.metas for e in ring] == [(bytes(MAX_META),) * 3] * 3


def test_empty_header_metas_and_segments_pass():
    inputs = random_inputs(0, 4, [])
    ring = exchanges(inputs, [[], [], [], []], header=b"", meta=b"", finish=lambda metas: 0.25)
    join(ring, Random(0), window=3, capacity=3)
    assert [e.metas for e in ring] == [(b"",) * 4] * 4


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 60))
def test_a_neighbour_that_sends_anything_ends_the_run_or_is_taken_for_numbers(noise, cut):
    """Whatever comes, only protocol errors come out, and no more is taken than one run has."""
    inputs = random_inputs(0, 2, [(3, "f4")])
    ring = exchanges(inputs, [inputs.segments(0), inputs.segments(1)], finish=lambda metas: None)
    data = (wire(ring[1])[:cut] + noise)[:120]
    while data and ring[0].wanted is not None:
        count = min(len(ring[0].wanted), len(data))
        ring[0].wanted[:count] = data[:count]
        data = data[count:]
        try:
            ring[0].filled(count)
        except (RingProtocolError, AssertionError):  # the harness's check of the header asserts
            return
    assert sum(len(view) for view in ring[0].outgoing) < 200


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rank": 3}, "rank 3 in a ring of 3"),
        ({"rank": -1}, "rank -1"),
        ({"header": bytes(MAX_HEADER + 1)}, "header of 65537"),
        ({"meta": bytes(MAX_META + 1)}, "meta of 4097"),
        ({"segments": [np.zeros(3, np.int32)]}, "int32"),
        ({"segments": [np.zeros(3, ">f4")]}, "little-endian"),
        ({"segments": [np.zeros((3, 1))]}, "one-dimensional"),
        ({"segments": [np.zeros(6)[::2]]}, "contiguous"),
        ({"segments": [np.frombuffer(bytes(16))]}, "writeable"),
    ],
)
def test_a_run_that_cannot_be_is_our_own_error(changes, says):
    arguments = {"rank": 0, "size": 3, "header": b"", "check_header": print, "segments": [], "meta": b""}
    arguments["finish"] = lambda metas: None
    with pytest.raises(LocalProtocolError, match=says):
        Exchange(**arguments | changes)


def test_the_harness_sees_a_ring_that_hangs():
    inputs = random_inputs(0, 2, [(2, "f4")])
    ring = exchanges(inputs, [inputs.segments(rank) for rank in range(2)])
    ring[1].outgoing.clear()
    with pytest.raises(Stuck):
        join(ring, Random(0), window=9, capacity=99)
