"""What a node tells its owner about the peers around it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.lowlevel

from hydra_net.errors import NodeFailed, PeerUnreachable
from hydra_net.identity import PeerId

__all__ = ["ConnectFailed", "EventStream", "EventsLost", "NodeEvent", "PeerConnected", "PeerDisconnected"]


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A control connection to a peer exists where there was none."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The last control connection to a peer is gone. ``cause`` says why."""

    peer: PeerId
    cause: Exception


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """A peer could not be reached at any address; what had been posted to it meanwhile is dropped."""

    peer: PeerId
    cause: PeerUnreachable


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The subscriber fell behind; ``count`` events older than the next one were dropped."""

    count: int


NodeEvent: TypeAlias = PeerConnected | PeerDisconnected | ConnectFailed | EventsLost


class EventStream:
    """The events since it was opened, for one task to iterate over. Ends when the node is closed.

    Raises NodeFailed, after what had happened before, if the node fails. Cancellation loses nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[NodeEvent] = deque()
        self._lost = 0
        self._wake = anyio.Event()
        self._end: NodeFailed | StopAsyncIteration | None = None

    def put(self, event: NodeEvent) -> None:
        """Add an event. Never blocks: the oldest goes if there are too many."""
        if len(self._events) >= self._limit:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self._wake.set()

    def end(self, failure: NodeFailed | None) -> None:
        """No event follows."""
        self._end = failure or StopAsyncIteration()
        self._wake.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> NodeEvent:
        await anyio.lowlevel.checkpoint()
        while not self._events:
            if self._end is not None:
                raise self._end
            self._wake = anyio.Event()
            await self._wake.wait()
        if self._lost:
            lost, self._lost = self._lost, 0
            return EventsLost(lost)
        return self._events.popleft()
