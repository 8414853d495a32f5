"""In which order the contributors form the ring: seniority, laid around broken links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydra_allreduce.agreement.ids import MemberId
from hydra_allreduce.agreement.view import Link

MAX_STEPS = 4096


def lay_ring(contributors: Sequence[MemberId], links: Iterable[Link]) -> tuple[tuple[MemberId, ...], bool]:
    """Return a ring order, and whether it avoids all ``links``.

    The order is by seniority with as little change as a depth-first search needs. Two contributors share all their
    links, three too: then, or if the search takes too long, the order is by seniority and the link stays.
    """
    plain = tuple(contributors)
    broken = {(a, b) for a, b, _ in links} | {(b, a) for a, b, _ in links}
    if not broken or len(plain) < 2:
        return plain, True
    steps = 0
    order = [plain[0]]
    used = {plain[0]}

    def extend() -> bool:
        nonlocal steps
        if len(order) == len(plain):
            return (order[-1], order[0]) not in broken
        for m in plain:
            steps += 1
            if steps > MAX_STEPS:
                return False
            if m in used or (order[-1], m) in broken:
                continue
            order.append(m)
            used.add(m)
            if extend():
                return True
            order.pop()
            used.discard(m)
        return False

    if extend():
        return tuple(order), True
    return plain, False
