"""The ring: reduce-scatter and all-gather among n ranks over two byte streams each."""

from hydra_allreduce.ring.errors import RingBroken, RingProtocolError, Side
from hydra_allreduce.ring.pump import run_ring

__all__ = ["RingBroken", "RingProtocolError", "Side", "run_ring"]
