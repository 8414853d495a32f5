"""Who sends which chunk when: the arithmetic of a ring all-reduce. Pure functions, no data.

The vector is cut into n chunks, one per rank. In the n-1 steps of the *reduce-scatter* each rank sends a chunk to the
next rank and adds the one that arrives from the previous rank to its own; then rank r owns the finished chunk r. In the
n-1 steps of the *all-gather* the finished chunks go round and are only copied. What a rank receives in one step is what
it sends in the next, over both phases. Each rank sends and receives 2 (n-1)/n of the vector, which is the least
possible (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank: the chunk it sends and the one it receives meanwhile.

    In a reduce-scatter step (``reduces``) what arrives is added, and each chunk is preceded by the meta of one rank
    (``sends_meta``, ``receives_meta``), so that after the phase everybody has everybody's. In an all-gather step both
    are None.
    """

    reduces: bool
    sends: int
    receives: int
    sends_meta: int | None
    receives_meta: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """A run of elements of one segment: the unit that is received, reduced and sent on."""

    segment: int
    start: int
    stop: int


def steps(rank: int, size: int) -> tuple[Step, ...]:
    """The 2 (size - 1) steps of ``rank`` in a ring of ``size`` ranks; none in a ring of one."""
    scatter = [
        Step(True, (rank - 1 - s) % size, (rank - 2 - s) % size, (rank - s) % size, (rank - 1 - s) % size)
        for s in range(size - 1)
    ]
    gather = [Step(False, (rank - s) % size, (rank - 1 - s) % size, None, None) for s in range(size - 1)]
    return (*scatter, *gather)


def chunk_bounds(length: int, size: int, chunk: int) -> tuple[int, int]:
    """Where ``chunk`` of a segment of ``length`` elements begins and ends, for ``size`` ranks.

    Chunks differ by at most one element; with fewer elements than ranks some are empty.
    """
    return length * chunk // size, length * (chunk + 1) // size


def chunk_spans(
    lengths: Sequence[int], itemsizes: Sequence[int], size: int, chunk: int, sub_chunk: int
) -> Iterator[Span]:
    """The elements of ``chunk`` in wire order: its part of each segment in turn, cut into sub-chunks.

    ``lengths`` and ``itemsizes`` (bytes) describe the segments; a sub-chunk has at most ``sub_chunk`` bytes, but at
    least one element. Nothing is yielded for empty parts.
    """
    for segment, (length, itemsize) in enumerate(zip(lengths, itemsizes, strict=True)):
        start, end = chunk_bounds(length, size, chunk)
        stride = max(1, sub_chunk // itemsize)
        while start < end:
            stop = min(start + stride, end)
            yield Span(segment, start, stop)
            start = stop


def max_span_bytes(lengths: Sequence[int], itemsizes: Sequence[int], size: int, sub_chunk: int) -> int:
    """Bytes of the longest span that :func:`chunk_spans` yields for any chunk; 0 if there is nothing to send."""
    return max(
        (
            min(max(1, sub_chunk // itemsize), -(-length // size)) * itemsize
            for length, itemsize in zip(lengths, itemsizes, strict=True)
        ),
        default=0,
    )
