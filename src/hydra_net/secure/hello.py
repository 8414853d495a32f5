"""What two peers tell each other before anything else, whatever secures the connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hydra_net.address import Address
from hydra_net.codec import Cbor, CodecError, decode, encode
from hydra_net.errors import InvalidAddress, RemoteProtocolError, VersionMismatch
from hydra_net.identity import PeerId, peer_id

__all__ = ["ANSWER", "RPC", "STREAM", "WIRE_VERSIONS", "Hello"]

WIRE_VERSIONS = (1, 1)
"""The lowest and the highest wire version that this code speaks."""

RPC = "rpc"
STREAM = "stream:"
ANSWER = "answer"
"""A hello's purpose: a control connection; a stream of the protocol whose name follows; the answer to either."""

MAX_FEATURES = 32
MAX_ADDRESSES = 8
MAX_NAME = 128
NONCE = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """One side's first message. Nothing in it is believed before the handshake has proven its ``key``.

    ``versions`` is (lowest, highest), ``wall`` the sender's Unix time in milliseconds, ``purpose`` one of
    those above, ``instance`` a number drawn anew whenever the node starts. ``refused`` is set in an answer
    that declines the purpose: a kind and a text.
    """

    key: bytes
    nonce: bytes
    instance: bytes
    wall: int
    purpose: str
    listening: tuple[Address, ...] = ()
    versions: tuple[int, int] = WIRE_VERSIONS
    features: tuple[str, ...] = ()
    refused: tuple[str, str] | None = None

    @property
    def peer(self) -> PeerId:
        """The peer that this claims to be from."""
        return peer_id(self.key)

    def encode(self) -> bytes:
        """The bytes on the wire. A later version can add fields: who does not know one ignores it."""
        fields: dict[str, Cbor] = {
            "versions": self.versions,
            "features": self.features,
            "key": self.key,
            "nonce": self.nonce,
            "instance": self.instance,
            "wall": self.wall,
            "purpose": self.purpose,
            "listening": [str(address) for address in self.listening],
        }
        if self.refused is not None:
            fields["refused"] = self.refused
        return encode(fields)

    @classmethod
    def decode(cls, data: bytes, *, limit: int, ours: tuple[int, int] = WIRE_VERSIONS) -> Hello:
        """Read a hello from anywhere; ``ours`` are the wire versions to compare its own with.

        Raises VersionMismatch if the two sides have no wire version in common, which is found out before anything else
        is read that another version may have changed, and RemoteProtocolError for everything malformed.
        """
        try:
            fields = decode(data, limit=limit)
        except CodecError as error:
            raise RemoteProtocolError(None, f"its hello is {error}") from error
        if not isinstance(fields, Mapping):
            raise RemoteProtocolError(None, "its hello is no mapping")
        lowest, highest = _versions(fields.get("versions"))  # type: ignore[call-overload]
        if highest < ours[0] or lowest > ours[1]:
            raise VersionMismatch(None, ours, (lowest, highest))
        reader = _Fields(fields)  # type: ignore[arg-type]
        return cls(
            key=reader.blob("key", 32),
            nonce=reader.blob("nonce", NONCE),
            instance=reader.blob("instance", 16),
            wall=reader.number("wall"),
            purpose=reader.text("purpose", MAX_NAME),
            listening=reader.addresses("listening"),
            versions=(lowest, highest),
            features=reader.texts("features", MAX_FEATURES, 64),
            refused=reader.refusal("refused"),
        )


def _versions(value: Cbor) -> tuple[int, int]:
    match value:
        case [int(lowest), int(highest)] if 0 <= lowest <= highest < 1 << 31 and not isinstance(lowest, bool):
            return lowest, highest
    raise RemoteProtocolError(None, "its hello names no wire versions")


class _Fields:
    """Typed access to a decoded mapping from a peer."""

    def __init__(self, fields: Mapping[str, Cbor]) -> None:
        self._fields = fields

    def blob(self, name: str, size: int) -> bytes:
        value = self._fields.get(name)
        if not isinstance(value, bytes) or len(value) != size:
            raise _malformed(name)
        return value

    def number(self, name: str) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _malformed(name)
        return value

    def text(self, name: str, longest: int) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise _malformed(name)
        return value

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        values = self._fields.get(name)
        if not isinstance(values, list) or len(values) > most:
            raise _malformed(name)
        if not all(isinstance(value, str) and len(value) <= longest for value in values):
            raise _malformed(name)
        return tuple(values)

    def addresses(self, name: str) -> tuple[Address, ...]:
        try:
            return tuple(Address.parse(text).without_peer() for text in self.texts(name, MAX_ADDRESSES, 400))
        except InvalidAddress as error:
            raise RemoteProtocolError(None, f"its hello has a bad address: {error}") from error

    def refusal(self, name: str) -> tuple[str, str] | None:
        if name not in self._fields:
            return None
        match self.texts(name, 2, 500):
            case (kind, text):
                return kind, text
        raise _malformed(name)


def _malformed(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(None, f"its hello has no valid field {name!r}")
