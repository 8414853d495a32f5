"""The network in memory: the conformance suite, its delays, and each of its faults."""

from functools import partial
from itertools import pairwise

import anyio
import anyio.abc
import pytest

from hydra_net.address import Address
from hydra_net.errors import DialError
from hydra_net.testing import conformance, simulate
from hydra_net.testing.conformance import Setup
from hydra_net.transports.memory import MemoryNetwork
from hydra_net.transports.stream import receive_exactly, wait_any

NETWORKS = {
    "instant": {},
    "slow": {"latency": 0.01, "jitter": 0.005, "bandwidth": 1e8, "window": 50_000},
}
LISTEN = Address.parse("memory://b:0")


def between_a_and_b(**options) -> Setup:
    network = MemoryNetwork(**options)
    return Setup(network.host("b"), network.host("a"), LISTEN)


@pytest.mark.anyio
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance_in_real_time(check):
    with anyio.fail_after(20):
        await check(between_a_and_b())


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance_in_virtual_time(check, options):
    for seed in range(3):
        simulate(check, seed, between_a_and_b(seed=seed, **options))


class Pair:
    """A network with hosts a and b and one connection between them, as seen by a test's body."""

    def __init__(self, network, a, b):
        self.network, self.a, self.b = network, a, b


def on_a_pair(body, seed=0, **options):
    """Run ``body(pair)`` in a simulation."""

    async def main():
        network = MemoryNetwork(**options)
        async with conformance.connected(Setup(network.host("b"), network.host("a"), LISTEN)) as (a, b):
            await body(Pair(network, a, b))

    simulate(main, seed)


async def receive(stream, size=1 << 20):
    return await stream.receive(size)


async def holds_for(seconds, call):
    """Assert that ``call()`` is still waiting after so long."""
    with anyio.move_on_after(seconds) as scope:
        await call()
    assert scope.cancelled_caught


async def answer(stream):
    await stream.send(b"hello from " + stream.extra(anyio.abc.SocketAttribute.local_address)[0].encode())


# ---------------------------------------------------------------------- delays


def test_latency_and_bandwidth_take_their_time():
    async def body(pair):
        start = anyio.current_time()
        assert start == pytest.approx(0.2)  # the dial's round trip
        await pair.a.send(bytes(1000))
        assert anyio.current_time() == start
        assert await receive_exactly(pair.b, 1000)
        assert anyio.current_time() - start == pytest.approx(0.1 + 0.5)

    on_a_pair(body, latency=0.1, bandwidth=2000.0)


def test_a_link_is_set_in_one_direction_and_shared_by_its_streams():
    async def body(pair):
        pair.network.set_link("a", "b", latency=1.0, bandwidth=100.0)
        start = anyio.current_time()
        await pair.b.send(b"x")
        assert await receive(pair.a) == b"x"
        assert anyio.current_time() == start
        await pair.a.send(bytes(50))
        await pair.a.send(bytes(50))
        assert len(await receive(pair.b)) == 50
        assert anyio.current_time() - start == pytest.approx(1.5)
        assert len(await receive(pair.b)) == 50
        assert anyio.current_time() - start == pytest.approx(2.0)

    on_a_pair(body)


def test_jitter_varies_and_never_reorders():
    async def body(pair):
        arrivals = []

        async def send():
            for number in range(50):
                await pair.a.send(bytes([number]))
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            got = b""
            while len(got) < 50:
                got += await receive(pair.b)
                arrivals.append(anyio.current_time())
        assert got == bytes(range(50))
        assert len(arrivals) > 5
        assert len({round(b - a, 6) for a, b in pairwise(arrivals)}) > 5

    on_a_pair(body, latency=0.01, jitter=0.1)


def test_a_full_window_holds_the_sender_until_the_reader_reads():
    async def body(pair):
        sent = 0
        while (count := pair.a.try_send([bytes(300)])) is not None:
            sent += count
        assert sent == 1000
        await holds_for(100.0, partial(pair.a.send, b"x"))
        await pair.b.receive(400)
        assert pair.a.try_send([bytes(1000)]) == 400

    on_a_pair(body, window=1000)


def test_what_was_sent_is_a_copy():
    async def body(pair):
        data = bytearray(b"before")
        assert pair.a.try_send([data]) == 6
        data[:] = b"after!"
        assert await receive(pair.b) == b"before"

    on_a_pair(body)


def test_wait_any_wakes_when_the_data_arrives_and_not_before():
    async def body(pair):
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def send_later():
                await anyio.sleep(3.0)
                await pair.b.send(b"x")

            tasks.start_soon(send_later)
            while (count := pair.a.try_receive_into(memoryview(bytearray(1)))) is None:
                await wait_any([pair.a], [])
        assert count == 1
        assert anyio.current_time() - start == pytest.approx(3.5)

    on_a_pair(body, latency=0.5)


# ---------------------------------------------------------------------- faults on links


def test_reset_fails_both_ends_at_once_and_wakes_them():
    async def body(pair):
        failures = []

        async def expect_failure(call):
            with pytest.raises(anyio.BrokenResourceError, match="reset"):
                await call()
            failures.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            start = anyio.current_time()
            tasks.start_soon(expect_failure, pair.a.receive)
            tasks.start_soon(expect_failure, partial(pair.a.send, bytes(10**6)))
            await anyio.sleep(5.0)
            pair.network.reset("b", "a")
        assert failures == [start + 5.0] * 2
        for use in (lambda: pair.b.try_send([b"x"]), lambda: pair.b.try_receive_into(memoryview(bytearray(1)))):
            with pytest.raises(anyio.BrokenResourceError):
                use()
        await wait_any([pair.a], [])  # at once

    on_a_pair(body, latency=0.1, window=1000)


def test_a_partition_holds_bytes_until_it_heals_and_loses_none():
    async def body(pair):
        await pair.a.send(b"in flight,")
        pair.network.partition([["a"], ["b", "c"]])
        await pair.a.send(b"sent inside,")
        await holds_for(100.0, pair.b.receive)
        with anyio.move_on_after(10.0) as hanging:
            await pair.network.host("a").dial(Address.parse("memory://b:1"))
        assert hanging.cancelled_caught
        healed_at = anyio.current_time() + 7.0
        async with anyio.create_task_group() as tasks:

            async def heal():
                await anyio.sleep(7.0)
                pair.network.heal()

            tasks.start_soon(heal)
            assert await receive_exactly(pair.b, 22) == b"in flight,sent inside,"
        assert anyio.current_time() == healed_at
        await pair.b.send(b"back")
        assert await receive(pair.a) == b"back"

    on_a_pair(body, latency=0.1)


def test_hosts_that_no_group_names_stay_together():
    async def body(pair):
        pair.network.partition([["c"]])
        await pair.a.send(b"x")
        assert await receive(pair.b) == b"x"
        pair.network.partition([["a"]])
        await pair.a.send(b"x")
        await holds_for(1.0, pair.b.receive)

    on_a_pair(body)


def test_a_dial_across_a_partition_goes_through_after_the_heal():
    async def main():
        network = MemoryNetwork(latency=0.1)
        network.partition([["a"], ["b"]])
        async with conformance.serving(Setup(network.host("b"), network.host("a"), LISTEN), answer) as addresses:
            async with anyio.create_task_group() as tasks:

                async def heal():
                    await anyio.sleep(60.0)
                    network.heal()

                tasks.start_soon(heal)
                stream = await network.host("a").dial(addresses[0])
                assert anyio.current_time() == pytest.approx(60.1)
            assert await receive(stream) == b"hello from b"

    simulate(main)


def test_a_cut_stops_one_direction_and_the_other_when_its_window_is_full():
    async def body(pair):
        pair.network.cut("a", "b")
        await pair.a.send(b"lost way")
        await holds_for(10.0, pair.b.receive)
        for _ in range(10):  # nothing a reads is acknowledged
            assert pair.b.try_send([bytes(100)]) == 100
            assert len(await receive(pair.a)) == 100
        assert pair.b.try_send([bytes(100)]) is None
        await holds_for(10.0, partial(wait_any, [], [pair.b]))
        pair.network.heal()
        assert pair.b.try_send([bytes(2000)]) == 1000
        assert await receive(pair.b) == b"lost way"

    on_a_pair(body, window=1000)


def test_a_partition_longer_than_give_up_fails_both_ends():
    async def body(pair):
        failed = []

        async def expect_failure(stream):
            with pytest.raises(anyio.BrokenResourceError, match="too long"):
                await stream.receive()
            failed.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_failure, pair.a)
            tasks.start_soon(expect_failure, pair.b)
            await anyio.sleep(1.0)
            pair.network.partition([["a"], ["b"]])
            start = anyio.current_time()
            await anyio.sleep(29.0)
            assert not failed
        assert failed == [start + 30.0] * 2
        with pytest.raises(anyio.BrokenResourceError):
            pair.a.try_send([b"x"])

    on_a_pair(body, give_up=30.0)


def test_a_sender_gives_up_too():
    async def body(pair):
        await pair.a.send(bytes(1000))
        pair.network.cut("b", "a")
        start = anyio.current_time()
        with pytest.raises(anyio.BrokenResourceError, match="too long"):
            await pair.a.send(b"x")
        assert anyio.current_time() == start + 30.0

    on_a_pair(body, give_up=30.0, window=1000)


# ---------------------------------------------------------------------- faults on hosts


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_paused_host_neither_gets_nor_sends(name):
    async def body(pair):
        pair.network.pause(name)
        await pair.a.send(b"ping")
        await pair.b.send(b"pong")
        await holds_for(50.0, pair.b.receive)
        await holds_for(50.0, pair.a.receive)
        pair.network.resume(name)
        assert await receive(pair.b) == b"ping"
        assert await receive(pair.a) == b"pong"

    on_a_pair(body)


def test_kill_delivers_what_is_in_flight_then_ends_the_stream():
    async def body(pair):
        await pair.a.send(b"last words")
        host = pair.network.host("a")
        pair.network.kill("a")
        assert host.dead.is_set()
        assert await receive(pair.b) == b"last words"
        with pytest.raises(anyio.EndOfStream):
            await pair.b.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await pair.b.send(b"anybody?")
        for use in (pair.a.receive, partial(pair.a.send, b"ghost")):
            with pytest.raises(anyio.BrokenResourceError, match="dead"):
                await use()
        with pytest.raises(DialError):
            await host.dial(Address.parse("memory://b:1"))
        with pytest.raises(DialError):
            await pair.network.host("b").dial(Address.parse("memory://a:1"))

    on_a_pair(body, latency=0.2)


def test_a_killed_server_refuses():
    async def main():
        network = MemoryNetwork(latency=0.1)
        async with conformance.serving(Setup(network.host("b"), network.host("a"), LISTEN), answer) as addresses:
            network.kill("b")
            with pytest.raises(DialError) as failure:
                await network.host("a").dial(addresses[0])
            assert isinstance(failure.value.__cause__, ConnectionRefusedError)
            assert anyio.current_time() == pytest.approx(0.2)

    simulate(main)


def test_a_killed_host_that_left_something_unread_resets():
    async def body(pair):
        await pair.b.send(b"never read")
        pair.network.kill("a")
        with pytest.raises(anyio.BrokenResourceError):
            await pair.b.receive()

    on_a_pair(body)


def test_kill_wakes_waiting_writers_on_both_sides():
    async def body(pair):
        woken = []

        async def wait(call, *kinds):
            with pytest.raises(kinds):
                await call()
            woken.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, partial(pair.a.send, bytes(5000)), anyio.BrokenResourceError)
            tasks.start_soon(wait, partial(pair.b.send, bytes(5000)), anyio.BrokenResourceError)
            await anyio.sleep(1.0)
            killed_at = anyio.current_time()
            pair.network.kill("a")
        assert sorted(woken) == pytest.approx([killed_at, killed_at + 0.2])

    on_a_pair(body, latency=0.2, window=1000)


def test_kill_wakes_waiting_readers_on_both_sides():
    async def body(pair):
        async with anyio.create_task_group() as tasks:

            async def kill():
                await anyio.sleep(1.0)
                pair.network.kill("a")

            async def read_at_a():
                with pytest.raises(anyio.BrokenResourceError):
                    await pair.a.receive()
                assert anyio.current_time() == start + 1.0

            start = anyio.current_time()
            tasks.start_soon(kill)
            tasks.start_soon(read_at_a)
            with pytest.raises(anyio.EndOfStream):
                await pair.b.receive()
            assert anyio.current_time() == pytest.approx(start + 1.2)

    on_a_pair(body, latency=0.2)


@pytest.mark.parametrize("budget", [0, 1, 999, 1000, 1001, 2500])
def test_kill_after_dies_in_the_middle_of_a_write_at_that_byte(budget):
    async def body(pair):
        await pair.a.send(b"before the fuse was lit")
        await receive(pair.b)
        pair.network.kill_after("a", budget)
        with pytest.raises(anyio.BrokenResourceError, match="dead"):
            await pair.a.send_vectored([bytes(400), bytes(600)] * 3)
        assert pair.network.host("a").dead.is_set()
        got = b""
        async for data in pair.b:
            got += data
        assert len(got) == budget

    on_a_pair(body, latency=0.1)


def test_vanish_is_silence():
    async def body(pair):
        await pair.a.send(b"lost with it")
        host = pair.network.host("a")
        pair.network.vanish("a")
        assert host.dead.is_set()
        await holds_for(1000.0, pair.b.receive)
        await holds_for(1000.0, partial(pair.network.host("b").dial, Address.parse("memory://a:1")))
        await pair.b.send(b"into the void")
        with pytest.raises(anyio.BrokenResourceError, match="dead"):
            await pair.a.receive()

    on_a_pair(body, latency=0.1)


def test_a_vanished_host_comes_back_with_resets():
    async def body(pair):
        pair.network.vanish("b")
        async with anyio.create_task_group() as tasks:

            async def restart():
                await anyio.sleep(9.0)
                host = pair.network.restart("b")
                assert host is pair.network.host("b")
                assert not host.dead.is_set()
                await tasks.start(host.serve, Address.parse("memory://b:5"), answer)

            tasks.start_soon(restart)
            with pytest.raises(anyio.BrokenResourceError, match="restarted"):
                await pair.a.receive()
            await anyio.wait_all_tasks_blocked()
            stream = await pair.network.host("a").dial(Address.parse("memory://b:5"))
            assert await receive(stream) == b"hello from b"
            tasks.cancel_scope.cancel()

    on_a_pair(body)


def test_only_a_dead_host_restarts():
    with pytest.raises(ValueError, match="alive"):
        MemoryNetwork().restart("a")


def test_a_dial_that_is_cancelled_leaves_no_connection():
    async def main():
        network = MemoryNetwork(latency=1.0)
        ended = []

        async def handler(stream):
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
            ended.append(anyio.current_time())

        async with conformance.serving(Setup(network.host("b"), network.host("a"), LISTEN), handler) as addresses:
            with anyio.move_on_after(1.5):
                await network.host("a").dial(addresses[0])
            await anyio.sleep(5.0)
        assert ended == [1.5]
        assert not network.host("a").streams()
        assert not network.host("b").streams()

    simulate(main)


def test_serving_what_cannot_be_served():
    async def main():
        network = MemoryNetwork()
        host = network.host("a")
        async with conformance.serving(Setup(host, host, Address.parse("memory://a:7")), answer):
            for address in ("memory://a:7", "memory://elsewhere:1"):
                with pytest.raises(OSError):
                    await host.serve(Address.parse(address), answer)
        network.kill("a")
        with pytest.raises(OSError):
            await host.serve(Address.parse("memory://a:1"), answer)

    simulate(main)


def test_a_server_that_stops_refuses_and_its_port_is_free_again():
    async def main():
        network = MemoryNetwork()
        setup = Setup(network.host("b"), network.host("a"), LISTEN)
        for _ in range(2):
            async with conformance.serving(setup, answer) as addresses:
                assert addresses[0].port == 1
        with pytest.raises(DialError) as failure:
            await network.host("a").dial(addresses[0])
        assert isinstance(failure.value.__cause__, ConnectionRefusedError)

    simulate(main)
