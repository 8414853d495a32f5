"""Hydra's network layer: identities, transports, RPC and streams between peers."""

from hydra_net._version import __version__
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
from hydra_net.events import ConnectFailed, EventsLost, NodeEvent, PeerConnected, PeerDisconnected
from hydra_net.handlers import Caller
from hydra_net.identity import Identity, PeerId, peer_id, verify
from hydra_net.limits import Limits
from hydra_net.node import Node
from hydra_net.secure import WIRE_VERSIONS, Hello, SecureStream
from hydra_net.threads import run_blocking
from hydra_net.transports import (
    STREAM_ERRORS,
    Buffer,
    ByteStream,
    MemoryNetwork,
    MemoryTransport,
    TcpTransport,
    Transport,
    receive_exactly,
    receive_exactly_into,
    wait_any,
)

__all__ = [
    "STREAM_ERRORS",
    "WIRE_VERSIONS",
    "Address",
    "Buffer",
    "ByteStream",
    "Caller",
    "Cbor",
    "Clock",
    "CodecError",
    "ConnectFailed",
    "ConnectionLost",
    "DialError",
    "EventsLost",
    "FrameDecoder",
    "Hello",
    "HydraError",
    "Identity",
    "InvalidAddress",
    "KeyFileError",
    "Limits",
    "LocalProtocolError",
    "MemoryNetwork",
    "MemoryTransport",
    "Node",
    "NodeClosed",
    "NodeEvent",
    "NodeFailed",
    "PeerConnected",
    "PeerDisconnected",
    "PeerId",
    "PeerUnreachable",
    "RemoteError",
    "RemoteProtocolError",
    "SecureStream",
    "SelfDial",
    "SystemClock",
    "TcpTransport",
    "Transport",
    "VersionMismatch",
    "WrongPeer",
    "__version__",
    "decode",
    "encode",
    "encode_frame",
    "peer_id",
    "receive_exactly",
    "receive_exactly_into",
    "run_blocking",
    "verify",
    "wait_any",
]
