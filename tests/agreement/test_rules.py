"""Rules beside the numbered traces: equivocation, divergence, void rounds, broken links, promotion, goodbyes."""

from dataclasses import replace

from hydra_allreduce.agreement import events, messages
from hydra_allreduce.testing import check

from .script import Script


def test_a_second_view_under_one_ballot_is_refused_and_names_its_maker():
    s = Script(3)
    view = s[1].view
    other = replace(view, members=view.members[:2], ring=view.ring[:2], me=None)
    dropped = s[1].handle(events.Received(s.members[2].id, messages.Install(other, s[0].top())), 99.0)
    assert [type(a) for a in dropped] == [events.Dropped]
    assert str(view.coordinator) in dropped[0].why
    ready = messages.Ready(view.ballot, other.attempt, s[0].rec.head)
    dropped = s[0].handle(events.Received(s.members[2].id, ready), 99.0)
    assert [type(a) for a in dropped] == [events.Dropped]
    check(s.trace)


def test_two_results_of_one_ring_are_never_decided():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(0, 1)
    s.deliver(messages.Ready)
    wrong = replace(s[0].held, digest=b"cosmic ray")
    view = s[0].view
    actions = s[0].handle(
        events.Received(s.members[2].id, messages.Ready(view.ballot, view.attempt, wrong.head)), s.world.now
    )
    assert [type(a) for a in actions] == [events.Diverged]
    assert {m for m, _ in actions[0].results} == {p.id for p in s.members}
    assert s.commits(0) == [1]


def test_void_fails_every_call_and_the_round_can_be_called_again():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    attempt = s[1].view.attempt
    failed = s[1].handle(events.RoundVoid(attempt, 2, {"field": "dtype"}), s.world.now)
    assert events.CallFailed(2, "void", 2, {"field": "dtype"}) in failed
    for a in failed:
        if isinstance(a, events.Send):
            s.world._sent(s.members[1], a)
    s.deliver()
    assert all(s[i].call is None for i in range(3))
    assert all(s[i].view.attempt != attempt for i in range(3))
    assert len(s[0].view.members) == 3, "nobody is expelled for it"
    s.round()
    assert s[0].rec.round == 2


def test_a_broken_link_is_laid_around():
    s = Script(4)
    s.call(0, 1, 2, 3)
    a, b = s.members[0].id, s.members[1].id
    s.tell(0, events.RingFailed(s[0].view.attempt, b, True, "no route"))
    s.deliver()
    ring = s[0].view.ring
    assert len(ring) == 4
    assert {(a, b), (b, a)}.isdisjoint(set(zip(ring, (*ring[1:], ring[0]), strict=True)))
    s.end()


def test_of_three_the_junior_end_of_a_broken_link_follows():
    s = Script(3)
    s.call(0, 1, 2)
    s.tell(2, events.RingFailed(s[2].view.attempt, s.members[1].id, True, "no route"))
    s.deliver()
    assert s[0].view.ring == (s.members[0].id, s.members[1].id)
    assert len(s[0].view.members) == 3
    s.end()


def test_a_joiner_waits_for_the_round_that_runs():
    s = Script(2, joiners=1)
    s.call(0, 1)
    s.deliver(messages.Enter)
    new = s.join(via=0)
    s.deliver()
    assert s[new].view is None
    s.finish(0, 1)
    s.deliver()
    assert s[new].view == s[0].view
    assert s[0].rec.round == 2
    s.end()


def test_a_member_that_closes_says_so():
    s = Script(3)
    s.tell(1, events.Closing())
    s.deliver()
    assert s[1].left
    assert [(d.member, d.cause) for d in s[0].view.lost] == [(s.members[1].id, "left")]
    s.end()


def test_a_frame_in_my_own_name_is_dropped():
    s = Script(2)
    actions = s[0].handle(events.Received(s.members[0].id, messages.Bye()), 99.0)
    assert [type(a) for a in actions] == [events.Dropped]


def test_late_members_stay_out_until_the_round_is_decided_and_no_longer():
    s = Script(4)
    s.tell(0, events.Late(s.members[0].id))  # the coordinator itself
    s.deliver()
    s.tell(0, events.Late(s.members[3].id))
    s.deliver()
    assert s[1].view.ring == (s.members[1].id, s.members[2].id)
    s.tick(0, 1, 2, 3)
    s.deliver()
    s.call(1, 2)
    s.deliver()
    s.finish(1, 2)
    s.deliver()
    assert s[0].rec.round == 2
    assert len(s[0].view.ring) == 4, "all have caught up"
    assert s[0].rec.contribution(s.members[3].id) is None
    s.end()


def test_a_ring_that_cannot_certify_is_widened():
    s = Script(2, quorum="majority", tie_break=True)
    first, second = s.members[0].id, s.members[1].id
    assert s[0].rec.voters == (first, second)
    s.suspect(1, 0)
    s.deliver()
    assert s[1].view.coordinator == second
    s.round()
    assert s[0].rec.voters == (second, first)
    s.suspect(0, 1)
    s.deliver()
    s.tell(0, events.Late(first))
    s.deliver()
    assert s[0].view.ring == (second,), "the first voter certifies alone"
    s.call(1)
    s.deliver()
    s.finish(1)
    s.deliver()
    assert s[0].rec.round == 3
    assert s[0].rec.voters == (first, second), "but not the next round: its first voter is the other"
    assert len(s[0].view.ring) == 2
    s.end()


def test_the_plan_travels_with_the_view_and_with_the_result():
    made = []

    def make_plan(record, view):
        made.append((record.round if record else None, view.world_size))
        return {"sizes": [64] * view.world_size, "after": record.round if record else 0}

    s = Script(3)
    s[0].make_plan = make_plan
    received = []
    for p in s.members:
        inner = p.machine.handle

        def handle(event, now, inner=inner, p=p):
            actions = inner(event, now)
            received.extend((p.id, a.round, a.plan) for a in actions if isinstance(a, events.PlanReceived))
            return actions

        p.machine.handle = handle
    s.round()
    assert made == [(2, 3)]
    assert sorted(received, key=str) == sorted([(p.id, 3, {"sizes": [64] * 3, "after": 2}) for p in s.members], key=str)
    s.crash(2)
    s.suspect(0, 2)
    s.deliver()
    assert made[-1] == (2, 2)
    assert received[-1][1:] == (3, {"sizes": [64] * 2, "after": 2})
    s.end()


def test_what_is_kept_is_served():
    s = Script(2)
    first = s[0].rec.head
    s.round()
    s.call(0, 1)
    s.deliver(messages.Enter)
    s.finish(0, 1)
    held = s[1].held
    assert held
    assert s[1].serve(held.head).record is held
    assert s[1].serve(s[1].rec.head).record is s[1].rec
    further = s[1].serve(first)
    assert further.record is s[1].rec, "one that asks for less gets what there is"
    assert further.lineage.contains(first)
    assert s[1].serve(replace_id(first)) is None


def replace_id(head):
    return head._replace(id=b"\x00" * 32)


def test_without_a_certificate_nothing_is_decided():
    s = Script(2, quorum="majority")
    ghosts = tuple(s.members[0].id._replace(incarnation=100 + i) for i in range(3))
    object.__setattr__(s[0].rec, "voters", (s.members[0].id, s.members[1].id, *ghosts))
    s.call(0, 1)
    s.deliver(messages.Enter)
    s.finish(0, 1)
    s.deliver(messages.Ready)
    assert s[0].ready.keys() == {p.id for p in s.members}, "all contributors hold it"
    assert s.commits(0) == [1], "but three of five voters could decide otherwise without them"


def test_a_finished_round_cannot_be_void():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(1)
    void = messages.Void(s[1].view.ballot, s[1].view.attempt, 2, "late lie")
    s.tell(1, events.Received(s.members[2].id, void))
    assert s[1].call is not None
    assert s[1].held is not None
    s.end()


def test_a_call_that_built_on_a_given_up_round_fails_and_says_so():
    s = Script(2)
    s.suspect(0, 1)
    s.suspect(1, 0)
    s.lose()
    s.tick(0, 1)
    s.lose()
    s.round()
    s.call(0)
    s.finish(0)  # 0 is a round ahead on its side, so 1 has to give way
    s.call(1)
    number = s[1].call.number
    done = []
    inner = s[1].handle
    s[1].handle = lambda event, now: done.extend(made := inner(event, now)) or made
    s.tick(0)
    s.deliver()
    failed = [a for a in done if isinstance(a, events.CallFailed)]
    assert [(a.call, a.kind, a.round) for a in failed] == [(number, "superseded", 3)]
    assert [a.rounds for a in done if isinstance(a, events.Superseded)] == [(2,)]
    s.end()


def test_a_void_call_that_was_finished_before_comes_with_the_next_one():
    s = Script(3)
    s.call(0, 1, 2)
    s.deliver(messages.Enter)
    s.finish(2)  # with everybody's call 2 in it
    first = s[2].held
    s.lose()
    s.suspect(0, 2)
    s.lose(to=2)
    s.deliver()
    assert len(s[0].view.ring) == 2
    s.tell(1, events.RoundVoid(s[1].view.attempt, 2, "dtype"))
    s.deliver(messages.Void)
    assert s[0].call is None
    assert s[1].call is None
    s.lose(to=2)
    s.deliver(messages.Promise)
    s.deliver(messages.Install, to=1)
    s.call(0, 1)  # again, for the same round
    s.deliver(messages.Enter)
    s.tell(0, events.Contact(s.members[2].id.peer))
    s.deliver()
    s.tick(0)
    s.deliver()
    answers = {r.member: r.call for r in s.trace.returned if r.record == first.id}
    assert answers == {s.members[0].id: 3, s.members[1].id: 3, s.members[2].id: 2}, "a finished result is not lost"
    assert first.contribution(s.members[1].id).call == 2
    s.end()
