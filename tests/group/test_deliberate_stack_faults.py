"""Faults put into the stack on purpose: the checks of a swarm's trace must catch each of them.

Each fault is a few lines of the group replaced by wrong ones, and the kind of schedule that brings it to light. The
same schedules pass on the code as it is (``test_fault_schedules.py`` runs their like, and the last test these).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from hydra_allreduce import session
from hydra_allreduce.agreement import RoundRecord
from hydra_allreduce.arrays import Array, Layout
from hydra_allreduce.calls import Calls
from hydra_allreduce.results import Result, Results
from hydra_allreduce.ring import exchange
from hydra_allreduce.session import Session
from hydra_allreduce.testing.swarm import (
    COORDINATOR,
    Kill,
    Partition,
    Reset,
    Schedule,
    Swarm,
    Vanish,
    violations,
)

TRIES = 100
RING = 3.0
"""When the ring of the first round begins in schedules that aim at it."""

Patch = pytest.MonkeyPatch


def quiet(seed: int) -> Schedule:
    return Schedule(seed)


def death_in_the_ring(seed: int) -> Schedule:
    """A member dies somewhere in the first two rounds; small windows make for many places to die in."""
    return Schedule(seed, window=512, faults=(Kill(0.0, seed % 4, Random(seed).randrange(200, 6000)),))


def power_lost(seed: int) -> Schedule:
    """The coordinator of two loses power, with what it has sent still under way, when the ring is about to be finished:
    the links are uneven, so that one may have the result and the other not."""
    at = RING + Random(seed).uniform(0.05, 0.2)
    return Schedule(seed, latency=0.0, jitter=0.1, compute=(RING,), faults=(Vanish(at, COORDINATOR),))


def one_cut_off(seed: int) -> Schedule:
    """One of three is out of touch at such a moment, perhaps as the only one that has the result, and comes back when
    the others have run the round without it and think about the next."""
    at = RING + Random(seed).uniform(0.17, 0.3)
    sides = tuple(int(i == seed % 3) for i in range(3))
    return Schedule(seed, latency=0.0, jitter=0.1, compute=(RING,), faults=(Partition(at, sides, 2.0),))


def broken_links(seed: int) -> Schedule:
    """The links round the ring break while it runs, and before."""
    times = Random(seed)
    return Schedule(
        seed,
        latency=0.02,
        compute=(0.05,),
        faults=tuple(Reset(times.uniform(0.0, 0.5), i, (i + 1) % 4) for i in range(4)),
    )


# ------------------------------------------------------------------------------------------------ the faults


def drops_a_sub_chunk(patch: Patch) -> None:
    """Now and then what arrived is not added: every member gets the same wrong sum, and all digests agree."""
    count = 0

    def add(mine: Array, arrived: Array) -> None:
        nonlocal count
        count += 1
        if count % 7:
            np.add(mine, arrived, out=mine)

    patch.setattr(exchange, "add", add)


def adds_twice(patch: Patch) -> None:
    """A chunk that arrives is reduced a second time."""

    def add(mine: Array, arrived: Array) -> None:
        np.add(mine, arrived, out=mine)
        np.add(mine, arrived, out=mine)

    patch.setattr(exchange, "add", add)


def reduces_in_the_callers_array(patch: Patch) -> None:
    """The caller's own arrays are scaled for the ring."""
    honest = Layout.pack

    def pack(layout: Layout, arrays: Any, segments: Sequence[Array], scale: float | None) -> None:
        honest(layout, arrays, segments, scale)
        arrays["codes"][:] = segments[-1]

    patch.setattr(Layout, "pack", pack)


def retries_from_the_broken_buffer(patch: Patch) -> None:
    """An attempt begins with what the one before it has left, not with the caller's input."""
    left: dict[int, list[Array]] = {}
    honest = Layout.pack

    def pack(layout: Layout, arrays: Any, segments: list[Array], scale: float | None) -> None:
        honest(layout, arrays, segments, scale)
        for segment, old in zip(segments, left.get(id(arrays), segments), strict=True):
            segment[:] = old
        left[id(arrays)] = segments

    patch.setattr(Layout, "pack", pack)


def forgets_the_weight_in_a_retry(patch: Patch) -> None:
    """The second attempt adds the arrays unscaled, and still says what they weigh."""
    packed: dict[int, Any] = {}
    honest = Layout.pack

    def pack(layout: Layout, arrays: Any, segments: Sequence[Array], scale: float | None) -> None:
        honest(layout, arrays, segments, None if id(arrays) in packed else scale)
        packed[id(arrays)] = arrays

    patch.setattr(Layout, "pack", pack)


def returns_before_the_commit(patch: Patch) -> None:
    """Whoever has finished the ring returns at once; the others may never get there."""
    honest, commit = Session.ring_finished, Session._commit

    def ring_finished(self: Session, attempt: Any, result: Result) -> None:
        honest(self, attempt, result)
        if self.calls.pending is not None and result.record.round == self.calls.rounds + 1:
            assert self.view is not None
            self.calls.committed(result.record, result, self.view, self.plan, self._now())

    def commit_others(self: Session, record: RoundRecord, jumped: bool) -> None:
        if record.round > self.calls.rounds:
            commit(self, record, jumped)

    patch.setattr(Session, "ring_finished", ring_finished)
    patch.setattr(Session, "_commit", commit_others)


def matches_results_by_round(patch: Patch) -> None:
    """What is kept and fetched is looked up by its round alone, whatever history it belongs to."""
    by_round: dict[tuple[int, int], Result] = {}
    add, get = Results.add, Results.get
    rounds: dict[bytes, int] = {}

    def remember(self: Results, result: Result) -> None:
        rounds[result.record.id] = result.record.round
        by_round.setdefault((id(self), result.record.round), result)
        add(self, result)

    def look_up(self: Results, record: bytes) -> Result | None:
        return by_round.get((id(self), rounds.get(record, -1))) or get(self, record)

    patch.setattr(Results, "add", remember)
    patch.setattr(Results, "get", look_up)


def commits_after_the_first_ready(patch: Patch) -> None:
    """The coordinator does not wait for the others' certificates."""

    class Hasty(session.MemberMachine):
        def _try_commit(self) -> None:
            if self.view and self.view.coordinator == self.id and self.ready:
                head = next(iter(self.ready.values()))
                for member in self.view.ring:
                    self.ready.setdefault(member, head)
            super()._try_commit()

    patch.setattr(session, "MemberMachine", Hasty)


def forgets_who_was_lost(patch: Patch) -> None:
    """Neither the result nor an event says why somebody has gone."""
    patch.setattr(Calls, "gone", lambda *_: None)
    patch.setattr(session, "MemberLost", lambda *_: None)


def keeps_a_broken_ring_to_itself(patch: Patch) -> None:
    """A member whose ring breaks does not tell."""
    patch.setattr(Session, "ring_failed", lambda *_: None)


@dataclass(frozen=True)
class Wrong:
    put_in: Callable[[Patch], None]
    schedule: Callable[[int], Schedule]
    caught_by: tuple[str, ...]
    peers: int = 4


WRONG = [
    Wrong(drops_a_sub_chunk, quiet, ("I2",)),
    Wrong(adds_twice, quiet, ("I2",)),
    Wrong(reduces_in_the_callers_array, quiet, ("I5",)),
    Wrong(retries_from_the_broken_buffer, death_in_the_ring, ("I2",)),
    Wrong(forgets_the_weight_in_a_retry, death_in_the_ring, ("I2",)),
    Wrong(returns_before_the_commit, power_lost, ("I1",), peers=2),
    Wrong(matches_results_by_round, one_cut_off, ("I1",), peers=3),
    Wrong(commits_after_the_first_ready, power_lost, ("I1",), peers=2),
    Wrong(forgets_who_was_lost, death_in_the_ring, ("I8",)),
    Wrong(keeps_a_broken_ring_to_itself, broken_links, ("I3",)),
]


def swarm(peers: int) -> Swarm:
    return Swarm(peers, rounds=3, elements=40, min_peers=min(2, peers - 1))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.put_in.__name__)
def test_the_fault_is_caught(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong.put_in(monkeypatch)
    for seed in range(TRIES):
        broken = violations(swarm(wrong.peers).run(wrong.schedule(seed)))
        if any(text.startswith(wrong.caught_by) for text in broken):
            return
    pytest.fail(f"{TRIES} schedules have not caught it")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.put_in.__name__)
def test_without_it_the_same_schedules_pass(wrong: Wrong) -> None:
    for seed in range(3):
        assert violations(swarm(wrong.peers).run(wrong.schedule(seed))) == []
