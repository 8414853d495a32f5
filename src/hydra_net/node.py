"""A node: one peer's place in the network."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus

from hydra_net.address import Address
from hydra_net.book import AddressBook
from hydra_net.clock import Clock, default_clock
from hydra_net.codec import Cbor
from hydra_net.control import check_method
from hydra_net.dialing import Dialer, Dialled
from hydra_net.errors import LocalProtocolError, NodeClosed, NodeFailed, PeerUnreachable, RemoteError, SelfDial
from hydra_net.events import EventStream, NodeEvent
from hydra_net.handlers import Handler, Handlers, InlineHandler, StreamHandler
from hydra_net.identity import Identity, PeerId
from hydra_net.incoming import Incoming
from hydra_net.interfaces import expand_wildcards
from hydra_net.limits import Limits
from hydra_net.pool import Pool
from hydra_net.secure.hello import ANSWER, MAX_ADDRESSES, NONCE, STREAM, Hello
from hydra_net.secure.plain import PlainHandshake
from hydra_net.secure.stream import SecureStream
from hydra_net.threads import run_blocking
from hydra_net.transports.stream import ByteStream, Transport
from hydra_net.transports.tcp import TcpTransport

__all__ = ["Node"]

_log = logging.getLogger("hydra_net")


class Node:
    """One identity, its listeners, its connections. Use it as ``async with Node(...) as node:``.

    The block's exception comes out as it is. Leaving the block sends what is queued (for at most a second), closes all
    connections and ends all tasks. If the node itself breaks, the block is cancelled and NodeFailed raised with the
    cause; from then on, and after the block, every method raises NodeFailed (NodeClosed is one).

    Args:
        listen: addresses to listen on; port 0 takes a free one. Empty: only dial.
        identity: who this node is, or the key file to read that from (made if it is not there); None draws a new one.
        transports: what dials and serves addresses; by default TCP.
        security: how connections are secured. "plain": both sides prove who they are, nothing is encrypted.
        limits: how much is taken from others.
        clock: where the time comes from.
        rng: for simulations that are to be replayed; handshakes draw from it and can then be foreseen. By default the
            system's randomness.

    Raises OSError on entering if an address cannot be listened on, DialError if no transport knows its scheme,
    KeyFileError for a bad key file.
    """

    def __init__(
        self,
        *,
        listen: Sequence[str | Address] = ("tcp://0.0.0.0:0",),
        identity: Identity | Path | None = None,
        transports: Sequence[Transport] | None = None,
        security: Literal["plain"] = "plain",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if security != "plain":
            raise ValueError(f'security has to be "plain", not {security!r}')
        self.limits = limits
        self.clock = clock or default_clock()
        self._listen = tuple(a if isinstance(a, Address) else Address.parse(a) for a in listen)
        self._key_file = identity if isinstance(identity, Path) else None
        self._identity = None if isinstance(identity, Path) else identity or Identity.generate()
        self._rng = rng or random.SystemRandom()
        self._instance = self._rng.randbytes(16)
        self._bound: tuple[Address, ...] = ()
        self._addresses: tuple[Address, ...] = ()
        self._handlers = Handlers()
        self._book = AddressBook(peers=limits.known_peers, per_peer=limits.addresses_per_peer)
        self._dialer = Dialer(
            (TcpTransport(),) if transports is None else transports,
            limits,
            partial(self._make_core, "initiator"),
        )
        self._opened: tuple[Pool, Incoming] | None = None
        self._watchers: dict[int, EventStream] = {}
        self._streams: dict[int, SecureStream] = {}
        self._failure: BaseException | None = None
        self._state: Literal["new", "running", "closed", "failed"] = "new"
        self._task: int | None = None
        self._context: AbstractAsyncContextManager[None] | None = None
        self._block: anyio.CancelScope | None = None

    # ------------------------------------------------------------------ what it is

    @property
    def identity(self) -> Identity:
        """The node's key pair. Of a key file it is known once the node runs."""
        if self._identity is None:
            raise LocalProtocolError("the key file is read by 'async with': until then the identity is not known")
        return self._identity

    @property
    def id(self) -> PeerId:
        """The node's name."""
        return self.identity.id

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where others can dial this node, with its PeerId: wildcards stand expanded to this machine's addresses."""
        return self._addresses

    # ------------------------------------------------------------------ peers

    async def connect(self, peer: PeerId | Address | str) -> PeerId:
        """Return once there is a control connection to ``peer``; who it is, verified.

        An address with a PeerId in it is remembered and dialled unless there is a connection to that peer. One without
        accepts whoever answers. Raises PeerUnreachable (DialError for an address without a PeerId) with the causes,
        SelfDial. Cancellation leaves the dial going on in the background.
        """
        pool = self._check_running()
        await anyio.lowlevel.checkpoint()
        if isinstance(peer, str):
            peer = Address.parse(peer) if "://" in peer else PeerId.parse(peer)
        if isinstance(peer, Address):
            if peer.peer is None:
                return await pool.connect_address(peer)
            self._check_other(peer.peer)
            self._book.learn(peer.peer, [peer], best=True)
            peer = peer.peer
        self._check_other(peer)
        await pool.connect(peer)
        return peer

    async def call(self, peer: PeerId | Address | str, method: str, body: Cbor = None) -> Cbor:
        """Ask ``peer`` and return its answer; connects first if need be.

        Raises PeerUnreachable, ConnectionLost (a PeerUnreachable) if the connection is lost before the answer comes,
        RemoteError if the peer's handler raised, LocalProtocolError if ``body`` cannot be sent. Waits while too much is
        under way to that peer. Cancellation gives the answer up and leaves the connection as it was; the peer may
        still handle the request.
        """
        pool = self._check_running()
        check_method(method)
        if not isinstance(peer, PeerId):
            peer = await self.connect(peer)
        self._check_other(peer)
        return await pool.call(peer, method, body)

    def post(self, peer: PeerId, method: str, body: Cbor = None) -> bool:
        """Send a message that wants no answer. Never blocks; connects in the background if need be.

        Posts to one peer arrive in order or, when a connection is lost or none can be made, not at all. False if this
        one was dropped at once because too much is queued for that peer. Raises LocalProtocolError if ``body`` cannot
        be sent.
        """
        pool = self._check_running()
        check_method(method)
        self._check_other(peer)
        return pool.post(peer, method, body)

    def handle(self, method: str, handler: Handler) -> AbstractContextManager[None]:
        """Answer calls of ``method`` with ``await handler(caller, body)``, a task for each, while the context lasts.

        What the handler raises is the caller's RemoteError: its type's name and its text. The handler is cancelled
        when the connection to its caller is lost.
        """
        self._check_alive()
        return self._handlers.serving(self._handlers.tasks, method, handler)

    def handle_inline(self, method: str, handler: InlineHandler) -> AbstractContextManager[None]:
        """Take calls and posts of ``method`` with ``handler(caller, body)`` while the context lasts.

        It is called where the message is read, in the order of arrival, and holds up everything else meanwhile: for
        protocols that only change a state. For a call its return value is the answer. What it raises is the caller's
        RemoteError, or is logged for a post; RemoteProtocolError ends the connection.
        """
        self._check_alive()
        return self._handlers.serving(self._handlers.inline, method, handler)

    async def open_stream(self, peer: PeerId, protocol: str) -> SecureStream:
        """Open a connection of its own to ``peer``, for bulk, to its handler of ``protocol``. Close it after use.

        Raises PeerUnreachable with one cause for each known address, RemoteError if the peer refuses ("no such
        protocol", "busy"). Cancellation leaves nothing.
        """
        self._check_running()
        check_method(protocol)
        self._check_other(peer)

        def check(hello: Hello) -> None:
            if hello.refused is not None:
                raise RemoteError(peer, protocol, *hello.refused)

        dialled = await self._dialer.dial(self._book.of(peer), STREAM + protocol, peer, check)
        if not isinstance(dialled, Dialled):
            raise PeerUnreachable(peer, dialled)
        stream = dialled.stream
        if self._state != "running":
            await anyio.aclose_forcefully(stream)
            self._check_running()
        self._book.learn(peer, [dialled.address], best=True)
        self._streams[id(stream)] = stream
        stream.on_close(partial(self._streams.__delitem__, id(stream)))
        return stream

    def serve_streams(self, protocol: str, handler: StreamHandler) -> AbstractContextManager[None]:
        """Run ``await handler(stream)`` for each stream of ``protocol`` that a peer opens, while the context lasts.

        The stream is closed when its handler returns. What the handler raises is logged and ends that stream only.
        Leaving the context refuses new streams; those open go on until the node is closed.
        """
        self._check_alive()
        return self._handlers.serving(self._handlers.streams, protocol, handler)

    def learn(self, peer: PeerId, addresses: Iterable[Address]) -> None:
        """Remember where ``peer`` can be dialled: at most ``limits.addresses_per_peer``, the oldest go."""
        self._check_alive()
        self._book.learn(peer, addresses)

    def connected(self, peer: PeerId) -> bool:
        """True if there is a control connection to ``peer`` now."""
        return self._check_running().connected(peer)

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[NodeEvent]]:
        """Everything that happens from now on: ``async with node.events() as events: async for event in events:``.

        The iteration ends when the node is closed; if it fails, NodeFailed is raised.
        """
        self._check_alive()
        stream = EventStream(self.limits.events)
        self._watchers[id(stream)] = stream
        try:
            yield stream
        finally:
            del self._watchers[id(stream)]

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Node:
        if self._state != "new":
            self._check_alive()
            raise LocalProtocolError("this node runs already: a node is entered once")
        self._task = anyio.get_current_task().id
        self._context = self._running()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._context is None or anyio.get_current_task().id != self._task:
            raise LocalProtocolError(
                "a node has to be left in the task that entered it, and after everything entered since; "
                "where that is impossible (cells of a notebook), run it in a thread with an event loop of its own"
            )
        return await self._context.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        error: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    await self._start(tasks)
                    with anyio.CancelScope() as self._block:
                        yield
                except anyio.get_cancelled_exc_class():
                    raise  # whoever cancelled us takes it; a task group hands it on as it is
                except BaseException as raised:  # noqa: BLE001 - kept out of the task group, which would wrap it
                    error = raised
                finally:
                    await self._close()
                    tasks.cancel_scope.cancel()
        finally:
            self._context = None
        if self._failure is not None and not isinstance(self._failure, Exception):
            raise self._failure  # Ctrl-C that struck in one of the node's tasks
        if error is not None:
            raise error
        if self._failure is not None:
            raise NodeFailed("this node has failed", self._failure)

    async def _start(self, tasks: TaskGroup) -> None:
        if self._key_file is not None:
            self._identity = await run_blocking(Identity.load_or_create, self._key_file)

        def start_soon(work: Callable[[], Awaitable[None]]) -> None:
            tasks.start_soon(self._supervised, work)

        pool = Pool(
            self.id,
            limits=self.limits,
            clock=self.clock,
            book=self._book,
            dialer=self._dialer,
            handlers=self._handlers,
            emit=self._emit,
            start_soon=start_soon,
            crashed=self._crashed,
        )
        incoming = Incoming(
            limits=self.limits,
            handlers=self._handlers,
            make_core=partial(self._make_core, "responder", ANSWER, None),
            serve_rpc=pool.serve,
            crashed=self._crashed,
        )
        self._opened = pool, incoming
        bound: list[Address] = []
        for address in self._listen:
            transport = self._dialer.transport(address)
            bound += await tasks.start(self._serve, transport, address, incoming.take)
            self._bound = tuple(bound)
            self._addresses = tuple(a.with_peer(self.id) for a in expand_wildcards(bound))
        self._state = "running"

    async def _serve(
        self,
        transport: Transport,
        address: Address,
        take: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[Sequence[Address]],
    ) -> None:
        started = _Started(task_status)
        try:
            await transport.serve(address, take, task_status=started)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            if not started.done:
                raise  # to the one who starts the node
            self._crashed(error)

    async def _supervised(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - a bug, or Ctrl-C: the node's owner gets it
            self._crashed(error)

    def _crashed(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if isinstance(error, Exception):
                _log.error("this node has failed", exc_info=error)
        if self._state == "running":
            self._state = "failed"
        if self._block is not None:
            self._block.cancel()

    async def _close(self) -> None:
        if self._state in ("new", "running"):
            self._state = "closed"
        if self._opened is not None:
            pool, incoming = self._opened
            incoming.close()
            await pool.close()
        for stream in list(self._streams.values()):
            await anyio.aclose_forcefully(stream)
        failure = NodeFailed("this node has failed", self._failure) if self._failure is not None else None
        for watcher in self._watchers.values():
            watcher.end(failure)

    def _emit(self, event: NodeEvent) -> None:
        for watcher in self._watchers.values():
            watcher.put(event)

    def _make_core(
        self,
        role: Literal["initiator", "responder"],
        purpose: str,
        expected: PeerId | None,
        check: Callable[[Hello], tuple[str, str] | None],
    ) -> PlainHandshake:
        hello = Hello(
            key=self.identity.public_key,
            nonce=self._rng.randbytes(NONCE),
            instance=self._instance,
            wall=int(self.clock.wall() * 1000),
            purpose=purpose,
            listening=self._bound[:MAX_ADDRESSES],
        )
        return PlainHandshake(role, self.identity, hello, limit=self.limits.hello, expected=expected, check=check)

    def _check_alive(self) -> None:
        if self._state == "failed":
            raise NodeFailed("this node has failed", self._failure)
        if self._state == "closed":
            raise NodeClosed("this node is closed: its 'async with' block has ended; make a new one")

    def _check_running(self) -> Pool:
        self._check_alive()
        if self._state == "new" or self._opened is None:
            raise LocalProtocolError("this node does not run yet: use 'async with Node(...) as node:'")
        return self._opened[0]

    def _check_other(self, peer: PeerId) -> None:
        if not isinstance(peer, PeerId):
            raise LocalProtocolError(f"a peer is named by its PeerId, not by a {type(peer).__name__}")
        if peer == self.id:
            raise SelfDial


class _Started:
    """Passes a server's start on, and remembers that there was one."""

    def __init__(self, inner: TaskStatus[Sequence[Address]]) -> None:
        self._inner = inner
        self.done = False

    def started(self, value: Sequence[Address] = ()) -> None:
        self.done = True
        self._inner.started(value)
