"""What strangers say must not use anything up: numbers, places, patience."""

from __future__ import annotations

from random import Random

import pytest

from hydra_allreduce.agreement import Ballot, Genesis, Lineage, Member, MemberId, events, messages
from hydra_allreduce.agreement.ids import NO_BALLOT
from hydra_allreduce.agreement.member import MAX_LEAP, MemberMachine
from hydra_allreduce.agreement.view import View
from hydra_net import PeerId

ME = Member(PeerId(b"\2" * 32), 1)
STRANGER = Member(PeerId(b"\1" * 32), 1, "contributor")


def founded() -> MemberMachine:
    machine = MemberMachine(ME, Genesis("run"), rng=Random(0))
    for _ in range(5):
        machine.handle(events.Tick(), max(machine.next_timer, 0.0))
    assert machine.view is not None
    return machine


def install(machine: MemberMachine, ballot: Ballot) -> messages.Install:
    base = machine.lineage.head
    view = View(ballot, (STRANGER,), (STRANGER.id,), (), base)
    return messages.Install(view, Lineage(base.round, (base.prev, base.id)))


@pytest.mark.parametrize("what", ["join", "propose", "install", "status", "refuse"])
def test_a_ballot_from_nowhere_is_dropped(what: str) -> None:
    machine = founded()
    promised, seen = machine.promised, machine.seen
    far = Ballot(promised.n + MAX_LEAP + 1, STRANGER.id)
    roster = messages.Roster(far, (STRANGER.id, machine.id))
    message: messages.Message = {
        "join": messages.Join(STRANGER, far, True),
        "propose": messages.Propose(far, None),
        "install": install(machine, far),
        "status": messages.Status(roster, far, machine.rec.head, None, None, False, False),
        "refuse": messages.Refuse(NO_BALLOT, far),
    }[what]
    actions = machine.handle(events.Received(STRANGER.id, message), 100.0)
    assert (machine.promised, machine.seen) == (promised, seen)
    assert [type(action) for action in actions] == [events.Dropped]
    assert "further ahead" in actions[0].why  # type: ignore[union-attr]


def test_a_ballot_that_is_a_little_ahead_is_taken_over() -> None:
    machine = founded()
    ahead = Ballot(machine.promised.n + MAX_LEAP, STRANGER.id)
    machine.handle(events.Received(STRANGER.id, messages.Join(STRANGER, ahead, True)), 100.0)
    assert machine.seen >= ahead


def test_goodbyes_of_strangers_are_not_remembered() -> None:
    machine = founded()
    for incarnation in range(5000):
        machine.handle(events.Received(MemberId(STRANGER.peer, incarnation), messages.Bye()), 100.0)
    assert not machine.suspects


def test_a_flood_of_joins_ends_in_bounded_lists() -> None:
    machine = founded()
    for incarnation in range(3000):
        wish = Member(PeerId(incarnation.to_bytes(32, "big")), incarnation)
        machine.handle(events.Received(wish.id, messages.Join(wish, NO_BALLOT, True)), 100.0)
    assert len(machine.joins) <= 256
    assert len(machine.people) <= 1024
    assert len(machine.contacts) <= 64
