"""Rings without I/O: exchanges joined by byte queues, and the checks that tests and fault hunts share."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from types import ModuleType

import numpy as np

from hydra_allreduce.arrays import Layout
from hydra_allreduce.ring import exchange as real

SMALL = 16
"""Bytes of a sub-chunk in small tests, so that even small arrays have several."""


class Stuck(AssertionError):
    """No byte can move although the run is not over."""


@dataclass
class Inputs:
    """What the ranks of one run bring: a layout, arrays and a weight each."""

    arrays: list
    weights: list[float]
    op: str = "mean"

    def __post_init__(self):
        self.layout = Layout.of(self.arrays[0], self.op)
        self.before = [self._bytes(rank) for rank in range(self.size)]

    @property
    def size(self) -> int:
        return len(self.arrays)

    def meta(self, rank: int) -> bytes:
        return f"{rank}:{self.weights[rank]!r}".encode()

    def finish(self, metas: Sequence[bytes]) -> float | None:
        """What a group does: the weights come with the metas, in rank order."""
        assert [meta.split(b":")[0] for meta in metas] == [str(rank).encode() for rank in range(self.size)]
        return None if self.op == "sum" else 1 / sum(float(meta.split(b":")[1]) for meta in metas)

    def segments(self, rank: int) -> list[np.ndarray]:
        segments = self.layout.allocate()
        self.layout.pack(self.arrays[rank], segments, self.weights[rank] if self.op == "mean" else None)
        return segments

    def check(self, results: Sequence[Sequence[np.ndarray] | None]) -> None:
        """Those who finished (not None) hold the same bytes, numpy's sum or weighted mean; the inputs are whole."""
        assert self.before == [self._bytes(rank) for rank in range(self.size)], "an input was written to"
        done = [result for result in results if result is not None]
        assert len({b"".join(segment.tobytes() for segment in result) for result in done}) <= 1, "ranks differ"
        for result in done[:1]:
            self.check_values(result)

    def check_values(self, result: Sequence[np.ndarray]) -> None:
        for number, segment in enumerate(result):
            parts = []
            for rank in range(self.size):
                packed = self.layout.allocate()
                self.layout.pack(self.arrays[rank], packed, None)
                parts.append(packed[number].astype(np.float64))
            weights = self.weights if self.op == "mean" else [1.0] * self.size
            total = sum(part * weight for part, weight in zip(parts, weights, strict=True))
            magnitude = sum(np.abs(part) * weight for part, weight in zip(parts, weights, strict=True))
            divisor = sum(weights) if self.op == "mean" else 1.0
            # Each addition and each scaling rounds once, relative to the magnitudes that went in.
            bound = (self.size + 4) * np.finfo(segment.dtype).eps * magnitude / divisor
            assert (np.abs(segment - total / divisor) <= bound).all(), "not the weighted mean"

    def _bytes(self, rank: int) -> list[bytes]:
        arrays = self.arrays[rank]
        if isinstance(arrays, np.ndarray):
            return [arrays.tobytes()]
        return [array.tobytes() for array in (arrays.values() if isinstance(arrays, dict) else arrays)]


def random_inputs(seed: int, size: int, lengths: Sequence[tuple[int, str]], op: str = "mean") -> Inputs:
    """Inputs for ``size`` ranks: one array per (length, dtype), random numbers and weights."""
    rng = np.random.default_rng(seed)
    arrays = [
        {f"a{i}": rng.standard_normal(length).astype(dtype) for i, (length, dtype) in enumerate(lengths)}
        for _ in range(size)
    ]
    return Inputs(arrays, [float(w) for w in rng.choice([1.0, 0.5, 3.0, 127.0], size)], op)


def exchanges(inputs: Inputs, segments, *, module: ModuleType = real, sub_chunk=SMALL, header=b"head", **overrides):
    """One exchange per rank, in rank order; ``header`` is what each sends and expects."""

    def check_header(got: bytes) -> None:
        assert got == header

    return [
        module.Exchange(
            **{
                "rank": rank,
                "size": inputs.size,
                "header": header,
                "check_header": check_header,
                "segments": segments[rank],
                "meta": inputs.meta(rank),
                "finish": inputs.finish,
                "sub_chunk": sub_chunk,
            }
            | overrides
        )
        for rank in range(inputs.size)
    ]


def join(ring: Sequence, random: Random, *, window: int, capacity: int, links: Sequence[bytearray] | None = None):
    """Move bytes round the ring in a random order, at most ``window`` at a time, until every exchange is done.

    Link r leads from rank r to the next one and holds at most ``capacity`` bytes. Raises ``Stuck`` if nothing moves.
    """
    links = [bytearray() for _ in ring] if links is None else links
    while any(e.wanted is not None or e.outgoing for e in ring):
        possible = [("send", r) for r, e in enumerate(ring) if e.outgoing and len(links[r]) < capacity]
        possible += [("receive", r) for r, e in enumerate(ring) if e.wanted is not None and links[r - 1]]
        if not possible:
            raise Stuck("the ring hangs")
        what, rank = random.choice(possible)
        if what == "send":
            taken = b"".join(ring[rank].outgoing)[: min(random.randint(1, window), capacity - len(links[rank]))]
            links[rank] += taken
            ring[rank].sent(len(taken))
        else:
            wanted = ring[rank].wanted
            count = min(random.randint(1, window), len(wanted), len(links[rank - 1]))
            wanted[:count] = links[rank - 1][:count]
            del links[rank - 1][:count]
            ring[rank].filled(count)
    assert not any(links), "bytes were left over: the streams are not at a frame boundary"
