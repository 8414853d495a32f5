"""Byte streams in memory that move few bytes at a time, break at a chosen byte, and notice a pump that spins."""

from collections.abc import Callable, Sequence
from random import Random

import anyio

from hydra_net.transports.stream import Buffer, ByteStream


class Link:
    """One direction between two ends: at most ``capacity`` bytes on the way, at most ``window`` per call.

    After ``cut_after`` bytes it breaks: the receiver gets those bytes and then an end, or a reset if ``resets``; the
    sender's next call fails.
    """

    def __init__(
        self,
        random: Random,
        *,
        window: int = 1 << 30,
        capacity: int = 1 << 30,
        cut_after: int | None = None,
        resets: bool = False,
    ):
        self.random = random
        self.window = window
        self.capacity = capacity
        self.cut_after = cut_after
        self.resets = resets
        self.passed = 0
        self.way: bytearray = bytearray()
        self.closed = {"send": False, "receive": False}
        self.wakes: dict[str, Callable[[float], None] | None] = {"send": None, "receive": None}

    @property
    def cut(self) -> bool:
        return self.cut_after is not None and self.passed >= self.cut_after

    def ends(self) -> tuple["SendingEnd", "ReceivingEnd"]:
        return SendingEnd(self), ReceivingEnd(self)

    def wake(self, direction: str) -> None:
        wake = self.wakes[direction]
        if wake is not None:
            wake(0.0)

    def readable(self) -> bool:
        return bool(self.way) or self.cut or any(self.closed.values())

    def writable(self) -> bool:
        return len(self.way) < self.capacity or self.cut or any(self.closed.values())


class _End(ByteStream):
    direction: str

    def __init__(self, link: Link):
        self.link = link
        self.useless_calls = 0

    def watch(self, direction: str, wake: Callable[[float], None] | None) -> bool:
        assert direction == self.direction, "the pump waits on the wrong side of a stream"
        self.link.wakes[direction] = wake
        if wake is not None and (self.link.readable() if direction == "receive" else self.link.writable()):
            wake(0.0)
        return True

    def _check(self) -> None:
        if self.link.closed[self.direction]:
            raise anyio.ClosedResourceError
        self.useless_calls += 1
        assert self.useless_calls < 1000, "the pump spins"

    async def receive(self, max_bytes: int = 65536) -> bytes:
        raise AssertionError("the pump uses the non-blocking calls only")

    async def send(self, item: bytes) -> None:
        raise AssertionError("the pump uses the non-blocking calls only")

    async def send_eof(self) -> None:
        raise AssertionError("the pump ends no stream")

    async def aclose(self) -> None:
        self.link.closed[self.direction] = True
        self.link.wake("send")
        self.link.wake("receive")


class ReceivingEnd(_End):
    direction = "receive"

    def try_receive_into(self, buffer: memoryview) -> int | None:
        self._check()
        assert len(buffer), "an empty receive is no progress"
        link = self.link
        if link.way:
            count = min(len(buffer), len(link.way), link.random.randint(1, link.window))
            buffer[:count] = link.way[:count]
            del link.way[:count]
            link.wake("send")
            self.useless_calls = 0
            return count
        if link.cut and link.resets:
            raise anyio.BrokenResourceError
        return 0 if link.cut or link.closed["send"] else None

    def try_send(self, buffers: Sequence[Buffer]) -> int | None:
        raise AssertionError("nothing is sent to the previous rank")


class SendingEnd(_End):
    direction = "send"

    def try_send(self, buffers: Sequence[Buffer]) -> int | None:
        self._check()
        link = self.link
        if link.cut or link.closed["receive"]:
            raise anyio.BrokenResourceError
        count = min(sum(map(len, buffers)), link.capacity - len(link.way), link.random.randint(1, link.window))
        if link.cut_after is not None:
            count = min(count, link.cut_after - link.passed)
        if not count:
            return None
        link.way += b"".join(buffers)[:count]
        link.passed += count
        link.wake("receive")
        self.useless_calls = 0
        return count

    def try_receive_into(self, buffer: memoryview) -> int | None:
        raise AssertionError("nothing is received from the next rank")


class PlainStream(ByteStream):
    """What a third party writes: anyio's methods only, over anyio's own memory streams."""

    def __init__(self, sending, receiving):
        self.sending = sending
        self.receiving = receiving
        self.rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = self.rest or await self.receiving.receive()
        self.rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        try:
            await self.sending.send(item)
        except anyio.ClosedResourceError:
            raise anyio.BrokenResourceError from None

    async def send_eof(self) -> None:
        await self.sending.aclose()

    async def aclose(self) -> None:
        await self.sending.aclose()
        await self.receiving.aclose()


def plain_pair() -> tuple[PlainStream, PlainStream]:
    """Two ends of a stream without buffer: a send lasts until the other side has received."""
    a_sends, b_receives = anyio.create_memory_object_stream[bytes](0)
    b_sends, a_receives = anyio.create_memory_object_stream[bytes](0)
    return PlainStream(a_sends, a_receives), PlainStream(b_sends, b_receives)
