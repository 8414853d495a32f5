"""Committed rounds: each record names the one before, so one id names a whole history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

from hydra_allreduce.agreement.genesis import Genesis
from hydra_allreduce.agreement.ids import NO_BALLOT, Ballot, MemberId
from hydra_allreduce.agreement.shape import array, blob, items, number, text
from hydra_net.codec import Cbor, decode, encode

RecordId = bytes
"""SHA-256 of a record's canonical bytes."""

LINEAGE = 32
"""How many ids of a history travel along, so that a prefix and a fork can be told apart."""

MAX_RECORD = 4 * 2**20
MAX_RECORD_ITEMS = 2**17
MAX_META = 64


class RecordHead(NamedTuple):
    """A record by name: its round, its id, and the id of the record before it."""

    round: int
    id: RecordId
    prev: RecordId

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.round, self.id, self.prev]

    @staticmethod
    def from_cbor(value: Cbor) -> RecordHead:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        round_, id_, prev = array(value, 3, "record head")
        return RecordHead(
            number(round_, "round"), blob(id_, "record id", size=32), blob(prev, "previous record id", size=32)
        )


@dataclass(frozen=True, slots=True)
class Lineage:
    """The last ids of a history, oldest first; the id before the genesis record is the run's.

    Attributes:
        round: the round of the last id.
        ids: 2 to ``LINEAGE`` ids.
    """

    round: int
    ids: tuple[RecordId, ...]

    @property
    def head(self) -> RecordHead:
        """The last record of the history."""
        return RecordHead(self.round, self.ids[-1], self.ids[-2])

    def at(self, round_: int) -> RecordId | None:
        """Return the id of that round's record, or None if it is not among those known."""
        back = self.round - round_
        return self.ids[-1 - back] if 0 <= back < len(self.ids) else None

    def contains(self, head: RecordHead) -> bool:
        """Say whether that record is known to be in this history (the last one counts)."""
        return self.at(head.round) == head.id

    def forked_from(self, other: Lineage) -> bool:
        """Say whether the two histories are known to hold different records of one round."""
        low = min(self.round, other.round)
        mine, theirs = self.at(low), other.at(low)
        return mine is not None and theirs is not None and mine != theirs

    def extended(self, head: RecordHead) -> Lineage:
        """Return the history after that record: this one and it, or all that is known if it does not follow."""
        if head.prev == self.ids[-1] and head.round == self.round + 1:
            return Lineage(head.round, (*self.ids[1 - LINEAGE :], head.id))
        return Lineage(head.round, (head.prev, head.id))

    def upto(self, head: RecordHead) -> Lineage:
        """Return this history cut off after that record, or what the record says of itself if it is not in here."""
        back = self.round - head.round
        if self.contains(head) and len(self.ids) - back >= 2:
            return Lineage(head.round, self.ids[: len(self.ids) - back])
        return Lineage(head.round, (head.prev, head.id))

    def given_up_for(self, other: Lineage) -> tuple[int, ...]:
        """Return the rounds in which this history is known to differ from ``other``, or to go on beyond the fork."""
        if not self.forked_from(other):
            return ()
        first = self.round - len(self.ids) + 1
        return tuple(
            r for r in range(max(first, 1), self.round + 1) if other.at(r) != self.at(r) and not other.before(r)
        )

    def before(self, round_: int) -> bool:
        """Say whether that round is older than all ids known."""
        return round_ <= self.round - len(self.ids)

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.round, list(self.ids)]

    @staticmethod
    def from_cbor(value: Cbor) -> Lineage:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        round_, ids = array(value, 2, "lineage")
        last = number(round_, "round")
        read = items(
            ids, lambda v: blob(v, "record id", size=32), "lineage ids", at_least=2, at_most=min(LINEAGE, last + 2)
        )
        return Lineage(last, tuple(read))


@dataclass(frozen=True, slots=True)
class Contribution:
    """One member's share in a round.

    Attributes:
        member: whose.
        call: the number of the member's call: its input is in a history at most once.
        weight: finite and > 0, or 0 for a member that took part without data of its own.
        meta: what the member says of its share (plan number, timings, metrics); travels round the ring with the data.
    """

    member: MemberId
    call: int
    weight: float
    meta: Mapping[str, Cbor]

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.member.to_cbor(), self.call, self.weight, dict(self.meta)]

    @staticmethod
    def from_cbor(value: Cbor) -> Contribution:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        member, call, weight, meta = array(value, 4, "contribution")
        if type(weight) is not float or not math.isfinite(weight) or weight < 0:
            raise ValueError("weight is no finite number >= 0")
        if not isinstance(meta, dict) or len(meta) > MAX_META:
            raise ValueError(f"meta is no map of at most {MAX_META} entries")
        return Contribution(
            MemberId.from_cbor(member),
            number(call, "call"),
            weight,
            {text(key, "meta key"): entry for key, entry in meta.items()},
        )


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A finished round: who is in it with what, and the digest of the result. Complete when the ring ends.

    Attributes:
        round: from 1; 0 is the genesis record.
        prev: id of the record of the round before (of the genesis record: the run's id).
        ballot: of the view whose ring made it.
        contributions: in ring order.
        digest: of the result's bytes; at most 64 bytes.
        voters: "majority" only: who counts for the next round's quorum. Fixed with the record.
    """

    round: int
    prev: RecordId
    ballot: Ballot
    contributions: tuple[Contribution, ...]
    digest: bytes
    voters: tuple[MemberId, ...]
    _id: RecordId | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def id(self) -> RecordId:
        """SHA-256 of the canonical bytes."""
        if self._id is None:
            object.__setattr__(self, "_id", sha256(self.encode()).digest())
        assert self._id is not None
        return self._id

    @property
    def head(self) -> RecordHead:
        """The record by name."""
        return RecordHead(self.round, self.id, self.prev)

    def contribution(self, member: MemberId) -> Contribution | None:
        """Return that member's share, or None."""
        return next((c for c in self.contributions if c.member == member), None)

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode(
            [
                self.round,
                self.prev,
                self.ballot.to_cbor(),
                [c.to_cbor() for c in self.contributions],
                self.digest,
                [v.to_cbor() for v in self.voters],
            ]
        )

    @staticmethod
    def decode(data: bytes) -> RoundRecord:
        """Read what ``encode`` made. Raises ValueError on everything else."""
        round_, prev, ballot, contributions, digest, voters = array(
            decode(data, limit=MAX_RECORD, max_items=MAX_RECORD_ITEMS), 6, "record"
        )
        shares = items(contributions, Contribution.from_cbor, "contributions")
        members = [c.member for c in shares]
        if len(set(members)) != len(members):
            raise ValueError("a member contributes twice to one record")
        votes = items(voters, MemberId.from_cbor, "voters")
        if len(set(votes)) != len(votes):
            raise ValueError("a voter is named twice")
        return RoundRecord(
            number(round_, "round"),
            blob(prev, "previous record id", size=32),
            Ballot.from_cbor(ballot),
            tuple(shares),
            blob(digest, "digest"),
            tuple(votes),
        )


def genesis_record(genesis: Genesis) -> RoundRecord:
    """Return the record of round 0 that every history of the run begins with. It has no voters yet."""
    return RoundRecord(0, genesis.run_id, NO_BALLOT, (), b"", ())


Kind = Literal["committed", "held"]
"""What a record that is being fetched is: committed already, or finished and carried by the view."""
