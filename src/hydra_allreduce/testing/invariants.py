"""What must hold in every trace, whatever went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hydra_allreduce.agreement import MemberId, RecordId, RoundRecord
from hydra_allreduce.testing.trace import Certified, Trace


class InvariantBroken(AssertionError):
    """A trace shows that the protocol broke a promise; the message has code that reproduces it."""

    def __init__(self, trace: Trace, broken: list[str]) -> None:
        lines = "\n  ".join(broken[:8])
        super().__init__(f"{len(broken)} broken:\n  {lines}\nreproduce with\n\n{trace.as_code()}")
        self.trace = trace
        self.broken = broken


def history(trace: Trace, record: RecordId) -> Iterator[RoundRecord]:
    """Yield the record and those before it, as far as they were seen."""
    known = trace.records.get(record)
    while known is not None:
        yield known
        known = trace.records.get(known.prev)


def one_decision(trace: Trace) -> Iterator[str]:
    """I1: one view and round have one record, and nobody certifies two results of one round."""
    by_view: dict[object, RecordId] = {}
    by_round: dict[int, list[Certified]] = {}
    for found in trace.certified:
        number = trace.records[found.record].round
        if by_view.setdefault((found.ballot, number), found.record) != found.record:
            yield f"I1 two results of round {number} were decided in view {found.ballot}"
        by_round.setdefault(number, []).append(found)
    for number, several in by_round.items():
        if len({c.record for c in several}) > 1:
            yield from _twice(trace, number, several)


def _twice(trace: Trace, number: int, several: list[Certified]) -> Iterator[str]:
    for at, second in enumerate(several):
        for first in several[:at]:
            if first.record == second.record:
                continue
            if trace.majority:
                yield f"I4 two results of round {number} were decided under majority"
            elif trace.records[first.record].prev == trace.records[second.record].prev:
                if not second.faulty and any(m in second.live for m in first.certifiers):
                    yield f"I1 round {number} was decided twice without any false suspicion"
                both = [m for m in first.certifiers if m in second.certifiers]
                if both and not _fork_was_under_way(trace, first, second):
                    yield f"I1 {', '.join(map(str, both))} certified two results of round {number}"
                elif both:
                    trace.excused.append((first.record, second.record))


def _fork_was_under_way(trace: Trace, first: Certified, second: Certified) -> bool:
    """The one exception, under "survivors" only: the second result comes from a later view that none of the first
    one's certifiers reported to, so a fork had begun already when one of them met it."""
    for one, other in ((first, second), (second, first)):
        origin = trace.records[other.record].ballot
        reporters = trace.reporters.get(origin, ())
        if origin > trace.records[one.record].ballot and not any(m in reporters for m in one.certifiers):
            return True
    return False


def same_result(trace: Trace) -> Iterator[str]:
    """I1: members return the same record for a round (in "survivors" as long as nothing forked)."""
    answers: dict[int, dict[RecordId, list[MemberId]]] = {}
    for r in trace.returned:
        number = trace.records[r.record].round
        others = answers.setdefault(number, {})
        if trace.majority or not r.faulty:
            for record, members in others.items():
                if record != r.record and (trace.majority or any(m in r.live for m in members)):
                    yield f"I1 {r.member} returned another result of round {number} than {members[0]}"
        others.setdefault(r.record, []).append(r.member)


def whole_contributions(trace: Trace) -> Iterator[str]:
    """I2: a record has exactly the inputs of its ring, and a history has each input at most once."""
    for found in {r.record: None for r in trace.returned}:
        record = trace.records[found]
        if record.round == 0:
            continue
        for c in record.contributions:
            if trace.entered.get((c.member, record.ballot, record.round)) != c.call:
                yield f"I2 round {record.round} has an input of {c.member} that it did not enter with"
        if tuple(c.member for c in record.contributions) != trace.rings.get(record.ballot):
            yield f"I2 round {record.round} was finished without all contributors of its view"
        seen: set[tuple[MemberId, int]] = set()
        for earlier in history(trace, found):
            for c in earlier.contributions:
                if (c.member, c.call) in seen:
                    yield f"I2 call {c.call} of {c.member} is in one history twice"
                seen.add((c.member, c.call))
    for r in trace.returned:
        share = trace.records[r.record].contribution(r.member)
        if r.call is None or share is None or share.call == r.call:
            continue
        # A call that failed as void may be in after all: somebody had finished the round in an earlier view. The
        # member's next call for that round then brings the result, as it brings every result that was missed.
        if (r.member, share.call) not in trace.voided:
            yield f"I2 {r.member} got for call {r.call} a result that holds its call {share.call}"


def one_lineage(trace: Trace) -> Iterator[str]:
    """I4: under "majority" nothing that was committed is ever given up."""
    if trace.majority:
        for member, rounds in trace.superseded:
            yield f"I4 {member} gave up rounds {rounds} under majority"


def fenced(trace: Trace) -> Iterator[str]:
    """I6: a member that has promised or proposed a later view returns nothing of the old one."""
    for r in trace.returned:
        if r.fence > r.view:
            yield f"I6 {r.member} committed in view {r.view} after it had promised {r.fence}"


def certified_first(trace: Trace) -> Iterator[str]:
    """Nothing is committed that was not decided before."""
    first: dict[RecordId, int] = {}
    for c in trace.certified:
        first.setdefault(c.record, c.step)
    for r in trace.returned:
        if trace.records[r.record].round and first.get(r.record, r.step + 1) > r.step:
            yield f"{r.member} committed round {trace.records[r.record].round} before it was decided"


def kept_rules(trace: Trace) -> Iterator[str]:
    """I3, and what the model itself saw a member do against its rules."""
    yield from trace.broken


Invariant = Callable[[Trace], Iterator[str]]

ALL: tuple[Invariant, ...] = (
    one_decision,
    same_result,
    whole_contributions,
    one_lineage,
    fenced,
    certified_first,
    kept_rules,
)


def violations(trace: Trace, invariants: tuple[Invariant, ...] = ALL) -> list[str]:
    """Return what is broken, in words."""
    return [text for invariant in invariants for text in invariant(trace)]


def check(trace: Trace, invariants: tuple[Invariant, ...] = ALL) -> None:
    """Raise InvariantBroken, with code that reproduces it, if the trace breaks any of ``invariants``."""
    broken = violations(trace, invariants)
    if broken:
        raise InvariantBroken(trace, broken)
