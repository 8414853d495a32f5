"""Time: the runtime's monotonic clock, and this machine's idea of the date."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

import anyio

__all__ = ["Clock", "SystemClock", "ambient_clock", "default_clock"]


@runtime_checkable
class Clock(Protocol):
    """Where a node gets the time from.

    ``monotonic`` has to be the event loop's own clock (``anyio.current_time()``), shifted by nothing: the
    deadlines computed from it are waited for there. A clock of your own is for ``wall``.
    """

    def monotonic(self) -> float:
        """Seconds since an arbitrary instant; the clock that deadlines and cancel scopes use."""
        ...

    def wall(self) -> float:
        """Unix seconds of this machine. May jump, may be wrong."""
        ...


class SystemClock:
    """The event loop's clock and the machine's date."""

    def monotonic(self) -> float:
        """The event loop's time; virtual under a virtual clock. Raises if no event loop runs."""
        return anyio.current_time()

    def wall(self) -> float:
        """Unix seconds of this machine."""
        return time.time()


ambient_clock: ContextVar[Clock | None] = ContextVar("hydra_ambient_clock", default=None)
"""Set by a simulation, so that whatever asks for the default clock gets the simulated date."""


def default_clock() -> Clock:
    """The clock of the simulation that this runs in, or else the system's."""
    return ambient_clock.get() or SystemClock()
