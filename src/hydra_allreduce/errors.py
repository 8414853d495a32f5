"""What can go wrong in a group, as types: every error names the peer or the cause and says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from hydra_net import HydraError, PeerId


class GroupError(HydraError):
    """Base of every error that a ``Group`` raises."""


class GroupClosed(GroupError):
    """The group was left or closed; enter a new ``Group`` to take part again."""


class GroupFailed(GroupError):
    """The group's own machinery broke; ``__cause__`` has the reason. Enter a new ``Group`` to take part again."""


class TooFewPeers(GroupError):
    """No view with ``min_peers`` members, or with somebody who has the last result, could be had for a whole lease.

    The group goes on trying. The call's arrays stay in their round: call again to wait on for it, or leave.
    """

    def __init__(self, min_peers: int, reason: str) -> None:
        super().__init__(
            f"no round can be run (min_peers={min_peers}): {reason}; call again to wait for more, or leave"
        )
        self.min_peers = min_peers


class FellBehind(GroupError):
    """The group committed rounds that this member can no longer fetch; this call's arrays are in none of them."""

    def __init__(self, round: int, now: int) -> None:
        super().__init__(
            f"the call belonged to round {round}, the group is past it (round {now}) and keeps only its last results; "
            f"bring your state up to date and call again"
        )
        self.round = round
        self.now = now


class Superseded(GroupError):
    """The group split, and after healing the other part had made more progress: these rounds were given up."""

    def __init__(self, rounds: Sequence[int]) -> None:
        super().__init__(
            f"the group had split; rounds {list(rounds)} of this part were given up in favour of the other part's; "
            f"bring your state up to date and call again"
        )
        self.rounds = tuple(rounds)


class Diverged(GroupError):
    """Two members finished the same round with different results: bad hardware or a broken member."""


class Mismatch(GroupError):
    """Two members called the same round with arrays, operations or weights that do not fit together.

    Every member's call raises it; the group lives on and the round can be called again.

    Attributes:
        peer: one of the two, with ``theirs``.
        other: the member that found it, with ``ours``.
        field: what differs: "op", "names", "shape of 'w'", "weight", ...
    """

    def __init__(self, peer: PeerId, other: PeerId, field: str, theirs: object, ours: object) -> None:
        super().__init__(
            f"peer {peer} called with {field} = {theirs}, peer {other} with {ours}; "
            f"all members must call a round with the same names, shapes, dtypes and op"
        )
        self.peer = peer
        self.other = other
        self.field = field
        self.theirs = theirs
        self.ours = ours
