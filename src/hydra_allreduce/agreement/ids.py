"""Names: of members (a process, not a machine) and of ballots."""

from __future__ import annotations

from typing import NamedTuple

from hydra_allreduce.agreement.shape import array, blob, number
from hydra_net.codec import Cbor
from hydra_net.identity import PeerId


class MemberId(NamedTuple):
    """One process of one peer. A restarted one draws a new incarnation: a new member, without the old one's vote."""

    peer: PeerId
    incarnation: int

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [bytes(self.peer), self.incarnation]

    @staticmethod
    def from_cbor(value: Cbor) -> MemberId:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        peer, incarnation = array(value, 2, "member id")
        return MemberId(PeerId(blob(peer, "peer id", size=32)), number(incarnation, "incarnation"))

    def __str__(self) -> str:
        return f"{self.peer.short}/{self.incarnation & 0xFFFF:04x}"


class Ballot(NamedTuple):
    """A numbered proposal, compared by number and then by proposer; used for at most one view."""

    n: int
    proposer: MemberId

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [self.n, self.proposer.to_cbor()]

    @staticmethod
    def from_cbor(value: Cbor) -> Ballot:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        n, proposer = array(value, 2, "ballot")
        return Ballot(number(n, "ballot number", at_most=2**62), MemberId.from_cbor(proposer))

    def __str__(self) -> str:
        return f"{self.n}.{self.proposer}"


NO_BALLOT = Ballot(0, MemberId(PeerId(bytes(32)), 0))
"""Lower than every ballot of a view."""
