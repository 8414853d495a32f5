"""Hypothesis strategies for fault schedules. The only part of this package that needs Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from hydra_allreduce.testing import schedule as faults
from hydra_allreduce.testing.schedule import Fault, Moment, Schedule

__all__ = ["schedules"]


def schedules(*, steps: int = 120, rounds: int = 4, max_faults: int = 8) -> st.SearchStrategy[Schedule]:
    """Draw schedules for groups of any size: at most ``max_faults`` faults in up to ``steps`` steps."""
    at = st.integers(0, steps - 1)
    who = st.integers(0, 9)
    moment: st.SearchStrategy[Moment] = st.sampled_from(["once", "ready", "commit", "promise", "install"])
    fault: st.SearchStrategy[Fault] = st.one_of(
        st.builds(faults.Crash, at, who, st.booleans(), moment),
        st.builds(faults.Restart, at, who),
        st.builds(faults.Close, at, who),
        st.builds(faults.Pause, at, who, st.integers(1, 80), moment),
        st.builds(faults.Partition, at, st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)),
        st.builds(faults.Heal, at),
        st.builds(faults.Cut, at, who, who),
        st.builds(faults.Suspect, at, who, who),
        st.builds(faults.Duel, at, who, who),
        st.builds(faults.Late, at, who),
        st.builds(faults.Leave, at, who),
        st.builds(faults.Join, at, who),
        st.builds(faults.Break, at, who, who, st.booleans()),
        st.builds(faults.Void, at, who),
    )
    return st.builds(
        Schedule,
        seed=st.integers(0, 2**32 - 1),
        steps=st.integers(1, steps),
        rounds=st.integers(1, rounds),
        drop=st.sampled_from([0.0, 0.0, 0.02, 0.1]),
        tick=st.sampled_from([0.01, 0.03, 0.08]),
        fifo=st.booleans(),
        founding=st.sampled_from(["warm", "calm", "wild"]),
        heal=st.booleans(),
        faults=st.lists(fault, max_size=max_faults).map(tuple),
    )
