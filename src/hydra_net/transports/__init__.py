"""Transports: how bytes get from one machine to another."""

from hydra_net.transports.stream import (
    Buffer,
    ByteStream,
    Transport,
    receive_exactly,
    receive_exactly_into,
    wait_any,
)

__all__ = ["Buffer", "ByteStream", "Transport", "receive_exactly", "receive_exactly_into", "wait_any"]
