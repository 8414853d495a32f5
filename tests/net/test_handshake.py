"""The plain handshake: who gets in, who does not, and what both sides get to know. Sans-IO, then on a stream."""

import dataclasses
import tracemalloc
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_net import (
    Address,
    ByteStream,
    HydraError,
    Identity,
    LocalProtocolError,
    MemoryNetwork,
    RemoteProtocolError,
    SelfDial,
    VersionMismatch,
    WrongPeer,
    encode,
    wait_any,
)
from hydra_net.secure import WIRE_VERSIONS, Hello, PlainHandshake, handshake
from hydra_net.secure.plain import MAGIC

ALICE, BOB, MALLORY = (Identity.from_seed(bytes([number] * 32)) for number in (1, 2, 3))
LIMIT = 4096


def hello(identity, **changes):
    fields = {
        "key": identity.public_key,
        "nonce": bytes(32),
        "instance": bytes(16),
        "wall": 1_700_000_000_000,
        "purpose": "rpc",
        "listening": (Address.parse("tcp://0.0.0.0:4001"),),
        "features": ("a", "b"),
    }
    return Hello(**{**fields, **changes})


def initiator(identity=ALICE, expected=None, check=lambda _: None, **changes):
    return PlainHandshake(
        "initiator", identity, hello(identity, **changes), limit=LIMIT, expected=expected, check=check
    )


def responder(identity=BOB, check=lambda _: None, **changes):
    return PlainHandshake("responder", identity, hello(identity, **changes), limit=LIMIT, check=check)


class Side:
    """A handshake with what it has received and not taken yet; ``error`` is how it ended, if it failed."""

    def __init__(self, core):
        self.core = core
        self.inbox = b""
        self.sent = b""
        self.error = None

    def step(self, other):
        moved = False
        while self.error is None and self.core.result is None and len(self.inbox) >= self.core.needs:
            data, self.inbox = self.inbox[: self.core.needs], self.inbox[self.core.needs :]
            try:
                self.core.take(data)
            except HydraError as error:
                self.error = error
            moved = True
        out = self.core.outgoing()
        self.sent += out
        other.inbox += out
        return moved or bool(out)


def run(one, two, alter=lambda sender, data: data):
    a, b = Side(one), Side(two)
    moving = True
    while moving:
        moving = a.step(b)
        b.inbox = alter("initiator", b.inbox)
        moving = b.step(a) or moving
        a.inbox = alter("responder", a.inbox)
    return a, b


def test_both_sides_know_each_other_afterwards():
    a, b = run(initiator(expected=BOB.id, features=("b", "c")), responder(purpose="answer"))
    assert (a.error, b.error) == (None, None)
    assert a.core.result.peer == BOB.id
    assert b.core.result.peer == ALICE.id
    assert a.core.result.wire == b.core.result.wire == WIRE_VERSIONS[1]
    assert a.core.result.features == b.core.result.features == ("b",)
    assert b.core.result.remote_hello == hello(ALICE, features=("b", "c"))
    assert a.core.result.remote_hello == hello(BOB, purpose="answer")
    assert a.inbox == b.inbox == b""  # not a byte more than the handshake was taken from the stream


def test_another_peer_than_the_expected_one_gets_no_proof():
    a, b = run(initiator(expected=MALLORY.id), responder())
    assert isinstance(a.error, WrongPeer)
    assert (a.error.expected, a.error.actual) == (MALLORY.id, BOB.id)
    assert b.core.result is None
    assert len(a.sent) == len(MAGIC) + 4 + len(hello(ALICE).encode())


def test_a_stranger_gets_nothing_but_a_hello_until_it_has_proven_itself():
    """Unauthenticated peer accepted (attack 9): a responder needs the initiator's proof, whatever the hello says."""
    attacker = PlainHandshake("initiator", ALICE, hello(ALICE), limit=LIMIT)
    victim = Side(responder())
    victim.inbox = attacker.outgoing() + bytes.fromhex("00000040") + bytes(64)
    victim.step(Side(attacker))
    assert isinstance(victim.error, RemoteProtocolError)
    assert "could not prove" in str(victim.error)
    assert victim.core.result is None


def test_one_cannot_pass_for_another():
    """Id spoofing (attack 8): Mallory sends Alice's key and signs with its own."""
    forged = initiator(MALLORY)
    forged._hello = dataclasses.replace(hello(MALLORY), key=ALICE.public_key)
    forged._out.clear()
    forged._say_hello()
    a, b = run(forged, responder())
    assert isinstance(b.error, RemoteProtocolError)
    assert b.core.result is None
    forged = responder(MALLORY)
    forged._hello = dataclasses.replace(hello(MALLORY), key=BOB.public_key)
    a, b = run(initiator(expected=BOB.id), forged)
    assert isinstance(a.error, RemoteProtocolError)
    assert a.core.result is None


def test_a_proof_is_not_valid_in_another_handshake():
    """Replay: all that Alice once sent, sent again to Bob, who draws a new nonce."""
    a, _ = run(initiator(), responder(nonce=b"1" * 32))
    victim = Side(responder(nonce=b"2" * 32))
    victim.inbox = a.sent
    victim.step(Side(initiator()))
    assert isinstance(victim.error, RemoteProtocolError)
    assert victim.core.result is None


def test_a_proof_is_not_valid_in_the_other_role():
    """Reflection: Mallory answers Alice with what Alice signed herself. With one key it is taken for a self-dial; with
    the roles left out of what is signed, a proof by Bob as responder would also pass for one by Bob as initiator."""
    _, b = run(initiator(), responder())
    proof_of_bob = b.sent[-68:]
    forged = Side(responder(ALICE))  # Alice answers; Mallory dials her with Bob's hello and Bob's proof
    victim_hello = hello(ALICE)
    dial = initiator(BOB)
    forged.inbox = dial.outgoing() + proof_of_bob
    forged.step(Side(dial))
    assert victim_hello.key == ALICE.public_key
    assert isinstance(forged.error, RemoteProtocolError)
    own = Side(initiator())
    own.inbox = own.core.outgoing()
    own.step(Side(responder()))
    assert isinstance(own.error, SelfDial)


def test_a_role_is_part_of_what_is_signed():
    one, two = initiator(), responder()
    run(one, two)
    assert one._proven("initiator") == two._proven("initiator") != one._proven("responder")


@pytest.mark.parametrize("field", ["features", "listening", "wall", "instance", "purpose", "versions"])
def test_a_hello_altered_on_the_way_fails_the_handshake(field):
    """A downgrade by somebody in between: all that is agreed on is in what both sign."""
    changed = {
        "features": (),
        "listening": (),
        "wall": 1,
        "instance": b"1" * 16,
        "purpose": "stream:x",
        "versions": (0, 1),
    }[field]
    original = hello(ALICE).encode()
    altered = dataclasses.replace(hello(ALICE), **{field: changed}).encode()

    def alter(sender, data):
        if sender == "initiator" and original in data:
            head = MAGIC + len(altered).to_bytes(4, "big")
            return head + altered + data[len(head) + len(original) :]
        return data

    a, b = run(initiator(), responder(), alter)
    assert isinstance(a.error, RemoteProtocolError)
    assert a.core.result is None
    assert b.core.result is None


def test_dialling_oneself_is_found_out_by_both_sides():
    a, b = run(initiator(ALICE), responder(ALICE))
    assert isinstance(a.error, SelfDial)
    assert isinstance(b.error, SelfDial)


@pytest.mark.parametrize("newer", ["initiator", "responder"])
@pytest.mark.parametrize("versions", [(2, 3), (7, 7)])
def test_no_common_wire_version_is_said_to_both_sides(newer, versions):
    own = {"initiator": WIRE_VERSIONS, "responder": WIRE_VERSIONS, newer: versions}
    a, b = run(initiator(versions=own["initiator"]), responder(versions=own["responder"]))
    for side, role, other in ((a, "initiator", "responder"), (b, "responder", "initiator")):
        assert isinstance(side.error, VersionMismatch)
        assert side.error.ours == own[role]
        assert side.error.theirs == own[other]
        assert f"install a newer hydra-swarm on {'the peer' if role == newer else 'this side'}" in str(side.error)
        assert str(versions[0]) in str(side.error)
        assert str(WIRE_VERSIONS[1]) in str(side.error)


def test_the_highest_common_version_is_spoken():
    a, b = run(initiator(versions=(1, 4)), responder(versions=(2, 3)))
    assert a.core.result.wire == b.core.result.wire == 3


def test_an_older_peer_is_told_to_update():
    error = VersionMismatch(BOB.id, (3, 4), (1, 2))
    assert "1 to 2" in str(error)
    assert "3 to 4" in str(error)
    assert "on the peer, which is the older one" in str(error)


def test_a_later_version_may_add_fields_and_change_the_rest():
    extended = encode({**fields_of(hello(BOB)), "shiny": {"new": [1]}})
    assert Hello.decode(extended, limit=LIMIT) == hello(BOB)
    with pytest.raises(VersionMismatch):  # found out before the changed field is read
        Hello.decode(encode({"versions": [2, 2], "key": "spelled in another way"}), limit=LIMIT)


def test_another_service_and_another_security_are_told_apart():
    for first, what in ((b"GET / HTTP/1.1\r\n", "another service"), (b"hydra/N\n" + bytes(8), "security=")):
        core = responder()
        with pytest.raises(RemoteProtocolError, match=what):
            core.take(first[: core.needs])
        assert core.outgoing() == b""  # a stranger learns nothing


@pytest.mark.parametrize("size", [0, LIMIT + 1, 0xFFFFFFFF])
def test_a_giant_hello_is_refused_before_anything_is_allocated(size):
    core = responder()
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            core.take(MAGIC + size.to_bytes(4, "big"))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def fields_of(sent):
    from hydra_net import decode

    return decode(sent.encode(), limit=LIMIT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("versions", None),
        ("versions", [1]),
        ("versions", [2, 1]),
        ("versions", [True, True]),
        ("versions", ["1", "1"]),
        ("key", b"short"),
        ("key", "text" * 8),
        ("nonce", b""),
        ("instance", None),
        ("wall", -1),
        ("wall", 1.5),
        ("wall", True),
        ("purpose", ""),
        ("purpose", "x" * 200),
        ("features", "ab"),
        ("features", [1]),
        ("features", ["x"] * 100),
        ("listening", ["nonsense"]),
        ("listening", ["tcp://127.0.0.1:1"] * 9),
        ("refused", ["one"]),
        ("refused", "ab"),
    ],
)
def test_a_malformed_hello_is_refused(field, value):
    with pytest.raises(RemoteProtocolError, match="hello"):
        Hello.decode(encode({**fields_of(hello(BOB)), field: value}), limit=LIMIT)


def test_a_hello_that_is_no_mapping_or_lacks_a_field_is_refused():
    for value in (None, [], "versions", {}):
        with pytest.raises(RemoteProtocolError):
            Hello.decode(encode(value), limit=LIMIT)
    for name in fields_of(hello(BOB)):
        fields = fields_of(hello(BOB))
        del fields[name]
        with pytest.raises(RemoteProtocolError):
            Hello.decode(encode(fields), limit=LIMIT)


def test_an_address_in_a_hello_names_no_peer():
    """Nobody vouches for another peer's address: what stands there counts for the sender."""
    lie = hello(BOB, listening=(Address("tcp", "192.0.2.1", 1, ALICE.id),))
    assert Hello.decode(lie.encode(), limit=LIMIT).listening == (Address("tcp", "192.0.2.1", 1),)


def test_a_refusal_reaches_the_initiator_with_a_proof():
    a, _ = run(initiator(), responder(check=lambda _: ("busy", "come back later")))
    assert a.core.result.remote_hello.refused == ("busy", "come back later")
    assert a.core.result.peer == BOB.id


def test_a_check_can_end_the_handshake_before_anything_is_proven():
    def no(_):
        raise LocalProtocolError("not wanted")

    a, b = run(initiator(check=no), responder())
    assert isinstance(a.error, LocalProtocolError)
    assert b.core.result is None


def test_misuse_is_a_local_error():
    with pytest.raises(LocalProtocolError, match="own key"):
        PlainHandshake("initiator", ALICE, hello(BOB), limit=LIMIT)
    with pytest.raises(LocalProtocolError, match="needs 12 bytes"):
        responder().take(b"")
    with pytest.raises(LocalProtocolError, match="fewer addresses"):
        PlainHandshake("initiator", ALICE, hello(ALICE), limit=100)


# ---------------------------------------------------------------------------------------------------- fuzzing


def transcript():
    a, b = run(initiator(), responder())
    return {"initiator": a.sent, "responder": b.sent}


TRANSCRIPT = transcript()


def feed(core, data):
    """Give ``core`` all of ``data``; only typed errors may come out, and no peer."""
    side = Side(core)
    side.inbox = data
    side.step(Side(initiator()))
    return side


@given(st.binary(max_size=600), st.sampled_from([initiator, responder]))
def test_random_bytes_are_refused(data, make):
    assert feed(make(), data).core.result is None


@given(st.binary(max_size=300), st.sampled_from([initiator, responder]))
def test_random_bytes_in_place_of_a_hello_are_refused(data, make):
    framed = MAGIC + len(data).to_bytes(4, "big") + data + TRANSCRIPT["initiator"]
    side = feed(make(), framed)
    assert side.core.result is None
    assert side.error is not None


@settings(max_examples=300)
@given(st.sampled_from(["initiator", "responder"]), st.data())
def test_a_flipped_bit_never_lets_anybody_in(sender, data):
    sent = bytearray(TRANSCRIPT[sender])
    bit = data.draw(st.integers(0, len(sent) * 8 - 1))
    sent[bit // 8] ^= 1 << bit % 8
    core = responder() if sender == "initiator" else initiator()
    assert feed(core, bytes(sent)).core.result is None


@given(st.sampled_from(["initiator", "responder"]), st.data())
def test_a_truncated_handshake_never_lets_anybody_in(sender, data):
    cut = data.draw(st.integers(0, len(TRANSCRIPT[sender]) - 1))
    core = responder() if sender == "initiator" else initiator()
    side = feed(core, TRANSCRIPT[sender][:cut])
    assert side.core.result is None
    assert side.error is None  # it waits for more


# ---------------------------------------------------------------------------------------------------- on a stream


@asynccontextmanager
async def stream_pair():
    network = MemoryNetwork()
    accepted = []
    arrived = anyio.Event()

    async def take(stream):
        accepted.append(stream)
        arrived.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        (address,) = await tasks.start(network.host("b").serve, Address.parse("memory://b:1"), take)
        one = await network.host("a").dial(address)
        await arrived.wait()
        yield one, accepted[0]
        tasks.cancel_scope.cancel()


async def both(one, two):
    found = {}

    async def side(name, stream, core):
        found[name] = await handshake(stream, core)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(side, "a", one, initiator())
        tasks.start_soon(side, "b", two, responder())
    return found["a"], found["b"]


@pytest.mark.anyio
async def test_a_secure_stream_passes_everything_through():
    async with stream_pair() as (one, two):
        a, b = await both(one, two)
        assert isinstance(a, ByteStream)
        assert a.peer == BOB.id
        assert b.peer == ALICE.id
        assert a.wire == WIRE_VERSIONS[1]
        assert b.remote_hello == a.local_hello
        await a.send(b"one")
        assert await b.receive(2) == b"on"
        buffer = memoryview(bytearray(10))
        assert await b.receive_into(buffer) == 1
        await a.send_vectored([b"two", memoryview(b"three")])
        assert bytes(buffer[: await b.receive_into(buffer)]) == b"twothree"
        assert b.try_receive_into(buffer) is None
        assert a.try_send([b"four"]) == 4
        await wait_any([b], [])
        assert b.try_receive_into(buffer) == 4
        assert bytes(buffer[:4]) == b"four"
        await wait_any([a], [b])  # b can send
        await a.send_eof()
        await wait_any([b], [])
        assert b.try_receive_into(buffer) == 0
        closed = []
        b.on_close(lambda: closed.append(1))
        await b.aclose()
        await b.aclose()
        assert closed == [1]
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await a.receive()


@pytest.mark.anyio
async def test_a_full_secure_stream_is_waited_for_on_the_stream_below():
    async with stream_pair() as (one, two):
        a, _ = await both(one, two)
        while a.try_send([bytes(100_000)]) is not None:
            pass
        assert not a.ready_to_send()
        assert a.waits_on() is one


@pytest.mark.anyio
async def test_hanging_up_in_the_middle_is_an_error_of_its_own():
    async with stream_pair() as (one, two):
        await two.aclose()
        with pytest.raises((ConnectionAbortedError, anyio.BrokenResourceError)):
            await handshake(one, initiator())


@pytest.mark.anyio
async def test_a_side_that_refuses_sends_its_reason_first():
    async with stream_pair() as (one, two):
        errors = {}

        async def side(name, stream, core):
            try:
                await handshake(stream, core)
            except HydraError as error:
                errors[name] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(side, "a", one, initiator(versions=(5, 6)))
            tasks.start_soon(side, "b", two, responder())
        assert isinstance(errors["a"], VersionMismatch)
        assert isinstance(errors["b"], VersionMismatch)
