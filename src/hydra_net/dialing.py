"""Getting from a peer's addresses to one verified connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from hydra_net.address import Address
from hydra_net.errors import DialError, HydraError, RemoteError
from hydra_net.identity import PeerId
from hydra_net.limits import Limits
from hydra_net.secure.hello import Hello
from hydra_net.secure.stream import HandshakeCore, SecureStream, handshake
from hydra_net.transports.stream import ByteStream, Transport

__all__ = ["Abandon", "Dialer", "Dialled"]

_log = logging.getLogger("hydra_net")

STAGGER = 0.25
"""Seconds until the next address is tried beside one that has not answered yet (as in RFC 8305)."""

MakeCore = Callable[[str, PeerId | None, Callable[[Hello], None]], HandshakeCore]


@dataclass(frozen=True, slots=True)
class Dialled:
    """A verified stream and the address it was reached at."""

    stream: SecureStream
    address: Address


class Abandon(Exception):
    """Raised by a check in a handshake: the connection is not wanted after all."""


class Dialer:
    """Tries addresses, a new one every quarter of a second, with one handshake at a time: so at most one succeeds."""

    def __init__(self, transports: Sequence[Transport], limits: Limits, make_core: MakeCore) -> None:
        self._transports = {scheme: transport for transport in transports for scheme in sorted(transport.schemes)}
        self.limits = limits
        self.make_core = make_core

    def transport(self, address: Address) -> Transport:
        """The transport for ``address``. Raises DialError if there is none."""
        transport = self._transports.get(address.scheme)
        if transport is None:
            known = ", ".join(sorted(self._transports))
            raise DialError(address, f"no transport for {address.scheme}:// (this node has {known}; see transports=)")
        return transport

    async def dial(
        self,
        addresses: Sequence[Address],
        purpose: str,
        expected: PeerId | None,
        check: Callable[[Hello], None] = lambda _: None,
    ) -> Dialled | list[HydraError]:
        """The first verified connection, or one error for each address.

        ``check`` gets the proven peer's hello and may raise Abandon or RemoteError, which end the dial and come out.
        Cancellation leaves no connection.
        """
        race = _Race(self, purpose, expected, check)
        try:
            async with anyio.create_task_group() as tasks:
                for address in addresses:
                    failed = anyio.Event()
                    tasks.start_soon(race.attempt, address, failed, tasks.cancel_scope)
                    with anyio.move_on_after(STAGGER):
                        await failed.wait()
        except BaseException:
            if race.won is not None:
                await anyio.aclose_forcefully(race.won.stream)
            raise
        if race.final is not None:
            raise race.final
        return race.won or [race.errors[address] for address in addresses if address in race.errors]


class _Race:
    """One dial: its addresses against each other."""

    def __init__(self, dialer: Dialer, purpose: str, expected: PeerId | None, check: Callable[[Hello], None]) -> None:
        self._dialer = dialer
        self._purpose, self._expected, self._check = purpose, expected, check
        self._turn = anyio.Lock()
        self.won: Dialled | None = None
        self.final: Abandon | RemoteError | None = None
        self.errors: dict[Address, HydraError] = {}

    async def attempt(self, address: Address, failed: anyio.Event, scope: anyio.CancelScope) -> None:
        stream: ByteStream | None = None
        limit = self._dialer.limits.handshake
        try:
            with anyio.fail_after(limit):
                stream = await self._dialer.transport(address).dial(address)
            async with self._turn:
                if self.won is not None or self.final is not None:
                    return
                try:
                    with anyio.fail_after(limit):
                        core = self._dialer.make_core(self._purpose, self._expected, self._check)
                        secured = await handshake(stream, core)
                except (Abandon, RemoteError) as final:
                    self.final = final
                else:
                    self.won, stream = Dialled(secured, address), None
                # Still in turn, so that no other handshake begins.
                scope.cancel()
        except TimeoutError:
            self.errors[address] = DialError(address, f"no answer within {limit:g} s")
        except DialError as error:
            self.errors[address] = error
        except HydraError as error:
            self.errors[address] = DialError(address, error)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self.errors[address] = DialError(address, error)
        except Exception as error:  # noqa: BLE001 - a third party's transport may raise anything; others may still work
            _log.exception("the transport of %s failed because of a bug", address)
            self.errors[address] = DialError(address, error)
        finally:
            failed.set()
            if stream is not None:
                await anyio.aclose_forcefully(stream)
