"""What a run is, before anybody has joined it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from hydra_net.codec import Cbor, encode

Quorum = Literal["survivors", "majority"]


@dataclass(frozen=True, slots=True)
class Genesis:
    """The terms that all members of a run share; their hash names the run.

    Attributes:
        name: at most 255 characters.
        owner: Ed25519 public key of the run's owner (32 bytes), or None.
        salt: tells runs of one name apart; at most 64 bytes.
        quorum: "survivors": whoever is left goes on, so the parts of a partition may each go on. "majority": a result
            needs more than half of the voters that the last committed record names.
        founders: how many joiners must be there before the first view is made. Under "majority" let no more processes
            than that begin the run (those that come later only join: ``founding_time`` infinity), or two sets of them
            out of touch with each other may each begin a history.
        tie_break: "majority" only: exactly half of the voters suffices if it includes the first one.
    """

    name: str
    owner: bytes | None = None
    salt: bytes = b""
    quorum: Quorum = "survivors"
    founders: int = 1
    tie_break: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 255:
            raise ValueError(f"a run's name has 1 to 255 characters, not {self.name!r}")
        if self.owner is not None and len(self.owner) != 32:
            raise ValueError("the owner is an Ed25519 public key of 32 bytes, or None")
        if len(self.salt) > 64:
            raise ValueError("the salt has at most 64 bytes")
        if self.quorum not in ("survivors", "majority"):
            raise ValueError(f'quorum is "survivors" or "majority", not {self.quorum!r}')
        if not 1 <= self.founders <= 256:
            raise ValueError(f"founders is 1 to 256, not {self.founders}")

    @property
    def run_id(self) -> bytes:
        """SHA-256 over all terms: members that differ in any of them are in different runs."""
        terms: list[Cbor] = [
            "hydra run",
            1,
            self.name,
            self.owner,
            self.salt,
            self.quorum,
            self.founders,
            self.tie_break,
        ]
        return sha256(encode(terms)).digest()

    @property
    def rendezvous(self) -> bytes:
        """The key under which members look for each other: the same for runs that differ only in how they agree."""
        return sha256(encode(["hydra rendezvous", 1, self.name, self.owner, self.salt])).digest()
