"""When and where a victim dies: in which round, and after how many bytes of the ring."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from functools import partial

from hydra_net.testing.faults import TripwireTransport
from swarm.reports import Dying, Reporter
from swarm.work import Work


def kill_rounds(kill: Sequence[int], rounds: int, seed: int) -> dict[int, int]:
    """A round for each victim: in the second to fourth fifth of the run, each in a part of its own, drawn by seed."""
    rng = random.Random(f"kill rounds {seed}")
    first, last = max(2, rounds // 5), max(2, 4 * rounds // 5)
    span = max(1, (last - first) // max(1, len(kill)))
    return {number: first + i * span + rng.randrange(span) for i, number in enumerate(kill)}


def kill_bytes(number: int, seed: int, *, world_size: int, nbytes: int) -> int:
    """After how many bytes a victim dies: a quarter to three quarters of what it moves in one round, drawn by seed.

    In a ring of k peers each one sends and receives 2 (k - 1) / k times the array's bytes.
    """
    moved = 4 * (world_size - 1) * nbytes // world_size
    return max(1, int(moved * random.Random(f"kill bytes {seed} {number}").uniform(0.25, 0.75)))


class Doom:
    """Kills this process by SIGKILL in the middle of an all-reduce: a kill from outside would miss those few ms."""

    def __init__(self, tripwire: TripwireTransport, work: Work, report: Reporter) -> None:
        self._tripwire = tripwire
        self._work = work
        self._report = report

    def before_reduce(self, round: int, world_size: int, nbytes: int) -> None:
        """To be called before each all-reduce; sets the wire in the round to die in. ``nbytes``: of the arrays."""
        if round == self._work.kill_round:
            seed = self._work.settings.seed
            after = kill_bytes(self._work.number, seed, world_size=world_size, nbytes=nbytes)
            self._report(Dying(round, after))
            self._tripwire.arm(after, partial(os.kill, os.getpid(), signal.SIGKILL))
