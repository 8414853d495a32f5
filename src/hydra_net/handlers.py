"""Who answers what: the methods and stream protocols that a node serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from hydra_net.codec import Cbor
from hydra_net.control import check_method
from hydra_net.errors import LocalProtocolError
from hydra_net.identity import PeerId
from hydra_net.secure.stream import SecureStream

__all__ = ["Caller", "Handler", "Handlers", "InlineHandler", "StreamHandler"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who called: ``peer`` is verified."""

    peer: PeerId


Handler: TypeAlias = Callable[[Caller, Cbor], Awaitable[Cbor]]
InlineHandler: TypeAlias = Callable[[Caller, Cbor], Cbor]
StreamHandler: TypeAlias = Callable[[SecureStream], Awaitable[None]]
_H = TypeVar("_H")


class Handlers:
    """A node's handlers by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Handler] = {}
        self.inline: dict[str, InlineHandler] = {}
        self.streams: dict[str, StreamHandler] = {}

    @contextmanager
    def serving(self, table: dict[str, _H], name: str, handler: _H) -> Iterator[None]:
        """Have ``handler`` in ``table`` for as long as the context lasts."""
        check_method(name)
        if name in table or (table is not self.streams and (name in self.tasks or name in self.inline)):
            raise LocalProtocolError(f"{name!r} has a handler already; leave its context before giving it another one")
        table[name] = handler
        try:
            yield
        finally:
            del table[name]
