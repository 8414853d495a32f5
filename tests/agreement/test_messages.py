"""Messages: what is written is read again, and whatever else comes is refused with a ValueError and nothing else."""

import contextlib
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_allreduce.agreement import (
    Ballot,
    Contribution,
    Departure,
    Genesis,
    Lineage,
    Member,
    MemberId,
    MemberMachine,
    RecordHead,
    Report,
    RoundRecord,
    View,
    decode_message,
    encode_message,
    events,
    genesis_record,
    messages,
)
from hydra_allreduce.agreement.shape import MAX_MEMBERS
from hydra_allreduce.agreement.view import Link
from hydra_allreduce.testing import Model, Schedule, check
from hydra_net import Limits
from hydra_net.codec import decode, encode
from hydra_net.control import Post
from hydra_net.control import decode_message as decode_frame_of
from hydra_net.control import encode_message as encode_frame_of
from hydra_net.identity import PeerId

ME = Member(PeerId(bytes(range(32))), 2**63 - 1, "contributor", ("tcp://192.0.2.7:4001",), 3)
YOU = Member(PeerId(bytes(32)), 0, "follower")
BALLOT = Ballot(7, ME.id)
HEAD = RecordHead(3, b"\x01" * 32, b"\x02" * 32)
TOP = Lineage(3, (b"\x02" * 32, b"\x01" * 32))
VIEW = View(
    BALLOT,
    (ME, YOU),
    (ME.id,),
    (YOU.id,),
    HEAD,
    RecordHead(4, b"\x03" * 32, b"\x01" * 32),
    (Link(ME.id, YOU.id, 3),),
    (Departure(YOU.id, "gave no answer"),),
    (ME.id, YOU.id),
)
ATTEMPT = VIEW.attempt
PLAN = messages.Plan(BALLOT, 4, {"sizes": [1, 2, 3]})
ROSTER = messages.Roster(BALLOT, (ME.id, YOU.id))
REPORT = Report(ME, VIEW, TOP, (YOU.id,), HEAD, BALLOT, TOP, True)

ALL: list[messages.Message] = [
    messages.Join(ME, BALLOT, True, 2),
    messages.Joiners((ME, YOU)),
    messages.Propose(BALLOT, None),
    messages.Propose(BALLOT, ROSTER),
    messages.Promise(BALLOT, REPORT),
    messages.Promise(BALLOT, Report(YOU, None, TOP, (), None, None)),
    messages.Refuse(BALLOT, BALLOT),
    messages.Install(VIEW, TOP, PLAN),
    messages.Install(VIEW, TOP),
    messages.Enter(BALLOT, ATTEMPT, 4),
    messages.Ready(BALLOT, ATTEMPT, HEAD),
    messages.Commit(BALLOT, ATTEMPT, HEAD, PLAN),
    messages.Status(ROSTER, BALLOT, HEAD, HEAD, BALLOT, True, False),
    messages.Status(ROSTER, BALLOT, HEAD, None, None, False, True),
    messages.Suspect(YOU.id, "silent for 3.0 s"),
    messages.Takeover(),
    messages.Broken(BALLOT, ATTEMPT, 4, YOU.id, True, "reset"),
    messages.Void(BALLOT, ATTEMPT, 4, {"field": "dtype"}),
    messages.Bye(),
]


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_round_trip(message):
    data = encode(encode_message(message))
    assert len(data) < 2000
    assert decode_message(decode(data, limit=65536)) == message


def test_every_message_is_in_the_list():
    assert {type(m) for m in ALL} == set(messages._WRITE)


def test_a_view_has_the_same_name_on_both_sides():
    sent = messages.Install(VIEW.seen_by(ME.id), TOP)
    assert decode_message(encode_message(sent)).view.attempt == ATTEMPT
    assert replace(VIEW, lost=()).attempt != ATTEMPT


@pytest.mark.parametrize(
    "broken",
    [
        replace(VIEW, members=(YOU, ME)),
        replace(VIEW, members=(ME, ME)),
        replace(VIEW, ring=(ME.id, YOU.id)),
        replace(VIEW, ring=(ME.id, ME.id)),
        replace(VIEW, ring=()),
        replace(VIEW, leaving=(MemberId(PeerId(b"\x09" * 32), 1),)),
        replace(VIEW, carry=RecordHead(5, b"\x03" * 32, b"\x01" * 32)),
        replace(VIEW, carry=RecordHead(4, b"\x03" * 32, b"\x09" * 32)),
        replace(VIEW, members=(replace(ME, addresses=("x",) * 5), YOU)),
        replace(VIEW, members=(replace(ME, addresses=("x" * 1000,)), YOU)),
        replace(VIEW, lost=(Departure(YOU.id, "x" * 1000),)),
        replace(VIEW, members=(ME, *(Member(PeerId(i.to_bytes(32)), i) for i in range(1, 257)))),
    ],
)
def test_a_view_that_nobody_may_make_is_refused(broken):
    with pytest.raises(ValueError):
        decode_message([6, broken.to_cbor(), TOP.to_cbor(), None])


def test_a_history_that_does_not_reach_the_base_is_refused():
    with pytest.raises(ValueError, match="base"):
        decode_message([6, VIEW.to_cbor(), Lineage(2, (b"\x02" * 32, b"\x01" * 32)).to_cbor(), None])


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=40),
    st.just(b"\x01" * 32),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


@given(st.one_of(values, st.tuples(st.integers(0, 16), st.lists(values, max_size=8)).map(lambda t: [t[0], *t[1]])))
def test_anything_else_is_refused_and_nothing_worse(value):
    with contextlib.suppress(ValueError):
        decode_message(value)


def _places(value, path=()):
    yield path
    if isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _places(inner, (*path, i))


def _changed(value, path, new):
    if not path:
        return new
    return [_changed(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value)]


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_one_wrong_field_is_read_as_something_else_or_refused(message):
    whole = encode_message(message)
    for path in _places(whole):
        for wrong in (None, True, -1, 2**63, 1.5, "x" * 300, b"", b"\x01" * 32, b"\x01" * 65, [], [[]] * 300, {"a": 1}):
            try:
                again = decode_message(_changed(whole, path, wrong))
            except ValueError:
                continue
            encode_message(again)


def _hostile(rng: Random, machine: MemberMachine, others: list[Member]) -> messages.Message:
    """A well-formed message with content that fits by halves."""
    view = machine.view or VIEW
    ballots = [
        view.ballot,
        BALLOT,
        machine.promised,
        Ballot(view.ballot.n + 1, others[0].id),
        Ballot(2**62, others[1].id),
    ]
    heads = [machine.rec.head, HEAD, view.base, RecordHead(machine.rec.round + 1, b"\x05" * 32, machine.rec.id)]
    tops = [machine.lineage, TOP, Lineage(machine.rec.round + 9, (b"\x05" * 32, b"\x06" * 32))]

    def a_view() -> View:
        base = rng.choice(heads)
        ballot = Ballot(rng.choice(ballots).n, others[0].id)
        people = [others[0], *rng.sample([*others[1:], machine.me], rng.randint(0, len(others)))]
        entries = tuple(replace(m, role="contributor") for m in people)
        return View(ballot, entries, tuple(m.id for m in entries), (), base)

    def a_report() -> Report:
        held = rng.choice([None, *heads])
        return Report(
            rng.choice(others),
            rng.choice([None, view, a_view()]),
            rng.choice(tops),
            tuple(m.id for m in rng.sample(others, 2)),
            held,
            rng.choice(ballots) if held else None,
            rng.choice([None, *tops]),
            rng.random() < 0.3,
        )

    def a_roster() -> messages.Roster:
        return messages.Roster(rng.choice(ballots), tuple(m.id for m in rng.sample([*others, machine.me], 2)))

    attempt = rng.choice([view.attempt, ATTEMPT])
    number = machine.rec.round + rng.choice((0, 1, 2))
    return rng.choice(
        [
            lambda: messages.Join(rng.choice([*others, machine.me]), rng.choice(ballots), True, rng.randint(0, 3)),
            lambda: messages.Joiners(tuple(others)),
            lambda: messages.Propose(Ballot(rng.choice(ballots).n, others[0].id), rng.choice([None, a_roster()])),
            lambda: messages.Promise(rng.choice(ballots), a_report()),
            lambda: messages.Refuse(rng.choice(ballots), rng.choice(ballots)),
            lambda: messages.Install(a_view(), rng.choice(tops), rng.choice([None, PLAN])),
            lambda: messages.Enter(rng.choice(ballots), attempt, number),
            lambda: messages.Ready(rng.choice(ballots), attempt, rng.choice(heads)),
            lambda: messages.Commit(rng.choice(ballots), attempt, rng.choice(heads), PLAN),
            lambda: messages.Status(a_roster(), rng.choice(ballots), rng.choice(heads), HEAD, BALLOT, True, True),
            lambda: messages.Suspect(rng.choice(others).id, "x"),
            messages.Takeover,
            lambda: messages.Broken(rng.choice(ballots), attempt, number, rng.choice(others).id, True, "x"),
            lambda: messages.Void(rng.choice(ballots), attempt, number, None),
            messages.Bye,
        ]
    )()


@pytest.mark.parametrize("quorum", ["survivors", "majority"])
def test_a_member_survives_whatever_peers_say(quorum):
    for seed in range(60):
        rng = Random(seed)
        others = [Member(PeerId(bytes([i]) * 32), i) for i in range(1, 4)]
        machine = MemberMachine(YOU, Genesis("run", quorum=quorum, tie_break=seed % 2 == 0), rng=Random(seed))
        now, calls = 0.0, 0
        machine.handle(events.Tick(), now)
        for _ in range(120):
            now += 0.1
            if now >= machine.next_timer:
                machine.handle(events.Tick(), now)
            if machine.call is None and not machine.left:
                calls += 1
                machine.handle(events.Called(calls), now)
            message = _hostile(rng, machine, others)
            machine.handle(events.Received(rng.choice(others).id, message), now)
            encode(encode_message(messages.Promise(BALLOT, machine.report())))
        assert len(machine.suspects) + len(machine.joins) + len(machine.joiners) < 20


def test_records_round_trip_and_name_their_history():
    genesis = genesis_record(Genesis("digits"))
    share = Contribution(ME.id, 3, 32.0, {"plan": 4, "loss": 0.5})
    record = RoundRecord(1, genesis.id, BALLOT, (share,), b"\x07" * 32, (ME.id,))
    assert RoundRecord.decode(record.encode()) == record
    assert RoundRecord.decode(record.encode()).id == record.id
    assert record.contribution(ME.id) is share
    assert record.contribution(YOU.id) is None
    assert replace(record, digest=b"").id != record.id
    assert genesis_record(Genesis("digits", salt=b"2")).id != genesis.id


@pytest.mark.parametrize(
    "record",
    [
        RoundRecord(1, b"\x01" * 32, BALLOT, (Contribution(ME.id, 1, -1.0, {}),), b"", ()),
        RoundRecord(1, b"\x01" * 32, BALLOT, (Contribution(ME.id, 1, float("inf"), {}),), b"", ()),
        RoundRecord(1, b"\x01" * 32, BALLOT, (Contribution(ME.id, 1, 1.0, {}),) * 2, b"", ()),
        RoundRecord(1, b"\x01" * 31, BALLOT, (), b"", ()),
        RoundRecord(1, b"\x01" * 32, BALLOT, (), b"x" * 65, ()),
        RoundRecord(1, b"\x01" * 32, BALLOT, (), b"", (ME.id, ME.id)),
    ],
)
def test_a_record_that_nobody_may_make_is_refused(record):
    with pytest.raises(ValueError):
        RoundRecord.decode(record.encode())


def test_a_genesis_names_the_run_by_all_its_terms():
    plain = Genesis("digits")
    others = [
        Genesis("digits", owner=b"\x01" * 32),
        Genesis("digits", salt=b"2"),
        Genesis("digits", quorum="majority"),
        Genesis("digits", founders=2),
        Genesis("digits", tie_break=True),
    ]
    assert len({g.run_id for g in (plain, *others)}) == 6
    assert len({g.rendezvous for g in (plain, *others[2:])}) == 1, "so that a peer with other terms is met and told"
    assert len({g.rendezvous for g in (plain, *others[:2])}) == 3
    for wrong in (
        {"name": ""},
        {"name": "x", "owner": b""},
        {"name": "x", "quorum": "all"},
        {"name": "x", "founders": 0},
    ):
        with pytest.raises(ValueError):
            Genesis(**wrong)


def test_a_group_runs_through_the_codec():
    trace = Model(4).run(Schedule(seed=3, codec=True, founding="wild", steps=200))
    check(trace)
    assert trace.certified


# ------------------------------------------------------------------ sizes


def test_the_largest_group_fits_into_a_control_frame():
    """256 members with as many addresses, departures and avoided links, in as many bytes, as may be."""
    number = 2**62
    members = tuple(
        Member(PeerId(bytes([255, i]) * 16), number, "contributor", ("a" * 100,) * 4, 1) for i in range(256)
    )
    ids = tuple(m.id for m in members)
    ballot = Ballot(number, ids[0])
    top = Lineage(number, tuple(bytes([i]) * 32 for i in range(32)))
    view = View(
        ballot,
        members,
        ids,
        ids,
        top.head,
        RecordHead(number + 1, b"\x03" * 32, top.head.id),
        tuple(Link(a, b, number) for a, b in zip(ids, ids[1:] + ids[:1], strict=True)),
        tuple(Departure(m, "\N{FACE WITH TEARS OF JOY}" * 200) for m in ids[:64]),
        ids,
    )
    plan = messages.Plan(ballot, number, [[bytes(m.peer), number] for m in members])
    report = Report(members[0], view, top, ids, view.carry, ballot, top, True)
    for message in (
        messages.Install(view, top, plan),
        messages.Promise(ballot, report),
        messages.Joiners(members),
        messages.Commit(ballot, view.attempt, top.head, plan),
    ):
        body = [number, number, encode_message(message)]
        frame = encode_frame_of(Post("hydra/group/" + "0" * 64, body), limit=Limits().frame)
        post = decode_frame_of(frame[4:], limit=Limits().frame)
        assert isinstance(post, Post)
        assert isinstance(post.body, list)
        assert decode_message(post.body[2]) == message


def test_the_connections_of_the_largest_group_do_not_push_out_each_other():
    assert Limits().connections > MAX_MEMBERS


@pytest.mark.parametrize("address", ["a" * 101, "tcp://\N{SNOWMAN}:1"])
def test_no_member_makes_the_others_frames_long(address):
    with pytest.raises(ValueError, match="address"):
        decode_message(encode_message(messages.Joiners((replace(ME, addresses=(address,)),))))
