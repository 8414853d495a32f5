"""Where a peer can be dialled: a URL with the peer id as user."""

from __future__ import annotations

import dataclasses
import ipaddress
import re

from hydra_net.errors import InvalidAddress
from hydra_net.identity import PeerId

__all__ = ["Address"]

MAX_ADDRESS_LENGTH = 400
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,15}")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
_HOW = "an address looks like tcp://192.0.2.7:4001, tcp://[2001:db8::7]:4001 or tcp://<peer id>@host:4001"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """A place to dial: scheme, host, port, and the peer expected there, if it is known.

    ``host`` is a name or an IP address in its normal form (IPv6 without brackets). Port 0 means "any" and is only
    useful for listening. Raises InvalidAddress, a ValueError, for anything that :meth:`parse` would not give back.
    """

    scheme: str
    host: str
    port: int
    peer: PeerId | None = None

    def __post_init__(self) -> None:
        if not _SCHEME.fullmatch(self.scheme):
            raise InvalidAddress(f"bad scheme {self.scheme[:40]!r}: {_HOW}")
        object.__setattr__(self, "host", _normal_host(self.host))
        if not 0 <= self.port <= 65535:
            raise InvalidAddress(f"port {self.port} is not between 0 and 65535")
        if self.peer is not None and not isinstance(self.peer, PeerId):
            raise InvalidAddress("the peer of an address has to be a PeerId")

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that ``text`` spells. Never looks anything up. Raises InvalidAddress."""
        if len(text) > MAX_ADDRESS_LENGTH:
            raise InvalidAddress(f"an address has at most {MAX_ADDRESS_LENGTH} characters, not {len(text)}")
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise InvalidAddress(f"no scheme in {text!r}: {_HOW}")
        user, at, place = rest.rpartition("@")
        if at:
            try:
                peer = PeerId.parse(user)
            except ValueError as error:
                raise InvalidAddress(f"in {text!r} before the @: {error}") from None
        else:
            peer = None
        host, colon, port = place.rpartition(":")
        if not colon or not _PORT.fullmatch(port):
            raise InvalidAddress(f"no valid port in {text!r}: {_HOW}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if ":" not in host:
                raise InvalidAddress(f"only IPv6 addresses stand in brackets: {text!r}")
        elif ":" in host:
            raise InvalidAddress(f"an IPv6 address has to stand in brackets: {text!r}; {_HOW}")
        return cls(scheme, host, int(port), peer)

    def with_peer(self, peer: PeerId) -> Address:
        """The same place, with ``peer`` expected there."""
        return dataclasses.replace(self, peer=peer)

    def without_peer(self) -> Address:
        """The same place, whoever is there."""
        return dataclasses.replace(self, peer=None)

    def __str__(self) -> str:
        user = f"{self.peer}@" if self.peer is not None else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{user}{host}:{self.port}"


def _normal_host(host: str) -> str:
    """``host`` in the one spelling that compares equal. What looks like an IP address has to be a valid one."""
    shown = host[:60]
    if len(host) > 253 or not host.isascii():
        raise InvalidAddress(f"bad host {shown!r}: {_HOW}")
    if ":" in host:
        bare, percent, scope = host.partition("%")
        if percent and not _SCOPE.fullmatch(scope):
            raise InvalidAddress(f"bad scope in the IPv6 address {shown!r}")
        try:
            return f"{ipaddress.IPv6Address(bare)}{percent}{scope}"
        except ValueError as error:
            raise InvalidAddress(f"bad IPv6 address {shown!r}: {error}") from None
    name = host.lower()
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidAddress(f"bad host {shown!r}: {_HOW}")
    if name.rpartition(".")[2].isdigit() and "." in name:
        # A resolver would take 127.1 or 0177.0.0.1 for an address; only the four-part form is one here.
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as error:
            raise InvalidAddress(f"bad IPv4 address {shown!r}: {error}") from None
    return name
