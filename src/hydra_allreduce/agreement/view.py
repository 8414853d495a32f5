"""Views: who is in the group, in what role, and what the next round starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

from hydra_allreduce.agreement.ids import NO_BALLOT, Ballot, MemberId
from hydra_allreduce.agreement.record import RecordHead
from hydra_allreduce.agreement.shape import array, blob, items, number, optional, text
from hydra_net.codec import Cbor, encode
from hydra_net.identity import PeerId

__all__ = ["NO_BALLOT", "Ballot", "Departure", "Link", "Member", "MemberId", "Role", "View"]

Role = Literal["contributor", "follower"]
MAX_ADDRESSES = 4
MAX_ADDRESS = 100
MAX_CAUSE = 200
MAX_LOST = 64


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a view.

    Attributes:
        peer: whose process it is.
        incarnation: which of that peer's processes.
        role: "contributor": in the ring. "follower": gets each committed result, holds nobody up.
        addresses: where it can be dialled; at most 4, of at most 200 characters.
        wire: its wire version.
    """

    peer: PeerId
    incarnation: int
    role: Role = "follower"
    addresses: tuple[str, ...] = ()
    wire: int = 1

    @property
    def id(self) -> MemberId:
        """The process by name."""
        return MemberId(self.peer, self.incarnation)

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [bytes(self.peer), self.incarnation, self.role == "contributor", list(self.addresses), self.wire]

    @staticmethod
    def from_cbor(value: Cbor) -> Member:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        peer, incarnation, contributor, addresses, wire = array(value, 5, "member")
        if not isinstance(contributor, bool):
            raise ValueError("role is no boolean")
        return Member(
            PeerId(blob(peer, "peer id", size=32)),
            number(incarnation, "incarnation"),
            "contributor" if contributor else "follower",
            tuple(items(addresses, _address, "addresses", at_most=MAX_ADDRESSES)),
            number(wire, "wire version", at_most=2**32),
        )


def _address(value: Cbor) -> str:
    address = text(value, "address", at_most=MAX_ADDRESS)
    if not address.isascii():
        raise ValueError("an address has other characters than ASCII's")
    return address


class Link(NamedTuple):
    """A data link that broke while both ends answered, and the round in which that was found."""

    a: MemberId
    b: MemberId
    round: int

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.a.to_cbor(), self.b.to_cbor(), self.round]

    @staticmethod
    def from_cbor(value: Cbor) -> Link:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        a, b, round_ = array(value, 3, "link")
        return Link(MemberId.from_cbor(a), MemberId.from_cbor(b), number(round_, "round"))


class Departure(NamedTuple):
    """A member that is gone, and why, in words of at most 200 characters."""

    member: MemberId
    cause: str

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.member.to_cbor(), self.cause]

    @staticmethod
    def from_cbor(value: Cbor) -> Departure:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        member, cause = array(value, 2, "departure")
        return Departure(MemberId.from_cbor(member), text(cause, "cause", at_most=MAX_CAUSE))


@dataclass(frozen=True, slots=True)
class View:
    """A membership that was agreed on. One ballot makes at most one view.

    Attributes:
        ballot: its name; ``ballot.proposer`` is ``members[0]``.
        members: in order of seniority; the first coordinates.
        ring: the contributors in ring order.
        leaving: members that want to leave and could not be let go yet.
        base: the last committed record when the view was made.
        carry: a finished record of the round after ``base`` that this view must commit, or None.
        avoid: broken links that the ring was laid around.
        lost: who went since ``base`` and why: the same on every member.
        founders: "majority", before the first commit: the voters, for the genesis record names none. They are the
            members of the first view, handed on from view to view.
        me: whose copy this is; neither compared nor sent.
    """

    ballot: Ballot
    members: tuple[Member, ...]
    ring: tuple[MemberId, ...]
    leaving: tuple[MemberId, ...]
    base: RecordHead
    carry: RecordHead | None = None
    avoid: tuple[Link, ...] = ()
    lost: tuple[Departure, ...] = ()
    founders: tuple[MemberId, ...] = ()
    me: MemberId | None = field(default=None, compare=False)
    _attempt: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _index: dict[MemberId, Member] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def by_id(self) -> Mapping[MemberId, Member]:
        """The members by name, in order of seniority."""
        if self._index is None:
            object.__setattr__(self, "_index", {m.id: m for m in self.members})
        assert self._index is not None
        return self._index

    @property
    def attempt(self) -> bytes:
        """SHA-256 of the canonical bytes: frames of members that were sent different views never mix."""
        if self._attempt is None:
            object.__setattr__(self, "_attempt", sha256(encode(self.to_cbor())).digest())
        assert self._attempt is not None
        return self._attempt

    @property
    def coordinator(self) -> MemberId:
        """The most senior member."""
        return self.ballot.proposer

    @property
    def contributors(self) -> tuple[MemberId, ...]:
        """Who is in the ring, in ring order."""
        return self.ring

    @property
    def followers(self) -> tuple[MemberId, ...]:
        """Who is not in the ring, in order of seniority."""
        return tuple(m.id for m in self.members if m.role == "follower")

    @property
    def rank(self) -> int | None:
        """This member's place in the ring; None for a follower."""
        return self.ring.index(self.me) if self.me in self.ring else None

    @property
    def world_size(self) -> int:
        """How many contribute."""
        return len(self.ring)

    def seen_by(self, me: MemberId) -> View:
        """Return the same view as ``me``'s copy."""
        mine = View(
            self.ballot,
            self.members,
            self.ring,
            self.leaving,
            self.base,
            self.carry,
            self.avoid,
            self.lost,
            self.founders,
            me,
        )
        object.__setattr__(mine, "_attempt", self._attempt)
        object.__setattr__(mine, "_index", self._index)
        return mine

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec. ``encode`` of it gives the canonical bytes."""
        return [
            self.ballot.to_cbor(),
            [m.to_cbor() for m in self.members],
            [m.to_cbor() for m in self.ring],
            [m.to_cbor() for m in self.leaving],
            self.base.to_cbor(),
            None if self.carry is None else self.carry.to_cbor(),
            [link.to_cbor() for link in self.avoid],
            [d.to_cbor() for d in self.lost],
            [m.to_cbor() for m in self.founders],
        ]

    @staticmethod
    def from_cbor(value: Cbor) -> View:
        """Read what ``to_cbor`` made. Raises ValueError on everything else, and on views that nobody may make."""
        ballot, members, ring, leaving, base, carry, avoid, lost, founders = array(value, 9, "view")
        view = View(
            Ballot.from_cbor(ballot),
            tuple(items(members, Member.from_cbor, "members", at_least=1)),
            tuple(items(ring, MemberId.from_cbor, "ring", at_least=1)),
            tuple(items(leaving, MemberId.from_cbor, "leaving")),
            RecordHead.from_cbor(base),
            optional(carry, RecordHead.from_cbor),
            tuple(items(avoid, Link.from_cbor, "avoided links")),
            tuple(items(lost, Departure.from_cbor, "departures")),
            tuple(items(founders, MemberId.from_cbor, "founders")),
        )
        view.validate()
        return view

    def validate(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        known = self.by_id
        if len(known) != len(self.members):
            raise ValueError("a member is listed twice")
        if self.members[0].id != self.ballot.proposer:
            raise ValueError("the first member is not the proposer")
        contributors = {m.id: None for m in self.members if m.role == "contributor"}
        if len(self.ring) != len(contributors) or any(m not in contributors for m in self.ring):
            raise ValueError("the ring is no order of the contributors")
        if len(dict.fromkeys(self.ring)) != len(self.ring):
            raise ValueError("a contributor is in the ring twice")
        if any(m not in known for m in self.leaving):
            raise ValueError("somebody is leaving who is no member")
        if self.carry and (self.carry.prev != self.base.id or self.carry.round != self.base.round + 1):
            raise ValueError("the carried record does not follow the base")
