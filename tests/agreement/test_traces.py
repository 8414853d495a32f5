"""Traces that break simpler rules, one by one: each shows what a rule is for. Member 0 coordinates at first."""

from dataclasses import replace

import pytest

from hydra_allreduce.agreement import Ballot, events, messages
from hydra_allreduce.testing import InvariantBroken

from . import faulty
from .script import Script


def result(s: Script, i: int):
    """The record of member i's last commit."""
    return s.members[i].rec.id


def test_01_what_everyone_left_holds_is_certified_before_it_is_decided():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(1, 2)
    s.lose(messages.Ready)
    s.suspect(1, 0)
    s.deliver(messages.Propose, to=2)
    s.deliver(messages.Promise, to=1)
    assert s[1].view.carry is not None
    assert s.commits(1) == [1], "1 may not decide alone that everyone left holds it"
    carried = s[1].view.carry.id
    delayed = s.under_way(messages.Install, to=2)
    assert delayed
    s.world.net = [f for f in s.world.net if f not in delayed]
    s.suspect(0, 1)
    s.deliver(messages.Propose, to=2)
    s.deliver(messages.Refuse, to=0)
    s.lose(to=1)
    s.tick(0)  # it leads, so it tries again, higher
    s.deliver(messages.Propose, to=2)
    s.deliver(messages.Promise, to=0)
    s.deliver(messages.Install, source=0, to=2)
    assert s[0].view.carry is not None
    assert s[0].view.carry.id == carried, "one holder is enough"
    s.deliver()
    s.world.net = delayed
    s.deliver()
    s.end()
    for i in range(3):
        assert carried in {r.record for r in s.trace.returned if r.member == s.members[i].id}


def test_02_one_holder_is_enough_but_the_others_certify():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(2)
    s.tell(0, events.RingFailed(s[0].view.attempt, s.members[1].id, False, "reset"))
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    assert s[0].view.carry is not None
    s.lose()  # neither 0 nor 1 gets the bytes
    assert s.commits(0) == [1], "0 does not hold what its view carries"
    s.suspect(0, 2)
    s.deliver(messages.Propose, to=1)
    s.deliver(messages.Promise, source=1)
    assert s[0].view.carry is None
    s.deliver()
    s.end()


def test_03_followers_do_not_vote_so_contributors_may_not_get_too_few():
    s = Script(3, quorum="majority")
    s.tell(0, events.Late(s.members[1].id))
    s.deliver()
    assert len(s[0].view.ring) == 2
    s.tell(0, events.Late(s.members[2].id))
    s.deliver()
    assert s[0].view.ring != (s.members[0].id,), "0 alone would certify, and 1 and 2 could go on without its result"
    s.end()


def test_04_voters_and_everything_else_are_fixed_with_the_record():
    s = Script(3, quorum="majority", tie_break=True)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(0, 1, 2)
    s.deliver(messages.Ready)
    decided = s[0].rec
    assert len(decided.voters) == 3
    s.lose(messages.Commit)
    s.crash(0)
    s.suspect(1, 0)
    s.suspect(2, 0)
    s.deliver()
    assert s[1].rec.id == decided.id
    assert s[2].rec == decided, "committed again in a view of two, with the voters and the ballot of its ring"
    s.end()


def test_05_a_sealed_member_commits_nothing():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(0, 1, 2)
    s.deliver(messages.Ready, source=2)
    s.suspect(0, 1)
    assert s[0].sealed
    s.deliver(messages.Ready, source=1)
    assert s.commits(0) == [1], "the last READY came after its own promise"
    s.end()
    assert s[0].rec.round >= 2


def test_05_a_sealed_member_obeys_no_commit():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(0, 1, 2)
    s.deliver(messages.Ready)
    s.suspect(1, 0)
    assert s[1].sealed
    s.deliver(messages.Commit, to=1)
    assert s.commits(1) == [1]
    s.end()


def test_06_a_restarted_process_is_a_new_member_without_a_vote():
    s = Script(3, quorum="majority")
    old = s.members[2]
    s.crash(2)
    new = s.world.add(old.peer_index, founds=False)
    s.members.append(new)
    s.world.start(new, (s.members[1],))
    s.deliver()
    assert s[0].view.by_id.keys() >= {new.id}
    assert old.id not in s[0].view.by_id
    assert ("restarted") in {d.cause for d in s[0].view.lost}
    assert new.id not in s[0].rec.voters
    assert new.id not in s[0].view.ring, "it has no state, so it follows first"
    s.tick(0, 1, 3)
    s.deliver()
    s.round()
    assert new.id in s[0].view.ring, "it has caught up and contributes"
    s.end()


def test_07_a_call_belongs_to_one_round():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.crash_frames = s.lose()
    s.world.faulty = True
    s.suspect(1, 0)
    s.lose(to=0)
    s.deliver(messages.Propose, to=2)
    s.deliver(messages.Promise)
    s.deliver(messages.Install, to=2)
    for _ in range(3):
        for i in (1, 2):
            if s[i].call is None:
                s.call(i)
        s.lose(to=0)
        s.deliver(messages.Enter)
        for i in (1, 2):
            s.finish(i)
        s.lose(to=0)
        s.deliver()
    assert s[0].call.round == 2
    assert s[1].rec.round >= 4
    s.end()
    answered = [r for r in s.trace.returned if r.member == s.members[0].id and r.call == 2]
    assert not answered, "its round is over, and its input is never entered in another"


def test_08_a_finished_result_outlives_an_expulsion():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(1)
    held = s[1].held
    s.lose(messages.Ready)
    s.suspect(0, 1)
    s.lose(to=1)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    assert s.members[1].id not in s[0].view.by_id
    s.lose()
    s.tell(0, events.Contact(s.members[1].id.peer))
    s.deliver(messages.Install, to=1)
    assert s[1].join_to == s.members[0].id
    assert s[1].held is held
    s.deliver()
    assert s[1].held is None or s[1].held.round > s[1].rec.round
    s.end()


def test_09_a_waiting_proposal_takes_the_joiner_in():
    s = Script(2, min_peers=2, joiners=1)
    s.crash(1)
    s.suspect(0, 1)
    assert s[0].proposal, "it waits for a second member"
    new = s.join(via=0)
    s.deliver()
    assert s[0].proposal is None
    assert s.members[new].id in s[0].view.by_id
    s.end()


def test_10_the_first_live_member_of_the_later_view_leads():
    s = Script(4)
    s.suspect(0, 1)
    s.lose(to=1)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.lose(messages.Install, to=2)  # 3 alone gets the view {0, 2, 3}
    s.deliver(messages.Install, to=3)
    s.crash(0)
    for i in (1, 2, 3):
        s.suspect(i, 0)
    s.deliver()
    for _ in range(8):
        s.tick(1, 2, 3)
        s.deliver()
    assert s[1].view == s[2].view == s[3].view
    s.end()


def test_11_healed_islands_do_not_stay_silent():
    s = Script(2)
    s.suspect(0, 1)
    s.suspect(1, 0)
    s.lose()
    s.tick(0, 1)
    s.lose()
    assert len(s[0].view.members) == len(s[1].view.members) == 1
    s.round()
    s.tick(0, 1)
    s.deliver()
    for _ in range(8):
        s.tick(0, 1)
        s.deliver()
    assert s[0].view == s[1].view
    assert s.trace.superseded, "one of them gave a round up, and said so"
    s.end()


def test_12_a_given_up_record_stands_for_nothing():
    s = Script(2)
    s.suspect(0, 1)
    s.suspect(1, 0)
    s.lose()
    s.tick(0, 1)
    s.lose()
    s.round()
    s.call(0)
    s.finish(0)  # 0 is a round ahead on its side
    s.tick(0)
    s.deliver(messages.Install, to=1)
    s.deliver(messages.Join)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.deliver(messages.Install, to=1)
    assert s[1].want, "1 has installed the view and still fetches its base"
    assert s[1].rec.round == 2
    assert s[1].top().head == s[1].view.base, "not its own round 2"
    assert s[1].report().top == s[1].top()
    s.deliver()
    s.end()


def test_13_the_only_holder_of_the_base_stays():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(0, 1, 2)
    s.deliver(messages.Ready)
    s.crash(0)  # it alone has committed
    for i in (1, 2):
        s.members[i].machine.held = s.members[i].kept = None  # and the others have lost what they held
        s[i].held_ballot = None
    s.deliver(messages.Commit, to=1)
    s.lose(messages.Commit, to=2)
    assert s[1].want
    for ask in s.world.net:
        s.members[0].alive = True
        s.world.deliver(ask)
    s.members[0].alive = False
    s.world.net = [f for f in s.world.net if f[1] == s.members[1].index]
    s.deliver(to=1)
    assert s[1].rec.round == 2
    assert s[2].rec.round == 1
    s.tell(1, events.LeaveRequested())
    s.suspect(1, 0)
    s.suspect(2, 0)
    s.deliver(messages.Suspect)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.deliver(messages.Install)
    assert not s[1].left
    assert s[1].id in s[2].view.by_id, "it stays until 2 has its record"
    s.end()
    assert s[1].left


def test_14_a_stranger_that_lists_me_in_a_later_view_is_none():
    s = Script(2, joiners=1)
    new = s.join(via=0)
    s.deliver(messages.Join)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.lose(messages.Install, to=1)
    s.deliver(messages.Install, to=new)
    assert s[1].view.ballot < s[new].view.ballot
    s.crash(0)
    s.suspect(new, 0)
    s.tell(new, events.Suspected(s.members[0].id, "dead"))
    s.lose(messages.Suspect)
    s.suspect(new, 1)  # so that 2 proposes itself
    s.deliver(messages.Propose, to=1)
    assert s.under_way(messages.Promise, source=1), "being listed in a later view is reason enough to promise"
    s.suspect(1, 0)
    s.end()


def test_15_a_leader_that_asks_to_be_let_in_is_told():
    s = Script(2, joiners=1)
    new = s.join(via=0)
    s.deliver(messages.Join)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.lose(messages.Install, to=1)
    s.deliver(messages.Install, to=new)
    s.crash(0)
    s.tell(new, events.Suspected(s.members[0].id, "dead"))
    s.lose()
    assert s[new].leader() == s.members[1].id
    s.world.tell(
        s.members[new],
        events.Received(s.members[1].id, messages.Join(s[1].me, s[1].promised, True)),
    )
    assert s.under_way(messages.Install, source=new, to=1) or s[new].proposal
    s.suspect(1, 0)
    s.end()


def test_16_a_waiting_proposer_asks_the_members_of_the_view_that_it_missed():
    s = Script(3, min_peers=2)
    s.suspect(1, 0)
    s.suspect(1, 2)
    s.lose()
    assert s[1].proposal
    view = replace(s[0].view, ballot=Ballot(2, s.members[0].id), me=None)
    s[1].proposal.targets.clear()
    s.tell(1, events.Received(s.members[0].id, messages.Install(view, s[0].top())))
    assert set(s[1].proposal.targets) == {s.members[0].id, s.members[2].id}
    s.end()


def test_17_who_asks_to_be_let_in_does_not_propose_and_the_wish_lapses():
    s = Script(3)
    s.suspect(0, 1)
    s.lose(to=1)
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    s.deliver(messages.Install, to=2)
    s.tell(0, events.Contact(s.members[1].id.peer))
    s.deliver(messages.Install, to=1)
    assert s[1].join_to
    assert s[1].sealed, "it has heard of a later view: nothing of the old one counts any more"
    s.suspect(1, 2)
    s[1].propose()
    assert s[1].proposal is None
    s.lose()
    for _ in range(4):
        assert s[1].join_to
        s.tick(1)
        s.lose()
    assert s[1].join_to is None
    s.end()


def test_19_a_coordinator_leaves_through_an_heir():
    s = Script(3)
    s.tell(0, events.LeaveRequested())
    s.deliver()
    assert s[0].left
    assert s[1].view.coordinator == s.members[1].id
    assert {d.cause for d in s[1].view.lost} == {"left"}
    s.end()


def test_19_under_majority_a_pair_parts_after_one_more_record():
    s = Script(2, quorum="majority", tie_break=True)
    s.tell(0, events.LeaveRequested())
    s.deliver()
    assert not s[0].left
    assert s[1].view.leaving == (s.members[0].id,)
    s.round()
    for _ in range(4):
        s.tick(0, 1)
        s.deliver()
    assert s[0].left, "the record of that round has one voter only"
    s.end()


def test_20_a_fork_that_survivors_cannot_avoid_is_reported():
    s = Script(4)
    for late in (2, 3):
        s.tell(0, events.Late(s.members[late].id))
        s.deliver()
    assert s[0].view.ring == (s.members[0].id, s.members[1].id)
    s.call(0, 1, 2, 3)
    s.deliver(messages.Enter)
    s.finish(0, 1)
    s.deliver(messages.Ready)
    x = s.members[0].rec
    assert x.round == 2
    s.lose(messages.Commit)
    for of in (0, 1):
        s.suspect(2, of)
        s.suspect(3, of)
    s.lose(to=0)
    s.lose(to=1)
    s.deliver()
    assert s[2].view.ring == (s.members[2].id, s.members[3].id)
    s.finish(2)
    y = s[2].held
    s.lose(messages.Ready)
    s.tell(2, events.Contact(s.members[1].id.peer))
    s.deliver(messages.Install, to=1)
    s.deliver(messages.Join)
    s.tick(2)  # the round runs, so the joiner had to wait for the timer
    s.deliver(messages.Propose)
    s.deliver(messages.Promise)
    assert s[2].view.carry == y.head, "it was made ready in the later view"
    s.deliver()
    assert s[1].rec.id == y.id
    trace = s.end()  # everything holds but for this:
    assert (x.id, y.id) in trace.excused, "1 has certified both"
    assert (s.members[0].id, (2,)) in trace.superseded, "and 0, which returned the other, is told"


def test_highest_held_ballot_is_carried():
    def play(machine):
        s = Script(3, min_peers=2, machine=machine)
        s.call(0, 1, 2)
        s.deliver(messages.Enter)
        s.finish(2)  # X, in the first view
        s.lose()
        s.suspect(0, 2)
        s.lose(to=2)
        s.deliver(messages.Propose)
        s.deliver(messages.Promise)
        s.deliver(messages.Install, to=1)
        s.deliver(messages.Enter)
        s.finish(0, 1)  # Y, in the second, without 2
        s.deliver(messages.Ready)
        assert s.commits(0) == [1, 2]
        s.lose()
        s.crash(0)
        s.suspect(1, 0)
        s.lose()
        assert s[1].proposal, "it waits for a second member"
        s.tell(1, events.Contact(s.members[2].id.peer))
        s.deliver()
        return s.end()

    play(faulty.MemberMachine)
    with pytest.raises(InvariantBroken):
        play(faulty.LowestHeldBallotWins)
