"""A group that writes down what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import anyio
import numpy as np
from anyio.abc import TaskStatus

from hydra_allreduce.arrays import Arrays, Op
from hydra_allreduce.group import Group
from hydra_allreduce.group_events import MemberLost, RoundsSuperseded, ViewChanged
from hydra_allreduce.reduction import Reduction
from hydra_allreduce.testing.swarm.trace import (
    Gone,
    Happening,
    Input,
    Raised,
    Returned,
    Superseded,
    Trace,
    Viewed,
    digest_of,
    named,
)
from hydra_net import HydraError

A = TypeVar("A", bound=Arrays)

CALL = "swarm/call"
"""A metric that says which call of its peer a contribution is: so it is in the record beside the arrays."""


class Recorder:
    """One peer's pen. It writes nothing any more once the peer is dead."""

    def __init__(self, trace: Trace, peer: int, dead: Callable[[], bool]) -> None:
        self.trace = trace
        self.peer = peer
        self._dead = dead
        self.calls = 0
        self.waiting = "its program"

    def note(self, happening: Happening) -> None:
        """Write down what has happened."""
        if not self._dead():
            self.trace.happenings.append(happening)

    def raised(self, call: int, error: Exception) -> None:
        """Write down what a call, or the peer's program (call 0), has raised."""
        typed = isinstance(error, HydraError)
        self.note(Raised(self.peer, call, anyio.current_time(), type(error).__name__, str(error), typed))

    async def watch(self, group: Group, *, task_status: TaskStatus[None]) -> None:
        """Write down the group's events until cancelled."""
        async with group.events() as changes:
            self.note(Viewed(self.peer, anyio.current_time(), group.view))
            task_status.started()
            async for event in changes:
                now = anyio.current_time()
                match event:
                    case ViewChanged(view):
                        self.note(Viewed(self.peer, now, view))
                    case MemberLost(who, cause, _):
                        self.note(Gone(self.peer, now, who, cause))
                    case RoundsSuperseded(rounds):
                        self.note(Superseded(self.peer, now, rounds))


class RecordedGroup(Group):
    """A ``Group`` whose calls are written down. Its results carry one more metric."""

    recorder: Recorder

    async def all_reduce(
        self,
        arrays: A,
        *,
        weight: float = 1.0,
        op: Op = "mean",
        out: A | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Reduction[A]:
        """See ``Group.all_reduce``."""
        recorder, trace = self.recorder, self.recorder.trace
        recorder.calls += 1
        call = recorder.calls
        before = {name: np.array(array) for name, array in named(arrays).items()}
        trace.inputs[recorder.peer, call] = Input(before, weight, op)
        tagged = {**(metrics or {}), CALL: float(call)}
        made = anyio.current_time()
        recorder.waiting = f"call {call}, made at {made:.3f} s"
        try:
            result = await super().all_reduce(arrays, weight=weight, op=op, out=out, metrics=tagged)
        except Exception as error:
            recorder.raised(call, error)
            raise
        finally:
            recorder.waiting = f"its program, after call {call}"
            if out is not arrays and digest_of(named(arrays)) != digest_of(before):
                trace.written.append((recorder.peer, call))
        recorder.note(_returned(recorder.peer, call, made, result))
        return result


def _returned(peer: int, call: int, made: float, result: Reduction[Any]) -> Returned:
    arrays = {name: np.array(array) for name, array in named(result.arrays).items()}
    return Returned(
        peer=peer,
        call=call,
        time=anyio.current_time(),
        committed=made + result.timings.total if result.timings.total else None,
        round=result.round,
        record=result.record,
        arrays=arrays,
        digest=digest_of(arrays),
        contributed=result.contributed,
        contributors=tuple(result.contributors.items()),
        total_weight=result.total_weight,
        lost=tuple(result.lost.items()),
        attempts=result.attempts,
        view=result.view,
    )
