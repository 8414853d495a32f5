"""An attempt tells why it failed at a moment when somebody listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest

from hydra_allreduce.agreement import Ballot, Genesis, Member, MemberId, View
from hydra_allreduce.agreement.record import genesis_record
from hydra_allreduce.arrays import Layout
from hydra_allreduce.attempt import Attempt, Start
from hydra_allreduce.calls import Call
from hydra_net import DialError, HydraError, Identity, PeerId, PeerUnreachable, RemoteError
from hydra_net.clock import SystemClock

ME, NEXT = sorted(Identity.from_seed(bytes([number]) * 32).id for number in (1, 2))


def two() -> View:
    members = tuple(Member(peer, 7, "contributor") for peer in (ME, NEXT))
    ring = tuple(member.id for member in members)
    base = genesis_record(Genesis("run")).head
    return View(Ballot(1, ring[0]), members, ring, (), base).seen_by(ring[0])


class NoLink:
    """Links that cannot be had."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @asynccontextmanager
    async def to_next(self, attempt: bytes, peer: PeerId) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        raise self.error
        yield


class Failures:
    """Notes what is reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[MemberId, bool]] = []

    def ring_failed(self, attempt: Attempt, neighbour: MemberId, dial_failed: bool, why: str) -> None:
        self.seen.append((neighbour, dial_failed))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error",
    [
        PeerUnreachable(NEXT, [DialError("nowhere", "refused")]),
        RemoteError(NEXT, "ring", "no such protocol", "this peer does not serve it"),  # it has left the group
        anyio.BrokenResourceError("reset"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_neighbour_that_cannot_be_had_is_reported_once_the_round_runs(error: HydraError) -> None:
    """Before that nobody is in a ring that could break: the agreement would not listen, and the round would hang."""
    view, failures = two(), Failures()
    attempt = Attempt(view, NoLink(error), failures, SystemClock())  # type: ignore[arg-type]
    arrays = np.ones(3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run)
        await anyio.wait_all_tasks_blocked()
        assert failures.seen == []
        attempt.start(Start(1, view.base, Call(1, Layout.of(arrays), arrays, 1.0, {}, 0.0)))
    assert failures.seen == [(view.ring[1], True)]


@pytest.mark.anyio
async def test_an_attempt_that_has_failed_early_can_be_stopped() -> None:
    failures = Failures()
    attempt = Attempt(two(), NoLink(anyio.BrokenResourceError()), failures, SystemClock())  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run)
        await anyio.wait_all_tasks_blocked()
        attempt.stop()
    assert failures.seen == []


class Ended:
    """A stream that the other side has closed."""

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        raise anyio.EndOfStream


class HalfALink:
    """The stream to the next member was opened and broke at once; none comes from the previous one."""

    @asynccontextmanager
    async def to_next(self, attempt: bytes, peer: PeerId) -> AsyncIterator[Ended]:
        yield Ended()

    @asynccontextmanager
    async def from_previous(self, attempt: bytes, peer: PeerId) -> AsyncIterator[None]:
        await anyio.sleep_forever()
        yield


@pytest.mark.anyio
async def test_a_stream_that_breaks_while_the_previous_one_is_awaited_is_reported() -> None:
    """Both handshakes of two members were reset when one side of each took it for done: each waited for the other's
    stream, and neither looked at its own."""
    view, failures = two(), Failures()
    attempt = Attempt(view, HalfALink(), failures, SystemClock())  # type: ignore[arg-type]
    arrays = np.ones(3)
    attempt.start(Start(1, view.base, Call(1, Layout.of(arrays), arrays, 1.0, {}, 0.0)))
    with anyio.fail_after(5):
        await attempt.run()
    assert failures.seen == [(view.ring[1], False)]
