"""Hostile peers: whatever one does, only its own connection dies, others are served, and nothing piles up.

Where a test answers an attack that networking software is known for, its name says which.
"""

import logging
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from hydra_net import Address, Identity, Limits, Node, RemoteProtocolError, TcpTransport, encode, encode_frame
from hydra_net.secure import Hello, PlainHandshake, handshake
from hydra_net.secure.plain import MAGIC

pytestmark = pytest.mark.anyio

MALLORY = Identity.from_seed(b"m" * 32)


async def echo(caller, body):
    return body


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def scene(**limits):
    """A victim that serves ``echo``, and an honest peer connected to it that must be served throughout."""
    async with (
        Node(listen=["tcp://127.0.0.1:0"], limits=Limits(**limits)) as victim,
        Node(listen=["tcp://127.0.0.1:0"]) as honest,
    ):
        with victim.handle("echo", echo), victim.handle_inline("post", lambda caller, body: None):
            await honest.connect(victim.addresses[0])
            yield victim, honest
            with anyio.fail_after(30):
                assert await honest.call(victim.id, "echo", "still there") == "still there"
            assert honest.connected(victim.id)


async def raw(victim):
    return await TcpTransport().dial(victim.addresses[0].without_peer())


async def verified(victim, purpose="rpc"):
    """A connection that has gone through the handshake as it should, and is Mallory's from here on."""
    hello = Hello(MALLORY.public_key, bytes(32), bytes(16), 0, purpose)
    return await handshake(await raw(victim), PlainHandshake("initiator", MALLORY, hello, limit=4096))


async def hung_up(stream):
    """Wait until the victim has closed the connection."""
    buffer = memoryview(bytearray(65536))
    with anyio.fail_after(30):
        try:
            while await stream.receive_into(buffer):
                pass
        except anyio.BrokenResourceError:
            pass
    await stream.aclose()


# ------------------------------------------------------------------------------------------- before the handshake


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        MAGIC + b"\xff\xff\xff\xff",
        MAGIC + b"\x00\x00\x00\x00",
        MAGIC + b"\x00\x00\x00\x05" + b"\x81" * 5,
        MAGIC + (3000).to_bytes(4, "big") + b"\x81" * 3000,
        MAGIC + (3).to_bytes(4, "big") + b"\x9f\x9f\x9f",
    ],
)
async def test_garbage_in_place_of_a_handshake(data, caplog):
    caplog.set_level(logging.WARNING)
    async with scene() as (victim, _):
        stream = await raw(victim)
        await stream.send(data)
        await hung_up(stream)
        await until(lambda: "a handshake with" in caplog.text)
        assert "broke the protocol" in caplog.text


async def test_slow_handshakes_end_attack_13_slowloris():
    async with scene(handshake=0.05) as (victim, _):
        streams = [await raw(victim) for _ in range(5)]
        for stream in streams:
            await stream.send(MAGIC[:3])
        for stream in streams:
            await hung_up(stream)


async def test_half_open_connections_keep_nobody_out_attack_14_connection_flood():
    async with scene(half_open=8, handshake=1000) as (victim, _):
        streams = [await raw(victim) for _ in range(100)]
        async with Node(listen=[]) as newcomer:
            with anyio.fail_after(30):
                assert await newcomer.call(victim.addresses[0], "echo", 1) == 1
        incoming = victim._opened[1]
        await until(lambda: len(incoming._half_open) <= 8)
        for stream in streams[:80]:  # the oldest were closed by the victim
            await hung_up(stream)
        for stream in streams[80:]:
            await stream.aclose()
        await until(lambda: not incoming._half_open)


# ---------------------------------------------------------------------------------------------------- after it


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff\xff\xff\xff", "announced"),  # attack 1: a giant length prefix
        (encode_frame(b""), "strict CBOR"),
        (encode_frame(b"\x81" * 1000), "depth"),  # attack 3: a nesting bomb
        (encode_frame(b"\x99\xff\x00" + b"\x80" * 0xFF00), "items"),  # attack 4: an object bomb
        (encode_frame(bytes.fromhex("8303616182d81c81d81d00")), "strict CBOR"),  # attack 5: tags
        (encode_frame(encode([99])), "unknown kind"),
        (encode_frame(encode([-1, 2])), "unknown kind"),
        (encode_frame(encode("x")), "no message"),
        (encode_frame(encode([])), "no message"),
        (encode_frame(encode([0, 1, "echo"])), "wrong form"),
        (encode_frame(encode([0, -1, "echo", None])), "wrong form"),
        (encode_frame(encode([0, True, "echo", None])), "wrong form"),
        (encode_frame(encode([0, 1, "x" * 1000, None])), "wrong form"),
        (encode_frame(encode([0, 1, b"echo", None])), "wrong form"),
        (encode_frame(encode([1, 0, None])), "never made"),
        (encode_frame(encode([2, 7, "a", "b"])), "never made"),
        (encode_frame(encode([5, 1])), "never sent"),
        (encode_frame(encode([7])), "never sent"),
        (encode_frame(encode([6])) + encode_frame(encode([3, "post", 1])), "after it had retired"),
        (encode_frame(encode([6])) + encode_frame(encode([0, 1, "echo", 1])), "after it had retired"),
    ],
)
async def test_a_broken_message_ends_its_connection_and_is_logged_with_the_peer(data, what, caplog):
    caplog.set_level(logging.WARNING)
    async with scene() as (victim, _):
        stream = await verified(victim)
        await stream.send(data)
        await hung_up(stream)
        await until(lambda: not victim.connected(MALLORY.id))
        assert what in caplog.text
        assert MALLORY.id.short in caplog.text


async def test_the_same_number_for_two_requests_at_once():
    async with scene() as (victim, _):
        started = anyio.Event()

        async def slow(caller, body):
            started.set()
            await anyio.sleep_forever()

        with victim.handle("slow", slow):
            stream = await verified(victim)
            await stream.send(encode_frame(encode([0, 1, "slow", None])) * 2)
            await hung_up(stream)


async def test_a_half_sent_frame_waits_and_then_ends_with_its_connection(caplog):
    async with scene() as (victim, _), victim.events() as events:
        stream = await verified(victim)
        await stream.send(encode_frame(encode([3, "post", b"x" * 1000]))[:500])
        await until(lambda: victim.connected(MALLORY.id))
        await stream.aclose()
        await until(lambda: not victim.connected(MALLORY.id))
        async for event in events:
            if getattr(event, "cause", None) is not None:
                assert "in the middle of a message" in str(event.cause)
                break


async def test_a_giant_length_allocates_nothing_attack_1():
    async with scene() as (victim, _):
        streams = [await verified(victim)]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for stream in streams:
                await stream.send(b"\x7f\xff\xff\xff")
                await hung_up(stream)
            assert tracemalloc.get_traced_memory()[1] - before < 2_000_000
        finally:
            tracemalloc.stop()


async def test_an_inline_handler_can_call_a_peer_hostile(caplog):
    def strict(caller, body):
        raise RemoteProtocolError(caller.peer, "it said something that the protocol above does not know")

    async with scene() as (victim, _):
        with victim.handle_inline("strict", strict):
            stream = await verified(victim)
            await stream.send(encode_frame(encode([3, "strict", None])))
            await hung_up(stream)
    assert "the protocol above" in caplog.text


async def test_a_flood_of_requests_delays_the_others_little_and_costs_bounded_memory_attack_15():
    """Mallory asks at full speed and never reads: the answers that pile up end the connection at a bound."""
    async with scene(queue=200_000) as (victim, honest):
        stream = await verified(victim)
        flood = encode_frame(encode([0, 1, "nothing", b"x" * 100])) * 500
        answered = 0

        async def attack():
            try:
                while True:
                    await stream.send(flood)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack)
            await until(lambda: victim.connected(MALLORY.id))
            connection = victim._opened[0]._peers[MALLORY.id].connections[0]
            while victim.connected(MALLORY.id):
                with anyio.fail_after(10):
                    assert await honest.call(victim.id, "echo", answered) == answered
                answered += 1
                assert connection._queued <= 401_000
        assert answered > 0
        assert "does not read" in str(connection.ended)
        await stream.aclose()


async def test_a_flood_of_slow_requests_is_answered_with_busy_attack_15():
    async with scene(requests=4) as (victim, _):
        running = 0

        async def slow(caller, body):
            nonlocal running
            running += 1
            await anyio.sleep_forever()

        with victim.handle("slow", slow):
            stream = await verified(victim)
            await stream.send(b"".join(encode_frame(encode([0, number, "slow", None])) for number in range(1000)))
            received = b""
            while received.count(b"busy") < 996:
                received += await stream.receive()
            assert running == 4
            await stream.aclose()


async def test_a_flood_of_posts_at_full_speed_leaves_others_served():
    async with scene() as (victim, honest):
        stream = await verified(victim)
        flood = encode_frame(encode([3, "post", b"x" * 100])) * 500
        sent = 0

        async def attack():
            nonlocal sent
            while True:
                await stream.send(flood)
                sent += 500

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack)
            await until(lambda: sent > 2000)
            for number in range(50):
                with anyio.fail_after(10):
                    assert await honest.call(victim.id, "echo", number) == number
            tasks.cancel_scope.cancel()
        await stream.aclose()


async def test_a_flood_in_one_piece_lets_others_take_turns():
    """Many messages that arrive at once are handled a few at a time."""
    async with scene() as (victim, _):
        taken, between, largest = 0, 0, 0

        def take(caller, body):
            nonlocal taken, between, largest
            taken += 1
            between += 1
            largest = max(largest, between)

        async def another():
            nonlocal between
            while True:
                between = 0
                await anyio.lowlevel.checkpoint()

        with victim.handle_inline("take", take):
            stream = await verified(victim)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(another)
                await stream.send(encode_frame(encode([3, "take", None])) * 4000)
                await until(lambda: taken == 4000)
                tasks.cancel_scope.cancel()
            await stream.aclose()
        assert largest <= 200


async def test_more_connections_than_allowed_do_not_pile_up_attack_14():
    """Many identities: the victim keeps the bound, and who is in use stays."""
    async with scene(connections=8) as (victim, honest), AsyncExitStack() as stack:
        for number in range(40):
            identity = Identity.from_seed(number.to_bytes(32, "big"))
            hello = Hello(identity.public_key, bytes(32), bytes(16), 0, "rpc")
            core = PlainHandshake("initiator", identity, hello, limit=4096)
            stack.push_async_callback((await handshake(await raw(victim), core)).aclose)
            await until(lambda id=identity.id: victim.connected(id))
            assert await honest.call(victim.id, "echo", number) == number
            peers = victim._opened[0]._peers.values()
            connections = [c for peer in peers for c in peer.connections if c.ended is None]
            assert sum(c.usable for c in connections) <= 8
            assert len(connections) <= 17  # some never answer that theirs is to be retired


async def test_streams_opened_and_left_alone_are_bounded_attack_14():
    async with scene(streams_per_peer=3) as (victim, _):
        opened = 0

        async def hold(stream):
            nonlocal opened
            opened += 1
            await stream.receive()

        with victim.serve_streams("hold", hold):
            streams = [await verified(victim, "stream:hold") for _ in range(3)]
            await until(lambda: opened == 3)
            refused = await verified(victim, "stream:hold")
            assert refused.remote_hello.refused[0] == "busy"
            for stream in streams:
                await stream.aclose()
            await hung_up(refused)  # though there is room by now
        assert opened == 3


async def test_a_hello_cannot_send_us_to_addresses_of_ours_attack_26_ssrf():
    """A stranger's hello claims the victim's own neighbours as its listening addresses; see also test_book."""
    async with scene() as (victim, _):
        hello = Hello(
            MALLORY.public_key,
            bytes(32),
            bytes(16),
            0,
            "rpc",
            (Address("tcp", "localhost", 22), Address("tcp", "0.0.0.0", 80)),
        )
        stream = await handshake(await raw(victim), PlainHandshake("initiator", MALLORY, hello, limit=4096))
        await until(lambda: victim.connected(MALLORY.id))
        assert victim._book.of(MALLORY.id) == (Address("tcp", "127.0.0.1", 80, MALLORY.id),)  # where it came from
        await stream.aclose()
