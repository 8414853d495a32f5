"""Layout: describing arrays, comparing and (hostile) decoding of descriptions, packing and unpacking."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hydra_allreduce.arrays import MAX_BYTES, MAX_ENCODED, Entry, Layout
from hydra_net import codec

DTYPES = st.sampled_from(["<f4", ">f4", "<f8", ">f8"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def some_arrays(draw):
    """An array of any supported dtype and shape, possibly strided, transposed, reversed or read-only."""
    array = draw(hnp.arrays(draw(DTYPES), draw(SHAPES)))
    match draw(st.sampled_from(["plain", "transposed", "strided", "reversed", "readonly", "broadcast"])):
        case "transposed":
            array = array.T
        case "strided" if array.ndim:
            array = np.repeat(array, 2, axis=0)[::2]
        case "reversed" if array.ndim:
            array = array[::-1]
        case "readonly":
            array.flags.writeable = False
        case "broadcast":
            array = np.broadcast_to(array, (2, *array.shape))
    return array


CONTAINERS = st.one_of(
    some_arrays(),
    st.lists(some_arrays(), max_size=5),
    st.lists(some_arrays(), max_size=5).map(tuple),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), some_arrays(), max_size=5),
)
OPS = st.sampled_from(["mean", "sum"])


def leaves(arrays):
    """The arrays of a container in its own order."""
    if isinstance(arrays, np.ndarray):
        return [arrays]
    return list(arrays.values()) if isinstance(arrays, dict) else list(arrays)


def native(array):
    return array.astype(array.dtype.newbyteorder("="))


@settings(deadline=None)
@given(CONTAINERS, OPS)
def test_packed_arrays_come_back_bit_for_bit_in_the_same_structure(arrays, op):
    layout = Layout.of(arrays, op)
    before = [array.tobytes() for array in leaves(arrays)]
    segments = layout.allocate()
    layout.pack(arrays, segments, None)
    back = layout.unpack(segments)

    assert [array.tobytes() for array in leaves(arrays)] == before
    assert sum(segment.nbytes for segment in segments) == layout.nbytes
    assert type(back) is type(arrays)
    if isinstance(arrays, dict):
        assert list(back) == sorted(arrays)
        back = {key: back[key] for key in arrays}
    for original, view in zip(leaves(arrays), leaves(back), strict=True):
        assert isinstance(view, np.ndarray)
        assert view.shape == original.shape
        assert view.dtype == original.dtype.newbyteorder("<")
        assert native(view).tobytes() == native(original).tobytes()
        assert not view.flags.writeable
        assert any(np.may_share_memory(view, segment) for segment in segments) or not view.size


@settings(deadline=None)
@given(CONTAINERS, OPS)
def test_descriptions_travel(arrays, op):
    layout = Layout.of(arrays, op)
    decoded = Layout.decode(layout.encode())
    assert decoded == layout
    assert decoded.digest == layout.digest
    assert decoded.difference(layout) is None
    assert layout.difference(decoded) is None
    assert decoded.nbytes == layout.nbytes


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4).filter(str.isascii), some_arrays(), min_size=2, max_size=6), st.randoms())
def test_the_order_of_a_dict_never_matters(arrays, random):
    keys = list(arrays)
    random.shuffle(keys)
    shuffled = {key: arrays[key] for key in keys}
    layout = Layout.of(arrays)
    assert Layout.of(shuffled).encode() == layout.encode()
    ours, theirs = layout.allocate(), layout.allocate()
    layout.pack(arrays, ours, None)
    layout.pack(shuffled, theirs, None)
    assert [s.tobytes() for s in ours] == [s.tobytes() for s in theirs]


@settings(deadline=None)
@given(CONTAINERS, st.floats(1e-6, 1e6))
def test_packing_scales_in_the_precision_of_the_array(arrays, scale):
    layout = Layout.of(arrays)
    segments = layout.allocate()
    layout.pack(arrays, segments, scale)
    back = layout.unpack(segments)
    back = {key: back[key] for key in arrays} if isinstance(arrays, dict) else back
    with np.errstate(all="ignore"):
        for original, view in zip(leaves(arrays), leaves(back), strict=True):
            np.testing.assert_array_equal(view, native(original) * view.dtype.type(scale))


@settings(deadline=None)
@given(CONTAINERS)
def test_results_are_copied_into_the_callers_own_arrays(arrays):
    layout = Layout.of(arrays)
    segments = layout.allocate()
    layout.pack(arrays, segments, None)
    if isinstance(arrays, np.ndarray):
        out = np.zeros_like(arrays)
    elif isinstance(arrays, dict):
        out = {key: np.zeros_like(arrays[key]) for key in reversed(arrays)}
    else:
        out = [np.zeros_like(array) for array in arrays]
    layout.copy_out(segments, out)
    out = {key: out[key] for key in arrays} if isinstance(arrays, dict) else out
    for original, copy in zip(leaves(arrays), leaves(out), strict=True):
        assert native(copy).tobytes() == native(original).tobytes()


def test_there_is_one_segment_per_dtype_in_a_fixed_order():
    layout = Layout.of({"b": np.ones(3), "a": np.ones((2, 2), np.float32), "c": np.ones((), np.float32)})
    assert [(s.dtype.name, s.shape) for s in layout.allocate()] == [("float32", (5,)), ("float64", (3,))]
    assert Layout.of({}).allocate() == []
    assert Layout.of(np.ones((3, 0))).nbytes == 0


def test_a_weight_of_one_leaves_every_bit_alone():
    signalling = np.array([0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32).view(np.float32)
    layout = Layout.of(signalling)
    for scale in (None, 1.0):
        segments = layout.allocate()
        layout.pack(signalling, segments, scale)
        assert segments[0].tobytes() == signalling.tobytes()


def test_overflow_while_weighting_is_an_infinity_without_a_warning():
    layout = Layout.of(np.array([3e38, np.inf, np.nan], np.float32))
    segments = layout.allocate()
    layout.pack(np.array([3e38, np.inf, np.nan], np.float32), segments, 10.0)
    np.testing.assert_array_equal(segments[0], [np.inf, np.inf, np.nan])


@pytest.mark.parametrize(
    ("arrays", "error", "says"),
    [
        (np.ones(3, np.int64), TypeError, "int64.*astype"),
        (np.ones(3, np.float16), TypeError, "float16"),
        (np.ones(3, np.complex64), TypeError, "complex64"),
        (np.ones(3, bool), TypeError, "bool"),
        (np.array([object()]), TypeError, "object"),
        (np.zeros(2, [("x", "f4")]), TypeError, "dtype"),
        (np.ma.masked_array(np.ones(2), [0, 1]), TypeError, "masked"),
        (np.float32(1), TypeError, "asarray"),
        (1.0, TypeError, "asarray"),
        (None, TypeError, "NoneType"),
        ("weights", TypeError, "str"),
        (b"weights", TypeError, "bytes"),
        ([1.0, 2.0], TypeError, "'0'.*float"),
        ([[np.ones(2)]], TypeError, "'0'.*list"),
        ({"w": [1.0]}, TypeError, "'w'.*list"),
        ({1: np.ones(2)}, TypeError, "strings"),
        ({"\ud800": np.ones(2)}, ValueError, "surrogate"),
        ({np.ones(2).tobytes(): np.ones(2)}, TypeError, "strings"),
        ((np.ones(1) for _ in range(2)), TypeError, "generator"),
        ({"x" * MAX_ENCODED: np.ones(2)}, ValueError, "shorten"),
        (np.ones((1,) * 33), ValueError, "33 dimensions"),
        (np.broadcast_to(np.ones(1), (MAX_BYTES,)), ValueError, "limit"),
    ],
)
def test_anything_else_is_refused_with_a_reason(arrays, error, says):
    with pytest.raises(error, match=says):
        Layout.of(arrays)


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="median"):
        Layout.of(np.ones(2), "median")


def ones(**changes):
    return {"b": np.ones((2, 3), np.float32), "w": np.ones(4)} | changes


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        (Layout.of(ones(), "sum"), ("op", "sum", "mean")),
        (Layout.of(list(ones().values())), ("kind", "sequence", "mapping")),
        (Layout.of(ones(x=np.ones(1))), ("names", ["x"], [])),
        (Layout.of({"w": np.ones(4), "c": np.ones(2)}), ("names", ["c"], ["b"])),
        (Layout.of(ones(b=np.ones((2, 3)))), ("dtype of 'b'", "float64", "float32")),
        (Layout.of(ones(b=np.ones((3, 2), np.float32))), ("shape of 'b'", (3, 2), (2, 3))),
        (Layout.of(ones(b=np.ones(6, np.float32))), ("shape of 'b'", (6,), (2, 3))),
        (Layout.of(ones()), None),
    ],
)
def test_a_difference_is_named(theirs, difference):
    assert Layout.of(ones()).difference(theirs) == difference


def test_a_difference_without_names_is_named_too():
    assert Layout.of([np.ones(1)] * 2).difference(Layout.of([np.ones(1)] * 3)) == ("number of arrays", 3, 2)
    assert Layout.of(np.ones(2)).difference(Layout.of(np.ones(3))) == ("shape", (3,), (2,))
    assert Layout.of([np.ones(1)]) == Layout.of((np.ones(1),))


@settings(deadline=None)
@given(CONTAINERS, CONTAINERS)
def test_different_descriptions_differ_in_everything(ours, theirs):
    a, b = Layout.of(ours), Layout.of(theirs)
    same = a == b
    assert (a.difference(b) is None) is same
    assert (b.difference(a) is None) is same
    assert (a.encode() == b.encode()) is same
    assert (a.digest == b.digest) is same


GOOD = Layout("mapping", "mean", (Entry("a", (2, 3), "float32"), Entry("b", (), "float64")))


@settings(deadline=None)
@given(st.binary(max_size=80))
@example(b"")
def test_noise_is_no_description(data):
    with pytest.raises(ValueError):
        Layout.decode(data)


@settings(deadline=None)
@given(st.data())
def test_a_damaged_description_is_refused_or_is_another_canonical_one(data):
    encoded = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["flip", "insert", "delete"])):
            case "flip":
                encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
            case "insert":
                encoded.insert(data.draw(st.integers(0, len(encoded))), data.draw(st.integers(0, 255)))
            case "delete":
                del encoded[data.draw(st.integers(0, len(encoded) - 1))]
    try:
        decoded = Layout.decode(bytes(encoded))
    except ValueError:
        return
    assert decoded.encode() == bytes(encoded)
    assert decoded.nbytes <= MAX_BYTES


def forged(*, version=1, kind="mapping", op="mean", entries=(("a", "float32", [2]),)):
    return codec.encode([version, kind, op, [list(entry) for entry in entries]])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (forged(version=2), "layout is"),
        (forged(version=True), "layout is"),
        (forged(version="1"), "layout is"),
        (codec.encode([1, "mapping", "mean", {}]), "layout is"),
        (codec.encode([1, "mapping", "mean", [], []]), "layout is"),
        (codec.encode({}), "layout is"),
        (forged(kind="set"), "kind"),
        (forged(op="max"), "op"),
        (forged(entries=[("a", "float16", [2])]), "dtype"),
        (forged(entries=[("a", "<f4", [2])]), "dtype"),
        (forged(entries=[("a", "float32", 2)]), "entry"),
        (forged(entries=[("a", "float32")]), "entry"),
        (forged(entries=[(b"a", "float32", [2])]), "entry"),
        (forged(entries=[("a", "float32", [-1])]), "dimension"),
        (forged(entries=[("a", "float32", [2.0])]), "dimension"),
        (forged(entries=[("a", "float32", [True])]), "dimension"),
        (forged(entries=[("a", "float32", [MAX_BYTES + 1])]), "dimension"),
        (forged(entries=[("a", "float32", [1 << 20, 1 << 20])]), "bytes"),
        (forged(entries=[("a", "float32", [MAX_BYTES, MAX_BYTES, 0])]), "no array"),
        (forged(entries=[("a", "float64", [MAX_BYTES // 8]), ("b", "float32", [1])]), "bytes"),
        (forged(entries=[("a", "float32", [1] * 33)]), "33 dimensions"),
        (forged(entries=[("b", "float32", [1]), ("a", "float32", [1])]), "sorted"),
        (forged(entries=[("a", "float32", [1]), ("a", "float32", [1])]), "distinct"),
        (forged(kind="array", entries=[]), "single"),
        (forged(kind="array", entries=[("a", "float32", [1])]), "single"),
        (forged(kind="array", entries=[("", "float32", [1]), ("", "float32", [1])]), "single"),
        (forged(kind="sequence", entries=[("1", "float32", [1])]), "position"),
        (forged(kind="sequence", entries=[("00", "float32", [1])]), "position"),
        (forged(entries=[("a" * MAX_ENCODED, "float32", [1])]), "limit"),
    ],
)
def test_forged_descriptions_are_refused_with_a_reason(data, says):
    with pytest.raises(ValueError, match=says):
        Layout.decode(data)


def test_the_largest_shapes_that_are_accepted_can_be_described():
    layout = Layout.decode(forged(entries=[("a", "float32", [MAX_BYTES // 4]), ("b", "float32", [0, MAX_BYTES])]))
    assert layout.nbytes == MAX_BYTES
    assert math.prod(layout.entries[1].shape) == 0


def test_arrays_that_no_longer_fit_are_refused_before_anything_is_written():
    layout = Layout.of(ones())
    segments = layout.allocate()
    for segment in segments:
        segment.fill(7)
    for wrong in (ones(w=np.ones(5)), ones(w=np.ones(4, np.float32)), {"b": ones()["b"]}, [np.ones(4)]):
        with pytest.raises(ValueError, match="do not fit"):
            layout.pack(wrong, segments, None)
        with pytest.raises(ValueError, match="do not fit"):
            layout.copy_out(segments, wrong)
    readonly = ones()
    readonly["w"].flags.writeable = False
    with pytest.raises(ValueError, match=r"out\['w'\] is read-only"):
        layout.copy_out(segments, readonly)
    assert (readonly["b"] == 1).all()
    assert all((segment == 7).all() for segment in segments)


def test_segments_of_another_layout_are_refused():
    layout, other = Layout.of(ones()), Layout.of(ones(w=np.ones(5)))
    for call in (
        lambda: layout.pack(ones(), other.allocate(), None),
        lambda: layout.unpack(other.allocate()),
        lambda: layout.unpack(layout.allocate()[:1]),
        lambda: layout.copy_out(other.allocate(), ones()),
    ):
        with pytest.raises(ValueError, match="another layout"):
            call()


def test_a_layout_is_a_value():
    layout = Layout.of(ones())
    assert hash(layout) == hash(Layout.of(ones()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.op = "sum"
