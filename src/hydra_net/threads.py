"""Blocking work beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio.lowlevel
import anyio.to_thread

__all__ = ["run_blocking"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# Set by a simulation: a thread is invisible to a virtual clock, which would jump over deadlines while it runs.
in_line: ContextVar[bool] = ContextVar("hydra_net.threads.in_line", default=False)


async def run_blocking(function: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
    """Run ``function(*args)`` in a worker thread and return what it returns or raise what it raises.

    Cancellation cannot stop a thread: it waits until the function has returned, so that nothing still works on the
    caller's data afterwards; the result is lost.

    Inside :func:`hydra_net.testing.simulate` the function runs in the event loop, between two scheduling points.
    """
    if in_line.get():
        await anyio.lowlevel.checkpoint()
        result = function(*args)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return result
    return await anyio.to_thread.run_sync(function, *args)
