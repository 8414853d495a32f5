"""One rank's side of one run of the ring, without I/O: what to receive next, what to do with it, what to send.

Wire layout
-----------
A run is one sequence of bytes from each rank to its next rank; nothing flows the other way. All integers are
little-endian, all elements little-endian IEEE 754. For n ranks, seen from the sender r::

    magic        4 bytes  b"HRG1"
    length       u32      bytes of the header, at most 65,536
    header       opaque to the ring: the caller's description of the run, checked by the receiver before all else
    then n-1 times (reduce-scatter, s = 0 .. n-2):
        length   u32      bytes of the meta, at most 4,096
        meta     the meta of rank r-s (mod n), verbatim
        chunk    the elements of chunk r-1-s (mod n): the partial sum of ranks r-s .. r
    then n-1 times (all-gather, s = 0 .. n-2):
        chunk    the elements of chunk r-s (mod n): the finished result, verbatim as its owner r-s made it

A chunk has no frame of its own: both sides compute its length from the header they agreed on. Chunk c of a segment of
L elements is elements [L c // n, L (c+1) // n); a chunk of the run is that part of each segment, one after the other.
The last byte of a run is followed by the magic of the next one, so streams can be used again and again.

Every rank ends up with the very bytes that the owner of each chunk made: nobody but the owner scales, and the finished
bytes are forwarded as they came.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hydra_allreduce.ring.errors import RingProtocolError
from hydra_allreduce.ring.schedule import Span, chunk_spans, max_span_bytes, steps
from hydra_net.errors import LocalProtocolError

MAGIC = b"HRG1"
MAX_HEADER = 64 * 1024
MAX_META = 4 * 1024
SUB_CHUNK = 256 * 1024
"""Bytes that are received, reduced and passed on as one: few enough to be reduced while they are in the cache."""

_LENGTH = struct.Struct("<I")

Array = npt.NDArray[Any]


class Exchange:
    """The state of one run at one rank of a ring of at least two.

    A driver fills ``wanted`` with bytes from the previous rank and tells :meth:`filled` how many; it sends the buffers
    of ``outgoing`` to the next rank, in order, and tells :meth:`sent`. The run is over when ``wanted`` is None and
    ``outgoing`` empty: then ``segments`` hold the result and ``metas`` the metas in rank order.

    Buffers in ``outgoing`` are views of ``segments``; that is safe, because what overwrites them (the finished chunk)
    cannot exist before they have been sent, and a previous rank that sends it all the same is refused. A driver must
    therefore report what was sent before it reports what came in reply. Memory beyond the segments: one sub-chunk of
    scratch, header and metas.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        header: bytes,
        check_header: Callable[[bytes], None],
        segments: Sequence[Array],
        meta: bytes,
        finish: Callable[[Sequence[bytes]], float | None],
        sub_chunk: int = SUB_CHUNK,
    ) -> None:
        check_run(rank, size, header, segments, meta)
        self._rank = rank
        self._size = size
        self._check_header = check_header
        self._finish = finish
        self._sub_chunk = sub_chunk
        self._segments = segments
        self._bytes = [segment.view(np.uint8).data for segment in segments]
        self._lengths = [segment.size for segment in segments]
        self._itemsizes = [segment.itemsize for segment in segments]
        self._scratch = np.empty(max_span_bytes(self._lengths, self._itemsizes, size, sub_chunk), np.uint8)
        self._metas: list[bytes | None] = [None] * size
        self._metas[rank] = meta

        self.outgoing: deque[memoryview] = deque()
        self._queued = self._sent = 0
        self._partial_at: dict[int, int] = {}
        """Chunk -> where on the wire this rank's partial sum of it begins, in bytes since the start of the run."""
        self._overwrites: int | None = None
        """What arrives now is finished and overwrites the partial sum that was sent up to this place on the wire."""
        self._steps = steps(rank, size)
        self._queue(memoryview(MAGIC + _LENGTH.pack(len(header)) + header))
        self._queue_partial(self._steps[0].sends, meta)
        for span in self._spans(self._steps[0].sends):
            self._queue(self._view(span))

        self._filler = self._receive()
        self.wanted: memoryview | None = next(self._filler)

    @property
    def metas(self) -> tuple[bytes, ...]:
        """The metas of all ranks in rank order; known once ``finish`` has been called."""
        return tuple(meta for meta in self._metas if meta is not None)

    def filled(self, count: int) -> None:
        """``count`` bytes have arrived at the front of ``wanted``.

        Raises ``RingProtocolError`` for what no run contains, and what ``check_header`` and ``finish`` raise.
        """
        assert self.wanted is not None
        if self._overwrites is not None:
            self._overwrites += count
            if self._overwrites > self._sent:
                raise RingProtocolError("sent a finished chunk before this rank's share in it was sent")
        if count < len(self.wanted):
            self.wanted = self.wanted[count:]
        else:
            self.wanted = next(self._filler, None)

    def sent(self, count: int) -> None:
        """The next rank's stream has taken the first ``count`` bytes of ``outgoing``."""
        self._sent += count
        outgoing = self.outgoing
        while count:
            first = outgoing.popleft()
            if count < len(first):
                outgoing.appendleft(first[count:])
                return
            count -= len(first)

    def _receive(self) -> Generator[memoryview, None, None]:
        """The receiving side, front to back: yields each buffer that it wants filled before it goes on."""
        prefix = bytearray(len(MAGIC) + _LENGTH.size)
        yield memoryview(prefix)
        if prefix[: len(MAGIC)] != MAGIC:
            raise RingProtocolError(f"did not begin with a ring's first frame but with {bytes(prefix[:4])!r}")
        header = yield from self._bounded(_LENGTH.unpack_from(prefix, len(MAGIC))[0], MAX_HEADER, "header")
        self._check_header(header)

        for number, step in enumerate(self._steps):
            if step.receives_meta is not None:
                yield from self._reduce_step(step.receives, step.receives_meta)
            else:
                self._overwrites = self._partial_at[step.receives]
                yield from self._copy_chunk(step.receives, forwards=number + 1 < len(self._steps))

    def _reduce_step(self, chunk: int, meta_of: int) -> Generator[memoryview, None, None]:
        """A step of the reduce-scatter. The last one brings the chunk that is ours to finish, and the last meta."""
        length = bytearray(_LENGTH.size)
        yield memoryview(length)
        meta = yield from self._bounded(_LENGTH.unpack(length)[0], MAX_META, "meta")
        self._metas[meta_of] = meta
        if chunk == self._rank:
            yield from self._reduce_chunk(chunk, None, self._finish(self.metas))
        else:
            yield from self._reduce_chunk(chunk, meta, None)

    def _reduce_chunk(self, chunk: int, meta: bytes | None, factor: float | None) -> Generator[memoryview, None, None]:
        """Add what arrives to ``chunk``, scale it and send it on, after ``meta``.

        The meta waits for the first sub-chunk: alone it would only wake the next rank for a few bytes.
        """
        for span in self._spans(chunk):
            arriving = self._scratch[: self._nbytes(span)]
            yield arriving.data
            mine = self._segments[span.segment][span.start : span.stop]
            add(mine, arriving.view(mine.dtype))
            if factor is not None:
                scale(mine, factor)
            if meta is not None:
                self._queue_partial(chunk, meta)
                meta = None
            self._queue(self._view(span))
        if meta is not None:
            self._queue_partial(chunk, meta)

    def _copy_chunk(self, chunk: int, *, forwards: bool) -> Generator[memoryview, None, None]:
        for span in self._spans(chunk):
            place = self._view(span)
            yield place
            if forwards:
                self._queue(place)

    def _bounded(self, length: int, limit: int, what: str) -> Generator[memoryview, None, bytes]:
        """Receive ``length`` bytes, the size having been checked before anything is allocated for them."""
        if length > limit:
            raise RingProtocolError(f"announced a {what} of {length} bytes, the limit is {limit}")
        data = bytearray(length)
        if length:
            yield memoryview(data)
        return bytes(data)

    def _queue(self, view: memoryview) -> None:
        self.outgoing.append(view)
        self._queued += len(view)

    def _queue_partial(self, chunk: int, meta: bytes) -> None:
        """Queue a meta; the partial sum of ``chunk`` comes right after it."""
        self._queue(memoryview(_LENGTH.pack(len(meta)) + meta))
        self._partial_at[chunk] = self._queued

    def _spans(self, chunk: int) -> Iterator[Span]:
        return chunk_spans(self._lengths, self._itemsizes, self._size, chunk, self._sub_chunk)

    def _nbytes(self, span: Span) -> int:
        return (span.stop - span.start) * self._itemsizes[span.segment]

    def _view(self, span: Span) -> memoryview:
        itemsize = self._itemsizes[span.segment]
        return self._bytes[span.segment][span.start * itemsize : span.stop * itemsize]


@np.errstate(all="ignore")
def add(mine: Array, arrived: Array) -> None:
    """``mine += arrived``. What peers' numbers do (overflow, NaN) is their data's affair, never a warning here."""
    np.add(mine, arrived, out=mine)


@np.errstate(all="ignore")
def scale(mine: Array, factor: float) -> None:
    """``mine *= factor``, in the precision of the array."""
    np.multiply(mine, factor, out=mine)


def check_run(rank: int, size: int, header: bytes, segments: Sequence[Array], meta: bytes) -> None:
    """Raise ``LocalProtocolError`` if this side asks for a run that cannot be."""
    if not 0 <= rank < size:
        raise LocalProtocolError(f"rank {rank} in a ring of {size}")
    if len(header) > MAX_HEADER:
        raise LocalProtocolError(f"a header of {len(header)} bytes, the limit is {MAX_HEADER}")
    if len(meta) > MAX_META:
        raise LocalProtocolError(f"a meta of {len(meta)} bytes, the limit is {MAX_META}")
    for number, segment in enumerate(segments):
        if segment.dtype.str not in ("<f4", "<f8"):
            raise LocalProtocolError(f"segment {number} is of {segment.dtype}, not of little-endian float32 or float64")
        if segment.ndim != 1 or not segment.flags.c_contiguous or not segment.flags.writeable:
            raise LocalProtocolError(f"segment {number} is not one-dimensional, contiguous and writeable")
