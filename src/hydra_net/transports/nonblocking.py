"""The rules of a byte stream, over non-blocking operations and a way of waiting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from hydra_net.transports.stream import Buffer, ByteStream

_MOST_BYTES = 1024 * 1024  # that one receive() allocates; larger reads gain nothing


class NonBlockingStream(ByteStream):
    """A :class:`ByteStream` whose subclass says how to move bytes without blocking and how to wait.

    Here are the checks that every call needs: closed, one task per direction, doomed by a half-done send.
    """

    def __init__(self) -> None:
        self._closed = False
        self._receiving = False
        self._sending = False
        self._half_sent = False
        self._eof_sent = False

    # ------------------------------------------------------------------ for the subclass

    @abstractmethod
    def _receive_now(self, buffer: memoryview) -> int | None:
        """Receive into a non-empty buffer; 0 at the end, None if there is nothing. The stream is not closed."""

    @abstractmethod
    def _send_now(self, buffers: Sequence[Buffer]) -> int | None:
        """Send something of ``buffers``, which hold at least one byte; None if nothing is taken now."""

    def _send_eof_now(self) -> None:
        """Say that nothing more is sent. Not needed by a subclass that has its own ``send_eof``."""

    def _close_now(self) -> None:
        """Wake whoever waits, who then finds the stream closed, and let go of everything.

        Not needed by a subclass that has its own ``aclose``.
        """

    @abstractmethod
    async def _wait_receive(self) -> None:
        """Wait until ``_receive_now`` may do something; may return early, may raise ClosedResourceError."""

    @abstractmethod
    async def _wait_send(self) -> None:
        """Wait until ``_send_now`` may do something; may return early, may raise ClosedResourceError."""

    # ------------------------------------------------------------------ receiving

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive between 1 and ``max_bytes`` bytes; raises :exc:`anyio.EndOfStream` at the end."""
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        buffer = bytearray(min(max_bytes, _MOST_BYTES))
        with memoryview(buffer) as view:
            count = await self.receive_into(view)
        if not count:
            raise anyio.EndOfStream
        del buffer[count:]
        return bytes(buffer)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; 0 at the end of the stream. Cancellation takes nothing."""
        self._check_receive(buffer)
        self._receiving = True
        try:
            await anyio.lowlevel.checkpoint()
            while not self._closed:
                count = self._receive_now(buffer)
                if count is not None:
                    return count
                await self._wait_receive()
            raise anyio.ClosedResourceError
        finally:
            self._receiving = False

    def try_receive_into(self, buffer: memoryview) -> int | None:
        """Receive what is there: the number of bytes, 0 at the end of the stream, None if there is nothing."""
        self._check_receive(buffer)
        return self._receive_now(buffer)

    def ready_to_receive(self) -> bool:
        """Not known without waiting; see :meth:`ByteStream.ready_to_receive`."""
        return False

    # ------------------------------------------------------------------ sending

    async def send(self, item: bytes) -> None:
        """Send all of ``item``. Cancellation after a part of it went out dooms the stream."""
        await self.send_vectored((item,))

    async def send_vectored(self, buffers: Sequence[Buffer]) -> None:
        """Send all of ``buffers`` in order. Cancellation after a part of it went out dooms the stream."""
        self._check_send()
        self._sending = True
        try:
            await anyio.lowlevel.checkpoint()
            rest = without(buffers, 0)
            while rest:
                if self._closed:
                    raise anyio.ClosedResourceError
                count = self._send_now(rest)
                if count is None:
                    await self._wait_send()
                else:
                    rest = without(rest, count)
                    # Until all of it is out, whatever interrupts this leaves the peer with a part.
                    self._half_sent = bool(rest)
        finally:
            self._sending = False

    def try_send(self, buffers: Sequence[Buffer]) -> int | None:
        """Send what is taken at once: the number of bytes, None if nothing is."""
        self._check_send()
        if not any(map(len, buffers)):
            return 0
        return self._send_now(buffers)

    def ready_to_send(self) -> bool:
        """Not known without waiting; see :meth:`ByteStream.ready_to_send`."""
        return False

    async def send_eof(self) -> None:
        """Tell the peer that nothing more is sent; receiving goes on. Does nothing the second time."""
        if not self._eof_sent:
            self._check_send()
            self._send_eof_now()
            self._eof_sent = True
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close at once, even when cancelled, and wake whoever waits. Bytes that were sent are still delivered."""
        if not self._closed:
            self._closed = True
            self._close_now()
        await anyio.lowlevel.checkpoint()

    # ------------------------------------------------------------------ checks

    def _check_receive(self, buffer: memoryview) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._receiving:
            raise anyio.BusyResourceError("receiving from")
        if not len(buffer):
            raise ValueError("the buffer to receive into is empty")

    def _check_send(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._sending:
            raise anyio.BusyResourceError("sending on")
        if self._half_sent:
            raise anyio.BrokenResourceError("a send was interrupted half-way; close this stream and open another")
        if self._eof_sent:
            raise anyio.ClosedResourceError("the end of the stream was sent")


def without(buffers: Sequence[Buffer], count: int) -> Sequence[Buffer]:
    """What is left of ``buffers`` after their first ``count`` bytes; empty if nothing is."""
    for position, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:] if count else buffer, *buffers[position + 1 :]]
        count -= len(buffer)
    return ()
