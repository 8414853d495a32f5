"""The pump: drives an :class:`~hydra_allreduce.ring.exchange.Exchange` over two byte streams, in one task.

It tries to send, tries to receive, lets the exchange reduce what is complete, and waits only when nothing moved. No
byte is copied on the way but by the kernel (or the cipher): arrivals land in scratch or in place, and what is sent are
views of the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import anyio
import anyio.lowlevel

from hydra_allreduce.ring.errors import RingBroken
from hydra_allreduce.ring.exchange import SUB_CHUNK, Array, Exchange, check_run, scale
from hydra_allreduce.ring.schedule import chunk_spans
from hydra_net.errors import LocalProtocolError
from hydra_net.transports.stream import ByteStream, wait_any

YIELD_EVERY = 2 * 1024 * 1024
"""Bytes moved between two yields to the event loop: one to a few milliseconds. Bytes and not time, so that a run under
a virtual clock takes the same course whenever it is repeated."""

_TURN_COST = 4096
"""What a turn counts at least towards ``YIELD_EVERY``, so that a peer that trickles cannot keep the loop for itself."""

_OFFER_BYTES = 256 * 1024
_OFFER_BUFFERS = 16
"""What is offered to the stream in one call: frames together with the data that follows them, and little more than one
sub-chunk, so that the next rank begins to reduce while we send on."""

_STREAM_ERRORS = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


async def run_ring(
    *,
    rank: int,
    size: int,
    previous: ByteStream | None,
    next: ByteStream | None,
    header: bytes,
    check_header: Callable[[bytes], None],
    segments: Sequence[Array],
    meta: bytes,
    finish: Callable[[Sequence[bytes]], float | None],
    progress: Callable[[int], None] | None = None,
    sub_chunk: int = SUB_CHUNK,
) -> tuple[bytes, ...]:
    """Run one all-reduce as ``rank`` of ``size``; returns the metas of all ranks in rank order.

    ``segments`` hold this rank's (already scaled) contribution and, afterwards, the sum of all contributions times the
    factor from ``finish``, in place and with the same bytes on every rank: 1-D, contiguous, little-endian float32 or
    float64 arrays, of the same lengths and dtypes on all ranks, which is for the header to ensure.

    ``header`` (at most 64 KiB) goes to the next rank first. The previous rank's is given to ``check_header`` before
    any of its data is used; what that raises ends the run. ``meta`` (at most 4 KiB) reaches every rank with the data.
    ``finish`` is called once with all metas in rank order, before the all-gather, and returns the factor by which the
    owner of a chunk scales it (None: not at all); it must depend on the metas alone, and what it raises ends the run.
    ``progress`` is told now and then how many bytes were received and sent so far. ``sub_chunk`` (bytes) is this
    rank's own choice and does not show on the wire.

    ``previous`` is only read and ``next`` only written; a ring of one needs neither (both None). After a completed run
    both streams are at a frame boundary and serve for the next run.

    Raises ``RingBroken`` when a neighbour's stream ends or is reset, ``RingProtocolError`` when the previous rank sends
    what no run contains, ``LocalProtocolError`` for arguments that cannot be. After an error or a cancellation the
    segments are undefined and both streams must be closed.
    """
    if size == 1:
        check_run(rank, size, header, segments, meta)
        return await _alone(segments, meta, finish, sub_chunk)
    if previous is None or next is None:
        raise LocalProtocolError(f"a ring of {size} needs a stream from the previous and one to the next rank")
    exchange = Exchange(
        rank=rank,
        size=size,
        header=header,
        check_header=check_header,
        segments=segments,
        meta=meta,
        finish=finish,
        sub_chunk=sub_chunk,
    )
    await anyio.lowlevel.checkpoint_if_cancelled()  # before anything is sent
    total = unyielded = 0
    yielded = False
    while exchange.wanted is not None or exchange.outgoing:
        moved = _send(next, exchange) + _receive(previous, exchange)  # in this order: see Exchange
        if moved:
            total += moved
            unyielded += max(moved, _TURN_COST)
            if unyielded < YIELD_EVERY:
                continue
        unyielded = 0
        yielded = True
        if progress is not None:
            progress(total)
        if moved:
            await anyio.lowlevel.checkpoint()
        else:
            await wait_any([previous] if exchange.wanted is not None else [], [next] if exchange.outgoing else [])
    if progress is not None:
        progress(total)
    if not yielded:
        await anyio.lowlevel.cancel_shielded_checkpoint()  # the run is complete: too late to cancel it
    return exchange.metas


def _receive(stream: ByteStream, exchange: Exchange) -> int:
    """Take in what is there, up to one buffer; returns the bytes that came."""
    if exchange.wanted is None:
        return 0
    try:
        count = stream.try_receive_into(exchange.wanted)
    except _STREAM_ERRORS as error:
        raise RingBroken("previous", error) from error
    if count is None:
        return 0
    if count == 0:
        raise RingBroken("previous", anyio.EndOfStream("the rank closed it"))
    exchange.filled(count)
    return count


def _send(stream: ByteStream, exchange: Exchange) -> int:
    """Send what the stream takes of the next few buffers; returns the bytes that went."""
    if not exchange.outgoing:
        return 0
    try:
        count = stream.try_send(_offer(exchange.outgoing))
    except _STREAM_ERRORS as error:
        raise RingBroken("next", error) from error
    if not count:
        return 0
    exchange.sent(count)
    return count


def _offer(outgoing: Iterable[memoryview]) -> list[memoryview]:
    buffers, size = [], 0
    for buffer in islice(outgoing, _OFFER_BUFFERS):
        buffers.append(buffer)
        size += len(buffer)
        if size >= _OFFER_BYTES:
            break
    return buffers


async def _alone(
    segments: Sequence[Array], meta: bytes, finish: Callable[[Sequence[bytes]], float | None], sub_chunk: int
) -> tuple[bytes, ...]:
    """A ring of one: its own contribution is the sum."""
    await anyio.lowlevel.checkpoint()
    factor = finish((meta,))
    if factor is not None:
        lengths, itemsizes = [s.size for s in segments], [s.itemsize for s in segments]
        scaled = 0
        for span in chunk_spans(lengths, itemsizes, 1, 0, sub_chunk):
            scale(segments[span.segment][span.start : span.stop], factor)
            scaled += (span.stop - span.start) * itemsizes[span.segment]
            if scaled >= YIELD_EVERY:
                scaled = 0
                await anyio.lowlevel.checkpoint()
    return (meta,)
