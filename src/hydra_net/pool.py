"""The control connections of a node: one for each peer that it talks to, made when needed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute

from hydra_net.address import Address
from hydra_net.book import AddressBook, dialable, host_of
from hydra_net.clock import Clock
from hydra_net.codec import Cbor
from hydra_net.control import Post, encode_message
from hydra_net.dialing import Abandon, Dialer, Dialled
from hydra_net.errors import ConnectionLost, DialError, HydraError, NodeClosed, PeerUnreachable, RemoteError, WrongPeer
from hydra_net.events import ConnectFailed, NodeEvent, PeerConnected, PeerDisconnected
from hydra_net.handlers import Handlers
from hydra_net.identity import PeerId
from hydra_net.limits import Limits
from hydra_net.rpc import Connection, NotUsable
from hydra_net.secure.hello import RPC, Hello
from hydra_net.secure.stream import SecureStream

__all__ = ["Pool"]

_log = logging.getLogger("hydra_net")

BACKOFF = 0.05
BACKOFF_MAX = 1.0
"""Seconds between dials that only posts ask for: the first, doubled up to the second. Calls do not wait."""

_CALL_TRIES = 3
_CLOSING = 1.0
"""Seconds that a closing node gives its peers to take what is queued for them."""


@dataclass(slots=True)
class _Dial:
    """A dial under way, shared by all that wait for the peer. At the end there is a connection or an error."""

    done: anyio.Event = field(default_factory=anyio.Event)
    hurry: anyio.Event = field(default_factory=anyio.Event)
    peer: PeerId | None = None
    proven: bool = False  # the peer has proven itself in this dial's handshake
    connection: Connection | None = None
    error: HydraError | None = None


@dataclass(slots=True)
class _Peer:
    """What the pool knows of one peer.

    ``current`` is the connection that is sent on. It is None without one, and while an older one is retiring: until
    its frames have arrived, new ones wait in ``outbox``, or they could overtake.
    """

    id: PeerId
    connections: list[Connection] = field(default_factory=list)
    current: Connection | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)
    outbox: deque[bytes] = field(default_factory=deque)
    outbox_size: int = 0
    dial: _Dial | None = None
    failures: int = 0
    not_before: float = 0.0

    @property
    def usable(self) -> Connection | None:
        """The connection that is, or soon will be, sent on."""
        return next((c for c in self.connections if c.usable), None)


class Pool:
    """Keeps at most one usable control connection per peer.

    When two peers dial each other at the same time, both keep the connection that the lower PeerId dialled and retire
    the other, in which nothing is lost or overtaken. A newer connection replaces one that its dialler must have lost:
    one of an earlier process of that peer, one that the same side dialled, one that was there long before.
    """

    def __init__(
        self,
        me: PeerId,
        *,
        limits: Limits,
        clock: Clock,
        book: AddressBook,
        dialer: Dialer,
        handlers: Handlers,
        emit: Callable[[NodeEvent], None],
        start_soon: Callable[[Callable[[], Awaitable[None]]], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._me = me
        self._limits = limits
        self._clock = clock
        self._book = book
        self._dialer = dialer
        self._handlers = handlers
        self._emit = emit
        self._start_soon = start_soon
        self._crashed = crashed
        self._peers: dict[PeerId, _Peer] = {}
        self._address_dials: dict[Address, _Dial] = {}
        self._closing = False

    # ------------------------------------------------------------------ for the node

    def connected(self, peer: PeerId) -> bool:
        """True if there is a usable control connection to ``peer``."""
        entry = self._peers.get(peer)
        return entry is not None and entry.usable is not None

    async def connect(self, peer: PeerId) -> None:
        """Return when there is a connection. Raises PeerUnreachable."""
        await self._get(peer)

    async def connect_address(self, address: Address) -> PeerId:
        """Find out who is at ``address``, and return when there is a connection to it. Raises DialError."""
        dial = self._address_dials.get(address)
        if dial is None:
            dial = self._address_dials[address] = _Dial()
            self._start_soon(lambda: self._dial_address(address, dial))
        await dial.done.wait()
        if dial.error is not None:
            # Each waiter gets an exception of its own.
            if isinstance(dial.error, NodeClosed):
                raise NodeClosed("this node is closing")
            raise DialError(address, dial.error.cause if isinstance(dial.error, DialError) else dial.error)
        assert dial.peer is not None
        if dial.connection is None:
            await self._get(dial.peer)
        return dial.peer

    async def call(self, peer: PeerId, method: str, body: Cbor) -> Cbor:
        """See :meth:`Node.call`."""
        for _ in range(_CALL_TRIES):
            connection = await self._get(peer)
            try:
                return await connection.call(method, body)
            except NotUsable:
                continue  # nothing was sent: another connection is there or will be dialled
        raise ConnectionLost(peer, ConnectionAbortedError("the peer closed each connection at once"))

    def post(self, peer: PeerId, method: str, body: Cbor) -> bool:
        """See :meth:`Node.post`."""
        frame = encode_message(Post(method, body), limit=self._limits.frame)
        if self._closing:
            return False
        entry = self._peer(peer)
        if entry.current is not None and entry.current.usable:
            if entry.current.full:
                return False
            entry.current.send_frame(frame)
            return True
        if entry.outbox_size >= self._limits.queue:
            return False
        entry.outbox.append(frame)
        entry.outbox_size += len(frame)
        if entry.usable is None:
            self._ensure_dial(entry)
        return True

    async def serve(self, stream: SecureStream) -> None:
        """Take a connection that a peer has made, and return when it has ended."""
        if self._closing:
            return
        await self._establish(stream, outgoing=False).run()

    async def close(self) -> None:
        """Send what is queued, wait briefly for the peers to take it, and end all connections."""
        self._closing = True
        connections = [connection for peer in self._peers.values() for connection in peer.connections]
        for connection in connections:
            connection.finish()
        with anyio.move_on_after(_CLOSING, shield=True):
            for connection in connections:
                await connection.done.wait()
        for connection in connections:
            connection.end(NodeClosed("this node is closed"))

    # ------------------------------------------------------------------ connections come

    def _peer(self, peer: PeerId) -> _Peer:
        entry = self._peers.get(peer)
        if entry is None:
            entry = self._peers[peer] = _Peer(peer)
            if len(self._peers) > self._limits.known_peers:
                self._forget_one()
        return entry

    def _forget_one(self) -> None:
        for peer, entry in self._peers.items():
            if (
                not entry.connections
                and not entry.outbox
                and entry.dial is None
                and peer != next(reversed(self._peers))
            ):
                del self._peers[peer]
                return

    def _establish(self, stream: SecureStream, *, outgoing: bool, address: Address | None = None) -> Connection:
        connection = Connection(
            stream,
            outgoing=outgoing,
            handlers=self._handlers,
            limits=self._limits,
            clock=self._clock,
            changed=self._settle_connection,
            gone=self._gone,
            crashed=self._crashed,
        )
        entry = self._peer(connection.peer)
        for other in [c for c in entry.connections if c.usable]:
            self._choose(other, connection)
        entry.connections.append(connection)
        entry.failures, entry.not_before = 0, 0.0
        observed = address.host if address is not None else host_of(stream.extra(SocketAttribute.remote_address, None))
        self._book.learn(connection.peer, dialable(stream.remote_hello.listening, observed))
        if address is not None:
            self._book.learn(connection.peer, [address], best=True)
        if len(entry.connections) == 1:
            self._emit(PeerConnected(connection.peer))
        self._settle(entry)
        self._trim(connection)
        return connection

    def _choose(self, old: Connection, new: Connection) -> None:
        """There are two connections to one peer: leave one usable."""
        lost = old.instance != new.instance or old.outgoing == new.outgoing
        if lost or new.established - old.established > self._limits.handshake:
            old.end(ConnectionAbortedError("replaced by a newer connection of the same peer"))
            return
        ours = self._me < old.peer  # whether the connections dialled by us are the ones to keep
        retired = new if old.outgoing == ours else old
        retired.retire(ConnectionAbortedError("two connections were made at the same time, the other is kept"))

    def _trim(self, newest: Connection) -> None:
        """Retire the connection used the longest ago if there are too many; one with work under way last of all."""
        others = [c for peer in self._peers.values() for c in peer.connections if c is not newest]
        usable = [c for c in others if c.usable]
        cause = ConnectionAbortedError(f"there are more than {self._limits.connections} connections")
        if len(usable) >= self._limits.connections:
            min(usable, key=lambda c: (not c.idle, c.last_used)).retire(cause)
        retiring = [c for c in others if c.retiring and c.ended is None]
        if len(retiring) > self._limits.connections:
            # Peers that do not answer Retire must not pile up either.
            min(retiring, key=lambda c: c.last_used).end(cause)

    # ------------------------------------------------------------------ connections go

    def _settle_connection(self, connection: Connection) -> None:
        entry = self._peers.get(connection.peer)
        if entry is not None:
            self._settle(entry)

    def _settle(self, entry: _Peer) -> None:
        """Find out which connection to send on, and send there what has waited for it."""
        entry.current = None if any(c.holding for c in entry.connections) else entry.usable
        if entry.current is not None:
            while entry.outbox:
                entry.current.send_frame(entry.outbox.popleft())
            entry.outbox_size = 0
        elif entry.outbox and entry.usable is None and not self._closing:
            self._ensure_dial(entry)
        entry.changed.set()
        entry.changed = anyio.Event()

    def _gone(self, connection: Connection) -> None:
        entry = self._peers.get(connection.peer)
        if entry is None or connection not in entry.connections:
            return
        entry.connections.remove(connection)
        self._settle(entry)
        if not entry.connections:
            assert connection.ended is not None
            self._emit(PeerDisconnected(entry.id, connection.ended))

    # ------------------------------------------------------------------ dialling

    async def _get(self, peer: PeerId) -> Connection:
        """The connection to send on, dialled if need be. Raises PeerUnreachable."""
        entry = self._peer(peer)
        while entry.current is None or not entry.current.usable:
            if self._closing:
                raise NodeClosed("this node is closing")
            if entry.usable is not None:
                await entry.changed.wait()
                continue
            dial = self._ensure_dial(entry)
            dial.hurry.set()
            await dial.done.wait()
            match dial.error:  # each waiter gets an exception of its own
                case PeerUnreachable(causes=causes):
                    raise PeerUnreachable(peer, causes)
                case NodeClosed():
                    raise NodeClosed("this node is closing")
                case HydraError() as error:
                    raise PeerUnreachable(peer, (error,))
            if dial.connection is not None and entry.usable is None:
                return dial.connection  # ended already: the caller is told so
        return entry.current

    def _ensure_dial(self, entry: _Peer) -> _Dial:
        if entry.dial is None:
            dial = entry.dial = _Dial(peer=entry.id)
            self._start_soon(lambda: self._dial_peer(entry, dial))
        return entry.dial

    async def _dial_peer(self, entry: _Peer, dial: _Dial) -> None:
        dial.error = NodeClosed("this node is closing")  # what waiters get if this is cancelled
        try:
            wait = entry.not_before - self._clock.monotonic()
            if wait > 0:
                with anyio.move_on_after(wait):
                    await dial.hurry.wait()
            dial.error = await self._dial_known(entry, dial)
        finally:
            self._dial_done(entry, dial)

    async def _dial_known(self, entry: _Peer, dial: _Dial) -> HydraError | None:
        if entry.usable is not None:
            return None
        try:
            result = await self._dialer.dial(self._book.of(entry.id), RPC, entry.id, self._wanted(dial))
        except Abandon:
            return None
        except RemoteError as refused:
            return PeerUnreachable(entry.id, [refused])
        if isinstance(result, Dialled):
            self._start(result, dial)
            return None
        for error in result:
            if (
                isinstance(error, DialError)
                and isinstance(error.cause, WrongPeer)
                and isinstance(error.address, Address)
            ):
                _log.warning("peer %s is no longer at %s: %s", entry.id.short, error.address, error.cause)
                self._book.forget(entry.id, error.address)
        if entry.usable is not None or entry.dial is not dial:
            return None  # the peer has connected to us meanwhile, or another dial has overtaken this one
        return PeerUnreachable(entry.id, result)

    async def _dial_address(self, address: Address, dial: _Dial) -> None:
        dial.error = NodeClosed("this node is closing")
        try:
            try:
                result = await self._dialer.dial([address], RPC, None, self._wanted(dial))
            except Abandon:
                assert dial.peer is not None
                self._book.learn(dial.peer, [address])
                dial.error = None
            except RemoteError as refused:
                dial.error = refused
            else:
                if isinstance(result, Dialled):
                    self._start(result, dial)
                    dial.error = None
                else:
                    dial.error = result[0]
        finally:
            del self._address_dials[address]
            if dial.peer is not None:
                self._dial_done(self._peer(dial.peer), dial)
            dial.done.set()

    def _dial_done(self, entry: _Peer, dial: _Dial) -> None:
        dial.done.set()
        if entry.dial is not dial:
            return
        entry.dial = None
        if dial.error is None or self._closing:
            return
        now = self._clock.monotonic()
        entry.not_before = now + min(BACKOFF * 2**entry.failures, BACKOFF_MAX)
        entry.failures = min(entry.failures + 1, 16)
        entry.outbox.clear()
        entry.outbox_size = 0
        if isinstance(dial.error, PeerUnreachable):
            _log.info("%s", dial.error)
            self._emit(ConnectFailed(entry.id, dial.error))

    def _wanted(self, dial: _Dial) -> Callable[[Hello], None]:
        """The check in a dial's handshake, when the peer has proven itself and we have not yet."""

        def check(hello: Hello) -> None:
            if hello.refused is not None:
                raise RemoteError(hello.peer, RPC, *hello.refused)
            entry = self._peer(hello.peer)
            dial.peer = hello.peer
            if entry.usable is not None or (entry.dial is not None and entry.dial is not dial and entry.dial.proven):
                raise Abandon  # there is a connection, or a dial that has come as far
            dial.proven = True
            entry.dial = dial  # an address without a peer turned out to be this one's: others wait for this dial

        return check

    def _start(self, dialled: Dialled, dial: _Dial) -> None:
        connection = self._establish(dialled.stream, outgoing=True, address=dialled.address)
        dial.peer, dial.connection = connection.peer, connection
        self._start_soon(connection.run)
