"""One control connection: numbered requests and one-way posts in both directions, many in flight."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from hydra_net.clock import Clock
from hydra_net.codec import Cbor, CodecError, FrameDecoder
from hydra_net.control import (
    Failure,
    Message,
    Ping,
    Pong,
    Post,
    Request,
    Response,
    Retire,
    Retired,
    decode_message,
    encode_message,
)
from hydra_net.errors import ConnectionLost, HydraError, RemoteError, RemoteProtocolError
from hydra_net.handlers import Caller, Handler, Handlers
from hydra_net.limits import Limits
from hydra_net.secure.stream import SecureStream

__all__ = ["Connection", "NotUsable"]

_log = logging.getLogger("hydra_net")

_READ = 64 * 1024
_WRITE = 256 * 1024
_FRAMES_PER_TURN = 64
"""Frames handled before other tasks get a turn: a flood from one peer delays the others by a few milliseconds."""


class NotUsable(Exception):
    """Nothing was sent: another connection has to be used."""


@dataclass(slots=True)
class _Pending:
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Response | Failure | None = None


class Connection:
    """A control connection to a verified peer. :meth:`run` does the work and ends when the connection does.

    A connection is *retired* when it is not needed any more, without losing anything: each side says Retire after its
    last request or post, the other answers Retired when it has taken them all, answers under way still come, and then
    both close. Until its Retire is answered the connection is ``holding``: whatever is sent to the peer on another
    connection could overtake.

    ``changed`` is called, synchronously, whenever ``holding`` or ``retiring`` may have changed, ``gone`` once at the
    end, ``crashed`` with what no handler may raise (KeyboardInterrupt and the like).
    """

    def __init__(
        self,
        stream: SecureStream,
        *,
        outgoing: bool,
        handlers: Handlers,
        limits: Limits,
        clock: Clock,
        changed: Callable[[Connection], None],
        gone: Callable[[Connection], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.stream = stream
        self.peer = stream.peer
        self.instance = stream.remote_hello.instance
        self.outgoing = outgoing
        self.ended: Exception | None = None
        self.done = anyio.Event()
        self.retiring = False
        self._caller = Caller(stream.peer)
        self._handlers = handlers
        self._limits = limits
        self._clock = clock
        self._changed, self._gone, self._crashed = changed, gone, crashed
        self.established = self.last_used = self._received_at = self._sent_at = clock.monotonic()
        self._tasks: TaskGroup | None = None
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._work = anyio.Event()
        self._space = anyio.Event()
        self._next = 0
        self._calls: dict[int, _Pending] = {}
        self._serving: dict[int, None] = {}
        self._pings = 0
        self._used = False
        self._retire_cause: Exception | None = None
        self._retire_answered = False
        self._peer_retired = False
        self._finishing = False

    # ------------------------------------------------------------------ for the pool

    @property
    def holding(self) -> bool:
        """True while frames sent here before retiring may not have been taken by the peer yet."""
        return self.retiring and self._used and not self._retire_answered and self.ended is None

    @property
    def usable(self) -> bool:
        """True if requests and posts may be sent here."""
        return not self.retiring and not self._finishing and self.ended is None

    @property
    def idle(self) -> bool:
        """True if no request is under way in either direction and nothing is queued."""
        return not self._calls and not self._serving and not self._queue

    @property
    def full(self) -> bool:
        """True if as much is queued as may be."""
        return self._queued >= self._limits.queue

    async def call(self, method: str, body: Cbor) -> Cbor:
        """Ask the peer and wait for its answer.

        Raises RemoteError if its handler failed, ConnectionLost if the connection was lost, LocalProtocolError if
        ``body`` cannot be sent, NotUsable if the connection had ended or retired before the request was made.
        Cancellation leaves the connection as it was; an answer that comes later is dropped.
        """
        while self.usable and (self.full or len(self._calls) >= self._limits.calls):
            await self._space.wait()
        if not self.usable:
            await anyio.lowlevel.checkpoint()
            raise NotUsable
        number = self._next
        frame = encode_message(Request(number, method, body), limit=self._limits.frame)
        self._next += 1
        pending = self._calls[number] = _Pending()
        self.last_used = self._clock.monotonic()
        self._used = True
        self._enqueue(frame)
        try:
            await pending.answered.wait()
        finally:
            del self._calls[number]
            self._made_space()
            self._check_drained()
        match pending.answer:
            case Response(_, answer):
                return answer
            case Failure(_, kind, text):
                raise RemoteError(self.peer, method, kind, text)
        assert self.ended is not None
        raise ConnectionLost(self.peer, self.ended)

    def send_frame(self, frame: bytes) -> None:
        """Queue the frame of a post. Check ``usable`` and ``full`` before."""
        self.last_used = self._clock.monotonic()
        self._used = True
        self._enqueue(frame)

    def retire(self, cause: Exception) -> None:
        """Use this connection for nothing new, and close it when nothing is under way; see the class."""
        if self.retiring or self.ended is not None:
            return
        self.retiring = True
        self._retire_cause = cause
        self._send(Retire())
        if self._tasks is not None:
            self._tasks.start_soon(self._guarded, self._stop_draining)
        self._check_drained()
        self._made_space()
        self._changed(self)

    def finish(self) -> None:
        """Send what is queued, then close. Requests still under way are given up."""
        self._finishing = True
        self._work.set()
        self._made_space()

    def end(self, cause: Exception) -> None:
        """Close at once, with ``cause``. The first cause counts."""
        if self.ended is not None:
            return
        self.ended = cause
        if isinstance(cause, RemoteProtocolError):
            _log.warning("closed a connection: %s", cause)
        for pending in self._calls.values():
            pending.answered.set()
        self._made_space()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def run(self) -> None:
        """Do the connection's work until it ends, for whatever reason; ``ended`` says why. Closes the stream."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for work in (self._read, self._write, self._keep_alive):
                    self._tasks.start_soon(self._guarded, work)
                if self.retiring:
                    self._tasks.start_soon(self._guarded, self._stop_draining)
                if self.ended is not None:
                    self._tasks.cancel_scope.cancel()
        finally:
            self.end(ConnectionAbortedError("this node closed the connection"))
            try:
                await anyio.aclose_forcefully(self.stream)
            finally:
                self.done.set()
                self._gone(self)

    # ------------------------------------------------------------------ tasks

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong in a connection's task ends this connection only."""
        try:
            await work()
        except anyio.get_cancelled_exc_class():
            raise
        except RemoteProtocolError as error:
            self.end(error)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            broken = ConnectionResetError(f"the connection broke: {error or type(error).__name__}")
            broken.__cause__ = error.__cause__ or error
            self.end(broken)
        except Exception as error:  # noqa: BLE001
            # A bug, here or in a transport: neither may take the node and its other peers down.
            _log.exception("the connection to peer %s ended because of a bug", self.peer.short)
            self.end(error)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C may strike in any task; the node hands it to its owner
            self._crashed(error)

    async def _read(self) -> None:
        decoder = FrameDecoder(self._limits.frame)
        buffer = memoryview(bytearray(_READ))
        handled = 0
        try:
            while count := await self.stream.receive_into(buffer):
                self._received_at = self._clock.monotonic()
                decoder.feed(buffer[:count])
                for frame in decoder.frames():
                    message = decode_message(frame, limit=self._limits.frame)
                    if not self._finishing:
                        self._handle(message)
                    handled += 1
                    if handled % _FRAMES_PER_TURN == 0:
                        await anyio.lowlevel.checkpoint()
                    if self.ended is not None:
                        return
        except CodecError as error:
            raise RemoteProtocolError(self.peer, f"it sent {error}") from error
        if decoder.buffered:
            self.end(ConnectionAbortedError("the peer closed the connection in the middle of a message"))
        else:
            self.end(self._retire_cause or ConnectionAbortedError("the peer closed the connection"))

    async def _write(self) -> None:
        """The only task that sends: whatever is queued meanwhile goes out as one piece."""
        while True:
            while not self._queue:
                if self._finishing:
                    await self.stream.send_eof()
                    return
                self._work = anyio.Event()
                await self._work.wait()
            batch: list[bytes] = []
            size = 0
            while self._queue and size < _WRITE:
                batch.append(self._queue.popleft())
                size += len(batch[-1])
            await self.stream.send(batch[0] if len(batch) == 1 else b"".join(batch))
            self._sent_at = self._clock.monotonic()
            self._queued -= size
            self._made_space()
            self._check_drained()

    async def _keep_alive(self) -> None:
        interval = self._limits.keep_alive
        pinged = self._sent_at
        while True:
            now = self._clock.monotonic()
            silent = self._received_at + 3 * interval
            due = max(min(self._received_at, self._sent_at), pinged) + interval
            if now >= silent:
                self.end(TimeoutError(f"the peer was silent for {now - self._received_at:.0f} s"))
                return
            if now >= due:
                pinged = now
                self._pings += 1
                self._send(Ping(self._pings))
            else:
                await anyio.sleep_until(min(due, silent))

    async def _stop_draining(self) -> None:
        """A peer that never answers Retire must not keep a connection for ever."""
        await anyio.sleep(self._limits.handshake)
        assert self._retire_cause is not None
        self.end(self._retire_cause)

    async def _serve(self, handler: Handler, request: Request) -> None:
        try:
            answer: Response | Failure = Response(request.number, await handler(self._caller, request.body))
        except Exception as error:  # noqa: BLE001 - whatever a user's handler raises is the caller's answer
            answer = self._failure(request, error)
        finally:
            self._serving.pop(request.number, None)
        self._answer(request, answer)
        self._check_drained()

    # ------------------------------------------------------------------ messages

    def _handle(self, message: Message) -> None:
        match message:
            case Request():
                self.last_used = self._received_at
                self._request(message)
            case Post(method, body):
                self.last_used = self._received_at
                self._post(method, body)
            case Response(number) | Failure(number):
                if pending := self._calls.get(number):
                    if pending.answer is None:
                        pending.answer = message
                        pending.answered.set()
                elif number >= self._next:
                    raise RemoteProtocolError(self.peer, f"it answered request {number}, which was never made")
                # else: an answer to a caller that has gone
            case Ping(number):
                self._send(Pong(number))
            case Pong(number):
                if number > self._pings:
                    raise RemoteProtocolError(self.peer, "it answered a ping that was never sent")
            case Retire():
                self._peer_retired = True
                self._send(Retired())
                self.retire(ConnectionAbortedError("the peer retired the connection"))
                self._check_drained()
            case Retired():
                if not self.retiring:
                    raise RemoteProtocolError(self.peer, "it answered a Retire that was never sent")
                self._retire_answered = True
                self._check_drained()
                self._changed(self)

    def _request(self, request: Request) -> None:
        if self._peer_retired:
            raise RemoteProtocolError(self.peer, "it made a request after it had retired the connection")
        if request.number in self._serving:
            raise RemoteProtocolError(self.peer, f"it used the number {request.number} for two requests at once")
        if inline := self._handlers.inline.get(request.method):
            answer: Response | Failure
            try:
                answer = Response(request.number, inline(self._caller, request.body))
            except RemoteProtocolError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is the caller's answer
                answer = self._failure(request, error)
            self._answer(request, answer)
        elif (handler := self._handlers.tasks.get(request.method)) is None:
            self._answer(request, Failure(request.number, "no such method", "this peer does not serve it"))
        elif len(self._serving) >= self._limits.requests:
            text = f"{self._limits.requests} requests of this peer are being answered"
            self._answer(request, Failure(request.number, "busy", text))
        else:
            assert self._tasks is not None
            self._serving[request.number] = None
            self._tasks.start_soon(self._guarded, lambda: self._serve(handler, request))

    def _post(self, method: str, body: Cbor) -> None:
        if self._peer_retired:
            raise RemoteProtocolError(self.peer, "it posted after it had retired the connection")
        inline = self._handlers.inline.get(method)
        if inline is None:
            _log.debug("peer %s posted to %r, which nobody serves here", self.peer.short, method)
            return
        try:
            inline(self._caller, body)
        except RemoteProtocolError:
            raise
        except Exception:  # noqa: BLE001
            # There is nobody to tell but our own log, and the peer is not to blame for our handler.
            _log.exception("the handler of %r failed on a post from peer %s", method, self.peer.short)

    def _failure(self, request: Request, error: Exception) -> Failure:
        """What the caller gets to know: the kind and the text, no traceback. The log gets all of it."""
        if not isinstance(error, HydraError):
            _log.error("the handler of %r failed for peer %s", request.method, self.peer.short, exc_info=error)
        return Failure(request.number, type(error).__name__, str(error))

    def _answer(self, request: Request, answer: Response | Failure) -> None:
        try:
            self._enqueue(encode_message(answer, limit=self._limits.frame))
        except HydraError as error:
            _log.error("the answer to %r cannot be sent to peer %s: %s", request.method, self.peer.short, error)
            self._send(Failure(request.number, type(error).__name__, str(error)))

    # ------------------------------------------------------------------ the queue

    def _send(self, message: Message) -> None:
        self._enqueue(encode_message(message, limit=self._limits.frame))

    def _enqueue(self, frame: bytes) -> None:
        if self.ended is not None or self._finishing:
            return
        self._queue.append(frame)
        self._queued += len(frame)
        if self._queued > 2 * self._limits.queue:
            self.end(RemoteProtocolError(self.peer, f"it does not read: {self._queued} bytes wait to be sent to it"))
        self._work.set()

    def _made_space(self) -> None:
        self._space.set()
        self._space = anyio.Event()

    def _check_drained(self) -> None:
        """Close a retired connection once nothing is under way and each side knows that it may go."""
        if self.retiring and self._retire_answered and self._peer_retired and self.idle:
            self.finish()
