"""Handshakes: they turn a stream of bytes to somebody into a stream to a verified peer."""

from hydra_net.secure.hello import WIRE_VERSIONS, Hello
from hydra_net.secure.plain import PlainHandshake
from hydra_net.secure.stream import SecureStream, handshake

__all__ = ["WIRE_VERSIONS", "Hello", "PlainHandshake", "SecureStream", "handshake"]
