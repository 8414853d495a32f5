"""Who may decide without whom, and which of two histories gives way: two questions that must have one answer each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hydra_allreduce.agreement.genesis import Genesis
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.record import Lineage
from hydra_allreduce.agreement.view import View


def is_quorum(present: Collection[MemberId], voters: Sequence[MemberId], genesis: Genesis) -> bool:
    """Say whether ``present`` may decide what follows a record with these voters ("majority" only).

    More than half of the voters are in, or with ``tie_break`` exactly half and the first.
    """
    count = sum(1 for voter in voters if voter in present)
    if 2 * count > len(voters):
        return True
    return genesis.tie_break and 2 * count == len(voters) > 0 and voters[0] in present


def is_certified(ready: Collection[MemberId], voters: Sequence[MemberId], genesis: Genesis) -> bool:
    """Say whether no quorum can be had without one of ``ready`` ("majority" only)."""
    return len(voters) > 0 and not is_quorum([voter for voter in voters if voter not in ready], voters, genesis)


def next_voters(view: View, voters: Sequence[MemberId]) -> tuple[MemberId, ...]:
    """Return the voters of a record that ``view``'s ring makes after a record with ``voters``."""
    kept = tuple(m.id for m in view.members if (m.role == "contributor" or m.id in voters) and m.id not in view.leaving)
    return kept or tuple(view.by_id)


class Side(NamedTuple):
    """One of two views that meet: the history it stands for, its ballot, and how many members it has."""

    top: Lineage
    ballot: Ballot
    size: int


def loses(mine: Side, theirs: Side) -> bool:
    """Say whether ``mine`` gives way to ``theirs``.

    If one history is part of the other nothing is lost, and the lower ballot gives way. If they forked (or are too far
    apart to tell), the one with fewer rounds does, then the smaller view, then the lower ballot. Both sides find the
    same winner, because they compare the same values.
    """
    if mine.top.contains(theirs.top.head) or theirs.top.contains(mine.top.head):
        return mine.ballot < theirs.ballot
    return (mine.top.round, mine.size, mine.ballot) < (theirs.top.round, theirs.size, theirs.ballot)
