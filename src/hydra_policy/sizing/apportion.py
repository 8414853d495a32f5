"""Cut a whole number into parts in proportion to weights, between bounds, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hydra_net import PeerId


class Bounds(NamedTuple):
    """The least and the most that one part may be, both included."""

    low: int
    high: int


def apportion(weights: Mapping[PeerId, int], total: int, bounds: Mapping[PeerId, Bounds]) -> dict[PeerId, int]:
    """Parts of ``total``, one per peer in the order of ``weights``: proportional to the weights, within the bounds.

    A share outside its bounds is put on the bound and the rest is shared out among the others again (the resolution of
    flexible lengths in CSS, section 9.7 of the flexbox specification, which is waterfilling). Fractions are rounded by
    largest remainder (Hamilton), the smaller peer id first where remainders are equal. Integers throughout, so the
    result is the same on every machine and does not depend on the order of the peers.

    Args:
        weights: whole numbers >= 1.
        total: what the parts add up to.
        bounds: for every peer in ``weights``; 0 <= low <= high.

    Raises:
        ValueError: the bounds cannot be met.
    """
    low, high = sum(bounds[p].low for p in weights), sum(bounds[p].high for p in weights)
    if not low <= total <= high:
        raise ValueError(f"{total} samples cannot be shared out between bounds that add up to {low} and {high}")
    parts: dict[PeerId, int] = {}
    free = dict(weights)
    while free:
        weight, rest = sum(free.values()), total - sum(parts.values())
        # A peer's fair share is rest * its weight / weight; everything below is multiplied by weight.
        clipped = {p: min(max(rest * w, bounds[p].low * weight), bounds[p].high * weight) for p, w in free.items()}
        excess = sum(clipped[p] - rest * w for p, w in free.items())
        if excess > 0:
            stuck = {p: bounds[p].low for p, w in free.items() if rest * w < bounds[p].low * weight}
        elif excess < 0:
            stuck = {p: bounds[p].high for p, w in free.items() if rest * w > bounds[p].high * weight}
        else:
            parts |= _round(clipped, weight, rest=rest)
            break
        parts |= stuck
        free = {p: w for p, w in free.items() if p not in stuck}
    return {p: parts[p] for p in weights}


def _round(shares: Mapping[PeerId, int], weight: int, rest: int) -> dict[PeerId, int]:
    """Round ``shares / weight``, which add up to ``rest``."""
    parts = {p: share // weight for p, share in shares.items()}
    by_remainder = sorted(shares, key=lambda p: (-(shares[p] % weight), p))
    for p in by_remainder[: rest - sum(parts.values())]:
        parts[p] += 1
    return parts
