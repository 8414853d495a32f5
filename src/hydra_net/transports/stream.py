"""The byte stream and the transport that everything above is written against."""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

import anyio
import anyio.abc
import anyio.lowlevel

from hydra_net.transports.waiting import wait_any

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from hydra_net.address import Address

__all__ = [
    "OFFER",
    "STREAM_ERRORS",
    "Buffer",
    "ByteStream",
    "Transport",
    "receive_exactly",
    "receive_exactly_into",
    "wait_any",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
_Method: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

STREAM_ERRORS = (
    OSError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
"""What using a stream can raise when the other side or the path is at fault: catch these to give a peer up."""

OFFER = 256 * 1024
"""Bytes that the default ``try_send`` offers at a time, and the read-ahead of the default receiving side.

The read-ahead must be at least as large as an offer: see the rule in :func:`hydra_net.transports.waiting.wait_any`.
"""


class ByteStream(anyio.abc.ByteStream, metaclass=ABCMeta):
    """A reliable, ordered stream of bytes in both directions, without message boundaries.

    A third party implements anyio's four methods (``receive``, ``send``, ``send_eof``, ``aclose``) and inherits the
    rest; it needs no ``__init__``. The defaults copy; override them where a transport can do better, but always
    ``try_receive_into`` and ``try_send`` together with one way of waiting (``descriptor`` or ``watch``).

    What every stream promises:

    - one task receives and one task sends at a time; a second one gets :exc:`anyio.BusyResourceError`;
    - a cancelled ``receive`` or ``receive_into`` has taken nothing from the stream;
    - a cancelled ``send`` or ``send_vectored`` that may have sent a part dooms the stream: every later use raises
      :exc:`anyio.BrokenResourceError`;
    - :exc:`anyio.BrokenResourceError` when the connection failed, :exc:`anyio.ClosedResourceError` after ``aclose``,
      which also wakes whoever waits with that error;
    - ``aclose`` never blocks for long, even when cancelled.
    """

    # What the defaults keep between calls. Class attributes, so that a subclass needs no __init__.
    _ahead: memoryview = memoryview(b"")
    _receive_error: Exception | None = None
    _offer: bytes = b""
    _offer_sent: bool = False
    _send_error: Exception | None = None
    _reader: int | None = None  # the task that reads ahead for wait_any
    _flusher: int | None = None  # the task that sends the offer for wait_any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass's own methods respect what the inherited non-blocking ones have read ahead or sent."""
        super().__init_subclass__(**kwargs)
        wrappers: dict[str, Callable[[_Method], _Method]] = {}
        if cls.try_receive_into is ByteStream.try_receive_into:
            wrappers.update(receive=_after_ahead, receive_into=_into_after_ahead, aclose=_forgetting)
        if cls.try_send is ByteStream.try_send:
            wrappers.update(send=_after_offer, send_vectored=_vectored_after_offer, aclose=_forgetting)
        for name, wrapper in wrappers.items():
            if name in cls.__dict__:
                setattr(cls, name, wrapper(cls.__dict__[name]))

    # ------------------------------------------------------------------ receiving and sending

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; how many were received, 0 at the end of the stream.

        Raises ValueError for an empty buffer. Cancellation takes nothing from the stream and leaves ``buffer``
        as it was.
        """
        if not len(buffer):
            raise ValueError("the buffer to receive into is empty")
        try:
            data = await self.receive(len(buffer))
        except anyio.EndOfStream:
            return 0
        buffer[: len(data)] = data
        return len(data)

    async def send_vectored(self, buffers: Sequence[Buffer]) -> None:
        """Send all of ``buffers`` in order, as if joined. Cancellation in the middle dooms the stream."""
        if sum(map(len, buffers)) <= OFFER:
            await self.send(b"".join(buffers))
        else:
            for buffer in buffers:
                await self.send(bytes(buffer))

    # ------------------------------------------------------------------ without blocking

    def try_receive_into(self, buffer: memoryview) -> int | None:
        """Receive what is there: the number of bytes, 0 at the end of the stream, None if it would block."""
        if not len(buffer):
            raise ValueError("the buffer to receive into is empty")
        if self._reader is not None:
            raise anyio.BusyResourceError("receiving from")
        if self._ahead:
            return self._take_ahead(buffer)
        if isinstance(self._receive_error, anyio.EndOfStream):
            return 0
        if self._receive_error is not None:
            raise self._receive_error
        return None

    def try_send(self, buffers: Sequence[Buffer]) -> int | None:
        """Send what can be sent at once: how many bytes of ``buffers`` were taken, None if it would block.

        A number says that the stream has accepted those bytes like a completed ``send`` has. After None the next thing
        sent must start with the same bytes (by ``try_send``, ``send`` or ``send_vectored``, from any buffer), or the
        stream must be closed: a stream without non-blocking operations of its own sends them in
        :func:`~hydra_net.wait_any` and reports them at the next call. Such a stream raises ValueError if they differ.
        """
        if self._flusher is not None:
            raise anyio.BusyResourceError("sending on")
        if self._send_error is not None:
            raise self._send_error
        if self._offer_sent:
            return self._skip_sent(b"".join(buffers) if len(buffers) != 1 else buffers[0])
        if not self._offer:
            self._offer = _first_bytes(buffers, OFFER)
            if not self._offer:
                return 0
        return None

    # ------------------------------------------------------------------ hooks of wait_any

    def ready_to_receive(self) -> bool:
        """True if ``try_receive_into`` surely does not return None. False means: not known without waiting."""
        if type(self).try_receive_into is not ByteStream.try_receive_into:
            return False
        return bool(self._ahead) or self._receive_error is not None

    def ready_to_send(self) -> bool:
        """True if ``try_send`` surely makes progress. False means: not known without waiting."""
        if type(self).try_send is not ByteStream.try_send:
            return False
        return not self._offer or self._offer_sent or self._send_error is not None

    def waits_on(self) -> ByteStream:
        """The stream whose readiness decides over this one's; a wrapper returns the stream that it wraps.

        A wrapper that keeps bytes of its own says so with ``ready_to_receive`` and ``ready_to_send``, which are asked
        first, and overrides ``try_receive_into`` and ``try_send``.
        """
        return self

    def descriptor(self) -> int | None:
        """The file descriptor whose readiness is this stream's, if there is one.

        Such a stream also overrides ``add_poller`` and ``remove_poller`` and calls ``anyio.notify_closing`` on each
        poller before it closes, because a closed descriptor silently drops out of an epoll set.
        """
        return None

    def add_poller(self, poller: Any) -> None:
        """Remember an object with ``fileno()`` to be notified by ``aclose``. Only for streams with a descriptor."""

    def remove_poller(self, poller: Any) -> None:
        """Forget it again."""

    def watch(self, direction: Literal["receive", "send"], wake: Callable[[float], None] | None) -> bool:
        """Have ``wake(when)`` called, at once or later, when it becomes known when ``direction`` may make progress.

        ``when`` is a time of ``anyio.current_time()``; 0.0 is now. Progress includes the end of the stream, its failure
        and its closing. ``wake`` is synchronous, cheap, never calls back into the stream, and may be called more than
        once: the earliest time counts. None ends the watching. True if the stream supports this; the default does not.
        Raises BusyResourceError if another task watches the same direction.
        """
        return False

    # ------------------------------------------------------------------ the defaults' own state

    def _take_ahead(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._ahead))
        buffer[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def _skip_sent(self, item: Buffer) -> int:
        """Strike the leading bytes of ``item`` that went out already; how many they are."""
        count = min(len(item), len(self._offer))
        if self._offer[:count] != memoryview(item)[:count]:
            raise ValueError("after try_send returned None, the next thing sent must start with the same bytes")
        self._offer = self._offer[count:]
        self._offer_sent = bool(self._offer)
        return count

    async def _flush_offer(self) -> None:
        """Send what ``try_send`` was offered. An error is kept for the next call; cancellation dooms the stream."""
        if self._flusher is not None:
            raise anyio.BusyResourceError("sending on")
        self._flusher = anyio.get_current_task().id
        try:
            await self.send(self._offer)
            self._offer_sent = True
        except Exception as error:  # noqa: BLE001 - whatever a third party raises belongs to the sender's next call
            self._send_error = error
        finally:
            self._flusher = None

    async def _read_ahead(self, on_data: Callable[[], bool]) -> None:
        """Receive until ``on_data()`` says stop or the read-ahead is full. Cancellation keeps what was received."""
        if self._reader is not None:
            raise anyio.BusyResourceError("receiving from")
        self._reader = anyio.get_current_task().id
        chunks: list[bytes] = []
        size = 0
        try:
            while size < OFFER:
                chunks.append(await self.receive(min(65536, OFFER - size)))
                size += len(chunks[-1])
                if size and not on_data():
                    return
        except Exception as error:  # noqa: BLE001 - whatever a third party raises belongs to the receiver's next call
            self._receive_error = error
            on_data()
        finally:
            self._ahead = memoryview(b"".join(chunks))
            self._reader = None


def _after_ahead(receive: _Method) -> _Method:
    @functools.wraps(receive)
    async def receive_after_ahead(self: ByteStream, max_bytes: int = 65536) -> bytes:
        if self._reader is not None:
            _check_same_task(self._reader, "receiving from")
        elif self._ahead:
            await anyio.lowlevel.checkpoint()
            data = bytes(self._ahead[:max_bytes])
            self._ahead = self._ahead[len(data) :]
            return data
        elif self._receive_error is not None:
            await anyio.lowlevel.checkpoint()
            raise self._receive_error
        return cast(bytes, await receive(self, max_bytes))

    return receive_after_ahead


def _into_after_ahead(receive_into: _Method) -> _Method:
    @functools.wraps(receive_into)
    async def receive_into_after_ahead(self: ByteStream, buffer: memoryview) -> int:
        if self._reader is not None:
            _check_same_task(self._reader, "receiving from")
        elif self.ready_to_receive():
            await anyio.lowlevel.checkpoint()
            count = ByteStream.try_receive_into(self, buffer)
            if count is not None:
                return count
        return cast(int, await receive_into(self, buffer))

    return receive_into_after_ahead


def _after_offer(send: _Method) -> _Method:
    @functools.wraps(send)
    async def send_after_offer(self: ByteStream, item: bytes) -> None:
        if self._flusher is not None:
            _check_same_task(self._flusher, "sending on")
        else:
            item = _rest_after_offer(self, item)
        with _doom_if_interrupted(self):
            await send(self, item)

    return send_after_offer


def _vectored_after_offer(send_vectored: _Method) -> _Method:
    @functools.wraps(send_vectored)
    async def send_vectored_after_offer(self: ByteStream, buffers: Sequence[Buffer]) -> None:
        if self._flusher is not None:
            _check_same_task(self._flusher, "sending on")
        elif self._offer or self._send_error is not None:
            buffers = [_rest_after_offer(self, b"".join(buffers))]
        with _doom_if_interrupted(self):
            await send_vectored(self, buffers)

    return send_vectored_after_offer


@contextmanager
def _doom_if_interrupted(stream: ByteStream) -> Iterator[None]:
    try:
        yield
    except Exception:
        raise
    except BaseException:  # cancelled: nobody knows how much of it went out
        if stream._send_error is None:
            stream._send_error = anyio.BrokenResourceError("a send was interrupted half-way; open another stream")
        raise


def _forgetting(aclose: _Method) -> _Method:
    @functools.wraps(aclose)
    async def aclose_and_forget(self: ByteStream) -> None:
        self._ahead, self._offer, self._offer_sent = memoryview(b""), b"", False
        self._receive_error = self._send_error = anyio.ClosedResourceError()
        await aclose(self)

    return aclose_and_forget


def _check_same_task(task: int, doing: str) -> None:
    if anyio.get_current_task().id != task:
        raise anyio.BusyResourceError(doing)


def _rest_after_offer(stream: ByteStream, item: bytes) -> bytes:
    if stream._send_error is not None:
        raise stream._send_error
    if stream._offer_sent:
        return item[stream._skip_sent(item) :]
    stream._offer = b""  # offered and not begun: the caller sends it in another way
    return item


def _first_bytes(buffers: Sequence[Buffer], limit: int) -> bytes:
    parts: list[memoryview] = []
    for buffer in buffers:
        if limit <= 0:
            break
        part = memoryview(buffer)[:limit]
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


@runtime_checkable
class Transport(Protocol):
    """How bytes get from one machine to another: dials and serves addresses of its schemes."""

    schemes: frozenset[str]

    async def dial(self, address: Address) -> ByteStream:
        """Connect. Raises :exc:`~hydra_net.DialError` with the address and the cause; cancellation leaves nothing."""
        ...

    async def serve(
        self,
        address: Address,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[Sequence[Address]] = anyio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        """Listen until cancelled; run ``handler(stream)`` in a task of its own for every connection.

        ``task_status.started`` gets the addresses that can be dialled, the port filled in. A stream is closed when its
        handler returns. An exception of a handler ends that connection only, and is logged. Raises OSError if the
        address cannot be listened on.
        """
        ...


async def receive_exactly(stream: ByteStream, size: int) -> bytes:
    """Receive exactly ``size`` bytes.

    Check ``size`` against a limit before calling: the memory is allocated first. Raises :exc:`anyio.EndOfStream` if
    the stream ends before the first byte, :exc:`anyio.IncompleteRead` if it ends later. Cancellation loses what was
    received so far; close the stream then.
    """
    data = bytearray(size)
    await receive_exactly_into(stream, memoryview(data))
    return bytes(data)


async def receive_exactly_into(stream: ByteStream, buffer: memoryview) -> None:
    """Fill ``buffer`` completely; raises and is cancelled like :func:`receive_exactly`."""
    got = 0
    while got < len(buffer):
        count = await stream.receive_into(buffer[got:])
        if not count:
            raise anyio.IncompleteRead if got else anyio.EndOfStream
        got += count
