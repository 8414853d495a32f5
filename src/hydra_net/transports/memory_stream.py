"""The streams of a :class:`~hydra_net.transports.memory.MemoryNetwork` and the paths under them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc

from hydra_net.transports.nonblocking import NonBlockingStream
from hydra_net.transports.stream import Buffer
from hydra_net.transports.waiting import Alarm

if TYPE_CHECKING:
    from hydra_net.transports.memory import MemoryTransport

Wake = Callable[[float], None]


class Link:
    """The path from one host to another, one direction."""

    __slots__ = (
        "_free",
        "_give_up",
        "_opened",
        "_rng",
        "bandwidth",
        "blocked",
        "gives_up_at",
        "jitter",
        "latency",
        "source",
        "target",
    )

    def __init__(
        self, ends: tuple[str, str], *, latency: float, jitter: float, bandwidth: float, rng: Random, give_up: float
    ) -> None:
        self.source, self.target = ends
        self.latency, self.jitter, self.bandwidth = latency, jitter, bandwidth
        self.blocked = False
        self.gives_up_at = math.inf
        self._rng = rng
        self._give_up = give_up
        self._free = 0.0  # when the last byte sent so far has left the source
        self._opened: anyio.Event | None = None

    def arrival(self, nbytes: int) -> float:
        """When ``nbytes`` that are sent now arrive at the target, if nothing blocks the path. 0.0 is at once."""
        if not self.latency and not self.jitter and self.bandwidth == math.inf:
            return 0.0
        self._free = max(self._free, anyio.current_time()) + nbytes / self.bandwidth
        return self._free + self.latency + (self.jitter * self._rng.random() if self.jitter else 0.0)

    async def travel(self) -> None:
        """Take the time that a small packet takes, and wait while the path is blocked."""
        await anyio.sleep_until(self.arrival(0))
        while self.blocked:
            if self._opened is None:
                self._opened = anyio.Event()
            await self._opened.wait()

    def set_blocked(self, blocked: bool) -> bool:
        """Block or open the path; True if that changed it."""
        if blocked == self.blocked:
            return False
        self.blocked = blocked
        self.gives_up_at = anyio.current_time() + self._give_up if blocked and self._give_up < math.inf else math.inf
        if not blocked and self._opened is not None:
            self._opened.set()
            self._opened = None
        return True


class Pipe:
    """The bytes of one direction of a connection, between the write and the read."""

    __slots__ = (
        "_segments",
        "end",
        "ended_badly",
        "link",
        "reader_gone",
        "reverse",
        "unacknowledged",
        "used",
        "wake_reader",
        "wake_writer",
        "window",
    )

    def __init__(self, link: Link, reverse: Link, window: int) -> None:
        self.link, self.reverse, self.window = link, reverse, window
        self.used = 0  # bytes of the window: in flight, unread, or read and not acknowledged yet
        self.unacknowledged = 0  # bytes read while the way back was blocked
        self.end: float | None = None  # when the end of the stream arrives, once it is under way
        self.ended_badly = False  # it arrives as a failure: the other side left something unread
        self.reader_gone: float | None = None  # when the writer learns that nobody reads any more
        self.wake_reader: Wake | None = None
        self.wake_writer: Wake | None = None
        # (when it arrives, the bytes), in order: one that is late holds up those after it.
        self._segments: deque[tuple[float, memoryview]] = deque()

    def write(self, data: bytes) -> None:
        arrival = self.link.arrival(len(data))
        self._segments.append((arrival, memoryview(data)))
        self.used += len(data)
        if self.wake_reader is not None and not self.link.blocked:
            self.wake_reader(arrival)

    def write_end(self, *, badly: bool) -> None:
        if self.end is None:
            self.end = self.link.arrival(0)
            self.ended_badly = badly
            if self.wake_reader is not None and not self.link.blocked:
                self.wake_reader(self.end)

    def read_into(self, buffer: memoryview) -> int | None:
        """Move what has arrived; 0 at the end, None if nothing has."""
        if self.link.blocked:
            return None
        segments, got, size = self._segments, 0, len(buffer)
        now = 0.0
        while segments and got < size:
            arrival, data = segments[0]
            if arrival > now:
                now = anyio.current_time()
                if arrival > now:
                    break
            part = data[: size - got]
            buffer[got : got + len(part)] = part
            got += len(part)
            if len(part) == len(data):
                segments.popleft()
            else:
                segments[0] = (arrival, data[len(part) :])
        if got:
            self._acknowledge(got)
            return got
        if self.end is not None and not segments and (not self.end or self.end <= anyio.current_time()):
            if self.ended_badly:
                raise anyio.BrokenResourceError("the peer closed the connection and left something unread")
            return 0
        return None

    def next_arrival(self) -> float:
        """When the reader has something to do next, as far as is known: infinite if it is not."""
        if self.link.blocked:
            return math.inf
        if self._segments:
            return self._segments[0][0]
        return math.inf if self.end is None else self.end

    def next_room(self) -> float:
        """When the writer has something to do next, as far as is known."""
        if self.used < self.window:
            return 0.0
        if self.reader_gone is not None and not self.reverse.blocked:
            return self.reader_gone
        return math.inf

    def refused(self) -> bool:
        """True once the writer has learnt that nobody reads any more."""
        gone = self.reader_gone
        return gone is not None and not self.reverse.blocked and (not gone or gone <= anyio.current_time())

    def unread(self) -> bool:
        """True if bytes have arrived that nobody has read."""
        if not self._segments or self.link.blocked:
            return False
        arrival = self._segments[0][0]
        return not arrival or arrival <= anyio.current_time()

    def close_reader(self) -> None:
        """Nobody reads any more: what is in flight is dropped, and the writer learns it."""
        self._segments.clear()
        self.reader_gone = self.reverse.arrival(0)
        if self.wake_writer is not None and not self.reverse.blocked:
            self.wake_writer(self.reader_gone)

    def look_again(self) -> None:
        """A path has changed: acknowledge what could not be, and have both sides look."""
        if self.unacknowledged and not self.reverse.blocked:
            self.used -= self.unacknowledged
            self.unacknowledged = 0
        for wake in (self.wake_reader, self.wake_writer):
            if wake is not None:
                wake(0.0)

    def _acknowledge(self, count: int) -> None:
        if self.reverse.blocked:
            self.unacknowledged += count
            return
        self.used -= count
        if self.wake_writer is not None:
            self.wake_writer(0.0)


class MemoryStream(NonBlockingStream):
    """One end of a connection."""

    other: MemoryStream

    def __init__(
        self,
        host: MemoryTransport,
        local: tuple[str, int],
        remote: tuple[str, int],
        incoming: Pipe,
        outgoing: Pipe,
    ) -> None:
        super().__init__()
        self._host = host
        self._local, self._remote = local, remote
        self._in, self._out = incoming, outgoing
        self._failure: str | None = None
        host.opened(self)

    def __repr__(self) -> str:
        return f"<MemoryStream {self._local[0]}:{self._local[1]} -> {self._remote[0]}:{self._remote[1]}>"

    @property
    def peer_host(self) -> str:
        """The name of the host at the other end."""
        return self._remote[0]

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The local and the remote address: name and port of the hosts."""
        attribute = anyio.abc.SocketAttribute
        return {attribute.local_address: lambda: self._local, attribute.remote_address: lambda: self._remote}

    # ------------------------------------------------------------------ faults

    def fail(self, why: str) -> None:
        """Make this end fail and wake whoever waits on it."""
        if self._failure is None:
            self._failure = why
        self._wake()
        self._host.closed(self)

    def fail_both(self, why: str) -> None:
        """Make both ends fail."""
        self.fail(why)
        self.other.fail(why)

    def end_of_process(self) -> None:
        """The process of this end is gone: the system closes its side, this end fails."""
        self._hang_up()
        self.fail(f"the host {self._host.name} is dead")

    def look_again(self) -> None:
        """A path has changed."""
        self._in.look_again()
        self._out.look_again()

    # ------------------------------------------------------------------ moving bytes

    def _receive_now(self, buffer: memoryview) -> int | None:
        self._check()
        return self._in.read_into(buffer)

    def _send_now(self, buffers: Sequence[Buffer]) -> int | None:
        self._check()
        if self._out.refused():
            raise anyio.BrokenResourceError("the peer has closed the connection")
        room = self._out.window - self._out.used
        if room <= 0:
            return None
        fuse = self._host.fuse
        data = _head(buffers, room if fuse is None else min(room, fuse))
        if data:
            self._out.write(data)
        if fuse is not None:
            self._host.fuse = fuse - len(data)
            if not self._host.fuse:
                self._host.network.kill(self._host.name)
                self._check()
        return len(data)

    def _send_eof_now(self) -> None:
        self._check()
        self._out.write_end(badly=False)

    def _close_now(self) -> None:
        if self._failure is None:
            self._hang_up()
        self._wake()
        self._host.closed(self)

    def _hang_up(self) -> None:
        self._out.write_end(badly=self._in.unread())
        self._in.close_reader()

    def _check(self) -> None:
        if self._failure is None:
            give_up = min(self._in.link.gives_up_at, self._out.link.gives_up_at)
            if give_up < math.inf and give_up <= anyio.current_time():
                self.fail_both("nothing has passed for too long")
        if self._failure is not None:
            raise anyio.BrokenResourceError(self._failure)

    # ------------------------------------------------------------------ waiting

    def watch(self, direction: Literal["receive", "send"], wake: Wake | None) -> bool:
        """See :meth:`ByteStream.watch`."""
        if direction == "receive":
            if wake is not None and self._in.wake_reader is not None:
                raise anyio.BusyResourceError("receiving from")
            self._in.wake_reader = wake
        else:
            if wake is not None and self._out.wake_writer is not None:
                raise anyio.BusyResourceError("sending on")
            self._out.wake_writer = wake
        if wake is not None:
            when = 0.0 if self._closed or self._failure is not None else self._ready_at(direction)
            if when < math.inf:
                wake(when)
        return True

    async def _wait_receive(self) -> None:
        await self._wait("receive")

    async def _wait_send(self) -> None:
        await self._wait("send")

    async def _wait(self, direction: Literal["receive", "send"]) -> None:
        alarm = Alarm()
        self.watch(direction, alarm.ring)
        try:
            await alarm.wait()
        finally:
            self.watch(direction, None)

    def _ready_at(self, direction: Literal["receive", "send"]) -> float:
        next_event = self._in.next_arrival() if direction == "receive" else self._out.next_room()
        return min(next_event, self._in.link.gives_up_at, self._out.link.gives_up_at)

    def _wake(self) -> None:
        for wake in (self._in.wake_reader, self._out.wake_writer):
            if wake is not None:
                wake(0.0)


def _head(buffers: Sequence[Buffer], limit: int) -> bytes:
    """A copy of the first ``limit`` bytes of ``buffers``: the caller may change them after the call."""
    if len(buffers) == 1:
        return bytes(buffers[0] if len(buffers[0]) <= limit else memoryview(buffers[0])[:limit])
    parts: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) >= limit:
            parts.append(memoryview(buffer)[:limit])
            break
        parts.append(buffer)
        limit -= len(buffer)
    return b"".join(parts)
