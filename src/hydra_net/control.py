"""The messages of a control connection, and their frames. Sans-IO.

A frame holds an array: the kind's number, then the fields in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hydra_net.codec import Cbor, CodecError, decode, encode, encode_frame
from hydra_net.errors import LocalProtocolError
from hydra_net.secure.hello import STREAM

__all__ = [
    "Failure",
    "Message",
    "Ping",
    "Pong",
    "Post",
    "Request",
    "Response",
    "Retire",
    "Retired",
    "decode_message",
    "encode_message",
]

MAX_METHOD = 128
MAX_KIND = 100
MAX_TEXT = 1000
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """Kind 0: asks for an answer with the same number."""

    number: int
    method: str
    body: Cbor


@dataclass(frozen=True, slots=True)
class Response:
    """Kind 1: the answer."""

    number: int
    body: Cbor


@dataclass(frozen=True, slots=True)
class Failure:
    """Kind 2: why there is no answer; ``kind`` is for programs, ``text`` for people."""

    number: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Post:
    """Kind 3: wants no answer."""

    method: str
    body: Cbor


@dataclass(frozen=True, slots=True)
class Ping:
    """Kind 4: is to be answered with a pong of the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Kind 5."""

    number: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Kind 6: the sender makes no more requests and posts on this connection."""


@dataclass(frozen=True, slots=True)
class Retired:
    """Kind 7: all requests and posts in front of the other side's :class:`Retire` have been taken."""


Message: TypeAlias = Request | Response | Failure | Post | Ping | Pong | Retire | Retired


def encode_message(message: Message, *, limit: int) -> bytes:
    """The frame of ``message``. Raises LocalProtocolError if it is longer than ``limit`` or cannot be encoded."""
    fields: list[Cbor]
    match message:
        case Request(number, method, body):
            fields = [0, number, method, body]
        case Response(number, body):
            fields = [1, number, body]
        case Failure(number, kind, text):
            fields = [2, number, kind[:MAX_KIND], text[:MAX_TEXT]]
        case Post(method, body):
            fields = [3, method, body]
        case Ping(number):
            fields = [4, number]
        case Pong(number):
            fields = [5, number]
        case Retire():
            fields = [6]
        case Retired():
            fields = [7]
    data = encode(fields)
    if len(data) > limit:
        raise LocalProtocolError(
            f"a message of {len(data)} bytes; {limit} are allowed on a control connection: send bulk over open_stream"
        )
    return encode_frame(data)


def decode_message(data: bytes, *, limit: int) -> Message:
    """The message in a frame from anywhere. Raises CodecError for anything else."""
    match decode(data, limit=limit):
        case [0, int(number), str(method), body] if _valid(number) and 0 < len(method) <= MAX_METHOD:
            return Request(number, method, body)
        case [1, int(number), body] if _valid(number):
            return Response(number, body)
        case [2, int(number), str(kind), str(text)] if _valid(number) and len(kind) <= MAX_KIND:
            return Failure(number, kind, text[:MAX_TEXT])
        case [3, str(method), body] if 0 < len(method) <= MAX_METHOD:
            return Post(method, body)
        case [4, int(number)] if _valid(number):
            return Ping(number)
        case [5, int(number)] if _valid(number):
            return Pong(number)
        case [6]:
            return Retire()
        case [7]:
            return Retired()
        case [int(kind), *_]:
            raise CodecError(f"a message of unknown kind or wrong form (kind {kind})")
    raise CodecError("something that is no message")


def check_method(method: str) -> None:
    """Raise LocalProtocolError if ``method`` cannot be a method's or a protocol's name."""
    if not 0 < len(method) <= MAX_METHOD - len(STREAM):
        raise LocalProtocolError(f"a name has 1 to {MAX_METHOD - len('stream:')} characters: {method[:200]!r}")


def _valid(number: int) -> bool:
    return 0 <= number <= _MAX_NUMBER and not isinstance(number, bool)
