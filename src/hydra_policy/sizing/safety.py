"""The layer around every sizer, a user's own too: whatever a proposal says, the plan adds up and stays in bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydra_net import PeerId
from hydra_policy.sizing.apportion import Bounds, apportion
from hydra_policy.sizing.sizers import Decision


@dataclass(frozen=True, slots=True)
class Safety:
    """Limits that hold for every plan.

    Attributes:
        growth: a peer's job grows by at most this factor from one round to the next, so that one wrong measurement
            (or a lie about one's speed) cannot hand somebody the whole batch at once. It gives way where the batch
            could not be shared out otherwise, after many have gone.
    """

    growth: int = 4

    def __post_init__(self) -> None:
        if self.growth < 2:
            raise ValueError(f"growth is {self.growth}; at least 2 is needed for sizes to change at all")

    def bounds(self, peers: Sequence[PeerId], last: Mapping[PeerId, int], batch: int) -> dict[PeerId, Bounds]:
        """What each of ``peers`` may get, given the samples that each contributed to the last round.

        The same on all members, because all of them know the last record. With at least as many samples as peers
        everybody gets one or more; a peer that was not in the last round is bounded by the batch alone.
        """
        low = 1 if batch >= len(peers) else 0
        growth = self.growth
        if all(peer in last for peer in peers):
            growth = max(growth, -(-batch // sum(last[peer] for peer in peers)))
        return {p: Bounds(low, min(batch, growth * last[p]) if p in last else batch) for p in peers}

    def enforce(self, decision: Decision, bounds: Mapping[PeerId, Bounds], batch: int) -> dict[PeerId, int]:
        """The sizes nearest to what ``decision`` wanted that add up to ``batch`` within ``bounds``.

        Peers that it leaves out get 0 if the others can take the batch; what it does not mention gets the least.
        """
        allowed = {p: Bounds(0, 0) if p in decision.left_out else b for p, b in bounds.items()}
        if sum(b.high for b in allowed.values()) < batch:
            allowed = dict(bounds)
        wanted = {p: _usable(decision.sizes.get(p, 0), batch) for p in bounds}
        if sum(wanted.values()) == batch and all(b.low <= wanted[p] <= b.high for p, b in allowed.items()):
            return wanted
        # Weights are at least 1: somebody has to take the batch even if the sizer wanted to give nothing to anybody.
        return apportion({p: max(1, size) for p, size in wanted.items()}, batch, allowed)


def _usable(size: object, batch: int) -> int:
    if not isinstance(size, int) or isinstance(size, bool):
        return 0
    return min(max(size, 0), batch)
