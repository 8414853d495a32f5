"""Members and records as a group makes them, for tests of what plans the next round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from hydra_allreduce.agreement import Ballot, Contribution, Member, MemberId, RoundRecord
from hydra_net import PeerId
from hydra_net.codec import Cbor


def peer(number: int) -> PeerId:
    """A peer with an id that looks drawn at random."""
    return PeerId(hashlib.sha256(f"peer {number}".encode()).digest())


def member(number: int, role: str = "contributor") -> Member:
    """A member of a view."""
    return Member(peer(number), 1000 + number, "contributor" if role == "contributor" else "follower")


def members(count: int) -> list[Member]:
    """Contributors 0 to count - 1, in that order of seniority."""
    return [member(number) for number in range(count)]


def contribution(number: int, weight: float, meta: Mapping[str, Cbor]) -> Contribution:
    """What ``number`` put into a round."""
    return Contribution(MemberId(peer(number), 1000 + number), 1, weight, meta)


def job(number: int, samples: int, microseconds: int) -> Contribution:
    """An honest report: so many samples in so many microseconds."""
    return contribution(number, float(samples), {"n": samples, "us": microseconds})


def record(round: int, contributions: Sequence[Contribution], *, ballot: int = 1) -> RoundRecord:
    """A committed round. Records with other contributions have other ids."""
    proposer = MemberId(peer(0), 1000)
    return RoundRecord(round, bytes(32), Ballot(ballot, proposer), tuple(contributions), bytes(32), ())
