"""What the contributions of a round say about the speed of their makers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hydra_net import PeerId

if TYPE_CHECKING:
    from hydra_allreduce.agreement import RoundRecord

# A job that took longer than a day, or had more samples than this, is not worth believing.
_MAX_MICROSECONDS = 24 * 3600 * 1_000_000
_MAX_SAMPLES = 2**31 - 1


class Measurement(NamedTuple):
    """One peer's job in one round."""

    samples: int
    microseconds: int


def measurements(record: RoundRecord) -> dict[PeerId, Measurement]:
    """The jobs in a record, as their makers reported them; what is not believable is left out.

    ``meta`` of a contribution is what its maker wrote: "us", the microseconds between the plan and the call, and "n",
    the samples. Counted are only whole numbers from 1 up to a day and 2**31 - 1 samples, and "n" must be the weight
    with which the contribution went into the mean: a peer cannot claim samples that it was not given.
    """
    found = {}
    for contribution in record.contributions:
        samples, micros = contribution.meta.get("n"), contribution.meta.get("us")
        if (
            _whole(samples, _MAX_SAMPLES)
            and _whole(micros, _MAX_MICROSECONDS)
            and isinstance(samples, int)
            and isinstance(micros, int)
            and samples == contribution.weight
        ):
            found[contribution.member.peer] = Measurement(samples, micros)
    return found


def _whole(value: object, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high
