"""Control connections under a simulated network: simultaneous dials, faults, silence. Replays by seed."""

from random import Random

import anyio
import anyio.lowlevel
import pytest

from hydra_net import (
    Address,
    ByteStream,
    ConnectionLost,
    Identity,
    Limits,
    MemoryNetwork,
    Node,
    PeerConnected,
    PeerDisconnected,
    PeerUnreachable,
)
from hydra_net.testing import simulate


def identity(name):
    return Identity.from_seed(name.encode().ljust(32, b"-"))


class Late(ByteStream):
    """What comes in on this stream is read late: what is sent on another one can overtake it."""

    def __init__(self, stream, seconds):
        self._stream, self._seconds = stream, seconds

    async def receive(self, max_bytes=65536):
        data = await self._stream.receive(max_bytes)
        await anyio.sleep(self._seconds)
        return data

    async def send(self, item):
        await self._stream.send(item)

    async def send_eof(self):
        await self._stream.send_eof()

    async def aclose(self):
        await self._stream.aclose()


class LateIncoming:
    """A transport whose accepted connections are late, those dialled are not."""

    def __init__(self, inner, seconds):
        self.inner, self.schemes, self.seconds = inner, inner.schemes, seconds

    async def dial(self, address):
        return await self.inner.dial(address)

    async def serve(self, address, handler, *, task_status):
        await self.inner.serve(address, lambda stream: handler(Late(stream, self.seconds)), task_status=task_status)


def node(network, name, slow=0.0, **options):
    return Node(
        listen=[f"memory://{name}:1"],
        transports=[LateIncoming(network.host(name), slow) if slow else network.host(name)],
        identity=identity(name),
        rng=Random(name),
        **options,
    )


def address(name):
    return Address("memory", name, 1, identity(name).id)


class Recorder:
    """What one node saw: posts in order, and its events."""

    def __init__(self, node):
        self.node = node
        self.posts = []
        self.events = []

    def __enter__(self):
        self._context = self.node.handle_inline("post", lambda caller, body: self.posts.append(body))
        return self._context.__enter__()

    def __exit__(self, *error):
        return self._context.__exit__(*error)

    async def watch(self, task_status):
        async with self.node.events() as events:
            task_status.started()
            async for event in events:
                self.events.append(event)


async def echo(caller, body):
    return body


def settled(node, peer):
    """The connections of ``node`` to ``peer``: one, once a simultaneous dial has been sorted out."""
    return node._opened[0]._peers[peer].connections


async def simultaneous(seed, delay):
    """Both dial at (almost) the same time, and both post and call all along."""
    network = MemoryNetwork(seed=seed, latency=0.05, jitter=0.02)
    async with node(network, "a", slow=0.2) as a, node(network, "b", slow=0.2) as b:
        ra, rb = Recorder(a), Recorder(b)
        a.learn(b.id, [address("b")])
        b.learn(a.id, [address("a")])
        answers = []

        async def ask(one, other, number):
            answers.append(await one.call(other.id, "echo", number))

        async def talk(one, other, wait):
            await anyio.sleep(wait)
            for number in range(120):
                assert one.post(other.id, "post", number)
                if number % 24 == 0:
                    tasks.start_soon(ask, one, other, number)
                await anyio.sleep(0.01)

        with ra, rb, a.handle("echo", echo), b.handle("echo", echo):
            async with anyio.create_task_group() as watching:
                await watching.start(lambda task_status: ra.watch(task_status))
                await watching.start(lambda task_status: rb.watch(task_status))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(talk, a, b, 0)
                    tasks.start_soon(talk, b, a, delay)
                await anyio.sleep(15)
                connections = [len(settled(a, b.id)), len(settled(b, a.id))]
                watching.cancel_scope.cancel()
        return ra.posts, rb.posts, ra.events, rb.events, sorted(answers), connections


def test_simultaneous_dials_end_in_one_connection_and_nothing_is_lost_overtaken_or_told_wrongly():
    for seed in range(40):
        delay = seed % 8 * 0.02  # from exactly at once to after the other's dial has arrived
        posts_a, posts_b, events_a, events_b, answers, connections = simulate(simultaneous, seed, seed, delay)
        assert posts_a == list(range(120))
        assert posts_b == list(range(120))
        assert events_a == [PeerConnected(identity("b").id)]
        assert events_b == [PeerConnected(identity("a").id)]
        assert len(answers) == 10
        assert connections == [1, 1]


def test_simultaneous_dials_do_happen_in_that_test(monkeypatch):
    """Without the rule there would be two connections: so the test above tests it."""
    from hydra_net.pool import Pool

    monkeypatch.setattr(Pool, "_choose", lambda self, old, new: None)
    *_, connections = simulate(simultaneous, 0, 0, 0.0)
    assert connections == [2, 2]


def test_a_run_replays_by_its_seed():
    assert simulate(simultaneous, 3, 3, 0.04) == simulate(simultaneous, 3, 3, 0.04)


async def reset_and_go_on(seed):
    network = MemoryNetwork(seed=seed, latency=0.01)
    async with node(network, "a") as a, node(network, "b") as b:
        ra, rb = Recorder(a), Recorder(b)
        with ra, rb, b.handle("echo", echo):
            async with anyio.create_task_group() as watching:
                await watching.start(lambda task_status: ra.watch(task_status))
                await watching.start(lambda task_status: rb.watch(task_status))
                await a.connect(address("b"))
                await anyio.sleep(1)
                network.reset("a", "b")
                await anyio.sleep(1)
                a.post(b.id, "post", "again")
                await anyio.sleep(1)
                assert await a.call(b.id, "echo", 1) == 1
                watching.cancel_scope.cancel()
        return ra.events, rb.events, rb.posts


def test_a_reset_connection_is_told_once_and_dialled_again():
    for seed in range(5):
        events_a, events_b, posts = simulate(reset_and_go_on, seed, seed)
        for events in (events_a, events_b):
            assert [type(event) for event in events] == [PeerConnected, PeerDisconnected, PeerConnected]
            assert "reset" in str(events[1].cause)
        assert posts == ["again"]


async def in_flight(fault):
    network = MemoryNetwork(latency=0.01)
    async with node(network, "a") as a, node(network, "b") as b, a.events() as events:
        await a.connect(address("b"))
        begun = anyio.current_time()

        async def never(caller, body):
            fault(network)
            await anyio.sleep_forever()

        with b.handle("never", never):
            with pytest.raises(ConnectionLost) as caught:
                await a.call(b.id, "never")
            seconds = anyio.current_time() - begun
            assert await anext(events) == PeerConnected(b.id)
            gone = await anext(events)
            assert isinstance(gone, PeerDisconnected)
            return seconds, str(caught.value), str(gone.cause)


def test_a_killed_host_is_noticed_at_once():
    seconds, error, _ = simulate(in_flight, 0, lambda network: network.kill("b"))
    assert seconds < 0.1
    assert "may have handled" in error


@pytest.mark.parametrize("fault", ["vanish", "cut", "partition"])
def test_silence_is_noticed_after_three_keep_alives(fault):
    def silence(network):
        if fault == "vanish":
            network.vanish("b")
        elif fault == "cut":
            network.cut("b", "a")
        else:
            network.partition([["a"], ["b"]])

    seconds, error, cause = simulate(in_flight, 0, silence)
    assert 59 < seconds < 61
    assert "silent for 60 s" in error
    assert "silent for 60 s" in cause


async def idle(hours):
    network = MemoryNetwork(latency=0.01)
    async with node(network, "a") as a, node(network, "b") as b, a.events() as events:
        await a.connect(address("b"))
        assert await anext(events) == PeerConnected(b.id)
        await anyio.sleep(hours * 3600)
        assert a.connected(b.id)
        assert b.connected(a.id)
        with anyio.move_on_after(1):
            raise AssertionError(await anext(events))
        await anyio.lowlevel.checkpoint()
        return a._opened[0]._peers[b.id].connections[0]._pings


def test_an_idle_connection_is_kept_alive():
    pings = simulate(idle, 0, 1)
    assert 170 <= pings <= 180  # one in 20 s


async def partition_and_heal():
    network = MemoryNetwork(latency=0.01)
    async with node(network, "a") as a, node(network, "b") as b:
        rb = Recorder(b)
        with rb:
            await a.connect(address("b"))
            await anyio.sleep(1)  # or b has not got the last message of the handshake
            network.partition([["a"], ["b"]])
            for number in range(10):
                assert a.post(b.id, "post", number)
            await anyio.sleep(30)
            assert rb.posts == []
            network.heal()
            await anyio.sleep(1)
            assert a.connected(b.id)
            return rb.posts


def test_a_short_partition_loses_nothing():
    assert simulate(partition_and_heal) == list(range(10))


async def restart():
    """The peer loses its power and comes back as another process; this side hears nothing of the end."""
    network = MemoryNetwork(latency=0.01)
    async with node(network, "a") as a, a.events() as events:
        async with anyio.create_task_group() as tasks:

            async def life(started):
                async with node(network, "b"):
                    started.set()
                    await anyio.sleep_forever()

            started = anyio.Event()
            tasks.start_soon(life, started)
            await started.wait()
            await a.connect(address("b"))
            assert await anext(events) == PeerConnected(identity("b").id)
            network.vanish("b")
            tasks.cancel_scope.cancel()
        # The same identity at another host: the old connection stays as silent as a machine without power.
        elsewhere = Node(listen=["memory://c:1"], transports=[network.host("c")], identity=identity("b"), rng=Random(1))
        async with elsewhere as b:
            rb = Recorder(b)
            with rb:
                await b.connect(address("a"))
                await anyio.sleep(0.1)
                assert a.post(b.id, "post", 1)
                await anyio.sleep(0.1)
                return rb.posts, len(settled(a, b.id))


def test_a_restarted_peer_replaces_its_old_connection_at_once():
    posts, connections = simulate(restart)
    assert posts == [1]
    assert connections == 1


async def posts_to_the_dead():
    network = MemoryNetwork(latency=0.001)
    async with node(network, "a") as a, a.events() as events:
        a.learn(identity("b").id, [address("b")])
        failed = []

        async def watch():
            async for event in events:
                failed.append(anyio.current_time())
                assert event.peer == identity("b").id

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for _ in range(100):
                a.post(identity("b").id, "post", 1)
                await anyio.sleep(0.1)
            posted = len(failed)
            for _ in range(10):  # calls do not wait for the next turn
                begun = anyio.current_time()
                with pytest.raises(PeerUnreachable):
                    await a.call(identity("b").id, "x")
                assert anyio.current_time() - begun < 0.1
            tasks.cancel_scope.cancel()
        return posted


def test_posts_to_a_dead_peer_do_not_dial_without_end():
    assert 8 <= simulate(posts_to_the_dead) <= 16  # 10 s, soon once a second


async def dead_addresses_first():
    network = MemoryNetwork(latency=0.01)
    network.vanish("ghost")
    async with node(network, "a") as a, node(network, "b") as b:
        a.learn(b.id, [Address("memory", "ghost", port) for port in (1, 2, 3)])
        a.learn(b.id, [address("b")])
        begun = anyio.current_time()
        await a.connect(b.id)
        return anyio.current_time() - begun


def test_addresses_that_do_not_answer_cost_a_quarter_of_a_second_each():
    assert 0.75 <= simulate(dead_addresses_first) < 1


async def all_addresses_dead():
    network = MemoryNetwork(latency=0.01)
    network.vanish("ghost")
    async with node(network, "a") as a:
        a.learn(identity("b").id, [Address("memory", "ghost", port) for port in (1, 2, 3)])
        begun = anyio.current_time()
        with pytest.raises(PeerUnreachable, match="no answer within 10 s") as caught:
            await a.connect(identity("b").id)
        assert len(caught.value.causes) == 3
        return anyio.current_time() - begun


def test_a_dial_ends():
    assert 10 <= simulate(all_addresses_dead) < 11


async def close_beside_a_silent_peer():
    network = MemoryNetwork(latency=0.01)
    async with node(network, "b") as b, node(network, "c") as c:
        got = []
        with c.handle_inline("post", lambda caller, body: got.append(body)):
            async with node(network, "a") as a:
                await a.connect(address("b"))
                await a.connect(address("c"))
                network.partition([["b"]])
                a.post(b.id, "post", b"x" * 60_000)
                a.post(c.id, "post", "bye")
                begun = anyio.current_time()
            seconds = anyio.current_time() - begun
            await anyio.sleep(0.1)
        return seconds, got


def test_leaving_takes_a_second_at_most_and_tells_those_who_listen():
    seconds, got = simulate(close_beside_a_silent_peer)
    assert seconds <= 1.1
    assert got == ["bye"]


async def retire_beside_a_silent_peer():
    network = MemoryNetwork(latency=0.01)
    async with node(network, "hub", limits=Limits(connections=1)) as hub, node(network, "a") as a, node(network, "b"):
        await hub.connect(address("a"))
        network.partition([["a"]])
        hub.post(a.id, "post", 1)
        begun = anyio.current_time()
        await hub.connect(address("b"))
        async with hub.events() as events:
            gone = await anext(events)
        assert isinstance(gone, PeerDisconnected)
        assert gone.peer == a.id
        return anyio.current_time() - begun


def test_a_connection_that_cannot_be_retired_is_closed_in_the_end():
    assert 10 <= simulate(retire_beside_a_silent_peer) < 11


async def killed_at_every_byte(nbytes):
    """The peer dies in the middle of the handshake or of the first messages: errors of the right kind, no hang."""
    network = MemoryNetwork(latency=0.01)
    async with anyio.create_task_group() as tasks:

        async def victim(task_status):
            async with node(network, "b") as b:
                with b.handle("echo", echo):
                    task_status.started()
                    await network.host("b").dead.wait()
                    await anyio.sleep_forever()

        await tasks.start(lambda task_status: victim(task_status))
        network.kill_after("b", nbytes)
        async with node(network, "a") as a:
            try:
                for number in range(100):
                    await a.call(address("b"), "echo", number)
            except PeerUnreachable as error:
                result = type(error)
            else:
                result = None
        tasks.cancel_scope.cancel()
    return result


def test_a_peer_killed_at_any_byte_is_unreachable_or_lost():
    seen = {simulate(killed_at_every_byte, nbytes, nbytes) for nbytes in range(0, 620, 7)}
    assert seen == {PeerUnreachable, ConnectionLost}
