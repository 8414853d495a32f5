"""TCP over IPv4 and IPv6."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus

from hydra_net.address import Address
from hydra_net.errors import DialError
from hydra_net.transports.serving import run_handler
from hydra_net.transports.sockets import SocketStream
from hydra_net.transports.stream import ByteStream

_log = logging.getLogger(__name__)

# What accept() reports of a connection that failed while it waited to be accepted; the next one may be well. Anything
# else, such as no room for one more descriptor, is waited out.
_FAILED_BEFORE = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM, errno.ETIMEDOUT})
_RETRY = 0.1  # seconds


class TcpTransport:
    """TCP on non-blocking sockets of its own; one object serves and dials any number of addresses.

    ``send_buffer`` and ``receive_buffer`` are the kernel's buffers per connection in bytes. None leaves them to the
    kernel, which tunes them to the path: on loopback that is as fast as 1 MiB, on a long path it grows beyond, while a
    size that is set switches the tuning off and is capped (on a stock Linux at 208 KiB).
    """

    schemes = frozenset({"tcp"})

    def __init__(self, *, send_buffer: int | None = None, receive_buffer: int | None = None) -> None:
        self._send_buffer = send_buffer
        self._receive_buffer = receive_buffer

    async def dial(self, address: Address) -> ByteStream:
        """Connect to ``address``; a host name is looked up and its addresses are tried in turn.

        Raises :exc:`DialError` with the last cause. Cancellation closes the half-made connection.
        """
        error: OSError | None = None
        try:
            for family, name in await _resolve(address):
                try:
                    return await self._connect(family, name)
                except OSError as failure:
                    error = failure
        except OSError as failure:  # the look-up
            error = failure
        cause = error or OSError(errno.EADDRNOTAVAIL, f"{address.host} has no address")
        raise DialError(address, cause) from cause

    async def serve(
        self,
        address: Address,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[Sequence[Address]] = anyio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        """Listen on ``address`` until cancelled, with a task for each connection; see :class:`Transport`.

        Port 0 takes a free one. ``[::]`` means IPv6 only. When the process is out of descriptors, new connections wait
        in the kernel's queue until there is room.
        """
        listeners: list[socket.socket] = []
        try:
            for family, name in await _resolve(address, passive=True):
                listeners.append(self._listen(family, name))
            async with anyio.create_task_group() as tasks:
                for listener in listeners:
                    tasks.start_soon(_accept, listener, handler, tasks)
                task_status.started([_address(address, listener) for listener in listeners])
                await anyio.sleep_forever()
        finally:
            for listener in listeners:
                listener.close()
        raise AssertionError("unreachable")

    async def _connect(self, family: socket.AddressFamily, name: Any) -> SocketStream:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            self._set_buffers(sock)
            result = sock.connect_ex(name)
            if result in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
                await anyio.wait_writable(sock)
                result = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            else:
                await anyio.lowlevel.checkpoint()
            if result:
                raise OSError(result, os.strerror(result))
            if sock.getsockname() == sock.getpeername():
                # Dialling a free ephemeral port of this machine can connect a socket to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            _set_options(sock)
        except BaseException:
            sock.close()
            raise
        return SocketStream(sock)

    def _listen(self, family: socket.AddressFamily, name: Any) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._set_buffers(sock)  # inherited by the connections; must come before their handshake
            sock.bind(name)
            sock.listen(512)
        except BaseException:
            sock.close()
            raise
        return sock

    def _set_buffers(self, sock: socket.socket) -> None:
        if self._send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        if self._receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)


async def _accept(
    listener: socket.socket, handler: Callable[[ByteStream], Awaitable[None]], tasks: TaskGroup
) -> NoReturn:
    waiting = False
    while True:
        try:
            sock, name = listener.accept()
        except (BlockingIOError, InterruptedError):
            await anyio.wait_readable(listener)
        except OSError as error:
            if error.errno in _FAILED_BEFORE:
                await anyio.lowlevel.checkpoint()
            else:  # no room, or something that may last: trying on at full speed would help nobody
                if not waiting:
                    _log.warning("cannot accept connections now, will go on trying: %s", error)
                waiting = True
                await anyio.sleep(_RETRY)
        else:
            waiting = False
            with suppress(OSError):  # reset already: the handler will see it
                _set_options(sock)
            tasks.start_soon(run_handler, SocketStream(sock), name[0], handler)
            await anyio.lowlevel.checkpoint()


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def _resolve(address: Address, *, passive: bool = False) -> list[tuple[socket.AddressFamily, Any]]:
    flags = socket.AI_PASSIVE if passive else 0
    try:
        ipaddress.ip_address(address.host.partition("%")[0])
    except ValueError:
        found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    else:  # numbers need no resolver and no worker thread
        flags |= socket.AI_NUMERICHOST
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)  # type: ignore[assignment]
    return [(family, name) for family, _, _, _, name in found]


def _address(asked: Address, listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(asked.scheme, host, port, None)
