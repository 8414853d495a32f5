"""Running a handshake on a stream, and the stream to a verified peer that comes out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio

from hydra_net.errors import HydraError
from hydra_net.identity import PeerId
from hydra_net.secure.hello import Hello
from hydra_net.secure.plain import Established
from hydra_net.transports.stream import Buffer, ByteStream, receive_exactly

__all__ = ["HandshakeCore", "SecureStream", "handshake"]


class HandshakeCore(Protocol):
    """A sans-IO handshake; see :class:`~hydra_net.secure.plain.PlainHandshake`."""

    needs: int
    result: Established | None

    def outgoing(self) -> bytes: ...
    def take(self, data: bytes) -> None: ...


class SecureStream(ByteStream):
    """A byte stream to a peer that has proven who it is. Only a handshake makes one.

    ``peer`` is the verified peer, ``wire`` the wire version to speak with it, ``features`` what both sides know,
    ``remote_hello`` all that it said. Everything else, :func:`~hydra_net.wait_any` too, works as on the stream below.
    """

    def __init__(self, stream: ByteStream, established: Established) -> None:
        self._stream = stream
        self._established = established
        self._closed: list[Callable[[], None]] = []

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        return self._established.peer

    @property
    def wire(self) -> int:
        """The wire version that both sides speak."""
        return self._established.wire

    @property
    def features(self) -> tuple[str, ...]:
        """The features that both sides named."""
        return self._established.features

    @property
    def local_hello(self) -> Hello:
        """What this side said in the handshake."""
        return self._established.local_hello

    @property
    def remote_hello(self) -> Hello:
        """What the other side said in the handshake."""
        return self._established.remote_hello

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once when this side closes the stream."""
        self._closed.append(callback)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """See :class:`ByteStream`."""
        return await self._stream.receive(max_bytes)

    async def receive_into(self, buffer: memoryview) -> int:
        """See :meth:`ByteStream.receive_into`."""
        return await self._stream.receive_into(buffer)

    async def send(self, item: bytes) -> None:
        """See :class:`ByteStream`."""
        await self._stream.send(item)

    async def send_vectored(self, buffers: Sequence[Buffer]) -> None:
        """See :meth:`ByteStream.send_vectored`."""
        await self._stream.send_vectored(buffers)

    def try_receive_into(self, buffer: memoryview) -> int | None:
        """See :meth:`ByteStream.try_receive_into`."""
        return self._stream.try_receive_into(buffer)

    def try_send(self, buffers: Sequence[Buffer]) -> int | None:
        """See :meth:`ByteStream.try_send`."""
        return self._stream.try_send(buffers)

    def ready_to_receive(self) -> bool:
        """This stream keeps nothing of its own: the one below knows."""
        return self._stream.ready_to_receive()

    def ready_to_send(self) -> bool:
        """This stream keeps nothing of its own: the one below knows."""
        return self._stream.ready_to_send()

    def waits_on(self) -> ByteStream:
        """The stream below."""
        return self._stream

    async def send_eof(self) -> None:
        """See :class:`ByteStream`."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close. Never blocks for long, even when cancelled."""
        callbacks, self._closed = self._closed, []
        for callback in callbacks:
            callback()
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the stream below."""
        return self._stream.extra_attributes


async def handshake(stream: ByteStream, core: HandshakeCore) -> SecureStream:
    """Run ``core`` on ``stream`` and return the stream to the verified peer.

    Raises what ``core`` raises, and ConnectionAbortedError if the other side hangs up in the middle. If this raises or
    is cancelled, ``stream`` must be closed; it never sets a deadline of its own, so put it in a cancel scope.
    """
    try:
        while core.result is None:
            if data := core.outgoing():
                await stream.send(data)
            try:
                received = await receive_exactly(stream, core.needs)
            except (anyio.EndOfStream, anyio.IncompleteRead) as error:
                raise ConnectionAbortedError("the peer hung up in the handshake") from error
            core.take(received)
    except HydraError:
        # The other side is to know why, as far as our hello says so. Best effort: it may be gone.
        if data := core.outgoing():
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.send(data)
        raise
    if data := core.outgoing():
        await stream.send(data)
    return SecureStream(stream, core.result)
