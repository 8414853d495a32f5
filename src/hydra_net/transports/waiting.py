"""Waiting for whichever of several byte streams can make progress first."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from hydra_net.transports.stream import ByteStream

_epoll = getattr(select, "epoll", None)


async def wait_any(receiving: Sequence[ByteStream], sending: Sequence[ByteStream]) -> None:
    """Wait until ``try_receive_into`` of one of ``receiving`` or ``try_send`` of one of ``sending`` may make progress.

    The way to use it: try everything; when nothing moved, wait; try again. Progress includes the end of a stream, its
    failure and its closing by another task, which the next ``try_`` call reports. It may return for no reason, so a
    ``try_`` call that returns None afterwards is normal. The lists may hold any mix of streams, one stream in both.
    Always a checkpoint. Raises ValueError if both lists are empty.

    Sockets wait in the kernel and memory streams on their own wake-ups; those waits can be cancelled freely. A stream
    that only has anyio's methods works too, under this rule: its ``receive`` runs while the wait lasts, and what it
    returns is kept for the next call; its ``send`` runs with what ``try_send`` was offered, and because a half-done
    send cannot be taken back, **the wait lasts until every send that it began is done**, whatever else gets ready
    meanwhile. While it does, everything in ``receiving`` is read ahead, up to as many bytes per stream as one offer
    has. Therefore peers that all send to each other at once make progress as long as each waits for receiving and
    sending in one call: of any peers that wait for each other in a circle, one began its send no later than its
    receiver began its wait, and that receiver has taken at least as much from the stream as this send holds.
    Cancelling the wait dooms such a stream if its send had begun.
    """
    if not receiving and not sending:
        raise ValueError("there is nothing to wait for")
    receivers: list[ByteStream] = []
    senders: list[ByteStream] = []
    descriptors: dict[int, tuple[ByteStream, int]] = {}
    for streams, is_receiving in ((receiving, True), (sending, False)):
        found = receivers if is_receiving else senders
        for stream in streams:
            # Ask a wrapper first, then the stream in it, down to the one that the kernel or a peer makes ready.
            while not (stream.ready_to_receive() if is_receiving else stream.ready_to_send()):
                inner = stream.waits_on()
                if inner is stream:
                    break
                stream = inner  # noqa: PLW2901 - the walk towards the innermost stream
            else:
                await anyio.lowlevel.checkpoint()
                return
            descriptor = stream.descriptor()
            if descriptor is None:
                if stream not in found:
                    found.append(stream)
            elif descriptor < 0:
                await anyio.lowlevel.checkpoint()  # closed: the next call on it says so
                return
            else:
                _, flags = descriptors.get(descriptor, (stream, 0))
                descriptors[descriptor] = (stream, flags | (_IN if is_receiving else _OUT))
    if not receivers and not senders:
        await _wait_descriptors(descriptors)
        return
    waiting = _Waiting()
    try:
        default_receivers = [s for s in receivers if not waiting.watch(s, "receive")]
        default_senders = [s for s in senders if not waiting.watch(s, "send")]
        if default_receivers or default_senders or descriptors:
            await waiting.run(default_receivers, default_senders, descriptors)
        else:
            await waiting.alarm.wait()
    finally:
        waiting.unwatch()


_IN, _OUT = 1, 4  # the values of EPOLLIN and EPOLLOUT, which other systems do not define


class Alarm:
    """Wakes one task at a time that may be moved forward while it waits. Use it once, without another checkpoint."""

    __slots__ = ("_rung", "_scope")

    def __init__(self) -> None:
        self._rung = anyio.Event()
        self._scope = anyio.CancelScope()

    def ring(self, when: float) -> None:
        """Wake the task at ``when`` (``anyio.current_time()``; 0.0 is now), or earlier if that was asked for."""
        if not when:
            self._rung.set()
        elif when < self._scope.deadline:
            self._scope.deadline = when

    async def wait(self) -> None:
        """Wait for the earliest ``ring``, whether it came before or comes later."""
        with self._scope:
            await self._rung.wait()


class _Waiting:
    """One wait over streams that are not all descriptors."""

    def __init__(self) -> None:
        self.alarm = Alarm()
        self._watches: list[tuple[ByteStream, Literal["receive", "send"]]] = []
        self._sends_left = 0
        self._scope: anyio.CancelScope | None = None
        self._busy: anyio.BusyResourceError | None = None

    def watch(self, stream: ByteStream, direction: Literal["receive", "send"]) -> bool:
        if not stream.watch(direction, self.alarm.ring):
            return False
        self._watches.append((stream, direction))
        return True

    def unwatch(self) -> None:
        for stream, direction in self._watches:
            stream.watch(direction, None)

    async def run(
        self,
        receivers: Sequence[ByteStream],
        senders: Sequence[ByteStream],
        descriptors: dict[int, tuple[ByteStream, int]],
    ) -> None:
        self._sends_left = len(senders)
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            if descriptors:
                tasks.start_soon(self._one, partial(_wait_descriptors, descriptors))
            for stream in senders:
                tasks.start_soon(self._flush, stream)
            for stream in receivers:
                tasks.start_soon(self._one, partial(stream._read_ahead, self._got_data))
            if self._watches:
                tasks.start_soon(self._one, self.alarm.wait)
        if self._busy is not None:
            raise self._busy

    def _wake(self) -> None:
        if self._scope is not None and not self._sends_left:
            self._scope.cancel()

    def _got_data(self) -> bool:
        """True while reading ahead goes on because a send is under way."""
        self._wake()
        return self._sends_left > 0

    async def _one(self, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await wait()
        except anyio.BusyResourceError as error:
            self._busy = error
        self._wake()

    async def _flush(self, stream: ByteStream) -> None:
        try:
            await stream._flush_offer()
        except anyio.BusyResourceError as error:
            self._busy = error
        self._sends_left -= 1
        self._wake()


async def _wait_descriptors(descriptors: dict[int, tuple[ByteStream, int]]) -> None:
    """Wait for the kernel: one descriptor directly, several in one epoll descriptor or else a task for each."""
    try:
        if len(descriptors) == 1:
            ((descriptor, (_, flags)),) = descriptors.items()
            if flags == _IN:
                await anyio.wait_readable(descriptor)
                return
            if flags == _OUT:
                await anyio.wait_writable(descriptor)
                return
        if _epoll is not None:
            await _wait_epoll(descriptors)
        else:
            await _wait_tasks(descriptors)
    except anyio.ClosedResourceError:
        return  # one was closed while we waited: the next call on it says so


async def _wait_epoll(descriptors: dict[int, tuple[ByteStream, int]]) -> None:
    assert _epoll is not None
    with _epoll(len(descriptors)) as poller:
        for descriptor, (stream, flags) in descriptors.items():
            poller.register(descriptor, flags)
            stream.add_poller(poller)
        try:
            await anyio.wait_readable(poller)
        finally:
            for stream, _ in descriptors.values():
                stream.remove_poller(poller)


async def _wait_tasks(descriptors: dict[int, tuple[ByteStream, int]]) -> None:
    async with anyio.create_task_group() as tasks:

        async def one(descriptor: int, flag: int) -> None:
            with contextlib.suppress(anyio.ClosedResourceError):
                await (anyio.wait_readable if flag == _IN else anyio.wait_writable)(descriptor)
            tasks.cancel_scope.cancel()

        for descriptor, (_, flags) in descriptors.items():
            for flag in (_IN, _OUT):
                if flags & flag:
                    tasks.start_soon(one, descriptor, flag)
