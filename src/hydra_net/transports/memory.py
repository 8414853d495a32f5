"""A network inside one process, with delays and faults, for simulations and tests."""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from random import Random
from typing import NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from hydra_net.address import Address
from hydra_net.errors import DialError
from hydra_net.transports.memory_stream import Link, MemoryStream, Pipe
from hydra_net.transports.serving import run_handler
from hydra_net.transports.stream import ByteStream
from hydra_net.transports.waiting import Alarm

__all__ = ["MemoryNetwork", "MemoryTransport"]


class MemoryNetwork:
    """A network of named hosts, each of which is a :class:`Transport` for ``memory://`` addresses.

    ``latency`` and ``jitter`` are seconds from one host to another (each write takes ``latency`` plus a uniform share
    of ``jitter``, and stays in order), ``bandwidth`` is in bytes per second for each ordered pair of hosts, and
    ``window`` the bytes of a stream that may be in flight or unread in each direction. All delays are the event loop's
    time, virtual under a virtual clock; the same seed and the same schedule give the same run.

    Faults behave like TCP between real machines. A connection never loses bytes in the middle: what cannot pass,
    because of a partition, a cut or a pause, waits for the heal and arrives then. If nothing passes for ``give_up``
    seconds, both ends of a connection fail; by default they wait for ever. Every method that injects a fault is
    synchronous and takes effect at once, so a schedule is a task that sleeps and calls them.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        latency: float = 0.0,
        jitter: float = 0.0,
        bandwidth: float = math.inf,
        window: int = 256 * 1024,
        give_up: float = math.inf,
    ) -> None:
        self._rng = Random(seed)
        self._default = (latency, jitter, bandwidth)
        self._window = window
        self._give_up = give_up
        self._hosts: dict[str, MemoryTransport] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._groups: dict[str, int] | None = None
        self._cuts: dict[tuple[str, str], None] = {}
        self._paused: dict[str, None] = {}
        self._vanished: dict[str, None] = {}

    def host(self, name: str) -> MemoryTransport:
        """The host called ``name``, made if there is none; after :meth:`restart` the new one."""
        if name not in self._hosts:
            self._hosts[name] = MemoryTransport(self, name)
        return self._hosts[name]

    def set_link(
        self,
        source: str,
        target: str,
        *,
        latency: float | None = None,
        jitter: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        """Change the path from ``source`` to ``target`` (one direction) for what is sent from now on."""
        link = self.link(source, target)
        link.latency = link.latency if latency is None else latency
        link.jitter = link.jitter if jitter is None else jitter
        link.bandwidth = link.bandwidth if bandwidth is None else bandwidth

    # ------------------------------------------------------------------ faults

    def reset(self, a: str, b: str) -> None:
        """Break every connection between two hosts: both ends fail at once, what was in flight is lost."""
        for stream in self.host(a).streams():
            if stream.peer_host == b:
                stream.fail_both(f"the connection between {a} and {b} was reset")

    def partition(self, groups: Sequence[Sequence[str]]) -> None:
        """Let hosts talk only inside their group. Hosts that are not named form one more group. Replaces the last one.

        Connections stay: what is sent waits for :meth:`heal`. Dials across hang likewise.
        """
        self._groups = {name: number for number, names in enumerate(groups) for name in names}
        self._update_links()

    def cut(self, source: str, target: str) -> None:
        """Stop what goes from ``source`` to ``target``. The other way works until its window is full, as the
        acknowledgements are stopped too."""
        self._cuts[source, target] = None
        self._update_links()

    def heal(self) -> None:
        """End the partition and every cut. What waited arrives now."""
        self._groups = None
        self._cuts.clear()
        self._update_links()

    def pause(self, name: str) -> None:
        """Hold all traffic to and from a host, as if the machine were asleep. Its tasks and its time go on."""
        self._paused[name] = None
        self._update_links()

    def resume(self, name: str) -> None:
        """End a pause; what was held passes."""
        self._paused.pop(name, None)
        self._update_links()

    def kill(self, name: str) -> None:
        """End a host's process: what it sent arrives, then its peers see the end of their streams (or a failure, if it
        had not read all they sent). Dials to it are refused. Its own streams fail; cancel its tasks when ``host.dead``
        is set. Nothing happens if it is dead already."""
        host = self.host(name)
        if not host.dead.is_set():
            host.die()
            for stream in host.streams():
                stream.end_of_process()

    def kill_after(self, name: str, nbytes: int) -> None:
        """Kill a host in the middle of a write: when its streams have sent ``nbytes`` more bytes. These arrive."""
        self.host(name).fuse = nbytes

    def vanish(self, name: str) -> None:
        """Take a host's power away: silence. Its streams fail, its peers see nothing, dials to it hang."""
        host = self.host(name)
        if not host.dead.is_set():
            host.die()
            self._vanished[name] = None
            self._update_links()
            host.lost = host.streams()
            for stream in host.lost:
                stream.fail(f"the host {name} is dead")

    def restart(self, name: str) -> MemoryTransport:
        """A new host in place of a dead one, on the same links. Peers that still hold a stream to a host that vanished
        get a reset, since the new one knows nothing of it."""
        old = self.host(name)
        if not old.dead.is_set():
            raise ValueError(f"the host {name} is alive; kill it or let it vanish first")
        self._hosts[name] = MemoryTransport(self, name)
        self._vanished.pop(name, None)
        self._update_links()
        for stream in old.lost:
            stream.fail_both(f"the host {name} was restarted")
        return self._hosts[name]

    # ------------------------------------------------------------------ for hosts and streams

    def link(self, source: str, target: str) -> Link:
        """The path from one host to another."""
        link = self._links.get((source, target))
        if link is None:
            latency, jitter, bandwidth = self._default
            link = Link(
                (source, target),
                latency=latency,
                jitter=jitter,
                bandwidth=bandwidth,
                rng=self._rng,
                give_up=self._give_up,
            )
            self._links[source, target] = link
            link.set_blocked(self._is_blocked(source, target))
        return link

    def connect(self, client: MemoryTransport, server: MemoryTransport, port: int) -> tuple[MemoryStream, MemoryStream]:
        """Both ends of a new connection."""
        there = Pipe(self.link(client.name, server.name), self.link(server.name, client.name), self._window)
        back = Pipe(there.reverse, there.link, self._window)
        local = next(client.ports)
        a = MemoryStream(client, (client.name, local), (server.name, port), back, there)
        b = MemoryStream(server, (server.name, port), (client.name, local), there, back)
        a.other, b.other = b, a
        return a, b

    def _is_blocked(self, source: str, target: str) -> bool:
        return (
            (source, target) in self._cuts
            or any(name in self._paused or name in self._vanished for name in (source, target))
            or (self._groups is not None and self._groups.get(source) != self._groups.get(target))
        )

    def _update_links(self) -> None:
        changed = [
            link for link in self._links.values() if link.set_blocked(self._is_blocked(link.source, link.target))
        ]
        for link in changed:  # all are set before anybody looks
            for name in (link.source, link.target):
                for stream in self.host(name).streams():
                    if stream.peer_host in (link.source, link.target):
                        stream.look_again()


class MemoryTransport:
    """One host of a :class:`MemoryNetwork`."""

    schemes = frozenset({"memory"})

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.dead = anyio.Event()
        """Set when the host was killed or vanished: whoever runs its tasks cancels them then."""
        self.fuse: int | None = None
        self.ports = count(49152)
        self.lost: list[MemoryStream] = []  # when it vanished: the streams that its peers still take for alive
        self._listeners: dict[int, _Listener] = {}
        self._streams: dict[MemoryStream, None] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{' (dead)' if self.dead.is_set() else ''}>"

    async def dial(self, address: Address) -> ByteStream:
        """Connect to a host of this network, which takes a round trip; hangs while nothing passes.

        Raises :exc:`DialError` if nobody listens there, or this host is dead.
        """
        server = self.network.host(address.host)
        there, back = self.network.link(self.name, server.name), self.network.link(server.name, self.name)
        await there.travel()
        server = self.network.host(address.host)  # it may have been restarted meanwhile
        listener = server._listeners.get(address.port)
        if listener is None or self.dead.is_set():
            await back.travel()
            raise DialError(address, ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there"))
        stream, accepted = self.network.connect(self, server, address.port)
        listener.arrived(accepted)
        try:
            await back.travel()
            if self.dead.is_set():
                raise DialError(address, ConnectionAbortedError(errno.ECONNABORTED, f"the host {self.name} is dead"))
        except BaseException:
            stream.fail_both("the dialling side gave up")
            raise
        return stream

    async def serve(
        self,
        address: Address,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[Sequence[Address]] = anyio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        """Listen on a port of this host until cancelled; port 0 takes the lowest free one. The host part of ``address``
        has to be this host's name or "0.0.0.0". Raises OSError otherwise, for a taken port, and on a dead host."""
        if self.dead.is_set():
            raise OSError(errno.ENETDOWN, f"the host {self.name} is dead")
        if address.host not in (self.name, "0.0.0.0"):
            raise OSError(errno.EADDRNOTAVAIL, f"{address.host} is not this host, {self.name}")
        port = address.port or next(port for port in count(1) if port not in self._listeners)
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self.name} is taken")
        listener = self._listeners[port] = _Listener()
        try:
            async with anyio.create_task_group() as tasks:
                task_status.started([Address(address.scheme, self.name, port)])
                while True:
                    for stream in await listener.accept():
                        tasks.start_soon(run_handler, stream, stream.peer_host, handler)
        finally:
            if self._listeners.get(port) is listener:
                del self._listeners[port]
            listener.refuse_all()
        raise AssertionError("unreachable")

    def streams(self) -> list[MemoryStream]:
        """The streams of this host that are not closed."""
        return list(self._streams)

    def opened(self, stream: MemoryStream) -> None:
        """Remember a stream, so that faults reach it."""
        self._streams[stream] = None

    def closed(self, stream: MemoryStream) -> None:
        """Forget it."""
        self._streams.pop(stream, None)

    def die(self) -> None:
        """Stop listening, refuse what waits to be accepted, and tell."""
        self.fuse = None
        self._listeners.clear()
        self.dead.set()


class _Listener:
    """Connections between the dial that made them and the server that takes them."""

    def __init__(self) -> None:
        self._waiting: deque[MemoryStream] = deque()
        self._alarm: Alarm | None = None

    def arrived(self, stream: MemoryStream) -> None:
        self._waiting.append(stream)
        if self._alarm is not None:
            self._alarm.ring(0.0)

    async def accept(self) -> list[MemoryStream]:
        if self._waiting:
            await anyio.lowlevel.checkpoint()
        else:
            self._alarm = Alarm()
            try:
                await self._alarm.wait()
            finally:
                self._alarm = None
        streams = list(self._waiting)
        self._waiting.clear()
        return streams

    def refuse_all(self) -> None:
        for stream in self._waiting:
            stream.fail_both("the server stopped before it accepted the connection")
        self._waiting.clear()
