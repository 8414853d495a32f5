"""One view's ring, run by one of its members: the two streams to its neighbours, and the rounds over them.

An attempt lives as long as its view. Whatever goes wrong in it is reported and ends it: the next view brings the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

import anyio

from hydra_allreduce.agreement import Contribution, MemberId, RecordHead, RoundRecord, View
from hydra_allreduce.calls import Call
from hydra_allreduce.contribution import check_header, decode_metas, encode_header, encode_meta
from hydra_allreduce.errors import Mismatch
from hydra_allreduce.results import Result, hash_segments, record_digest
from hydra_allreduce.ring import RingBroken, RingProtocolError, run_ring
from hydra_allreduce.ring.links import RingLinks
from hydra_net import STREAM_ERRORS, ByteStream, Clock, HydraError


class Reports(Protocol):
    """Whom an attempt tells how it went."""

    def make_record(self, contributions: Sequence[Contribution], digest: bytes) -> RoundRecord:
        """The record of a round that this member's ring has just finished."""

    def ring_finished(self, attempt: Attempt, result: Result) -> None:
        """The round's ring is complete: this member holds its result."""

    def ring_failed(self, attempt: Attempt, neighbour: MemberId, dial_failed: bool, why: str) -> None:
        """The stream to ``neighbour`` broke, or could not be opened at all. The attempt is over."""

    def ring_mismatched(self, attempt: Attempt, round: int, mismatch: Mismatch) -> None:
        """What a neighbour wants to reduce does not fit ours: the round cannot finish in this view."""


@dataclass(frozen=True, slots=True)
class Start:
    """One round to run: its number, the record it builds on, and this member's call."""

    round: int
    base: RecordHead
    call: Call


class Attempt:
    """Runs the rounds of ``view`` one after another, as they are started."""

    def __init__(self, view: View, links: RingLinks, reports: Reports, clock: Clock) -> None:
        assert view.me is not None
        self.view = view
        self._links = links
        self._reports = reports
        self._clock = clock
        self._rank = view.ring.index(view.me)
        self._started: Start | None = None
        self._wake = anyio.Event()
        self._scope = anyio.CancelScope()

    def start(self, start: Start) -> None:
        """Run this round next."""
        self._started = start
        self._wake.set()

    def stop(self) -> None:
        """Break off: the view is over. Both streams are closed, in the middle of whatever they carry."""
        self._scope.cancel()

    async def run(self) -> None:
        """Open the streams and run rounds until stopped or until the ring breaks."""
        with self._scope:
            try:
                async with AsyncExitStack() as stack:
                    try:
                        previous, next = await self._neighbours(stack)
                    except _Failed:
                        await self._next_start()  # a ring that does not run yet cannot have broken: nobody would listen
                        raise
                    while True:
                        await self._round(await self._next_start(), previous, next)
            except _Failed as failed:
                self._reports.ring_failed(self, failed.neighbour, failed.dial_failed, failed.why)

    async def _next_start(self) -> Start:
        while self._started is None:
            self._wake = anyio.Event()
            await self._wake.wait()
        start, self._started = self._started, None
        return start

    async def _neighbours(self, stack: AsyncExitStack) -> tuple[ByteStream | None, ByteStream | None]:
        ring, attempt = self.view.ring, self.view.attempt
        if len(ring) == 1:
            return None, None
        try:
            next = await stack.enter_async_context(self._links.to_next(attempt, self._next.peer))
        except (HydraError, *STREAM_ERRORS) as error:
            raise _Failed(self._next, True, f"no stream to the next member: {error}") from error
        async with anyio.create_task_group() as tasks:
            # Nobody looks at this stream before the ring runs; if all wait for their previous one, nobody ever does.
            broken: list[str] = []
            tasks.start_soon(_watch, next, broken, tasks.cancel_scope)
            previous = await stack.enter_async_context(self._links.from_previous(attempt, self._previous.peer))
            tasks.cancel_scope.cancel()
        if broken:
            raise _Failed(self._next, False, f"the stream to the next member broke: {broken[0]}")
        return previous, next

    async def _round(self, start: Start, previous: ByteStream | None, next: ByteStream | None) -> None:
        call, layout, view = start.call, start.call.layout, self.view
        me = view.ring[self._rank].peer
        call.attempts += 1
        call.ring_began, call.ring_ended = self._clock.monotonic(), None
        segments = layout.allocate()
        layout.pack(call.arrays, segments, call.weight if layout.op == "mean" else None)
        mine = Contribution(view.ring[self._rank], call.number, call.weight, call.meta)

        def finish(metas: Sequence[bytes]) -> float | None:
            total = sum(contribution.weight for contribution in decode_metas(metas, view, me))
            return 1.0 / total if layout.op == "mean" else None

        try:
            metas = await run_ring(
                rank=self._rank,
                size=len(view.ring),
                previous=previous,
                next=next,
                header=encode_header(start.round, start.base, layout),
                check_header=lambda data: check_header(data, self._previous.peer, me, start.round, start.base, layout),
                segments=segments,
                meta=encode_meta(mine),
                finish=finish,
            )
        except RingBroken as broken:
            neighbour = self._previous if broken.side == "previous" else self._next
            raise _Failed(neighbour, False, str(broken.cause)) from broken
        except RingProtocolError as error:
            raise _Failed(self._previous, False, error.what) from error
        except Mismatch as mismatch:
            self._reports.ring_mismatched(self, start.round, mismatch)
            await anyio.sleep_forever()  # until the next view: nothing more can come of this one
        body_digest = await hash_segments(segments)
        call.ring_ended = self._clock.monotonic()
        record = self._reports.make_record(decode_metas(metas, view, me), record_digest(layout, body_digest))
        self._reports.ring_finished(self, Result(record, layout, segments, body_digest))

    @property
    def _next(self) -> MemberId:
        return self.view.ring[(self._rank + 1) % len(self.view.ring)]

    @property
    def _previous(self) -> MemberId:
        return self.view.ring[self._rank - 1]


async def _watch(next: ByteStream, broken: list[str], scope: anyio.CancelScope) -> None:
    """Cancel ``scope`` when the stream to the next member ends: nothing is ever received on it."""
    try:
        await next.receive(1)
        broken.append("it sent something")
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        broken.append(str(error) or type(error).__name__)
    scope.cancel()


class _Failed(Exception):
    def __init__(self, neighbour: MemberId, dial_failed: bool, why: str) -> None:
        self.neighbour = neighbour
        self.dial_failed = dial_failed
        self.why = why
