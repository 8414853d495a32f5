"""The one way to turn values into bytes and back: strict, deterministic CBOR, and frames with a length in front.

Every value has exactly one encoding (RFC 8949 section 4.2.3, "length-first" map keys: shortest integers, floats and
lengths, sorted keys), and :func:`decode` takes nothing else. So bytes can be hashed and signed as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import cbor2

from hydra_net.errors import HydraError, LocalProtocolError

__all__ = ["Cbor", "CodecError", "FrameDecoder", "decode", "encode", "encode_frame"]

Cbor: TypeAlias = "bool | int | float | str | bytes | Sequence[Cbor] | Mapping[str, Cbor] | Mapping[bytes, Cbor] | None"
"""What can be sent: integers of 64 bits, floats, text, bytes, sequences and mappings of these, at most 16 deep.

Decoded, sequences are lists and mappings are dicts.
"""

MAX_DEPTH = 16
MAX_ITEMS = 16_384
FRAME_HEAD = 4
_LENGTH = struct.Struct(">I")


class CodecError(HydraError, ValueError):
    """Bytes that are no strict CBOR, or not a frame. The message says what is wrong with them."""


def _no_tags(*_: object) -> Any:
    raise ValueError("tags (dates, big numbers, shared references...) are not allowed")


def _no_such_type(_: object, value: object) -> Any:
    raise ValueError(f"a {type(value).__name__} cannot be sent")


# cbor2 knows decoders for these tags; they are replaced because some of them allocate, compile regular expressions or
# make cyclic values before anything could be checked. All other tags go to the tag hook.
_TAGS = dict.fromkeys(
    (*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 43001, 55799), _no_tags
)
_UNDEFINED = type(cbor2.undefined)
# What cbor2 decodes or encodes and Hydra does not. Encoding through a tag is caught by decoding what was encoded.
_ENCODERS: dict[type, Any] = {
    cbor2.CBORSimpleValue: _no_such_type,
    _UNDEFINED: _no_such_type,
    memoryview: lambda encoder, value: encoder.encode_bytes(value.tobytes()),
}


def encode(value: Cbor) -> bytes:
    """The one encoding of ``value``. Raises LocalProtocolError if it holds what :func:`decode` refuses at any size."""
    try:
        data = cbor2.dumps(value, canonical=True, encoders=_ENCODERS)
        _load(data)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise LocalProtocolError(f"this value cannot be encoded: {_reason(error)}") from error
    return data


def decode(data: bytes | bytearray | memoryview, *, limit: int, max_items: int = MAX_ITEMS) -> Cbor:
    """The value that ``data``, at most ``limit`` bytes from anywhere, encodes.

    Raises CodecError, a ValueError, for everything but a single value in its one encoding: trailing bytes, longer
    forms than needed, indefinite lengths, duplicate or unsorted or numeric keys, tags, undefined, integers beyond 64
    bits, more than 16 levels, more than ``max_items`` items (tiny items cost 70 times their size in memory).
    """
    if len(data) > limit:
        raise CodecError(f"{len(data)} bytes where at most {limit} are allowed")
    data = bytes(data)
    if len(data) > max_items:  # each item has at least one byte, so shorter data needs no counting
        _count(data, max_items)
    try:
        value: Cbor = _load(data)
        # One encoding for one value: this catches trailing bytes, longer forms, unsorted keys and simple values.
        if cbor2.dumps(value, canonical=True, encoders=_ENCODERS) != data:
            raise ValueError("not in its shortest form, or something follows it")
    except (cbor2.CBORError, ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"not strict CBOR: {_reason(error)}") from error
    return value


def _load(data: bytes) -> Any:
    return cbor2.loads(
        data,
        max_depth=MAX_DEPTH,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
        semantic_decoders=_TAGS,
        tag_hook=_no_tags,
    )


def _reason(error: BaseException) -> str:
    """The innermost reason: cbor2 wraps what its hooks raise."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error)[:200]


def _count(data: bytes, max_items: int) -> None:
    """Raise CodecError if ``data`` begins with more than ``max_items`` items; stops there. Malformed data passes."""
    position, items, end = 0, 0, len(data)
    while position < end:
        items += 1
        if items > max_items:
            raise CodecError(f"more than {max_items} items")
        head = data[position]
        position += 1
        major, size = head >> 5, head & 31
        if size >= 24:
            if size > 27:
                return  # indefinite or reserved: refused by the decoder
            width = 1 << (size - 24)
            size = int.from_bytes(data[position : position + width], "big")
            position += width
        if major in (2, 3):
            position += size


# ---------------------------------------------------------------------------------------------------- frames


def encode_frame(payload: bytes | bytearray | memoryview) -> bytes:
    """``payload`` with its length in 4 bytes, big-endian, in front."""
    return b"".join((_LENGTH.pack(len(payload)), payload))


class FrameDecoder:
    """Cuts a stream of bytes into frames. Sans-IO; linear in the bytes fed, however they are cut.

    A frame longer than ``limit`` is refused as soon as its length is known: nothing is allocated for it. After an
    error the decoder stays failed, because the frame boundaries are lost.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._failed: str | None = None

    @property
    def buffered(self) -> int:
        """Bytes fed and not yet returned: 0 between two frames."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take more bytes. Call :meth:`frames` after each feed, or the buffer grows."""
        if self._start and self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        elif self._start > 65536 and self._start * 2 > len(self._buffer):
            # Moving the rest to the front costs no more than what was taken from it since the last time.
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next(self) -> bytes | None:
        """The next whole frame, without its length, or None until more is fed. Raises CodecError."""
        if self._failed is not None:
            raise CodecError(self._failed)
        buffer, start = self._buffer, self._start
        if len(buffer) - start < FRAME_HEAD:
            return None
        (size,) = _LENGTH.unpack_from(buffer, start)
        if size > self._limit:
            self._failed = f"a frame of {size} bytes was announced, at most {self._limit} are allowed"
            self._buffer = bytearray()
            raise CodecError(self._failed)
        end = start + FRAME_HEAD + size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            frame = bytes(view[start + FRAME_HEAD : end])
        self._start = end
        return frame

    def frames(self) -> Iterator[bytes]:
        """All whole frames that have been fed. Raises CodecError after the frames in front of a bad one."""
        while (frame := self.next()) is not None:
            yield frame
