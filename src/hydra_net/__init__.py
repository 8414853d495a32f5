"""Hydra's network layer: identities, transports, RPC and streams between peers."""

from hydra_net.address import Address
from hydra_net.clock import Clock, SystemClock
from hydra_net.codec import Cbor, CodecError, FrameDecoder, decode, encode, encode_frame
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
from hydra_net.limits import Limits

__all__ = [
    "Address",
    "Cbor",
    "Clock",
    "CodecError",
    "ConnectionLost",
    "DialError",
    "FrameDecoder",
    "HydraError",
    "Identity",
    "InvalidAddress",
    "KeyFileError",
    "Limits",
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
    "decode",
    "encode",
    "encode_frame",
    "peer_id",
    "verify",
]
