"""Test a group, and what you build on one, against everything that can go wrong.

At model level: ``Model(n).run(schedule)`` runs real members without any I/O, and ``check(trace)`` says what must hold.
``schedule.as_code()`` prints a snippet that runs it again. ``testing.strategies.schedules()`` is a Hypothesis strategy,
and the only thing here that needs Hypothesis.
"""

from hydra_allreduce.testing.invariants import ALL, InvariantBroken, check, violations
from hydra_allreduce.testing.model import Model, random_run
from hydra_allreduce.testing.schedule import (
    Break,
    Close,
    Crash,
    Cut,
    Duel,
    Fault,
    Heal,
    Join,
    Late,
    Leave,
    Partition,
    Pause,
    Restart,
    Schedule,
    Suspect,
    Void,
    random_schedule,
)
from hydra_allreduce.testing.trace import Trace

__all__ = [
    "ALL",
    "Break",
    "Close",
    "Crash",
    "Cut",
    "Duel",
    "Fault",
    "Heal",
    "InvariantBroken",
    "Join",
    "Late",
    "Leave",
    "Model",
    "Partition",
    "Pause",
    "Restart",
    "Schedule",
    "Suspect",
    "Trace",
    "Void",
    "check",
    "random_run",
    "random_schedule",
    "violations",
]
