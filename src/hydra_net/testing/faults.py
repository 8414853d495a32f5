"""Faults for real processes: something happens at an exact byte of the traffic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import anyio
from anyio.abc import TaskStatus

from hydra_net.address import Address
from hydra_net.transports.nonblocking import NonBlockingStream
from hydra_net.transports.stream import Buffer, ByteStream, Transport, wait_any

__all__ = ["TripwireTransport"]


class TripwireTransport:
    """A transport around ``inner`` that runs an action when its streams have moved a number of bytes.

        tripwire = TripwireTransport(TcpTransport())
        tripwire.arm(100_000, lambda: os.kill(os.getpid(), signal.SIGKILL))

    Bytes count in both directions, over all streams that it dialled or accepted, when they are handed to or taken from
    ``inner``. Its streams copy nothing and wait like the ones they wrap.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.schemes = inner.schemes
        self._left = 0
        self._action: Callable[[], object] | None = None

    @property
    def armed(self) -> bool:
        """True from ``arm`` until the action has run."""
        return self._action is not None

    def arm(self, after_bytes: int, action: Callable[[], object]) -> None:
        """Call ``action()`` when exactly ``after_bytes`` more have moved, inside the call that moved the last one.

        0 calls it before the next byte. It happens once; arming again replaces what was armed. If the action returns,
        the traffic goes on.
        """
        if after_bytes < 0:
            raise ValueError("after_bytes must not be negative")
        self._left = after_bytes
        self._action = action

    async def dial(self, address: Address) -> ByteStream:
        """Dial with the inner transport."""
        return _TripwireStream(self, await self._inner.dial(address))

    async def serve(
        self,
        address: Address,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[Sequence[Address]] = anyio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        """Serve with the inner transport."""

        async def wrapping(stream: ByteStream) -> None:
            await handler(_TripwireStream(self, stream))

        await self._inner.serve(address, wrapping, task_status=task_status)

    def room(self) -> int | None:
        """How many bytes may move before the action, at least 1; None if there is no limit."""
        if self._action is None:
            return None
        if not self._left:
            self._trip()
            return None
        return self._left

    def moved(self, count: int) -> None:
        """Count bytes, and act at the last one."""
        if self._action is not None:
            self._left -= count
            if self._left <= 0:
                self._trip()

    def _trip(self) -> None:
        action, self._action = self._action, None
        assert action is not None
        action()


class _TripwireStream(NonBlockingStream):
    """Passes everything on, in parts that end at the armed byte.

    The blocking methods go through the non-blocking ones too: a part that was measured before a wait could end beyond
    the byte, if another stream moved bytes meanwhile.
    """

    def __init__(self, wire: TripwireTransport, inner: ByteStream) -> None:
        super().__init__()
        self._wire = wire
        self._inner = inner

    def _receive_now(self, buffer: memoryview) -> int | None:
        count = self._inner.try_receive_into(buffer[: self._wire.room()])
        if count:
            self._wire.moved(count)
        return count

    def _send_now(self, buffers: Sequence[Buffer]) -> int | None:
        room = self._wire.room()
        count = self._inner.try_send(buffers if room is None else _head(buffers, room))
        if count:
            self._wire.moved(count)
        return count

    async def send_eof(self) -> None:
        if not self._eof_sent:
            self._check_send()
            self._eof_sent = True
        await self._inner.send_eof()

    async def aclose(self) -> None:
        self._closed = True
        await self._inner.aclose()

    def waits_on(self) -> ByteStream:
        return self._inner

    async def _wait_receive(self) -> None:
        await wait_any([self._inner], [])

    async def _wait_send(self) -> None:
        await wait_any([], [self._inner])

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._inner.extra_attributes


def _head(buffers: Sequence[Buffer], count: int) -> Sequence[Buffer]:
    """The first ``count`` bytes of ``buffers``, or all of them if they are fewer."""
    head: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) >= count:
            head.append(memoryview(buffer)[:count])
            break
        head.append(buffer)
        count -= len(buffer)
    return head
