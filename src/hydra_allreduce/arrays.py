"""What is reduced: the description of a caller's arrays, and their way into and out of flat buffers.

A :class:`Layout` names everything that members must agree on before their numbers may be added: the kind of container,
the names, shapes and dtypes of the arrays, and the operation. It also says where each array lies in the flat buffers
that travel: one 1-D *segment* per dtype, so that a ring adds whole segments and never thinks about single arrays.

Every byte order is accepted from a caller; segments, and therefore the wire and the results, are little-endian.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from hydra_net import codec

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Array | Sequence[Array] | Mapping[str, Array]
Op: TypeAlias = Literal["mean", "sum"]
Kind: TypeAlias = Literal["array", "sequence", "mapping"]

DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
"""What can be reduced: name -> dtype in a segment. Segments come in this order, those without an array are left out."""

MAX_ENCODED = 60 * 1024
"""Most bytes of an encoded layout: it has to fit into a ring's header (64 KiB) beside what a group adds to it."""

MAX_DIMENSIONS = 32
MAX_BYTES = 1 << 40
"""Most bytes of one reduction. No sane one comes near; a forged description beyond it is refused unread."""

_DOMAIN = b"hydra/layout/1\0"
_ENCODING = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One array of a layout: its name, shape and dtype (``"float32"`` or ``"float64"``)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements (1 for a 0-d array)."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The description of a caller's arrays; equal layouts can be reduced with each other.

    ``entries`` are in wire order: a mapping's by sorted name (the order of a dict never matters), a sequence's by
    position, named ``"0"``, ``"1"``, ...; a single array is one entry with the empty name.
    """

    kind: Kind
    op: Op
    entries: tuple[Entry, ...]
    as_tuple: bool = field(default=False, compare=False)
    """The caller's sequence was a tuple, so results are too. A local matter: neither compared nor encoded."""

    @classmethod
    def of(cls, arrays: Arrays, op: Op = "mean") -> Layout:
        """Describe ``arrays``: a numpy array, a sequence of them, or a mapping from strings to them.

        Any shape is accepted (0-d and zero-size too), any memory layout, read-only or not; an empty container as well.
        Raises ``TypeError`` for what is not an array of float32 or float64, and ``ValueError`` for an unknown ``op``
        or for more than a description can hold (``MAX_ENCODED`` bytes, about a thousand named arrays).
        """
        if op not in get_args(Op):
            raise ValueError(f"op must be one of {list(get_args(Op))}, not {op!r}")
        kind, named = _named(arrays)
        layout = cls(kind, op, tuple(_entry(name, array) for name, array in named), isinstance(arrays, tuple))
        if layout.nbytes > MAX_BYTES:
            raise ValueError(f"{layout.nbytes} bytes in one reduction, the limit is {MAX_BYTES}")
        if (length := len(layout.encode())) > MAX_ENCODED:
            raise ValueError(
                f"describing {len(layout.entries)} arrays takes {length} bytes, the limit is {MAX_ENCODED}: "
                f"join arrays or shorten their names"
            )
        return layout

    # ------------------------------------------------------------------------------------------ description

    @property
    def nbytes(self) -> int:
        """Bytes of all segments together: what one copy of the result takes."""
        return sum(entry.size * DTYPES[entry.dtype].itemsize for entry in self.entries)

    @property
    def digest(self) -> bytes:
        """SHA-256 over a domain tag and the encoded layout (32 bytes); the same for equal layouts only."""
        return hashlib.sha256(_DOMAIN + self.encode()).digest()

    def encode(self) -> bytes:
        """Canonical CBOR: ``[1, kind, op, [[name, dtype, [dimension, ...]], ...]]``; equal layouts, equal bytes."""
        entries: list[codec.Cbor] = [[e.name, e.dtype, list(e.shape)] for e in self.entries]
        return codec.encode([_ENCODING, self.kind, self.op, entries])

    @classmethod
    def decode(cls, data: bytes) -> Layout:
        """Read what :meth:`encode` wrote. ``data`` may be anything a peer made up; allocates no array.

        Raises ``ValueError`` that says what is wrong: too long, not canonical, an unknown kind, op or dtype, a bad
        name, order or shape, or more than ``MAX_BYTES`` in all.
        """
        if len(data) > MAX_ENCODED:
            raise ValueError(f"layout of {len(data)} bytes, the limit is {MAX_ENCODED}")
        match codec.decode(data, limit=MAX_ENCODED):
            case [int(version), str(kind), str(op), list(raw)] if type(version) is int and version == _ENCODING:
                pass
            case _:
                raise ValueError(f"a layout is [{_ENCODING}, kind, op, entries]")
        if kind not in get_args(Kind) or op not in get_args(Op):
            raise ValueError(f"layout of unknown kind {kind!r} or op {op!r}")
        entries = tuple(_decode_entry(item) for item in raw)
        names = [entry.name for entry in entries]
        if kind == "array" and names != [""]:
            raise ValueError("layout of a single array must have exactly one entry, without a name")
        if kind == "sequence" and names != [str(i) for i in range(len(names))]:
            raise ValueError("layout of a sequence must name its entries by position")
        if kind == "mapping" and any(a >= b for a, b in itertools.pairwise(names)):
            raise ValueError("layout of a mapping must have distinct names in sorted order")
        layout = cls(cast("Kind", kind), cast("Op", op), entries)
        if layout.nbytes > MAX_BYTES:
            raise ValueError(f"layout of {layout.nbytes} bytes, the limit is {MAX_BYTES}")
        if layout.encode() != data:
            raise ValueError("layout is not in canonical form")
        return layout

    def difference(self, theirs: Layout) -> tuple[str, object, object] | None:
        """The first thing in which ``theirs`` differs from this layout, as (what, theirs, ours); None if equal.

        ``what`` reads like ``"op"``, ``"kind"``, ``"names"`` (those only one side has), ``"shape of 'w'"``.
        """
        if theirs.op != self.op:
            return "op", theirs.op, self.op
        if theirs.kind != self.kind:
            return "kind", theirs.kind, self.kind
        if self.kind == "sequence" and len(theirs.entries) != len(self.entries):
            return "number of arrays", len(theirs.entries), len(self.entries)
        their_names = [entry.name for entry in theirs.entries]
        our_names = [entry.name for entry in self.entries]
        if their_names != our_names:
            return (
                "names",
                [name for name in their_names if name not in set(our_names)],
                [name for name in our_names if name not in set(their_names)],
            )
        for their, our in zip(theirs.entries, self.entries, strict=True):
            where = f" of {our.name!r}" if self.kind != "array" else ""
            if their.dtype != our.dtype:
                return f"dtype{where}", their.dtype, our.dtype
            if their.shape != our.shape:
                return f"shape{where}", their.shape, our.shape
        return None

    # ------------------------------------------------------------------------------------------ data

    def allocate(self) -> list[Array]:
        """New segments for this layout, uninitialised: 1-D, little-endian, one per dtype that occurs."""
        lengths = self._lengths()
        return [np.empty(lengths[dtype], DTYPES[dtype]) for dtype in lengths]

    def pack(self, arrays: Arrays, segments: Sequence[Array], scale: float | None) -> None:
        """Write ``arrays`` times ``scale`` into ``segments``; None or 1.0 copies the bits as they are.

        ``arrays`` are only read. An overflow becomes an infinity, as everywhere in numpy, without a warning. Raises
        ``ValueError`` if the arrays no longer fit this layout or the segments are not of it.
        """
        _, named = self._same(arrays)
        self._check(segments)
        with np.errstate(all="ignore"):
            for (_, array), place in zip(named, self._places(segments), strict=True):
                if scale is None or scale == 1.0:
                    np.copyto(place, array)
                else:
                    np.multiply(array, scale, out=place)

    def unpack(self, segments: Sequence[Array]) -> Arrays:
        """The arrays in ``segments`` in the caller's structure, as read-only views: nothing is copied.

        A mapping comes back as a dict in sorted order, a sequence as a list (a tuple if the caller's was one), a 0-d
        array as a 0-d array.
        """
        self._check(segments)
        views = list(self._places(segments))
        for view in views:
            view.flags.writeable = False
        if self.kind == "array":
            return views[0]
        if self.kind == "sequence":
            return tuple(views) if self.as_tuple else views
        return dict(zip((entry.name for entry in self.entries), views, strict=True))

    def check_out(self, out: Arrays) -> None:
        """Raise ``ValueError`` if ``out`` is not described by this very layout or cannot be written."""
        _, named = self._same(out)
        for name, array in named:
            if not array.flags.writeable:
                raise ValueError(f"out{f'[{name!r}]' if name else ''} is read-only: pass arrays that can be written")

    def copy_out(self, segments: Sequence[Array], out: Arrays) -> None:
        """Copy ``segments`` into the caller's ``out``. Raises like ``check_out``, before anything is written."""
        self.check_out(out)
        self._check(segments)
        _, named = self._same(out)
        for (_, array), place in zip(named, self._places(segments), strict=True):
            np.copyto(array, place)

    def _lengths(self) -> dict[str, int]:
        """Elements per dtype, in the order of the segments."""
        present = {entry.dtype for entry in self.entries}
        lengths = {dtype: 0 for dtype in DTYPES if dtype in present}
        for entry in self.entries:
            lengths[entry.dtype] += entry.size
        return lengths

    def _places(self, segments: Sequence[Array]) -> Iterator[Array]:
        """For each entry the view of its elements in ``segments``, in its shape."""
        segment_of = dict(zip(self._lengths(), segments, strict=True))
        used = dict.fromkeys(segment_of, 0)
        for entry in self.entries:
            start = used[entry.dtype]
            used[entry.dtype] = stop = start + entry.size
            yield segment_of[entry.dtype][start:stop].reshape(entry.shape)

    def _check(self, segments: Sequence[Array]) -> None:
        wanted = [(DTYPES[dtype], (length,)) for dtype, length in self._lengths().items()]
        if [(segment.dtype, segment.shape) for segment in segments] != wanted:
            raise ValueError("these segments belong to another layout: use the ones that allocate() made")

    def _same(self, arrays: Arrays) -> tuple[Kind, list[tuple[str, Array]]]:
        difference = self.difference(Layout.of(arrays, self.op))
        if difference is not None:
            what, theirs, ours = difference
            raise ValueError(f"the arrays do not fit their description: {what} is {theirs!r}, described as {ours!r}")
        return _named(arrays)


def _named(arrays: Arrays) -> tuple[Kind, list[tuple[str, Array]]]:
    """The kind of container and its arrays by name, in wire order."""
    if isinstance(arrays, np.ndarray):
        return "array", [("", arrays)]
    if isinstance(arrays, Mapping):
        for key in arrays:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a mapping of arrays must be strings, {key!r} is not")
            if not key.isprintable() and any("\ud800" <= c <= "\udfff" for c in key):
                raise ValueError(f"the key {key!r} is not valid Unicode: it holds a lone surrogate")
        return "mapping", sorted(arrays.items(), key=lambda item: item[0])
    if isinstance(arrays, Sequence) and not isinstance(arrays, str | bytes | bytearray | memoryview):
        return "sequence", [(str(i), array) for i, array in enumerate(arrays)]
    raise TypeError(
        f"arrays must be a numpy array, a sequence of them or a mapping from strings to them, "
        f"not {type(arrays).__name__}; np.asarray() turns most things into an array"
    )


def _entry(name: str, array: object) -> Entry:
    where = f"array {name!r}" if name else "the array"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{where} is of type {type(array).__name__}, not a numpy array; np.asarray() makes it one")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{where} is masked and a reduction has no place for masks; fill it first with .filled()")
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in DTYPES:
        raise TypeError(
            f"{where} has dtype {array.dtype}; only {' and '.join(DTYPES)} can be reduced: use .astype(np.float32)"
        )
    if array.ndim > MAX_DIMENSIONS:
        raise ValueError(f"{where} has {array.ndim} dimensions, the limit is {MAX_DIMENSIONS}")
    return Entry(name, array.shape, dtype)


def _decode_entry(item: codec.Cbor) -> Entry:
    match item:
        case [str(name), str(dtype), list(dimensions)]:
            pass
        case _:
            raise ValueError("an entry of a layout is [name, dtype, shape]")
    if dtype not in DTYPES:
        raise ValueError(f"layout with unknown dtype {dtype!r}")
    if len(dimensions) > MAX_DIMENSIONS:
        raise ValueError(f"layout with {len(dimensions)} dimensions, the limit is {MAX_DIMENSIONS}")
    shape: list[int] = []
    for dimension in dimensions:
        if type(dimension) is not int or not 0 <= dimension <= MAX_BYTES:
            raise ValueError(f"layout with a dimension of {dimension!r}")
        shape.append(dimension)
    # numpy refuses a shape such as (2**40, 2**40, 0) although it holds nothing, so zeros do not excuse the others.
    if math.prod(d for d in shape if d) > MAX_BYTES:
        raise ValueError("layout with a shape that no array can have")
    return Entry(name, tuple(shape), dtype)
