"""Which addresses this machine has."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from hydra_net.address import Address

__all__ = ["expand_wildcards"]

# Any address that is routed like the rest of the world; the documentation's, since nothing is sent there.
_OUTSIDE = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def expand_wildcards(bound: Iterable[Address]) -> list[Address]:
    """``bound`` with each wildcard replaced by what can be dialled: loopback and the interface to the outside."""
    found: list[Address] = []
    for address in bound:
        try:
            ip = ipaddress.ip_address(address.host)
        except ValueError:
            found.append(address)
            continue
        if not ip.is_unspecified:
            found.append(address)
            continue
        hosts = [_LOOPBACK[ip.version]]
        family, outside = _OUTSIDE[ip.version]
        # Connecting a datagram socket sends nothing: it asks the routing table.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))
            hosts.append(probe.getsockname()[0])
        found += [Address(address.scheme, host, address.port) for host in dict.fromkeys(hosts)]
    return list(dict.fromkeys(found))
