"""``decide()`` is pure, so every rule of it is one call: reports in, view and reason out."""

from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_allreduce.agreement import Ballot, Genesis, Lineage, Member, MemberId, RecordHead, Report, View, decide
from hydra_allreduce.agreement.decide import Decision, Wishes
from hydra_allreduce.agreement.quorum import Side, is_certified, is_quorum, loses
from hydra_allreduce.agreement.ring_order import lay_ring
from hydra_allreduce.agreement.view import Link
from hydra_net.identity import PeerId


def member(i: int) -> Member:
    return Member(PeerId(bytes([i]) * 32), i + 1)


M = [member(i).id for i in range(9)]
ZERO = sha256(b"run").digest()


def chain(*names: str) -> Lineage:
    """A history whose records are named; equal beginnings are equal histories."""
    ids = [ZERO, sha256(b"genesis").digest()]
    for name in names:
        ids.append(sha256(ids[-1] + name.encode()).digest())
    return Lineage(len(names), tuple(ids))


def after(lineage: Lineage, name: str) -> RecordHead:
    return RecordHead(lineage.round + 1, sha256(name.encode()).digest(), lineage.ids[-1])


NONE = Wishes()
A, AB = chain("a"), chain("a", "b")


def view(n: int, proposer: int = 0, ballot: int = 1, base: Lineage = A, **changes) -> View:
    members = tuple(replace(member(i), role="contributor") for i in range(n))
    return replace(
        View(Ballot(ballot, M[proposer]), members, tuple(m.id for m in members), (), base.head),
        **changes,
    )


def report(i: int, rec: Lineage = A, *, of: View | None = None, voters=(), held=None, at: int = 1, leaving=False):
    return Report(member(i), of, rec, tuple(voters), held, Ballot(at, M[0]) if held else None, None, leaving)


def run(
    reports: list[Report], *, of: View | None = None, n: int = 2, wishes=NONE, min_peers=1, follow=True, **genesis
) -> Decision:
    return decide(
        Ballot(n, reports[0].member.id),
        of,
        {r.member.id: r for r in reports},
        wishes,
        genesis=Genesis("run", **genesis),
        min_peers=min_peers,
        newcomers_follow=follow,
    )


def members_of(d: Decision) -> list[int]:
    assert d.view is not None
    d.view.validate()
    return [M.index(m) for m in d.view.by_id]


def ring_of(d: Decision) -> list[int]:
    assert d.view is not None
    return [M.index(m) for m in d.view.ring]


def test_the_furthest_committed_record_is_the_base():
    v = view(3)
    d = run([report(0, of=v), report(1, AB, of=v), report(2, of=v)], of=v)
    assert (d.verdict, d.reason) == ("view", "ring")
    assert d.view.base == AB.head
    assert ring_of(d) == [0, 1, 2], "one round behind: they fetch first"


def test_of_forks_of_one_round_more_holders_win_then_the_greater_id():
    x, y = chain("x"), chain("y")
    v = view(3)
    assert run([report(0, x, of=v), report(1, y, of=v), report(2, y, of=v)], of=v).view.base == y.head
    greater = max(x, y, key=lambda c: c.ids[-1])
    assert run([report(0, x, of=v), report(1, y, of=v)], of=v).view.base == greater.head


def test_one_holder_suffices_to_carry():
    v = view(3)
    held = after(A, "result")
    d = run([report(0, of=v), report(1, of=v), report(2, of=v, held=held)], of=v)
    assert (d.verdict, d.reason) == ("view", "carry")
    assert d.view.carry == held


def test_the_highest_held_ballot_is_carried():
    v = view(3)
    old, new = after(A, "old"), after(A, "new")
    d = run([report(0, of=v, held=old, at=1), report(1, of=v, held=new, at=3), report(2, of=v, held=old, at=2)], of=v)
    assert d.view.carry == new


def test_what_does_not_follow_the_base_is_not_carried():
    v = view(2)
    d = run([report(0, AB, of=v), report(1, of=v, held=after(A, "other"))], of=v)
    assert d.reason == "ring"
    assert d.view.carry is None


def test_two_results_of_one_view_are_never_picked_from():
    v = view(2)
    d = run([report(0, of=v, held=after(A, "x")), report(1, of=v, held=after(A, "y"))], of=v)
    assert (d.verdict, d.reason, d.view) == ("diverged", "diverged", None)


def test_survivors_wait_for_min_peers():
    v = view(3)
    d = run([report(0, of=v), report(1, of=v)], of=v, min_peers=3)
    assert (d.verdict, d.reason) == ("wait", "too_few_peers")
    assert "min_peers is 3" in d.detail


def test_majority_waits_for_a_quorum_of_the_records_voters():
    v = view(3)
    d = run([report(0, of=v, voters=M[:3])], of=v, quorum="majority")
    assert (d.verdict, d.reason) == ("wait", "no_quorum")
    d = run([report(0, of=v, voters=M[:3]), report(7, voters=M[:3]), report(8, voters=M[:3])], of=v, quorum="majority")
    assert d.reason == "no_quorum", "those who do not vote do not count"
    d = run([report(0, of=v, voters=M[:3]), report(2, of=v, voters=M[:3])], of=v, quorum="majority")
    assert d.verdict == "view"


def test_with_a_tie_break_the_first_voter_decides_alone():
    v = view(2)
    both = {"quorum": "majority", "tie_break": True}
    assert run([report(0, of=v, voters=M[:2])], of=v, **both).verdict == "view"
    assert run([report(1, of=v, voters=M[:2])], of=v, **both).reason == "no_quorum"


def test_under_majority_two_committed_histories_are_never_merged():
    v = view(2)
    d = run([report(0, chain("x"), of=v, voters=M[:2]), report(1, chain("y"), of=v, voters=M[:2])], quorum="majority")
    assert (d.verdict, d.reason) == ("diverged", "diverged")


def test_founders_are_waited_for():
    g = chain()
    d = run([report(0, g), report(1, g)], founders=3)
    assert (d.verdict, d.reason) == ("wait", "founders")
    d = run([report(0, g), report(1, g), report(2, g)], founders=3)
    assert d.verdict == "view"
    assert ring_of(d) == [0, 1, 2], "at the beginning everybody has the state there is"


def test_before_the_first_commit_the_first_views_members_vote():
    g = chain()
    first = run([report(i, g) for i in range(3)], founders=3, quorum="majority").view
    assert first.founders == tuple(M[:3])
    d = run([report(0, g, of=first), report(7, g), report(8, g)], of=first, founders=3, quorum="majority")
    assert (d.verdict, d.reason) == ("wait", "no_quorum"), "whoever else has come by now does not vote"
    d = run([report(0, g, of=first), report(2, g, of=first), report(7, g)], of=first, founders=3, quorum="majority")
    assert ring_of(d) == [0, 2, 7]
    assert d.view.founders == first.founders
    v = view(3)
    assert run([report(i, of=v, voters=M[:3]) for i in range(3)], of=v, quorum="majority").view.founders == ()


def test_a_record_without_voters_is_nobodys_to_follow():
    v = view(2)
    d = run([report(0, of=v), report(1, of=v)], of=v, quorum="majority", tie_break=True)
    assert (d.verdict, d.reason) == ("wait", "no_quorum")


def test_newcomers_without_the_base_do_not_found_a_second_history():
    beyond = view(1, base=AB)
    d = run([report(1, chain(), of=beyond)], of=beyond, quorum="majority", founders=1)
    assert (d.verdict, d.reason) == ("wait", "no_holder")


def test_members_keep_their_seniority_and_joiners_come_last():
    v = view(4)
    d = run([report(1, of=v), report(8), report(3, of=v), report(7), report(2, of=v)], of=v)
    assert members_of(d) == [1, 2, 3, 7, 8]
    assert ring_of(d) == [1, 2, 3], "newcomers without state follow"
    assert d.view.coordinator == M[1]


def test_newcomers_contribute_at_once_where_there_is_no_state():
    v = view(2)
    d = run([report(0, of=v), report(1, of=v), report(7, chain())], of=v, follow=False)
    assert ring_of(d) == [0, 1, 7]


def test_a_caught_up_follower_is_promoted():
    v = view(2)
    d = run([report(0, AB, of=v), report(1, AB, of=v), report(7, A, of=v)], of=v)
    assert ring_of(d) == [0, 1, 7], "one record behind is near enough: it fetches first"
    d = run([report(0, AB, of=v), report(1, AB, of=v), report(7, chain(), of=v)], of=v)
    assert ring_of(d) == [0, 1]


def test_a_late_member_follows_unless_something_is_carried():
    v = view(3)
    late = Wishes(late=(M[1],))
    d = run([report(i, of=v) for i in range(3)], of=v, wishes=late)
    assert ring_of(d) == [0, 2]
    assert members_of(d) == [0, 1, 2]
    assert d.notes == ("late_left_out",)
    d = run([report(0, of=v, held=after(A, "r")), report(1, of=v), report(2, of=v)], of=v, wishes=late)
    assert ring_of(d) == [0, 1, 2]
    assert d.notes == ("late_kept_for_carry",)


def test_demotion_never_leaves_too_few_certifiers():
    v = view(3)
    reports = [report(i, of=v, voters=M[:3]) for i in range(3)]
    d = run(reports, of=v, wishes=Wishes(late=(M[1], M[2])), quorum="majority")
    assert ring_of(d) == [0, 1, 2]
    assert d.notes == ("late_kept_for_quorum",)


def test_leavers_are_let_go():
    v = view(3)
    d = run([report(0, of=v), report(1, of=v, leaving=True), report(2, of=v)], of=v)
    assert members_of(d) == [0, 2]
    assert d.notes == ("leavers_let_go",)
    assert [(x.member, x.cause) for x in d.view.lost] == [(M[1], "left")]


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([report(0, held=after(A, "r")), report(1, leaving=True)], "leavers_kept_for_carry"),
        ([report(0), report(1, AB, leaving=True)], "leavers_kept_for_base"),
        ([report(0, leaving=True), report(1)], "leavers_kept_coordinator"),
    ],
)
def test_leavers_stay_for_a_reason(reports, why):
    v = view(2)
    reports = [replace(r, view=v) for r in reports]
    d = run(reports, of=v)
    assert d.notes == (why,)
    assert members_of(d) == [0, 1]
    assert d.view.leaving == tuple(r.member.id for r in reports if r.leaving)


def test_leavers_stay_for_the_quorum():
    v = view(2)
    voters = (M[1], M[0])  # with a tie break the first voter alone is a quorum
    reports = [report(0, of=v, voters=voters), report(1, of=v, voters=voters, leaving=True)]
    d = run(reports, of=v, quorum="majority", tie_break=True)
    assert d.notes == ("leavers_kept_for_quorum",)
    assert run(reports, of=v, quorum="majority").notes == ("leavers_let_go",), "nobody can go on without member 0"


def test_lost_names_who_went_since_the_base_and_why():
    v = view(4)
    d = run([report(0, of=v), report(1, of=v)], of=v, wishes=Wishes(causes={M[2]: "connection lost"}))
    assert [(x.member, x.cause) for x in d.view.lost] == [(M[2], "connection lost"), (M[3], "gave no answer")]
    again = run([report(1, of=d.view)], of=d.view, n=3)
    assert [x.member for x in again.view.lost] == [M[2], M[3], M[0]], "the base is the same"
    later = view(2, ballot=3, base=AB)
    assert run([report(0, AB, of=later), report(1, AB, of=later)], of=later, n=4).view.lost == ()


def test_a_broken_link_is_avoided_for_a_while():
    v = view(4)
    link = Link(M[0], M[1], 1)
    reports = [report(i, of=v) for i in range(4)]
    d = run(reports, of=v, wishes=Wishes(broken=(link,)))
    assert d.notes == ("link_avoided",)
    ring = ring_of(d)
    assert (0, 1) not in {tuple(sorted(p)) for p in zip(ring, (*ring[1:], ring[0]), strict=True)}
    far = chain(*"abcdefghijklmnopq")
    d = run([replace(report(i, far, of=d.view)) for i in range(4)], of=d.view, n=3)
    assert d.view.avoid == (), "it is tried again"


def test_of_two_or_three_the_junior_of_a_broken_link_follows():
    v = view(3)
    d = run([report(i, of=v) for i in range(3)], of=v, wishes=Wishes(broken=(Link(M[1], M[2], 1),)))
    assert d.notes[0] == "link_demotes_junior"
    assert ring_of(d) == [0, 1]


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_the_order_of_reports_is_of_no_account(seed: int, n: int):
    rng = Random(seed)
    v = view(n)
    held = after(A, "r")
    reports = [
        report(i, rng.choice((A, A, AB)), of=rng.choice((v, v, None)), held=rng.choice((None, None, held)))
        for i in range(n)
    ]
    first = run(reports, of=v)
    rest = reports[1:]
    rng.shuffle(rest)
    assert run([reports[0], *rest], of=v) == first
    if first.view:
        first.view.validate()
        assert first.view.base in {r.rec.head for r in reports}
        assert all(reports[M.index(m)].rec.round >= first.view.base.round - 1 for m in first.view.ring)


@given(st.sets(st.integers(0, 7)), st.integers(1, 8), st.booleans())
def test_certifiers_and_quorums_always_meet(ready: set[int], voters: int, tie: bool):
    genesis = Genesis("run", quorum="majority", tie_break=tie)
    names = M[:voters]
    inside = [m for m in names if M.index(m) in ready]
    outside = [m for m in names if M.index(m) not in ready]
    if is_certified(inside, names, genesis):
        assert not is_quorum(outside, names, genesis), "nobody can go on without a certifier"
    if is_quorum(inside, names, genesis):
        assert not is_quorum(outside, names, genesis), "two quorums meet"


names = st.lists(st.sampled_from("abc"), max_size=5)


@given(names, names, st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_of_two_sides_exactly_one_gives_way(x, y, one, other):
    a = Side(chain(*x), Ballot(one[0], M[0]), one[1])
    b = Side(chain(*y), Ballot(other[0], M[1]), other[1])
    assert loses(a, b) != loses(b, a)
    if not a.top.forked_from(b.top):
        assert loses(a, b) == (a.ballot < b.ballot), "nothing is lost, so the later view stays"


@given(names, names)
def test_lineages_tell_a_prefix_from_a_fork(x: list[str], y: list[str]):
    a, b = chain(*x), chain(*y)
    short = min(len(x), len(y))
    assert a.forked_from(b) == (x[:short] != y[:short])
    assert b.contains(a.head) == (y[: len(x)] == x)
    if a.forked_from(b):
        same = next(i for i in range(short) if x[i] != y[i])
        assert a.given_up_for(b) == tuple(range(same + 1, len(x) + 1))


def test_a_lineage_remembers_a_bounded_past():
    long = chain()
    for i in range(100):
        long = long.extended(after(long, str(i)))
    assert long.round == 100
    assert len(long.ids) == 32
    assert long.at(100) == long.ids[-1]
    assert long.at(60) is None
    assert not long.forked_from(A), "too far apart to tell"
    assert Lineage.from_cbor(long.to_cbor()) == long


@given(st.integers(4, 9), st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3))
def test_a_ring_avoids_links_where_that_is_possible(n: int, pairs: set[tuple[int, int]]):
    links = [Link(M[a], M[b], 0) for a, b in sorted(pairs) if a != b]
    ring, whole = lay_ring(M[:n], links)
    assert sorted(ring) == sorted(M[:n])
    broken = {frozenset((link.a, link.b)) for link in links}
    clean = all(frozenset(p) not in broken for p in zip(ring, (*ring[1:], ring[0]), strict=True))
    assert whole == clean
    if not links:
        assert ring == tuple(M[:n])


def test_member_ids_order_by_peer():
    assert sorted(M) == M
    assert MemberId(M[0].peer, 5) > M[0]
