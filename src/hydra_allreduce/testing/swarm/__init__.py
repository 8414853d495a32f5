"""Groups at stack level: real nodes, connections and rounds on a network in memory, under a virtual clock.

``Swarm(n).run(schedule)`` runs ``n`` peers while the schedule's faults strike, and ``check(trace)`` says what must
hold, whatever happened. ``schedule.as_code()`` prints a snippet that runs it again. A swarm may run a loop of your own.
"""

from hydra_allreduce.testing.swarm.check import ALL, InvariantBroken, check, violations
from hydra_allreduce.testing.swarm.draw import random_run, random_schedule, random_swarm, schedules
from hydra_allreduce.testing.swarm.faults import (
    COORDINATOR,
    Cut,
    Fault,
    Kill,
    Partition,
    Pause,
    Reset,
    Schedule,
    Slow,
    Vanish,
)
from hydra_allreduce.testing.swarm.run import Peer, Swarm, reduce_codes
from hydra_allreduce.testing.swarm.trace import Trace

__all__ = [
    "ALL",
    "COORDINATOR",
    "Cut",
    "Fault",
    "InvariantBroken",
    "Kill",
    "Partition",
    "Pause",
    "Peer",
    "Reset",
    "Schedule",
    "Slow",
    "Swarm",
    "Trace",
    "Vanish",
    "check",
    "random_run",
    "random_schedule",
    "random_swarm",
    "reduce_codes",
    "schedules",
    "violations",
]
