"""CBOR and frames: one encoding for each value, and everything else refused at a bounded price."""

import math
import tracemalloc
from collections import namedtuple
from types import MappingProxyType

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hydra_net import CodecError, FrameDecoder, LocalProtocolError, decode, encode, encode_frame
from hydra_net.codec import MAX_DEPTH, MAX_ITEMS

LIMIT = 1 << 20

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=5) | st.binary(max_size=5), inner, max_size=5),
    ),
    max_leaves=20,
)


@given(values)
def test_what_is_encoded_is_decoded(value):
    data = encode(value)
    again = decode(data, limit=LIMIT)
    assert again == value
    assert encode(again) == data


def test_nan_and_the_other_floats():
    assert math.isnan(decode(encode(math.nan), limit=10))
    assert math.copysign(1, decode(encode(-0.0), limit=10)) == -1
    assert decode(encode(math.inf), limit=10) == math.inf
    assert encode(1.5) == bytes.fromhex("f93e00")  # the shortest form that is exact


def test_the_order_of_a_mapping_does_not_matter():
    assert (
        encode({"b": 1, "aa": 2, "a": 3})
        == encode({"a": 3, "aa": 2, "b": 1})
        == bytes.fromhex("a3616103616201626161 02")
    )


def test_what_stands_for_a_sequence_mapping_or_bytes_is_one():
    pair = namedtuple("pair", "a b")
    assert decode(encode(pair(1, (2,))), limit=10) == [1, [2]]
    assert decode(encode(MappingProxyType({"a": 1})), limit=10) == {"a": 1}
    assert decode(encode([bytearray(b"a"), memoryview(b"b")]), limit=10) == [b"a", b"b"]


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**64) - 1, {1: 2}, {(): 1}, {1}, object(), 1 + 2j, cbor2.undefined, cbor2.CBORTag(1, 1),
     cbor2.CBORSimpleValue(5), "\ud800", [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]],
)  # fmt: skip
def test_what_cannot_be_sent_is_a_local_error(value):
    with pytest.raises(LocalProtocolError):
        encode(value)


@given(st.binary(max_size=200))
@example(b"\x81" * 100_000)
@example(bytes.fromhex("d81c81d81d00"))  # a list in itself
@example(bytes.fromhex("d8234128"))  # a regular expression
def test_any_bytes_are_the_one_encoding_of_a_value_or_refused(data):
    try:
        value = decode(data, limit=LIMIT)
    except CodecError:
        return
    assert encode(value) == data


@given(values, st.data())
def test_a_flipped_bit_is_another_value_or_refused(value, data):
    encoded = bytearray(encode(value))
    position = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[position // 8] ^= 1 << position % 8
    try:
        again = decode(encoded, limit=LIMIT)
    except CodecError:
        return
    assert encode(again) == encoded


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("", "premature"),
        ("81", "premature"),
        ("0102", "follows"),
        ("1801", "shortest"),
        ("fb3ff8000000000000", "shortest"),
        ("f97e01", "shortest"),
        ("a2616101616102", "Duplicate"),
        ("a2616201616102", "shortest"),
        ("a10102", "key"),
        ("9fff", "indefinite"),
        ("5fff", "indefinite"),
        ("c24101", "tags"),
        ("c249ffffffffffffffffff", "tags"),
        ("d9d9f700", "tags"),
        ("d8634101", "tags"),
        ("f7", "cannot be sent"),
        ("e0", "cannot be sent"),
        ("f8ff", "cannot be sent"),
        ("61ff", "utf-8"),
        ("1f", "length"),
    ],
)
def test_what_is_refused(data, what):
    with pytest.raises(CodecError, match=what):
        decode(bytes.fromhex(data), limit=LIMIT)


def test_every_tag_is_refused_before_anything_is_made_of_it():
    for number in range(66_000):
        with pytest.raises(CodecError, match="tags"):
            decode(b"\xda" + number.to_bytes(4, "big") + b"\x80", limit=LIMIT)


def test_depth_is_limited():
    assert decode(b"\x81" * MAX_DEPTH + b"\x01", limit=LIMIT)
    with pytest.raises(CodecError, match="depth"):
        decode(b"\x81" * (MAX_DEPTH + 1) + b"\x01", limit=LIMIT)


def test_the_limit_is_checked_first():
    data = encode(b"x" * 100)
    assert decode(data, limit=len(data)) == b"x" * 100
    with pytest.raises(CodecError, match="allowed"):
        decode(data, limit=len(data) - 1)


@pytest.mark.parametrize("head", ["5b7fffffffffffffff", "7a7fffffff", "9b000000003b9aca00", "bb000000003b9aca00"])
def test_a_length_that_is_not_there_allocates_nothing(head):
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(bytes.fromhex(head) + b"\x00" * 100, limit=LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_bomb_of_tiny_items_is_refused_before_it_is_decoded():
    fits = cbor2.dumps([[]] * (MAX_ITEMS - 1))
    assert len(decode(fits, limit=LIMIT)) == MAX_ITEMS - 1
    for item in (b"\x80", b"\xa0", b"\x40", b"\x00", b"\xf6"):
        bomb = b"\x9a\x00\x0f\x00\x00" + item * 0xF0000
        tracemalloc.start()
        try:
            with pytest.raises(CodecError, match="items"):
                decode(bomb, limit=LIMIT)
            assert tracemalloc.get_traced_memory()[1] < 3 * len(bomb)
        finally:
            tracemalloc.stop()


def test_long_strings_are_few_items():
    value = [b"x" * 100_000, "y" * 100_000, {"z": b"0" * 300}]
    assert decode(encode(value), limit=LIMIT, max_items=6) == value
    with pytest.raises(CodecError, match="items"):
        decode(encode(value), limit=LIMIT, max_items=5)


# ---------------------------------------------------------------------------------------------------- frames


@given(st.lists(st.binary(max_size=50), max_size=10), st.data())
def test_frames_come_out_however_the_stream_is_cut(payloads, data):
    stream = b"".join(encode_frame(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder = FrameDecoder(50)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        found += decoder.frames()
    assert found == payloads
    assert decoder.buffered == 0


def test_a_frame_too_long_is_refused_when_its_length_is_known():
    decoder = FrameDecoder(10)
    decoder.feed(encode_frame(b"ok") + b"\x00\x00\x00\x0b")
    assert decoder.next() == b"ok"
    for _ in range(2):  # and it stays failed: where the next frame begins is lost
        with pytest.raises(CodecError, match="11 bytes"):
            decoder.next()
        decoder.feed(encode_frame(b"ok"))


def test_a_giant_length_allocates_nothing():
    decoder = FrameDecoder(64 * 1024)
    tracemalloc.start()
    try:
        decoder.feed(b"\xff\xff\xff\xff")
        with pytest.raises(CodecError):
            decoder.next()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_one_byte_at_a_time_costs_linear_work():
    """Bytes moved inside the buffer, not seconds: the buffer never holds more than a frame and what was just fed."""
    payload = b"x" * 60_000
    stream = encode_frame(payload) * 4
    decoder = FrameDecoder(64 * 1024)
    found = 0
    largest = 0
    for position in range(len(stream)):
        decoder.feed(stream[position : position + 1])
        found += sum(1 for _ in decoder.frames())
        largest = max(largest, len(decoder._buffer))
    assert found == 4
    assert largest <= 3 * len(payload)


def test_many_small_frames_in_one_piece_are_not_moved_each_time():
    count = 50_000
    decoder = FrameDecoder(10)
    decoder.feed(encode_frame(b"x") * count)
    assert sum(1 for _ in decoder.frames()) == count
