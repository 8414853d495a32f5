"""A byte stream over a connected non-blocking socket of any family."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc

from hydra_net.transports.nonblocking import NonBlockingStream
from hydra_net.transports.stream import Buffer

_MOST_BUFFERS = 64  # per sendmsg; far below any system's IOV_MAX
_HAVE_SENDMSG = hasattr(socket.socket, "sendmsg")


class SocketStream(NonBlockingStream):
    """A :class:`ByteStream` over a connected stream socket, which it owns; nothing is copied.

    It works on the socket itself, with the runtime's ``wait_readable`` and ``wait_writable``, because the raw socket of
    a runtime's own stream may not be used beside it. The extra attributes are :class:`anyio.abc.SocketAttribute`'s.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        sock.setblocking(False)
        self._socket = sock
        self._pollers: list[Any] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self._closed else self._socket.fileno()}>"

    def descriptor(self) -> int:
        """The socket's descriptor, -1 once closed."""
        return self._socket.fileno()

    def add_poller(self, poller: Any) -> None:
        """See :meth:`ByteStream.add_poller`."""
        self._pollers.append(poller)

    def remove_poller(self, poller: Any) -> None:
        """See :meth:`ByteStream.remove_poller`."""
        self._pollers.remove(poller)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The socket's family, its local and remote address, and the socket itself."""
        attribute = anyio.abc.SocketAttribute
        answers: dict[Any, Callable[[], Any]] = {
            attribute.family: lambda: self._socket.family,
            attribute.raw_socket: lambda: self._socket,
        }
        with suppress(OSError):  # closed, or the peer is gone already
            local, remote = _plain(self._socket.getsockname()), _plain(self._socket.getpeername())
            answers[attribute.local_address] = lambda: local
            answers[attribute.remote_address] = lambda: remote
        return answers

    def _receive_now(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise _broken(error) from error

    def _send_now(self, buffers: Sequence[Buffer]) -> int | None:
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            some = buffers[:_MOST_BUFFERS]
            if _HAVE_SENDMSG:
                return self._socket.sendmsg(some)
            return self._socket.send(b"".join(some))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise _broken(error) from error

    def _send_eof_now(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise _broken(error) from error

    def _close_now(self) -> None:
        # A closed descriptor silently leaves the runtime's selector and every epoll set: wake the waiters first.
        for poller in (*self._pollers, self._socket):
            anyio.notify_closing(poller)
        self._socket.close()

    async def _wait_receive(self) -> None:
        await anyio.wait_readable(self._socket)

    async def _wait_send(self) -> None:
        await anyio.wait_writable(self._socket)


def _broken(error: OSError) -> anyio.BrokenResourceError:
    return anyio.BrokenResourceError(f"the connection failed: {error}")


def _plain(name: Any) -> Any:
    """A socket name without IPv6 flow and scope numbers, as anyio gives it."""
    return name[:2] if isinstance(name, tuple) else name
