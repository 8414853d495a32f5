"""Which images each peer works on in a round: a pure function of the seed, the round and the plan."""

from __future__ import annotations

import numpy as np

from hydra_allreduce import Plan
from hydra_net import PeerId


class Batches:
    """Batches out of one long sequence: a permutation of all images, then another one, and so on.

    Round r takes the r-th ``batch`` images of the sequence, and the plan cuts them up among the peers. So every epoch
    visits every image once, however the batch size, the job sizes and the number of peers turn out.
    """

    def __init__(self, images: int, *, seed: int) -> None:
        self._images = images
        self._seed = seed
        self._epochs: dict[int, np.ndarray] = {}

    def batch(self, round: int, size: int) -> np.ndarray:
        """The indices of the images of ``round`` (from 1), all peers together."""
        first, stop = (round - 1) * size, round * size
        epochs = range(first // self._images, (stop - 1) // self._images + 1)
        sequence = np.concatenate([self._epoch(number) for number in epochs])
        start = first - epochs.start * self._images
        return sequence[start : start + size]

    def job(self, round: int, plan: Plan, peer: PeerId) -> np.ndarray:
        """The indices of the images of ``peer`` in ``round``; over all peers of the plan they make up the batch."""
        return self.batch(round, plan.batch)[plan.slice(peer)]

    def _epoch(self, number: int) -> np.ndarray:
        if number not in self._epochs:
            self._epochs = {n: order for n, order in self._epochs.items() if n >= number - 1}
            self._epochs[number] = np.random.default_rng([self._seed, number]).permutation(self._images)
        return self._epochs[number]
