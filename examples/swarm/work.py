"""What one peer is to do, and how a launcher tells it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from swarm.settings import Settings


@dataclass(frozen=True)
class Work:
    """The work of one peer of a swarm.

    Attributes:
        settings: what all peers agree on.
        number: which peer of its launcher this is.
        siblings: the ids of all peers of the launcher, by number.
        secret: the seed of its identity, 32 bytes in hexadecimal.
        listen: where it listens.
        waits: whether its launcher will send addresses to join on a second line.
        backend: "trio" or "asyncio".
        delay: seconds added to each job.
        slow: by which factor it computes slower.
        kill_round: in this round it kills itself inside the all-reduce; 0 for never.
    """

    settings: Settings
    number: int
    siblings: list[str]
    secret: str
    listen: str
    waits: bool
    backend: str = "trio"
    delay: float = 0.0
    slow: float = 1.0
    kill_round: int = 0

    def encode(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Work:
        """The work that ``encode`` wrote."""
        value = json.loads(line)
        return cls(**{**value, "settings": Settings(**value["settings"])})


def encode_join(addresses: list[str]) -> bytes:
    """The second line: the addresses to join."""
    return json.dumps(addresses).encode() + b"\n"


def decode_join(line: bytes) -> list[str]:
    """The addresses that ``encode_join`` wrote."""
    return [str(address) for address in json.loads(line)]
