"""How a ring fails. A ring knows its neighbours as sides only; who sits there is its caller's knowledge."""

from __future__ import annotations

from typing import Literal, TypeAlias

from hydra_net.errors import HydraError

Side: TypeAlias = Literal["previous", "next"]


class RingBroken(HydraError):
    """The stream to a neighbour ended or was reset before the run was over.

    ``side`` says which neighbour, ``cause`` is what its stream raised (``anyio.EndOfStream`` for a plain end). The
    segments are undefined: run again from the inputs, over other streams.
    """

    def __init__(self, side: Side, cause: BaseException) -> None:
        super().__init__(
            f"the stream {'from the previous' if side == 'previous' else 'to the next'} rank broke "
            f"({type(cause).__name__}: {cause}); run again without it or over a new stream"
        )
        self.side: Side = side
        self.cause = cause


class RingProtocolError(HydraError):
    """The previous rank sent what no run contains: it is broken, hostile, or its stream is out of step.

    ``what`` says what it sent. The segments are undefined and the stream must be closed.
    """

    side: Side = "previous"

    def __init__(self, what: str) -> None:
        super().__init__(f"the previous rank {what}; close its stream and run again without it")
        self.what = what
