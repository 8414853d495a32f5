"""The streams between ring neighbours. Each belongs to one attempt: the ring of one view.

A ring that breaks off leaves half-sent data behind, so an attempt's streams are never reused by another one. Within an
attempt they stay open from round to round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import anyio

from hydra_net import Node, PeerId, SecureStream, receive_exactly

ATTEMPT_BYTES = 32
"""A stream starts with the digest that names its attempt."""

_PARKED_PER_PEER = 4
_PARKED = 256
_PATIENCE = 10.0
"""Seconds until a stream must have said which attempt it is for, and until somebody must want it then."""


class RingLinks:
    """Opens streams to the next member of a ring and matches those that come in from the previous one.

    A neighbour may know a view before we do, so its stream can come first: it is parked, a few per peer.
    """

    def __init__(self, node: Node, run: str) -> None:
        self._node = node
        self._protocol = f"hydra/ring/{run}"
        self._parked: dict[tuple[bytes, PeerId], _Parked] = {}
        self._arrived: dict[tuple[bytes, PeerId], anyio.Event] = {}

    def serving(self) -> AbstractContextManager[None]:
        """Take incoming streams for as long as the context lasts."""
        return self._node.serve_streams(self._protocol, self._take)

    @asynccontextmanager
    async def to_next(self, attempt: bytes, peer: PeerId) -> AsyncIterator[SecureStream]:
        """Open the stream to the next member; closed on leaving. Raises what ``Node.open_stream`` raises."""
        stream = await self._node.open_stream(peer, self._protocol)
        try:
            await stream.send(attempt)
            yield stream
        finally:
            await anyio.aclose_forcefully(stream)

    @asynccontextmanager
    async def from_previous(self, attempt: bytes, peer: PeerId) -> AsyncIterator[SecureStream]:
        """Wait for the stream of the previous member; closed on leaving."""
        key = (attempt, peer)
        while key not in self._parked:
            event = self._arrived.setdefault(key, anyio.Event())
            try:
                await event.wait()
            finally:
                self._arrived.pop(key, None)
        parked = self._parked.pop(key)
        parked.taken.set()
        try:
            yield parked.stream
        finally:
            parked.done.set()
            await anyio.aclose_forcefully(parked.stream)

    async def _take(self, stream: SecureStream) -> None:
        """Hand an incoming stream over, and stay until it is no longer used: returning closes it."""
        with anyio.fail_after(_PATIENCE):
            key = (await receive_exactly(stream, ATTEMPT_BYTES), stream.peer)
        self._make_room(key)
        parked = self._parked[key] = _Parked(stream)
        if event := self._arrived.get(key):
            event.set()
        try:
            with anyio.move_on_after(_PATIENCE):
                await parked.taken.wait()
            if parked.taken.is_set():
                await parked.done.wait()
        finally:
            if self._parked.get(key) is parked:
                del self._parked[key]

    def _make_room(self, key: tuple[bytes, PeerId]) -> None:
        same_peer = [other for other in self._parked if other[1] == key[1]]
        if key in self._parked:
            self._parked.pop(key).drop()
        elif len(same_peer) >= _PARKED_PER_PEER:
            self._parked.pop(same_peer[0]).drop()
        elif len(self._parked) >= _PARKED:
            self._parked.pop(next(iter(self._parked))).drop()


class _Parked:
    __slots__ = ("done", "stream", "taken")

    def __init__(self, stream: SecureStream) -> None:
        self.stream = stream
        self.taken = anyio.Event()
        self.done = anyio.Event()

    def drop(self) -> None:
        self.taken.set()
        self.done.set()
