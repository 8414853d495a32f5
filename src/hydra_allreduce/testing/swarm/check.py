"""What must hold in every trace of a swarm, whatever went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hydra_allreduce.agreement import Ballot, Contribution, MemberId, RecordId, View
from hydra_allreduce.testing.swarm.recording import CALL
from hydra_allreduce.testing.swarm.trace import Gone, Input, Raised, Returned, Superseded, Trace, Viewed
from hydra_net import PeerId

EXPECTED = ("FellBehind", "Superseded")
"""Errors that a call may raise when members that are well were out of touch; ``TooFewPeers`` is a third one."""


class InvariantBroken(AssertionError):
    """A trace shows that a promise was broken; the message has code that reproduces it."""

    def __init__(self, trace: Trace, broken: Sequence[str]) -> None:
        lines = "\n  ".join(broken[:8])
        super().__init__(f"{len(broken)} broken:\n  {lines}\nreproduce with\n\n{trace.as_code()}")
        self.trace = trace
        self.broken = tuple(broken)


def same_result(trace: Trace) -> Iterator[str]:
    """I1: one record, one result, on every member; and no other record of that round in the same history."""
    first: dict[RecordId, Returned] = {}
    for r in trace.returned:
        known = first.setdefault(r.record.id, r)
        if (known.digest, known.contributors, known.total_weight) != (r.digest, r.contributors, r.total_weight):
            yield f"I1 peers {known.peer} and {r.peer} returned round {r.round} with different results of one record"
        listed = tuple((c.member.peer, c.weight) for c in r.record.contributions)
        if listed != r.contributors or not math.isclose(sum(w for _, w in listed), r.total_weight):
            yield f"I1 peer {r.peer} returned round {r.round} with other contributors than its record has"
        if r.round != r.record.round:
            yield f"I1 peer {r.peer} returned round {r.round} with the record of round {r.record.round}"
    by_round: dict[int, list[Returned]] = {}
    for r in first.values():
        for other in by_round.setdefault(r.round, []):
            yield from _two_records(trace, other, r)
        by_round[r.round].append(r)


def _two_records(trace: Trace, one: Returned, two: Returned) -> Iterator[str]:
    """Two results of one round: a fork. Who certified the one must have been out of reach of those of the other."""
    if trace.calm and any(_alive(trace, m, two.time) for m in one.view.ring):
        yield f"I1 peers {one.peer} and {two.peer} returned round {one.round} differently, and nobody was cut off"
    elif one.record.prev == two.record.prev:
        both = [m for m in one.view.ring if m in two.view.ring]
        if both and not (_was_forked(trace, one, two) or _was_forked(trace, two, one)):
            yield f"I1 {both[0]} certified two results of round {one.round}"


def _was_forked(trace: Trace, one: Returned, two: Returned) -> bool:
    """Whether the later result comes from a view that none of the first one's certifiers was in: then a fork was under
    way before one of them met it. This is the one exception under "survivors"."""
    origin = two.record.ballot
    members = _views(trace).get(origin)
    return origin > one.record.ballot and members is not None and not any(m in members.by_id for m in one.view.ring)


def whole_contributions(trace: Trace) -> Iterator[str]:
    """I2: a result is exactly what its record says: the inputs of the calls it lists, each with its weight, no others;
    and a history has each call at most once."""
    peer_of = {member: index for index, member in trace.members.items()}
    # The next call returns the round of one whose caller went away, or was told that too few peers are there.
    ended = {(r.peer, r.call) for r in trace.returned} | {
        (raised.peer, raised.call) for raised in trace.raised if raised.error != "TooFewPeers"
    }
    open_calls = [key for key in trace.inputs if key not in ended]
    seen: dict[RecordId, Returned] = {}
    for r in trace.returned:
        if r.contributed != (trace.peers[r.peer] in dict(r.contributors)):
            yield f"I2 peer {r.peer} was told wrongly whether its arrays are in round {r.round}"
        shares = [(peer_of[c.member], call_of(c), c.weight) for c in r.record.contributions]
        mine = [call for peer, call, _ in shares if peer == r.peer]
        if mine and mine != [r.call] and (r.peer, mine[0]) not in open_calls:
            yield f"I2 call {r.call} of peer {r.peer} returned round {r.round}, which holds its call {mine[0]}"
        if r.record.id in seen:
            continue
        seen[r.record.id] = r
        inputs = [trace.inputs.get((peer, call)) for peer, call, _ in shares]
        if any(given is None or given.weight != w for given, (_, _, w) in zip(inputs, shares, strict=True)):
            yield f"I2 round {r.round} lists a call that was never made, or with another weight: {shares}"
            continue
        yield from _wrong_arrays(r, [given for given in inputs if given is not None], shares)
    for r in seen.values():
        used: dict[tuple[MemberId, int], int] = {}
        at: Returned | None = r
        while at is not None:
            for c in at.record.contributions:
                if used.setdefault((c.member, call_of(c)), at.round) != at.round:
                    yield f"I2 call {call_of(c)} of {c.member} is in one history twice"
            at = seen.get(at.record.prev)


def call_of(contribution: Contribution) -> int:
    """Which of its peer's calls a contribution is."""
    metrics = contribution.meta.get("metrics")
    call = metrics.get(CALL) if isinstance(metrics, dict) else None
    return int(call) if isinstance(call, float) else 0


def _wrong_arrays(r: Returned, inputs: list[Input], shares: object) -> Iterator[str]:
    if not inputs:
        yield f"I2 round {r.round} has no contributions"
        return
    if any(given.arrays.keys() != r.arrays.keys() for given in inputs):
        yield f"I2 round {r.round} returned arrays {list(r.arrays)}"
        return
    mean = inputs[0].op == "mean"
    total = sum(given.weight for given in inputs)
    for name, result in r.arrays.items():
        terms = [given.arrays[name].astype(np.float64) * (given.weight if mean else 1.0) for given in inputs]
        scale = total if mean else 1.0
        error = np.abs(result - np.sum(terms, axis=0) / scale)
        rounding = (len(terms) + 3) * np.finfo(result.dtype).eps * np.sum(np.abs(terms), axis=0) / scale
        wrong = np.flatnonzero(error > rounding)
        if len(wrong):
            at = int(wrong[0])
            yield (
                f"I2 round {r.round} is not the {inputs[0].op} of the calls that it lists {shares}: "
                f"{len(wrong)} of {result.size} numbers of {name!r} differ, number {at} is {result.flat[at]!r}"
            )


def every_call_ends(trace: Trace) -> Iterator[str]:
    """I3: calls return, or raise an error that is meant for callers, within bounded time of the last fault."""
    for index, where in trace.hung.items():
        if not trace.stranded:
            yield f"I3 peer {index} hangs in {where} (broken off at {trace.ended:.3f} s)"
    for raised in trace.raised:
        if not (raised.call and raised.typed and _expected(trace, raised)):
            what = f"call {raised.call}" if raised.call else "the program"
            yield f"I3 {what} of peer {raised.peer} raised {raised.error} at {raised.time:.3f} s: {raised.text}"


def _expected(trace: Trace, raised: Raised) -> bool:
    if raised.error == "TooFewPeers":
        return trace.min_peers > 1
    return raised.error in EXPECTED and not trace.calm


def inputs_untouched(trace: Trace) -> Iterator[str]:
    """I5: the caller's arrays are never written to."""
    for peer, call in trace.written:
        yield f"I5 the arrays of call {call} of peer {peer} were changed"


def in_order(trace: Trace) -> Iterator[str]:
    """I6: rounds come in order, from the newest view that the member had; nothing is skipped in silence, and a round
    that was returned stays in the history unless the caller was told that it was given up."""
    records = {r.record.id: r.record for r in trace.returned}
    for index in range(len(trace.peers)):
        returned: dict[int, RecordId] = {}
        given_up: dict[int, None] = {}
        last, told = trace.joined.get(index, 0), False
        view: Viewed | None = None
        for h in trace.happenings:
            if h.peer != index:
                continue
            match h:
                case Viewed():
                    if view is not None and h.view.ballot < view.view.ballot:
                        yield f"I6 peer {index} went back from view {view.view.ballot} to {h.view.ballot}"
                    view = h
                case Superseded(rounds=rounds):
                    given_up.update(dict.fromkeys(rounds))
                    told = True
                case Raised():
                    told = True
                case Returned():
                    if h.round <= last:
                        yield f"I6 peer {index} returned round {h.round} after round {last}"
                    elif h.round > last + 1 and not told:
                        yield f"I6 peer {index} returned round {h.round} after round {last}, and raised nothing between"
                    old = view is not None and h.view.ballot < view.view.ballot
                    if old and view is not None and h.committed is not None and view.time < h.committed:
                        yield f"I6 peer {index} committed round {h.round} in view {h.view.ballot}, an old one"
                    at = records.get(h.record.prev)
                    while at is not None:
                        if returned.get(at.round, at.id) != at.id and at.round not in given_up:
                            yield f"I6 peer {index} returned round {h.round} of a history without its round {at.round}"
                        at = records.get(at.prev)
                    returned[h.round] = h.record.id
                    last, told = h.round, False


def departures_named(trace: Trace) -> Iterator[str]:
    """I8: whoever was in a result and is not in the next one is named with a cause, or was a follower when it was made.

    That is told to those who contributed: who did not may have been outside of the view that made the result, and knows
    by ``contributed`` that it missed something. After an error that says so there is no result before either.
    """
    views = _views(trace)
    for index in range(len(trace.peers)):
        known: dict[PeerId, str] = {}
        last: Returned | None = None
        for h in trace.happenings:
            if h.peer != index:
                continue
            match h:
                case Gone(who=who, cause=cause):
                    known[who] = cause
                case Raised() | Superseded():
                    last = None
                case Returned():
                    known.update({who: lost.cause for who, lost in h.lost})
                    there = dict(h.contributors)
                    for who, lost in h.lost:
                        if lost.contributed != (who in there):
                            yield f"I8 round {h.round} of peer {index} says wrongly whether one that went is in it"
                    origin = views.get(h.record.ballot, h.view)
                    excused = {m.peer: None for view in (h.view, origin) for m in view.followers}
                    for who, _ in last.contributors if last and h.contributed else ():
                        if who not in there and who not in excused and not known.get(who):
                            gone = trace.peers.index(who)
                            yield f"I8 peer {index} was not told why peer {gone} is not in round {h.round}"
                    back = [m.peer for m in h.view.members]
                    known = {who: cause for who, cause in known.items() if who not in back}
                    last = h


def one_history(trace: Trace) -> Iterator[str]:
    """I4 as far as it goes under "survivors": once all faults have ended, all who are left agree again. Needs a swarm
    that goes on for long enough (``settle``)."""
    if not trace.schedule.heals or not trace.settled:
        return
    over = trace.began + trace.schedule.over
    common: dict[RecordId, None] | None = None
    short = [raised.peer for raised in trace.raised if raised.error == "TooFewPeers"]
    for index in trace.finished:
        if index in short:
            continue  # it has given up
        mine = {r.record.id: None for r in trace.returned if r.peer == index and r.time > over}
        common = mine if common is None else {id: None for id in common if id in mine}
    if common is not None and not common:
        yield "I4 the peers that were left at the end had no round in common since the faults ended"


def _alive(trace: Trace, member: MemberId, time: float) -> bool:
    index = next(index for index, known in trace.members.items() if known == member)
    return trace.died.get(index, math.inf) > time and trace.finished.get(index, math.inf) > time


def _views(trace: Trace) -> dict[Ballot, View]:
    return {h.view.ballot: h.view for h in trace.happenings if isinstance(h, Viewed)}


Invariant = Callable[[Trace], Iterator[str]]

ALL: tuple[Invariant, ...] = (
    same_result,
    whole_contributions,
    one_history,
    every_call_ends,
    inputs_untouched,
    in_order,
    departures_named,
)


def violations(trace: Trace, invariants: tuple[Invariant, ...] = ALL) -> list[str]:
    """Return what is broken, in words."""
    return [text for invariant in invariants for text in invariant(trace)]


def check(trace: Trace, invariants: tuple[Invariant, ...] = ALL) -> None:
    """Raise InvariantBroken, with code that reproduces it, if the trace breaks any of ``invariants``."""
    broken = violations(trace, invariants)
    if broken:
        raise InvariantBroken(trace, broken)
