"""How a run begins: one view, however many begin at once, and islands that meet."""

from random import Random

import pytest

from hydra_allreduce.agreement import Ballot, Genesis, Member, MemberMachine, events, messages
from hydra_allreduce.agreement.ids import NO_BALLOT
from hydra_allreduce.testing import Crash, Model, Schedule, check
from hydra_allreduce.testing.settle import settle
from hydra_allreduce.testing.trace import Trace
from hydra_allreduce.testing.world import World
from hydra_net.identity import PeerId


def world(n: int, founders: int = 1, quorum: str = "survivors", *, founds: bool = True) -> World:
    trace = Trace("", Schedule(seed=0, steps=0, rounds=0), quorum == "majority")
    made = World(trace, Genesis("run", quorum=quorum, founders=founders), MemberMachine, {}, False)
    for i in range(n):
        made.add(i, founds=founds)
    return made


def run(w: World, seconds: float) -> None:
    end = w.now + seconds
    while w.now < end:
        w.now += 0.05
        frames, w.net = w.net, []
        for frame in frames:
            w.deliver(frame)
        for p in w.processes:
            if p.alive and p.machine.next_timer <= w.now:
                w.tell(p, events.Tick())


@pytest.mark.parametrize("seed", range(100))
def test_simultaneous_founders_end_in_one_view(seed: int):
    n = 2 + seed % 6
    trace = Model(n).run(Schedule(seed=seed, founding="wild", steps=200, drop=(0.0, 0.1)[seed % 2]))
    check(trace)
    assert trace.returned


def test_nobody_founds_before_the_founders_are_there():
    w = world(4, founders=4)
    for p in w.processes[:3]:
        w.start(p, (w.processes[0],))
    run(w, 30)
    assert all(p.machine.view is None for p in w.processes)
    w.start(w.processes[3], (w.processes[2],))
    run(w, 10)
    views = {p.machine.view.attempt for p in w.processes}
    assert len(views) == 1
    view = w.processes[0].machine.view
    assert view.ballot.n == 1
    assert view.coordinator == min(p.id for p in w.processes)
    assert set(view.ring) == {p.id for p in w.processes}, "all have the state that there is: none"


def test_a_lone_founder_waits_for_the_founding_time():
    me = Member(PeerId(bytes(32)), 1)
    machine = MemberMachine(me, Genesis("run"), founding_time=1.0, rng=Random(1))
    machine.handle(events.Tick(), 100.0)
    assert machine.view is None
    assert 101.0 <= machine.next_timer <= 102.0
    machine.handle(events.Tick(), machine.next_timer)
    assert machine.view is not None
    assert machine.view.ring == (me.id,)


def test_a_process_that_only_joins_never_founds():
    w = world(2, founds=False)
    for p in w.processes:
        w.start(p, (w.processes[0],))
    run(w, 60)
    assert all(p.machine.view is None for p in w.processes)


def test_two_islands_that_meet_become_one():
    w = world(4)
    w.faulty = True  # two histories begin, and one of them has to be given up
    for p in w.processes:
        p.side = p.index % 2
    for p in w.processes:
        w.start(p, (w.processes[p.index % 2],))
    run(w, 10)
    assert len({p.machine.view.attempt for p in w.processes}) == 2
    for p in w.processes:
        p.side = 0
    w.tell(w.processes[3], events.Contact(w.processes[0].id.peer))
    run(w, 20)
    assert len({p.machine.view.attempt for p in w.processes}) == 1
    settle(w, Random(0))
    check(w.trace)


def test_a_founder_that_dies_is_replaced():
    w = world(4, founders=3, quorum="majority")
    for p in w.processes[:3]:
        w.start(p, (w.processes[0],))
    run(w, 0.5)
    w.processes[1].alive = False
    for p in w.processes[:3]:
        if p.alive:
            w.tell(p, events.Suspected(w.processes[1].id, "gone"))
    run(w, 20)
    assert all(p.machine.view is None for p in w.processes)
    w.start(w.processes[3], (w.processes[0],))
    run(w, 20)
    assert len(w.processes[0].machine.view.members) == 3


def test_a_restarted_founder_replaces_itself():
    w = world(2, founders=2)
    for p in w.processes:
        w.start(p, (w.processes[0],))
    run(w, 0.2)
    w.processes[1].alive = False
    again = w.add(1)
    w.start(again, (w.processes[0],))
    run(w, 10)
    view = w.processes[0].machine.view
    assert set(view.by_id) == {w.processes[0].id, again.id}


def test_a_joiner_learns_of_the_others_from_any_of_them():
    a, b, c = (Member(PeerId(bytes([i]) * 32), i) for i in (1, 2, 3))
    machine = MemberMachine(a, Genesis("run", founders=3), rng=Random(1))
    machine.handle(events.Contact(b.peer), 0.0)
    actions = machine.handle(events.Received(b.id, messages.Joiners((b, c))), 0.1)
    assert events.Send(c.peer, c.incarnation, messages.Join(a, machine.promised, True)) in actions
    assert events.Introduced(c) in actions


def test_a_crash_while_founding():
    for seed in range(60):
        model = Model(4, founders=2)
        check(model.run(Schedule(seed=seed, founding="wild", steps=150, faults=(Crash(seed, seed % 4),))))


def test_who_is_being_let_in_does_not_found():
    a, b = (Member(PeerId(bytes([i]) * 32), i) for i in (1, 2))
    machine = MemberMachine(a, Genesis("run"), rng=Random(1))
    machine.handle(events.Tick(), 0.0)
    proposed = messages.Propose(Ballot(5, b.id), messages.Roster(Ballot(4, b.id), (b.id,)))
    machine.handle(events.Received(b.id, proposed), 0.1)
    for _ in range(3):
        machine.handle(events.Tick(), machine.next_timer)
    assert machine.view is None
    assert machine.proposal is None
    for _ in range(3):
        machine.handle(events.Tick(), machine.next_timer)
    assert machine.view is not None, "but it does not wait for ever"


def test_an_old_wish_to_join_of_one_that_is_gone_makes_no_view_after_view():
    """It was passed on by a member that had been out of touch. Its author is suspected already and nobody suspects it
    anew, so the wish was never dropped, and every tick of the leader made one more view."""
    w = world(2)
    leader, other = w.processes
    w.start(leader)
    run(w, 5)
    gone = Member(PeerId(bytes(31) + b"\1"), 1)
    w.tell(leader, events.Suspected(gone.id, "connection lost"))
    views = w.trace.views
    w.tell(leader, events.Received(other.id, messages.Join(gone, NO_BALLOT, True, 1)))
    run(w, 25)
    assert w.trace.views <= views + 1, "it is asked once"
    w.tell(leader, events.Received(gone.id, messages.Join(gone, NO_BALLOT, True, 0)))
    assert any(isinstance(frame[3], messages.Propose) for frame in w.net) or leader.machine.joins, "it asks itself"
