"""How much a node takes from others. Every number here is enforced."""

from __future__ import annotations

import dataclasses

__all__ = ["Limits"]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one node; sizes in bytes, times in seconds. Raises ValueError if one is not positive."""

    frame: int = 256 * 1024
    """The longest control frame, sent or received. What a group of 256 members says of itself fits."""

    hello: int = 4 * 1024
    """The longest frame of a handshake: read before anything is known about the peer."""

    handshake: float = 10.0
    """A handshake that takes longer ends."""

    half_open: int = 256
    """Incoming handshakes under way at a time; one more ends the oldest."""

    connections: int = 320
    """Control connections; the one that was used least recently goes when there are more. More than a group has
    members, or its connections would push out each other."""

    streams: int = 1024
    """Incoming bulk streams open at a time; more are refused."""

    streams_per_peer: int = 64
    """Incoming bulk streams of one peer open at a time."""

    requests: int = 128
    """Requests of one peer being answered at a time by user's handlers; more are answered with "busy"."""

    calls: int = 1024
    """Own calls to one peer awaiting an answer at a time; further callers wait."""

    queue: int = 4 * 1024 * 1024
    """Bytes queued for one peer; then posts to it are dropped, callers wait, and an answer beyond twice that
    ends the connection (its peer asks without reading)."""

    keep_alive: float = 20.0
    """A ping is sent when nothing was for this long; a connection silent for three times that is closed."""

    addresses_per_peer: int = 8
    """Addresses remembered of one peer; the oldest go."""

    known_peers: int = 4096
    """Peers that are remembered with their addresses; the first to go are those learned the longest ago."""

    events: int = 1024
    """Events queued for one subscriber; one that falls further behind loses the oldest and is told how many."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"the limit {field.name!r} has to be greater than zero")
