"""Hydra's network layer: identities, transports, RPC and streams between peers."""

from hydra_net.address import Address
from hydra_net.clock import Clock, SystemClock
from hydra_net.errors import (
    ConnectionLost,
    DialError,
    HydraError,
    InvalidAddress,
    KeyFileError,
    LocalProtocolError,
    NodeClosed,
    NodeFailed,
    PeerUnreachable,
    RemoteError,
    RemoteProtocolError,
    SelfDial,
    VersionMismatch,
    WrongPeer,
)
from hydra_net.identity import Identity, PeerId, peer_id, verify

__all__ = [
    "Address",
    "Clock",
    "ConnectionLost",
    "DialError",
    "HydraError",
    "Identity",
    "InvalidAddress",
    "KeyFileError",
    "LocalProtocolError",
    "NodeClosed",
    "NodeFailed",
    "PeerId",
    "PeerUnreachable",
    "RemoteError",
    "RemoteProtocolError",
    "SelfDial",
    "SystemClock",
    "VersionMismatch",
    "WrongPeer",
    "peer_id",
    "verify",
]
