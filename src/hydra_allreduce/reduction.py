"""What a round returns to its callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hydra_allreduce.agreement import RoundRecord, View
from hydra_allreduce.planning import Plan
from hydra_net import PeerId

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a member is no longer there.

    Attributes:
        cause: in words: "left", "connection lost: ...", "silent for 3.0 s inside a round", ...
        contributed: whether its share is in the result all the same.
    """

    cause: str
    contributed: bool


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one call went, in seconds of this member's clock.

    Attributes:
        total: from the call to the commit.
        waiting: until everything was there to start the last attempt: late members, view changes, earlier attempts.
        reduce: the last attempt's ring, from the first byte to the finished result.
        agree: from the finished result to the commit.
    """

    total: float
    waiting: float
    reduce: float
    agree: float


@dataclass(frozen=True, slots=True)
class Reduction(Generic[A]):
    """One committed round, the same on every member that returns from it, to the bit.

    Attributes:
        arrays: the result in the structure of the call: read-only views of the group's buffer (``out=`` if given).
        round: the number of the round, from 1.
        view: the membership that committed it, as seen by this member.
        contributed: whether this member's arrays are in the result.
        contributors: the weight of everybody whose arrays are in the result.
        total_weight: the sum of those weights.
        metrics: each metric averaged over the contributors that sent it, by weight.
        lost: who went since the round before, and why.
        plan: the job sizes for the next round; None without a planner.
        record: the committed record: the same bytes on every member.
        attempts: how often this member's ring ran for the round; more than one after a failure.
        timings: where the time went.
    """

    arrays: A
    round: int
    view: View
    contributed: bool
    contributors: Mapping[PeerId, float]
    total_weight: float
    metrics: Mapping[str, float]
    lost: Mapping[PeerId, Lost]
    plan: Plan | None
    record: RoundRecord
    attempts: int
    timings: Timings
