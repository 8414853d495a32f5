"""Connections that come in: the handshake, then to the control connections or to the handler of a stream protocol."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import SocketAttribute

from hydra_net.errors import HydraError, RemoteProtocolError
from hydra_net.handlers import Handlers
from hydra_net.identity import PeerId
from hydra_net.limits import Limits
from hydra_net.secure.hello import RPC, STREAM, Hello
from hydra_net.secure.stream import HandshakeCore, SecureStream, handshake
from hydra_net.transports.stream import ByteStream

__all__ = ["Incoming"]

_log = logging.getLogger("hydra_net")

MakeCore = Callable[[Callable[[Hello], tuple[str, str] | None]], HandshakeCore]


class Incoming:
    """Takes the connections of all listeners of a node.

    Handshakes under way are bounded: one more ends the oldest, so that those who only connect keep nobody out who goes
    on speaking. Whatever goes wrong ends that connection only.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        handlers: Handlers,
        make_core: MakeCore,
        serve_rpc: Callable[[SecureStream], Awaitable[None]],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._limits = limits
        self._handlers = handlers
        self._make_core = make_core
        self._serve_rpc = serve_rpc
        self._crashed = crashed
        self._half_open: dict[int, anyio.CancelScope] = {}
        self._count = 0
        self._closed = False
        self._streams = 0
        self._streams_of: dict[PeerId, int] = {}

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True

    async def take(self, stream: ByteStream) -> None:
        """Serve one connection until it ends. Raises nothing that a peer can cause."""
        try:
            secured = None if self._closed else await self._shake_hands(stream)
            if secured is None or self._closed or secured.local_hello.refused is not None:
                return  # whoever goes on after a refusal is hung up on
            purpose = secured.remote_hello.purpose
            if purpose == RPC:
                await self._serve_rpc(secured)
            else:
                await self._serve_stream(secured, purpose.removeprefix(STREAM))
        except anyio.get_cancelled_exc_class():
            raise
        except Exception:  # noqa: BLE001 - a bug here must not end the node's listeners
            _log.exception("a connection ended because of a bug")
        except BaseException as error:  # noqa: BLE001 - Ctrl-C may strike in any task; the node hands it to its owner
            self._crashed(error)

    async def _shake_hands(self, stream: ByteStream) -> SecureStream | None:
        where = stream.extra(SocketAttribute.remote_address, None)
        self._count += 1
        number = self._count
        with anyio.move_on_after(self._limits.handshake) as scope:
            if len(self._half_open) >= self._limits.half_open:
                self._half_open.pop(next(iter(self._half_open))).cancel()
            self._half_open[number] = scope
            try:
                return await handshake(stream, self._make_core(self._check))
            except RemoteProtocolError as error:
                _log.warning("a handshake with %s failed: %s", where, error)
            except HydraError as error:
                _log.info("a handshake with %s failed: %s", where, error)
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                _log.info("a handshake with %s broke: %r", where, error)
            finally:
                self._half_open.pop(number, None)
        if scope.cancelled_caught:
            _log.info("a handshake with %s took too long, or there were too many", where)
        return None

    def _check(self, hello: Hello) -> tuple[str, str] | None:
        """Refuse what is not served here, before anybody has proven anything."""
        if hello.purpose == RPC:
            return None
        protocol = hello.purpose.removeprefix(STREAM)
        if protocol == hello.purpose or protocol not in self._handlers.streams:
            return "no such protocol", "this peer does not serve it"
        return self._too_many(hello.peer)

    def _too_many(self, peer: PeerId) -> tuple[str, str] | None:
        if self._streams >= self._limits.streams:
            return "busy", f"{self._limits.streams} streams are open"
        if self._streams_of.get(peer, 0) >= self._limits.streams_per_peer:
            return "busy", f"{self._limits.streams_per_peer} streams of this peer are open"
        return None

    async def _serve_stream(self, stream: SecureStream, protocol: str) -> None:
        handler = self._handlers.streams.get(protocol)
        if handler is None or self._too_many(stream.peer):
            return  # changed since the hello; closing says enough
        self._streams += 1
        self._streams_of[stream.peer] = self._streams_of.get(stream.peer, 0) + 1
        try:
            await handler(stream)
        except RemoteProtocolError as error:
            _log.warning("closed a stream of %r: %s", protocol, error)
        except (OSError, anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            _log.info("a stream of %r from peer %s broke: %r", protocol, stream.peer.short, error)
        except Exception:  # noqa: BLE001 - whatever a user's handler raises ends its stream only
            _log.exception("the handler of streams of %r failed for peer %s", protocol, stream.peer.short)
        finally:
            self._streams -= 1
            self._streams_of[stream.peer] -= 1
            if not self._streams_of[stream.peer]:
                del self._streams_of[stream.peer]
            await anyio.aclose_forcefully(stream)
