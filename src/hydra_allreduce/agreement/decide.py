"""What the next view is, given what the members report: a pure function that says why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hydra_allreduce.agreement.genesis import Genesis
from hydra_allreduce.agreement.ids import Ballot, MemberId
from hydra_allreduce.agreement.quorum import is_certified, is_quorum
from hydra_allreduce.agreement.record import Lineage, RecordHead
from hydra_allreduce.agreement.ring_order import lay_ring
from hydra_allreduce.agreement.shape import array, boolean, items, optional
from hydra_allreduce.agreement.view import MAX_LOST, Departure, Link, Member, View
from hydra_net.codec import Cbor

LINK_ROUNDS = 16
"""After that many rounds a broken link is tried again."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a member has, frozen from its promise until the view that comes of it.

    Attributes:
        member: itself, with its addresses.
        view: the view it is in, or None.
        rec: the history up to its last committed record.
        voters: of that record.
        held: a finished, uncommitted record, or None.
        held_ballot: the view in which ``held`` was last made ready.
        base: the history up to its view's base, while it has not reached that: then ``rec`` is none of the view's.
        leaving: it wants to leave.
    """

    member: Member
    view: View | None
    rec: Lineage
    voters: tuple[MemberId, ...]
    held: RecordHead | None
    held_ballot: Ballot | None
    base: Lineage | None = None
    leaving: bool = False

    @property
    def top(self) -> Lineage:
        """The history that its view stands for: never a record that the view has given up."""
        return self.base or self.rec

    def to_cbor(self) -> Cbor:
        """Return it as a value for the codec."""
        return [
            self.member.to_cbor(),
            None if self.view is None else self.view.to_cbor(),
            self.rec.to_cbor(),
            [v.to_cbor() for v in self.voters],
            None if self.held is None else self.held.to_cbor(),
            None if self.held_ballot is None else self.held_ballot.to_cbor(),
            None if self.base is None else self.base.to_cbor(),
            self.leaving,
        ]

    @staticmethod
    def from_cbor(value: Cbor) -> Report:
        """Read what ``to_cbor`` made. Raises ValueError on everything else."""
        member, view, rec, voters, held, held_ballot, base, leaving = array(value, 8, "report")
        read = optional(held, RecordHead.from_cbor)
        ballot = optional(held_ballot, Ballot.from_cbor)
        if (read is None) != (ballot is None):
            raise ValueError("a held record and its ballot come together")
        return Report(
            Member.from_cbor(member),
            optional(view, View.from_cbor),
            Lineage.from_cbor(rec),
            tuple(items(voters, MemberId.from_cbor, "voters")),
            read,
            ballot,
            optional(base, Lineage.from_cbor),
            boolean(leaving, "leaving"),
        )


Verdict = Literal["view", "wait", "diverged"]
Reason = Literal[
    "ring",  # nobody holds a finished record: the ring runs (again), from the inputs
    "carry",  # somebody does: the view must commit it
    "too_few_peers",
    "no_quorum",
    "founders",  # no view yet, and too few to make the first
    "no_holder",  # nobody who could contribute has the base
    "diverged",  # two committed histories under "majority", or two results of one view
]
Note = Literal[
    "late_left_out",
    "late_kept_for_carry",
    "late_kept_for_quorum",
    "leavers_let_go",
    "leavers_kept_for_carry",
    "leavers_kept_for_base",
    "leavers_kept_for_quorum",
    "leavers_kept_coordinator",
    "link_avoided",
    "link_demotes_junior",
    "link_stays",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``decide`` found.

    Attributes:
        verdict: "view": ``view`` is the next one. "wait": more must report. "diverged": it must never be decided.
        reason: why, in a word; ``detail`` says it in a sentence.
        notes: what else was weighed: members that asked for something, and whether they got it.
    """

    verdict: Verdict
    reason: Reason
    detail: str
    view: View | None = None
    base: Lineage | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the proposer would like beside what the reports force."""

    late: tuple[MemberId, ...] = ()
    broken: tuple[Link, ...] = ()
    causes: Mapping[MemberId, str] | None = None


def decide(
    ballot: Ballot,
    view: View | None,
    reports: Mapping[MemberId, Report],
    wishes: Wishes,
    *,
    genesis: Genesis,
    min_peers: int,
    newcomers_follow: bool = True,
) -> Decision:
    """Decide the view of ``ballot`` from the reports of all that answered; the proposer, ``ballot.proposer``, did.

    ``view`` is the proposer's own, for seniority. With ``newcomers_follow`` a newcomer follows until it has caught up
    with the run's state; without, there is nothing to catch up with, and it contributes as soon as it has fetched the
    base. The result depends on nothing else, in no order.
    """
    order = _seniority(ballot.proposer, view, reports)
    chosen = _base(order, reports)
    base = chosen.rec.head
    if genesis.quorum == "majority" and any(reports[m].rec.forked_from(chosen.rec) for m in order):
        return Decision("diverged", "diverged", f"two committed histories meet at round {base.round}")
    carry, other = _carry(base, order, reports)
    if other:
        return Decision("diverged", "diverged", f"two results of round {base.round + 1} were made in one view")
    voters = chosen.voters if base.round else _founders(order, reports)
    if genesis.quorum == "majority" and base.round == 0 and any(_knows_more(reports[m]) for m in order):
        # Newcomers that were let in and have not got the base yet: they must not begin a second history.
        return Decision("wait", "no_holder", "rounds were committed that nobody who reports has")
    if genesis.quorum == "majority" and (voters or base.round) and not is_quorum(order, voters, genesis):
        return Decision("wait", "no_quorum", f"{len(order)} members report, no quorum of {len(voters)} voters")
    if len(order) < genesis.founders and (view is None or (genesis.quorum == "majority" and not voters)):
        return Decision("wait", "founders", f"{len(order)} of {genesis.founders} founders report")
    if genesis.quorum == "survivors" and len(order) < min_peers:
        return Decision("wait", "too_few_peers", f"{len(order)} members report, min_peers is {min_peers}")

    case = _Case(order, reports, base, carry, voters, genesis, newcomers_follow, [])
    members, leaving = _let_go(case)
    links = _links(view, wishes.broken, members, base)
    contributors = _contributors(case, members, wishes.late, links)
    if not contributors:
        return Decision("wait", "no_holder", f"nobody who reports has round {base.round} or the one before")
    ring, whole = lay_ring(contributors, links)
    if links:
        case.notes.append("link_avoided" if whole else "link_stays")
    entries = tuple(replace(reports[m].member, role="contributor" if m in ring else "follower") for m in members)
    lost = _lost(case, view, members, wishes.causes or {})
    founders = (voters or ring) if genesis.quorum == "majority" and base.round == 0 else ()
    made = View(ballot, entries, ring, leaving, base, carry, links, lost, founders)
    if carry:
        reason: Reason = "carry"
        detail = f"round {carry.round} is finished: it is to be certified"
    else:
        reason, detail = "ring", f"nobody holds round {base.round + 1}"
    return Decision("view", reason, detail, made, chosen.rec, tuple(case.notes))


class _Case(NamedTuple):
    """What is settled before members and roles are: who reports (in order of seniority), and on what ground."""

    order: tuple[MemberId, ...]
    reports: Mapping[MemberId, Report]
    base: RecordHead
    carry: RecordHead | None
    voters: tuple[MemberId, ...]
    genesis: Genesis
    newcomers_follow: bool
    notes: list[Note]

    def suffices(self, members: Collection[MemberId]) -> bool:
        """Say whether these may be the only ones to hold the next result."""
        return self.genesis.quorum == "survivors" or is_certified(members, self.voters, self.genesis)

    def has_base(self, member: MemberId) -> bool:
        """Say whether that member's last committed record is the base."""
        return self.reports[member].rec.ids[-1] == self.base.id


def _seniority(me: MemberId, view: View | None, reports: Mapping[MemberId, Report]) -> tuple[MemberId, ...]:
    old = [m for m in view.by_id if m in reports and m != me] if view else []
    known = dict.fromkeys(old)
    return (me, *old, *sorted(m for m in reports if m != me and m not in known))


def _base(order: Sequence[MemberId], reports: Mapping[MemberId, Report]) -> Report:
    """The committed record with the highest round; of forks of one round what more hold, then the greater id."""
    count: dict[bytes, int] = {}
    for m in order:
        count[reports[m].rec.ids[-1]] = count.get(reports[m].rec.ids[-1], 0) + 1

    def rank(m: MemberId) -> tuple[int, int, bytes, int]:
        rec = reports[m].rec
        return rec.round, count[rec.ids[-1]], rec.ids[-1], len(rec.ids)

    return reports[max(order, key=rank)]


def _founders(order: Sequence[MemberId], reports: Mapping[MemberId, Report]) -> tuple[MemberId, ...]:
    """Before the first commit the voters are those of the first view, as the latest view known hands them on."""
    views = [view for view in (reports[m].view for m in order) if view is not None and view.founders]
    return max(views, key=lambda view: view.ballot).founders if views else ()


def _knows_more(report: Report) -> bool:
    return report.view is not None and report.view.base.round > 0


def _carry(
    base: RecordHead, order: Sequence[MemberId], reports: Mapping[MemberId, Report]
) -> tuple[RecordHead | None, bool]:
    """Of the finished records that follow the base the one made ready in the latest view. One holder suffices."""
    carry: RecordHead | None = None
    latest: Ballot | None = None
    two = False
    for m in order:
        held, ballot = reports[m].held, reports[m].held_ballot
        if held is None or ballot is None or held.prev != base.id or held.round != base.round + 1:
            continue
        if latest is None or ballot > latest:
            carry, latest, two = held, ballot, False
        elif ballot == latest and held != carry:
            two = True
    return carry, two


def _let_go(case: _Case) -> tuple[tuple[MemberId, ...], tuple[MemberId, ...]]:
    """Who stays, and who of those is marked as leaving because it could not be let go yet."""
    leavers = tuple(m for m in case.order if case.reports[m].leaving)
    if not leavers:
        return case.order, ()
    staying = tuple(m for m in case.order if not case.reports[m].leaving)
    kept: Note | None = None
    if case.carry:
        kept = "leavers_kept_for_carry"
    elif case.order[0] in leavers:
        kept = "leavers_kept_coordinator"
    elif not any(case.has_base(m) or case.reports[m].held == case.base for m in staying):
        kept = "leavers_kept_for_base"
    elif not case.suffices(staying):
        kept = "leavers_kept_for_quorum"
    case.notes.append(kept or "leavers_let_go")
    return (case.order, leavers) if kept else (staying, ())


def _contributors(
    case: _Case, members: Sequence[MemberId], late: tuple[MemberId, ...], links: tuple[Link, ...]
) -> tuple[MemberId, ...]:
    def able(m: MemberId) -> bool:
        report = case.reports[m]
        if not case.newcomers_follow:
            return True  # whoever lacks the base fetches it first
        if case.has_base(m):
            return report.view is not None or case.base.round == 0
        # It fetches first. A newcomer without state has genesis, which is no reason to count on it.
        return report.rec.ids[-1] == case.base.prev and report.view is not None

    full = tuple(m for m in members if able(m) or (case.genesis.quorum == "majority" and m in case.voters))
    out = tuple(m for m in late if m in full)
    why: Note = "late_left_out"
    if not out:
        out, why = _junior(full, links), "link_demotes_junior"
    if out:
        chosen = tuple(m for m in full if m not in out)
        if case.carry:
            case.notes.append("late_kept_for_carry")  # they may hold what is carried
        elif not case.suffices(chosen):
            case.notes.append("late_kept_for_quorum")
        elif chosen:
            case.notes.append(why)
            return chosen
    # If nobody qualifies somebody must all the same: one that has the base.
    return full or tuple(m for m in members if case.has_base(m))[:1]


def _junior(contributors: Sequence[MemberId], links: Iterable[Link]) -> tuple[MemberId, ...]:
    """Two or three contributors have no order that avoids a link: the junior of its two ends stays out."""
    if not 2 <= len(contributors) <= 3:
        return ()
    for a, b, _ in links:
        if a in contributors and b in contributors:
            return (max(a, b, key=contributors.index),)
    return ()


def is_fresh(link: Link, round: int) -> bool:
    """Whether a broken link is still avoided by a view that is built on ``round``."""
    return round < link.round + LINK_ROUNDS


def _links(
    view: View | None, broken: tuple[Link, ...], members: Sequence[MemberId], base: RecordHead
) -> tuple[Link, ...]:
    known: dict[tuple[MemberId, MemberId], Link] = {}
    for link in (*(view.avoid if view else ()), *broken):
        if link.a in members and link.b in members and is_fresh(link, base.round):
            known[min(link.a, link.b), max(link.a, link.b)] = link
    return tuple(known.values())[-MAX_LOST:]


def _lost(
    case: _Case, view: View | None, members: Sequence[MemberId], causes: Mapping[MemberId, str]
) -> tuple[Departure, ...]:
    """Who went since the base: what the views with this base said, and who was in the proposer's view until now."""
    lost: dict[MemberId, str] = {}
    for known in (view, *(case.reports[m].view for m in sorted(case.reports))):
        if known is not None and known.base == case.base:
            for member, cause in known.lost:
                lost.setdefault(member, cause)
    if view is not None:
        for m in view.by_id:
            leaves = m in case.reports and case.reports[m].leaving
            lost.setdefault(m, "left" if leaves else causes.get(m, "gave no answer"))
    return tuple(Departure(m, lost[m]) for m in lost if m not in members)[:MAX_LOST]
