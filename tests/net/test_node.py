"""Nodes on both back ends, over TCP and in memory: calls, posts, streams, events, life and death."""

import logging
import sys
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from hydra_net import (
    Address,
    ConnectFailed,
    ConnectionLost,
    DialError,
    EventsLost,
    HydraError,
    Identity,
    KeyFileError,
    Limits,
    LocalProtocolError,
    MemoryNetwork,
    Node,
    NodeClosed,
    NodeFailed,
    PeerConnected,
    PeerDisconnected,
    PeerUnreachable,
    RemoteError,
    RemoteProtocolError,
    SelfDial,
    TcpTransport,
    WrongPeer,
)

pytestmark = pytest.mark.anyio

NOBODY = Identity.from_seed(b"n" * 32)


def identity(name):
    return Identity.from_seed(name.encode().ljust(32, b"-"))


class World:
    """Nodes in one process, by the transport under test."""

    def __init__(self, kind):
        self.network = MemoryNetwork() if kind == "memory" else None

    def node(self, name, **options):
        if self.network is None:
            return Node(listen=["tcp://127.0.0.1:0"], identity=identity(name), **options)
        return Node(
            listen=[f"memory://{name}:1"], transports=[self.network.host(name)], identity=identity(name), **options
        )


@pytest.fixture(params=["tcp", "memory"])
def world(request):
    return World(request.param)


@asynccontextmanager
async def pair(world, **options):
    async with world.node("a", **options) as a, world.node("b", **options) as b:
        await a.connect(b.addresses[0])
        yield a, b


async def until(condition):
    """Let the others run until ``condition()`` holds."""
    with anyio.fail_after(20):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def echo(caller, body):
    return [caller.peer, body]


# ---------------------------------------------------------------------------------------------------- calls


async def test_calls_go_both_ways_over_one_connection(world):
    async with pair(world) as (a, b):
        with a.handle("echo", echo), b.handle("echo", echo):
            assert await a.call(b.id, "echo", {"x": [1, b"y"]}) == [a.id, {"x": [1, b"y"]}]
            assert await b.call(a.id, "echo") == [b.id, None]
        await until(lambda: b.connected(a.id))
        assert a.connected(b.id)


async def test_many_calls_are_in_flight_at_a_time_and_answered_in_any_order(world):
    async with pair(world) as (a, b):
        waiting = []

        async def reverse(_, body):
            event = anyio.Event()
            waiting.append(event)
            if len(waiting) == 50:
                for other in reversed(waiting):
                    other.set()
            await event.wait()
            return body

        answers = []

        async def ask(number):
            answers.append((number, await a.call(b.id, "reverse", number)))

        with b.handle("reverse", reverse):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(ask, number)
        assert sorted(answers) == [(number, number) for number in range(50)]


async def test_a_call_can_be_made_by_address(world):
    async with world.node("a") as a, world.node("b") as b:
        with b.handle("echo", echo):
            assert await a.call(b.addresses[0], "echo", 1) == [a.id, 1]
            assert await a.call(str(b.addresses[0].without_peer()), "echo", 2) == [a.id, 2]


async def test_what_a_handler_raises_is_the_callers_remote_error(world, caplog):
    caplog.set_level(logging.ERROR)

    async def bad(caller, body):
        raise ZeroDivisionError("oops")

    def inline_bad(caller, body):
        raise KeyError("inline")

    async with pair(world) as (a, b):
        with b.handle("bad", bad), b.handle_inline("inline", inline_bad):
            for method, kind, text in (("bad", "ZeroDivisionError", "oops"), ("inline", "KeyError", "'inline'")):
                with pytest.raises(RemoteError) as caught:
                    await a.call(b.id, method)
                assert (caught.value.peer, caught.value.method) == (b.id, method)
                assert (caught.value.kind, caught.value.message) == (kind, text)
                assert "Traceback" not in str(caught.value)
            with pytest.raises(RemoteError, match="no such method"):
                await a.call(b.id, "nothing")
            a.post(b.id, "inline")
            a.post(b.id, "nothing")
        with b.handle("echo", echo):  # and the connection is as good as ever
            assert await a.call(b.id, "echo") == [a.id, None]
    assert "ZeroDivisionError" in caplog.text  # the whole story is in the log where it happened


async def test_an_answer_that_cannot_be_sent_is_an_error_for_the_caller(world):
    async def answer(caller, body):
        return b"x" * Limits().frame if body == "long" else {1, 2}

    async with pair(world) as (a, b):
        with b.handle("answer", answer):
            for body, words in (("long", "open_stream"), ("set", "cannot be encoded")):
                with pytest.raises(RemoteError, match=words):
                    await a.call(b.id, "answer", body)


async def test_what_cannot_be_sent_is_refused_where_it_is_made(world):
    async with pair(world) as (a, b):
        for body in ({1, 2}, 2**64, b"x" * Limits().frame):
            with pytest.raises(LocalProtocolError):
                await a.call(b.id, "echo", body)
            with pytest.raises(LocalProtocolError):
                a.post(b.id, "echo", body)
        with b.handle("echo", echo):
            assert await a.call(b.id, "echo", 1) == [a.id, 1]
        for name in ("", "x" * 200):
            with pytest.raises(LocalProtocolError, match="name"):
                await a.call(b.id, name)
        with pytest.raises(LocalProtocolError, match="PeerId"):
            a.post(bytes(b.id), "x")


async def test_a_cancelled_call_leaves_the_connection_usable_and_its_answer_is_dropped(world):
    async with pair(world) as (a, b):
        release = anyio.Event()
        arrived = anyio.Event()

        async def slow(caller, body):
            arrived.set()
            await release.wait()
            return "late"

        with b.handle("slow", slow), b.handle("echo", echo):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(a.call, b.id, "slow")
                await arrived.wait()
                tasks.cancel_scope.cancel()
            release.set()
            assert await a.call(b.id, "echo", 1) == [a.id, 1]
            assert await a.call(b.id, "slow") == "late"


async def test_requests_beyond_the_limit_are_answered_with_busy(world):
    async with world.node("a") as a, world.node("b", limits=Limits(requests=2)) as b:
        await a.connect(b.addresses[0])
        release = anyio.Event()
        started = []

        async def slow(caller, body):
            started.append(body)
            await release.wait()
            return body

        answers = []

        async def ask(number):
            answers.append(await a.call(b.id, "slow", number))

        with b.handle("slow", slow):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, 1)
                tasks.start_soon(ask, 2)
                await until(lambda: len(started) == 2)
                with pytest.raises(RemoteError) as caught:
                    await a.call(b.id, "slow", 3)
                assert caught.value.kind == "busy"
                release.set()
        assert sorted(answers) == [1, 2]


async def test_callers_wait_while_too_many_calls_are_under_way(world):
    async with world.node("a", limits=Limits(calls=2)) as a, world.node("b") as b:
        await a.connect(b.addresses[0])
        running = most = 0

        async def work(caller, body):
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            running -= 1
            return body

        with b.handle("work", work):
            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(a.call, b.id, "work", number)
        assert most == 2


# ---------------------------------------------------------------------------------------------------- posts


async def test_posts_arrive_in_order(world):
    async with pair(world) as (a, b):
        got = []
        with b.handle_inline("post", lambda caller, body: got.append((caller.peer, body))):
            for number in range(1000):
                assert a.post(b.id, "post", number)
            await until(lambda: len(got) == 1000)
        assert got == [(a.id, number) for number in range(1000)]


async def test_a_post_connects_by_itself_and_nothing_is_lost_or_reordered(world):
    async with world.node("a") as a, world.node("b") as b:
        got = []
        a.learn(b.id, b.addresses)
        with b.handle_inline("post", lambda caller, body: got.append(body)):
            for number in range(100):
                assert a.post(b.id, "post", number)
            await until(lambda: len(got) == 100)
        assert got == list(range(100))


async def test_posts_to_somebody_unknown_are_dropped_and_told(world):
    async with world.node("a") as a, a.events() as events:
        assert a.post(NOBODY.id, "post", 1)
        event = await anext(events)
        assert isinstance(event, ConnectFailed)
        assert event.peer == NOBODY.id
        assert "node.learn" in str(event.cause)


async def test_posts_beyond_the_queue_are_refused(world):
    async with world.node("a", limits=Limits(queue=10_000)) as a:
        answers = [a.post(NOBODY.id, "post", b"x" * 1000) for _ in range(20)]
        assert answers == [True] * 10 + [False] * 10


async def test_an_inline_handler_sees_messages_in_the_order_of_calls_and_posts(world):
    async with pair(world) as (a, b):
        got = []

        def take(caller, body):
            got.append(body)
            return len(got)

        with b.handle_inline("take", take):
            for number in range(5):
                a.post(b.id, "take", number)
            assert await a.call(b.id, "take", 5) == 6
        assert got == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------------------------------------------- connections


async def test_connecting_by_an_address_without_a_peer_tells_who_is_there(world):
    async with world.node("a") as a, world.node("b") as b:
        bare = b.addresses[0].without_peer()
        assert await a.connect(bare) == b.id
        assert await a.connect(str(bare)) == b.id
        assert await a.connect(str(b.id)) == b.id


async def test_connecting_again_keeps_the_connection(world):
    async with world.node("b") as b, b.events() as events:
        with b.handle("echo", echo):
            async with world.node("a") as a:
                await a.connect(b.addresses[0])
                (connection,) = a._opened[0]._peers[b.id].connections
                await a.connect(b.addresses[0].without_peer())
                await a.call(b.id, "echo")
                async with anyio.create_task_group() as tasks:
                    for address in (b.addresses[0], b.addresses[0].without_peer(), b.id):
                        for _ in range(3):
                            tasks.start_soon(a.connect, address)
                await a.call(b.id, "echo")
                assert a._opened[0]._peers[b.id].connections == [connection]
        assert await anext(events) == PeerConnected(a.id)
        assert isinstance(await anext(events), PeerDisconnected)  # when a left, and not before


async def test_concurrent_connects_share_one_dial(world):
    async with world.node("a") as a, world.node("b") as b:
        dials = []
        dial = a._dialer.dial

        async def counted(*arguments):
            dials.append(arguments)
            return await dial(*arguments)

        a._dialer.dial = counted
        a.learn(b.id, b.addresses)
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(a.connect, b.id)
                tasks.start_soon(a.connect, b.addresses[0])
        assert len(dials) == 1


async def test_the_peer_behind_an_incoming_connection_can_be_called_and_dialled_back(world):
    async with pair(world) as (a, b):
        with a.handle("echo", echo):
            await until(lambda: b.connected(a.id))
            assert await b.call(a.id, "echo", 1) == [b.id, 1]

            async def take(stream):
                await stream.send(b"hello")

            with a.serve_streams("hi", take):  # its hello said where it listens
                stream = await b.open_stream(a.id, "hi")
                assert await stream.receive() == b"hello"
                await stream.aclose()


async def test_another_peer_at_an_address_is_found_out(world):
    async with world.node("a") as a, world.node("b") as b:
        with pytest.raises(PeerUnreachable) as caught:
            await a.connect(b.addresses[0].with_peer(NOBODY.id))
        (error,) = caught.value.causes
        assert isinstance(error, DialError)
        assert isinstance(error.cause, WrongPeer)
        assert error.cause.actual == b.id
        assert not a.connected(NOBODY.id)
        # The address is not tried again, and does not keep us from the peer who is there.
        with pytest.raises(PeerUnreachable, match="no address"):
            await a.connect(NOBODY.id)
        assert await a.connect(b.addresses[0]) == b.id


async def test_a_node_does_not_connect_to_itself(world):
    async with world.node("a") as a:
        with pytest.raises(DialError) as caught:
            await a.connect(a.addresses[0].without_peer())
        assert isinstance(caught.value.cause, SelfDial)
        for what in (a.id, a.addresses[0]):
            with pytest.raises(SelfDial):
                await a.connect(what)
        with pytest.raises(SelfDial):
            a.post(a.id, "x")


async def test_a_dial_that_fails_names_each_address(world):
    async with world.node("a") as a:
        scheme = "tcp://127.0.0.1:" if world.network is None else "memory://nobody:"
        addresses = [Address.parse(f"{scheme}{port}") for port in (1, 2)] + [Address.parse("quic://x:1")]
        a.learn(NOBODY.id, addresses)
        with pytest.raises(PeerUnreachable) as caught:
            await a.connect(NOBODY.id)
        assert [error.address.without_peer() for error in caught.value.causes] == addresses
        assert "no transport for quic" in str(caught.value)
        with pytest.raises(PeerUnreachable):
            await a.call(NOBODY.id, "x")
        with pytest.raises(PeerUnreachable):
            await a.open_stream(NOBODY.id, "x")


async def test_a_good_address_among_bad_ones_is_found(world):
    async with world.node("a") as a, world.node("b") as b:
        dead = "tcp://127.0.0.1:1" if world.network is None else "memory://nobody:1"
        a.learn(b.id, [Address.parse(dead), *b.addresses])
        assert await a.connect(b.id) == b.id


async def test_a_peer_that_closes_is_told_about_once_and_dialled_again(world):
    async with world.node("a") as a, a.events() as events:
        async with world.node("b") as b:
            await a.connect(b.addresses[0])
            assert await anext(events) == PeerConnected(b.id)
        gone = await anext(events)
        assert isinstance(gone, PeerDisconnected)
        assert gone.peer == b.id
        assert "closed the connection" in str(gone.cause)
        assert not a.connected(b.id)
        port = b.addresses[0].port
        again = Node(
            listen=[f"tcp://127.0.0.1:{port}" if world.network is None else "memory://b:1"],
            transports=None if world.network is None else [world.network.host("b")],
            identity=b.identity,
        )
        got = []
        with again.handle_inline("post", lambda caller, body: got.append(body)):
            async with again:
                a.post(b.id, "post", 1)
                a.post(b.id, "post", 2)
                await until(lambda: got == [1, 2])
                assert await anext(events) == PeerConnected(b.id)
                assert await a.connect(b.id) == b.id


async def test_a_call_under_way_when_the_connection_is_lost_says_so(world):
    async with world.node("a") as a:
        started = anyio.Event()

        async def never(caller, body):
            started.set()
            await anyio.sleep_forever()

        errors = []

        async def ask(b):
            with pytest.raises(ConnectionLost) as caught:
                await a.call(b.id, "never")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks, world.node("b") as b:
            with b.handle("never", never):
                await a.connect(b.addresses[0])
                tasks.start_soon(ask, b)
                await started.wait()
        assert "may have handled" in str(errors[0])
        assert errors[0].peer == b.id


async def test_a_handler_is_cancelled_when_its_caller_is_gone(world):
    async with world.node("b") as b:
        started, cancelled = anyio.Event(), anyio.Event()

        async def never(caller, body):
            started.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

        with b.handle("never", never):
            async with world.node("a") as a:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(a.call, b.addresses[0], "never")
                    await started.wait()
                    tasks.cancel_scope.cancel()
                assert not cancelled.is_set()  # the caller gave up, the peer may not know
            with anyio.fail_after(20):
                await cancelled.wait()


async def test_the_connection_used_the_longest_ago_goes_when_there_are_too_many(world):
    async with (
        world.node("a") as a,
        world.node("b") as b,
        world.node("c") as c,
        world.node("hub", limits=Limits(connections=2, handshake=1000)) as hub,
        hub.events() as events,
    ):
        with a.handle("echo", echo), b.handle("echo", echo), c.handle("echo", echo):
            await hub.connect(a.addresses[0])
            await hub.connect(b.addresses[0])
            await hub.call(a.id, "echo")  # so b's is the one
            await hub.connect(c.addresses[0])
            with anyio.fail_after(20):
                seen = [await anext(events) for _ in range(4)]
            assert [type(event) for event in seen] == [PeerConnected] * 3 + [PeerDisconnected]
            assert seen[3].peer == b.id
            assert "more than 2" in str(seen[3].cause)
            assert hub.connected(a.id)
            assert hub.connected(c.id)
            assert await hub.call(b.id, "echo", 1) == [hub.id, 1]  # comes back when needed


# ---------------------------------------------------------------------------------------------------- streams


async def test_a_bulk_stream_has_a_verified_peer_at_both_ends(world):
    async with pair(world) as (a, b):
        seen = []

        async def take(stream):
            seen.append(stream.peer)
            while True:
                try:
                    await stream.send(await stream.receive())
                except anyio.EndOfStream:
                    return

        with b.serve_streams("bulk", take):
            async with await a.open_stream(b.id, "bulk") as one, await a.open_stream(b.id, "bulk") as two:
                assert one.peer == b.id
                await one.send(b"1")
                await two.send(b"2")
                assert await one.receive() == b"1"
                assert await two.receive() == b"2"
        assert seen == [a.id, a.id]


async def test_a_stream_that_nobody_serves_is_refused_and_the_log_stays_calm(world, caplog):
    caplog.set_level(logging.WARNING)
    async with pair(world) as (a, b):
        with pytest.raises(RemoteError) as caught:
            await a.open_stream(b.id, "nothing")
        assert caught.value.kind == "no such protocol"
        assert a.connected(b.id)
    assert caplog.text == ""


async def test_streams_are_limited(world):
    async with world.node("a") as a, world.node("b", limits=Limits(streams_per_peer=2)) as b:
        a.learn(b.id, b.addresses)

        async def hold(stream):
            await stream.receive()

        with b.serve_streams("hold", hold):
            first, second = [await a.open_stream(b.id, "hold") for _ in range(2)]
            await until(lambda: b._opened[1]._streams == 2)
            with pytest.raises(RemoteError) as caught:
                await a.open_stream(b.id, "hold")
            assert caught.value.kind == "busy"
            await first.aclose()
            await until(lambda: b._opened[1]._streams == 1)
            third = await a.open_stream(b.id, "hold")
            await second.aclose()
            await third.aclose()
            await until(lambda: b._opened[1]._streams == 0)
            assert b._opened[1]._streams_of == {}


async def test_a_stream_handler_that_fails_ends_its_stream_only(world, caplog):
    async with pair(world) as (a, b):

        async def fail(stream):
            raise ZeroDivisionError("in a stream")

        with b.serve_streams("fail", fail), b.handle("echo", echo):
            stream = await a.open_stream(b.id, "fail")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            await stream.aclose()
            assert await a.call(b.id, "echo") == [a.id, None]
    assert "in a stream" in caplog.text


async def test_streams_left_open_are_closed_with_the_node(world):
    async with world.node("b") as b:
        ended = anyio.Event()

        async def wait_for_end(stream):
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            ended.set()

        with b.serve_streams("x", wait_for_end):
            async with world.node("a") as a:
                a.learn(b.id, b.addresses)
                stream = await a.open_stream(b.id, "x")
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
            with anyio.fail_after(20):
                await ended.wait()
        assert a._streams == {}


# ---------------------------------------------------------------------------------------------------- handlers, events


async def test_a_name_has_one_handler(world):
    async with world.node("a") as a:
        with a.handle("x", echo):
            for other in (lambda: a.handle("x", echo), lambda: a.handle_inline("x", lambda caller, body: None)):
                with pytest.raises(LocalProtocolError, match="handler already"), other():
                    pass
        with a.handle_inline("x", lambda caller, body: None), a.serve_streams("x", echo):
            pass


async def test_a_subscriber_that_falls_behind_is_told_how_much_it_missed(world):
    async with world.node("a", limits=Limits(events=2)) as a, a.events() as events:
        for _ in range(5):
            with pytest.raises(PeerUnreachable):
                await a.connect(NOBODY.id)
        assert await anext(events) == EventsLost(3)
        assert isinstance(await anext(events), ConnectFailed)
        assert isinstance(await anext(events), ConnectFailed)


async def test_events_end_with_the_node(world):
    got = []

    async def watch(node, started):
        async with node.events() as events:
            started.set()
            async for event in events:
                got.append(event)

    async with anyio.create_task_group() as tasks, world.node("b") as b, world.node("a") as a:
        started = anyio.Event()
        tasks.start_soon(watch, a, started)
        await started.wait()
        await a.connect(b.addresses[0])
    assert [type(event) for event in got] == [PeerConnected, PeerDisconnected]


# ---------------------------------------------------------------------------------------------------- life


class Odd(BaseException):
    pass


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, Odd, ExceptionGroup])
async def test_what_the_block_raises_comes_out_bare(world, kind):
    error = kind("x", [ValueError()]) if kind is ExceptionGroup else kind("x")
    async with world.node("b") as b:
        caught = None
        try:
            async with world.node("a") as a:
                await a.connect(b.addresses[0])
                raise error
        except BaseException as raised:  # noqa: BLE001 - what comes out is the point
            caught = raised
        assert caught is error


async def test_cancelling_the_block_is_not_an_error(world):
    async with world.node("b") as b:
        with anyio.CancelScope() as scope:
            async with world.node("a") as a:
                await a.connect(b.addresses[0])
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with pytest.raises(NodeClosed):
            await a.connect(b.id)


async def test_a_closed_node_refuses_everything(world):
    async with world.node("a") as a:
        pass
    for use in (
        lambda: a.post(NOBODY.id, "x"),
        lambda: a.handle("x", echo),
        lambda: a.handle_inline("x", echo),
        lambda: a.serve_streams("x", echo),
        lambda: a.learn(NOBODY.id, []),
        lambda: a.connected(NOBODY.id),
    ):
        with pytest.raises(NodeClosed, match="closed"):
            use()
    for call in (a.connect(NOBODY.id), a.call(NOBODY.id, "x"), a.open_stream(NOBODY.id, "x"), a.__aenter__()):
        with pytest.raises(NodeFailed):  # NodeClosed is one
            await call
    with pytest.raises(NodeClosed):
        async with a.events():
            pass


async def test_a_node_that_does_not_run_says_how_to_make_it_run(world):
    a = world.node("a")
    with pytest.raises(LocalProtocolError, match="async with"):
        a.post(NOBODY.id, "x")
    with pytest.raises(LocalProtocolError, match="async with"):
        await a.connect(NOBODY.id)
    async with a:
        with pytest.raises(LocalProtocolError, match="entered once"):
            async with a:
                pass
        a.connected(NOBODY.id)


async def test_a_bug_in_the_node_ends_its_block_and_is_the_cause(world):
    a = world.node("a")

    async def block():
        async with a:
            a._crashed(RuntimeError("a bug"))
            with pytest.raises(NodeFailed):
                a.post(NOBODY.id, "x")
            await anyio.sleep_forever()

    with pytest.raises(NodeFailed) as caught:
        await block()
    assert isinstance(caught.value.cause, RuntimeError)
    with pytest.raises(NodeFailed, match="a bug"):
        await a.connect(NOBODY.id)


async def test_ctrl_c_in_a_handler_comes_out_of_the_block(world):
    async with world.node("b") as b:

        async def interrupted(caller, body):
            raise KeyboardInterrupt

        caught = None
        try:
            async with world.node("a") as a:
                with a.handle("x", interrupted), pytest.raises(PeerUnreachable):
                    await b.call(a.addresses[0], "x")
        except BaseException as error:  # noqa: BLE001 - what comes out is the point
            caught = error
        assert isinstance(caught, KeyboardInterrupt)


async def test_leaving_in_another_task_is_explained(world):
    a = world.node("a")
    await a.__aenter__()

    async def leave():
        with pytest.raises(LocalProtocolError, match="task that entered it"):
            await a.__aexit__(None, None, None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
    await a.__aexit__(None, None, None)


async def test_what_was_posted_last_still_arrives(world):
    async with world.node("b") as b:
        got = []
        with b.handle_inline("post", lambda caller, body: got.append(body)):
            async with world.node("a") as a:
                await a.connect(b.addresses[0])
                for number in range(200):
                    a.post(b.id, "post", bytes([number]) * 5000)
            await until(lambda: len(got) == 200)


async def test_an_address_that_cannot_be_listened_on_is_a_bare_error(world):
    async with world.node("a") as a:
        taken = str(a.addresses[0].without_peer())
        with pytest.raises(OSError):
            async with Node(
                listen=[taken], transports=[TcpTransport() if world.network is None else world.network.host("a")]
            ):
                pytest.fail("it listens")
    with pytest.raises(DialError, match="no transport for quic"):
        async with Node(listen=["quic://127.0.0.1:0"]):
            pass


async def test_arguments_are_checked():
    with pytest.raises(ValueError, match="plain"):
        Node(security="noise")
    with pytest.raises(ValueError, match="address looks like"):
        Node(listen=["nonsense"])
    with pytest.raises(ValueError, match="requests"):
        Limits(requests=0)


async def test_an_identity_from_a_key_file_lasts(tmp_path):
    path = tmp_path / "key"
    ids = []
    for _ in range(2):
        node = Node(listen=[], identity=path)
        with pytest.raises(LocalProtocolError, match="key file"):
            node.id  # noqa: B018
        async with node:
            ids.append(node.id)
    assert ids[0] == ids[1]
    path.chmod(0o644)
    with pytest.raises(KeyFileError):
        async with Node(listen=[], identity=path):
            pass


async def test_wildcards_are_told_as_something_to_dial():
    async with Node(listen=["tcp://0.0.0.0:0"]) as a, Node(listen=[]) as b:
        assert a.addresses[0].host == "127.0.0.1"
        assert all(address.peer == a.id and address.host != "0.0.0.0" and address.port for address in a.addresses)
        for address in a.addresses:
            assert await b.connect(address) == a.id
        with a.handle("echo", echo):
            await b.call(a.id, "echo")
        assert b.addresses == ()
        # What b believes of a: the host at which it saw a, in place of the wildcard.
        assert a.addresses[0] in b._book.of(a.id)


async def test_errors_are_hydra_errors():
    for kind in (DialError, PeerUnreachable, RemoteError, NodeFailed, LocalProtocolError, RemoteProtocolError):
        assert issubclass(kind, HydraError)


@pytest.mark.real
async def test_nothing_outlives_a_node(anyio_backend):
    """In a process of its own, so that a leaked task, socket or thread would be seen at its exit."""
    code = f"""
import anyio, hydra_net
async def main():
    async with hydra_net.Node(listen=["tcp://127.0.0.1:0"]) as a, hydra_net.Node(listen=["tcp://127.0.0.1:0"]) as b:
        await a.connect(b.addresses[0])
    print("done")
anyio.run(main, backend={anyio_backend!r})
"""
    result = await anyio.run_process([sys.executable, "-X", "dev", "-W", "error", "-c", code], check=False)
    assert (result.stdout, result.stderr, result.returncode) == (b"done\n", b"", 0)
