"""The bytes of finished rounds: kept until the next commit, served to members that missed it, fetched from holders.

A record's digest covers the layout and the bytes in two steps, SHA-256(SHA-256(layout) + SHA-256(bytes)), so that who
fetches can check the layout, and with it the size, before a single byte is allocated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import anyio
import numpy as np

from hydra_allreduce.agreement import Lineage, RecordHead, RecordId, RoundRecord
from hydra_allreduce.agreement.events import Served
from hydra_allreduce.agreement.record import MAX_RECORD
from hydra_allreduce.arrays import MAX_ENCODED, Array, Layout
from hydra_net import (
    Cbor,
    Node,
    PeerId,
    RemoteProtocolError,
    SecureStream,
    decode,
    encode,
    encode_frame,
    receive_exactly,
    receive_exactly_into,
    run_blocking,
)

_REQUEST_LIMIT = 256
_HEAD_LIMIT = MAX_RECORD + 2 * MAX_ENCODED
_STEP = 1 << 20
"""Bytes that must move within the patience: who is slower than that over a megabyte has stalled."""
_HASH_IN_THREAD = 1 << 20
"""Hashing a megabyte takes about 0.7 ms; above that it leaves the event loop."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a round came to: its record, and the arrays as 1-D segments."""

    record: RoundRecord
    layout: Layout
    segments: Sequence[Array]
    body_digest: bytes


def record_digest(layout: Layout, body_digest: bytes) -> bytes:
    """The digest that goes into the record."""
    return hashlib.sha256(layout.digest + body_digest).digest()


async def hash_segments(segments: Sequence[Array]) -> bytes:
    """SHA-256 over the segments' bytes."""

    def run() -> bytes:
        digest = hashlib.sha256()
        for buffer in _buffers(segments):
            digest.update(buffer)
        return digest.digest()

    if sum(segment.nbytes for segment in segments) < _HASH_IN_THREAD:
        return run()
    return await run_blocking(run)


class Results:
    """Keeps, serves and fetches the results of one run."""

    def __init__(self, node: Node, run: str, serve: Callable[[RecordHead], Served | None], *, patience: float) -> None:
        """``serve`` says what to answer to somebody who wants a record: it, a later one, or nothing.

        A transfer in which nothing moves for ``patience`` seconds is broken off, on either side.
        """
        self._node = node
        self._patience = patience
        self._protocol = f"hydra/result/{run}"
        self._serve_what = serve
        self._kept: dict[RecordId, Result] = {}

    def serving(self) -> AbstractContextManager[None]:
        """Answer other members' requests for as long as the context lasts."""
        return self._node.serve_streams(self._protocol, self._serve)

    def add(self, result: Result) -> None:
        """Keep ``result`` until ``keep_only`` drops it."""
        self._kept[result.record.id] = result

    def get(self, record: RecordId) -> Result | None:
        """The result of a record, if it is kept."""
        return self._kept.get(record)

    def keep_only(self, records: Iterable[RecordId]) -> None:
        """Drop all but these. Arrays that were returned to callers stay valid."""
        wanted = set(records)
        self._kept = {id: result for id, result in self._kept.items() if id in wanted}

    async def _serve(self, stream: SecureStream) -> None:
        with anyio.fail_after(self._patience):
            request = await _receive_frame(stream, _REQUEST_LIMIT)
        try:
            served = self._serve_what(RecordHead.from_cbor(decode(request, limit=_REQUEST_LIMIT)))
        except ValueError as error:
            raise RemoteProtocolError(stream.peer, f"sent something that names no result: {error}") from error
        result = self._kept.get(served.record.id) if served else None
        buffers = [memoryview(encode_frame(encode(None)))]
        if served is not None and result is not None:
            head = [result.record.encode(), served.lineage.to_cbor(), result.layout.encode(), result.body_digest]
            buffers = [memoryview(encode_frame(encode(head))), *_buffers(result.segments)]
        for part in _steps(buffers):
            with anyio.fail_after(self._patience):
                await stream.send_vectored([part])
        await stream.send_eof()

    async def fetch(self, head: RecordHead, holder: PeerId) -> tuple[Result, Lineage] | None:
        """Get a result from ``holder``, check all of it, and keep it; None if the holder has nothing to give.

        It may be a later one than ``head`` names, with the history up to it. Raises ``RemoteProtocolError`` if what
        came is not what it claims to be, ``TimeoutError`` if nothing moves, and what ``Node.open_stream`` and streams
        raise if the connection fails.
        Cancelling leaves nothing behind.
        """
        with anyio.fail_after(self._patience):
            stream = await self._node.open_stream(holder, self._protocol)
        async with stream:
            with anyio.fail_after(self._patience):
                await stream.send(encode_frame(encode(head.to_cbor())))
                raw = await _receive_frame(stream, _HEAD_LIMIT)
            try:
                answer = decode(raw, limit=_HEAD_LIMIT)
            except ValueError as error:
                raise RemoteProtocolError(holder, f"sent a malformed head of a result: {error}") from error
            if answer is None:
                return None
            record, lineage, layout, body_digest = _checked(answer, head, holder)
            segments = layout.allocate()
            for part in _steps(_buffers(segments)):
                with anyio.fail_after(self._patience):
                    await receive_exactly_into(stream, part)
            if await hash_segments(segments) != body_digest:
                raise RemoteProtocolError(holder, f"sent bytes that are not the result of round {record.round}")
        result = Result(record, layout, segments, body_digest)
        self.add(result)
        return result, lineage


def _buffers(segments: Sequence[Array]) -> list[memoryview]:
    return [segment.view(np.uint8).data for segment in segments if segment.size]


def _steps(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    for buffer in buffers:
        for start in range(0, len(buffer), _STEP):
            yield buffer[start : start + _STEP]


def _checked(answer: Cbor, head: RecordHead, holder: PeerId) -> tuple[RoundRecord, Lineage, Layout, bytes]:
    try:
        match answer:
            case [bytes(raw_record), raw_lineage, bytes(raw_layout), bytes(body_digest)]:
                record, layout = RoundRecord.decode(raw_record), Layout.decode(raw_layout)
                lineage = Lineage.from_cbor(raw_lineage)
            case _:
                raise RemoteProtocolError(holder, "sent something that is no head of a result")
    except ValueError as error:
        raise RemoteProtocolError(holder, f"sent a malformed head of a result: {error}") from error
    if record.round < head.round or (record.round == head.round and record.id != head.id):
        raise RemoteProtocolError(holder, f"sent another record than that of round {head.round}")
    if lineage.head != record.head or not lineage.contains(head) or record.digest != record_digest(layout, body_digest):
        raise RemoteProtocolError(holder, f"sent a record of round {record.round} that does not fit its result")
    return record, lineage, layout, body_digest


async def _receive_frame(stream: SecureStream, limit: int) -> bytes:
    size = int.from_bytes(await receive_exactly(stream, 4), "big")
    if size > limit:
        raise RemoteProtocolError(stream.peer, f"announced {size} bytes, at most {limit} are allowed here")
    return await receive_exactly(stream, size)
