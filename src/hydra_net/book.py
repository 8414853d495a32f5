"""Where peers can be dialled: what this node was told, and what it may believe of that."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from hydra_net.address import Address
from hydra_net.identity import PeerId

__all__ = ["AddressBook", "dialable", "host_of"]

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressBook:
    """A bounded number of addresses for each of a bounded number of peers; the best are tried first."""

    def __init__(self, *, peers: int, per_peer: int) -> None:
        self._peers = peers
        self._per_peer = per_peer
        self._book: dict[PeerId, list[Address]] = {}

    def of(self, peer: PeerId) -> tuple[Address, ...]:
        """The peer's addresses, best first."""
        return tuple(self._book.get(peer, ()))

    def learn(self, peer: PeerId, addresses: Iterable[Address], *, best: bool = False) -> None:
        """Remember ``addresses`` of ``peer`` behind those known, or in front of them if they are the ``best``."""
        new = list(dict.fromkeys(address.with_peer(peer) for address in addresses))
        if not new:
            return
        old = self._book.pop(peer, [])  # and to the end: the peer heard of the longest ago goes first
        self._book[peer] = list(dict.fromkeys(new + old if best else old + new))
        if len(self._book[peer]) > self._per_peer:
            # The one that worked last stands in front and stays; of the others the newest stay.
            kept = self._book[peer]
            self._book[peer] = kept[: self._per_peer] if best else kept[:1] + kept[1 - self._per_peer :]
            del self._book[peer][self._per_peer :]
        while len(self._book) > self._peers:
            del self._book[next(iter(self._book))]

    def forget(self, peer: PeerId, address: Address) -> None:
        """The address is another peer's now."""
        addresses = self._book.get(peer, [])
        if address.with_peer(peer) in addresses:
            addresses.remove(address.with_peer(peer))


def dialable(listening: Iterable[Address], observed: str | None) -> list[Address]:
    """What of the addresses that a peer says it listens on is worth dialling, seen from here.

    ``observed`` is the host that its connection came from, if that is known. A wildcard stands for that host. Nobody
    far away may send us to our own machine or into our private networks: loopback and link-local addresses count only
    from a peer that came from there, private ones not from a peer with a global address.
    """
    found: list[Address] = []
    seen = _ip(observed) if observed is not None else None
    for address in listening:
        ip = _ip(address.host)
        if address.port == 0:
            continue
        if ip is None:
            if address.host != "localhost":
                found.append(address)
        elif ip.is_unspecified:
            if seen is not None and observed is not None and seen.version == ip.version:
                found.append(Address(address.scheme, observed, address.port))
        elif ip.is_multicast:
            continue
        elif ip.is_loopback:
            if seen is not None and seen.is_loopback:
                found.append(address)
        elif ip.is_link_local:
            if seen is not None and (seen.is_link_local or seen.is_loopback):
                found.append(address)
        elif ip.is_global or seen is None or not seen.is_global:
            found.append(address)
    return list(dict.fromkeys(found))


def host_of(remote: object) -> str | None:
    """The host in a socket's remote address, IPv4 in IPv6 unwrapped; None if it is no IP address."""
    if not isinstance(remote, tuple) or not remote or not isinstance(remote[0], str):
        return None
    ip = _ip(remote[0])
    return None if ip is None else str(ip)


def _ip(host: str) -> _IP | None:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip
