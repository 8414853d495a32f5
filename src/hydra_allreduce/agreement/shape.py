"""Strict readers for values that came out of the codec: type before use, bounds before everything.

Every reader raises ``ValueError`` with a few words on what is wrong, and nothing else, whatever it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hydra_net.codec import Cbor

T = TypeVar("T")

MAX_MEMBERS = 256
MAX_NUMBER = 2**63 - 1


def array(value: Cbor, length: int, what: str) -> list[Cbor]:
    """Return ``value`` if it is an array of exactly ``length`` items."""
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"{what} is no array of {length}")
    return value


def items(
    value: Cbor, read: Callable[[Cbor], T], what: str, *, at_least: int = 0, at_most: int = MAX_MEMBERS
) -> list[T]:
    """Read an array of bounded length, item by item."""
    if not isinstance(value, list) or not at_least <= len(value) <= at_most:
        raise ValueError(f"{what} is no array of {at_least} to {at_most}")
    return [read(item) for item in value]


def number(value: Cbor, what: str, *, at_most: int = MAX_NUMBER) -> int:
    """Read an integer from 0 to ``at_most``."""
    if type(value) is not int or not 0 <= value <= at_most:
        raise ValueError(f"{what} is no integer from 0 to {at_most}")
    return value


def boolean(value: Cbor, what: str) -> bool:
    """Read a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is no boolean")
    return value


def blob(value: Cbor, what: str, *, size: int | None = None, at_most: int = 64) -> bytes:
    """Read bytes: exactly ``size`` of them, or at most ``at_most``."""
    if not isinstance(value, bytes) or (len(value) > at_most if size is None else len(value) != size):
        raise ValueError(f"{what} is no byte string of {size if size is not None else f'at most {at_most}'} bytes")
    return value


def text(value: Cbor, what: str, *, at_most: int = 256) -> str:
    """Read a string of at most ``at_most`` characters."""
    if not isinstance(value, str) or len(value) > at_most:
        raise ValueError(f"{what} is no string of at most {at_most} characters")
    return value


def optional(value: Cbor, read: Callable[[Cbor], T]) -> T | None:
    """Read null as None, and everything else with ``read``."""
    return None if value is None else read(value)
