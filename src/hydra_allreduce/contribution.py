"""A member's share in a round as it travels round the ring: who it is from, its weight, and what it says of itself.

The arrays go as chunks; this goes beside them, so that a member that has finished the ring holds the whole record.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hydra_allreduce.agreement import Contribution, MemberId, RecordHead, View
from hydra_allreduce.arrays import Layout
from hydra_allreduce.errors import Mismatch
from hydra_allreduce.ring import RingProtocolError
from hydra_net import Cbor, PeerId, decode, encode

MAX_WEIGHT = 2.0**53
"""More than any count of samples; the sum of a group's weights stays far from overflow."""

MAX_METRICS = 32
MAX_METRIC_NAME = 64
_META_LIMIT = 4096
_HEADER_LIMIT = 64 * 1024


def check_weight(weight: object) -> float:
    """Return ``weight`` if it can weigh a contribution: a number above 0 and at most ``MAX_WEIGHT``, numpy's too.

    Raises ``ValueError``.
    """
    if isinstance(weight, numbers.Real) and not isinstance(weight, bool):
        with suppress(OverflowError):  # an int beyond every float
            if 0 < float(weight) <= MAX_WEIGHT:
                return float(weight)
    raise ValueError(f"weight must be a number above 0 and at most 2**53, not {weight!r}")


def check_metrics(metrics: Mapping[str, float]) -> dict[str, Cbor]:
    """Return ``metrics`` as plain floats. Raises ``ValueError`` for too many, too long names or what is no number."""
    if len(metrics) > MAX_METRICS:
        raise ValueError(f"at most {MAX_METRICS} metrics ride along with a round, not {len(metrics)}")
    checked: dict[str, Cbor] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_METRIC_NAME:
            raise ValueError(f"a metric's name is a string of 1 to {MAX_METRIC_NAME} bytes, not {name!r}")
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise ValueError(f"metric {name!r} is no number but {value!r}")
        checked[name] = float(value)
    return checked


def average_metrics(contributions: Sequence[Contribution]) -> dict[str, float]:
    """Average each metric over the contributors that sent it, weighted like their arrays."""
    sums: dict[str, tuple[float, float]] = {}
    for contribution in contributions:
        metrics = contribution.meta.get("metrics")
        if not isinstance(metrics, dict):
            continue
        for name, value in metrics.items():
            if isinstance(name, str) and isinstance(value, float):
                total, weight = sums.get(name, (0.0, 0.0))
                sums[name] = (total + contribution.weight * value, weight + contribution.weight)
    return {name: total / weight for name, (total, weight) in sums.items()}


def encode_meta(contribution: Contribution) -> bytes:
    """What of a contribution goes round the ring beside its arrays."""
    return encode(contribution.to_cbor())


def decode_metas(metas: Sequence[bytes], view: View, me: PeerId) -> tuple[Contribution, ...]:
    """The contributions of a finished reduce-scatter, in ring order.

    Raises ``RingProtocolError`` for what is no contribution of the member that sits there, and ``Mismatch`` naming the
    member whose weight cannot be.
    """
    return tuple(_decode_meta(meta, member, me) for meta, member in zip(metas, view.ring, strict=True))


def _decode_meta(data: bytes, expected: MemberId, me: PeerId) -> Contribution:
    try:
        contribution = Contribution.from_cbor(decode(data, limit=_META_LIMIT))
    except ValueError as error:
        raise RingProtocolError(f"passed on a malformed contribution: {error}") from error
    if contribution.member != expected:
        raise RingProtocolError("passed on the contribution of another member")
    try:
        check_weight(contribution.weight)
    except ValueError as error:
        raise Mismatch(expected.peer, me, "weight", contribution.weight, f"the rule: {error}") from error
    return contribution


def encode_header(round: int, base: RecordHead, layout: Layout) -> bytes:
    """What a member tells its neighbour before the chunks: which round of which history, and of what shape."""
    return encode([round, base.id, layout.encode()])


def check_header(data: bytes, sender: PeerId, me: PeerId, round: int, base: RecordHead, layout: Layout) -> None:
    """Check the previous member's header against our own round.

    Raises ``Mismatch`` if its arrays or operation differ from ours, ``RingProtocolError`` if it is no header of this
    round.
    """
    try:
        value = decode(data, limit=_HEADER_LIMIT)
        match value:
            case [int(their_round), bytes(their_base), bytes(their_layout)]:
                theirs = Layout.decode(their_layout)
            case _:
                raise RingProtocolError("sent something that is no header of a round")
    except ValueError as error:
        raise RingProtocolError(f"sent a malformed header of a round: {error}") from error
    if (their_round, their_base) != (round, base.id):
        raise RingProtocolError(f"is in round {their_round}, this member in round {round}, or of another history")
    if difference := layout.difference(theirs):
        field, their_value, our_value = difference
        raise Mismatch(sender, me, field, their_value, our_value)
