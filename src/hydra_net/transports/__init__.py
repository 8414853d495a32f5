"""Transports: how bytes get from one machine to another."""

from hydra_net.transports.memory import MemoryNetwork, MemoryTransport
from hydra_net.transports.stream import (
    STREAM_ERRORS,
    Buffer,
    ByteStream,
    Transport,
    receive_exactly,
    receive_exactly_into,
    wait_any,
)
from hydra_net.transports.tcp import TcpTransport

__all__ = [
    "STREAM_ERRORS",
    "Buffer",
    "ByteStream",
    "MemoryNetwork",
    "MemoryTransport",
    "TcpTransport",
    "Transport",
    "receive_exactly",
    "receive_exactly_into",
    "wait_any",
]
