"""The tripwire acts at an exact byte and otherwise does nothing."""

import os
import signal
import subprocess
import sys

import anyio
import pytest

from hydra_net.address import Address
from hydra_net.testing import conformance, simulate
from hydra_net.testing.conformance import Setup, connected
from hydra_net.testing.faults import TripwireTransport
from hydra_net.transports.memory import MemoryNetwork
from hydra_net.transports.stream import receive_exactly, wait_any
from hydra_net.transports.tcp import TcpTransport


def tcp() -> Setup:
    wire = TripwireTransport(TcpTransport())
    return Setup(wire, wire, Address.parse("tcp://127.0.0.1:0"))


@pytest.mark.anyio
@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check, armed):
    setup = tcp()
    if armed:  # far away, so that the counting itself is checked too
        setup.client.arm(10**12, lambda: None)
    with anyio.fail_after(20):
        await check(setup)


def wired_pair(body, window=1 << 20):
    """Run ``body(wire, a, b)``: the wire counts a's bytes only."""

    async def main():
        network = MemoryNetwork(window=window)
        wire = TripwireTransport(network.host("a"))
        async with connected(Setup(network.host("b"), wire, Address.parse("memory://b:0"))) as (a, b):
            await body(wire, a, b)

    simulate(main)


async def drain(stream):
    """What has arrived."""
    got = b""
    buffer = bytearray(1000)
    while count := stream.try_receive_into(memoryview(buffer)):
        got += buffer[:count]
    return got


SENDS = {
    "send": lambda a: a.send(b"0123456789"),
    "send_vectored": lambda a: a.send_vectored([b"0123", b"", b"456789"]),
}


@pytest.mark.parametrize("after", [0, 1, 4, 9, 10])
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_sending_stops_at_the_byte(send, after):
    async def body(wire, a, b):
        class Killed(Exception):
            pass

        def die():
            raise Killed

        wire.arm(after, die)
        with pytest.raises(Killed):
            await send(a)
        assert await drain(b) == b"0123456789"[:after]
        assert not wire.armed

    wired_pair(body)


@pytest.mark.parametrize("after", [0, 1, 4, 9, 10, 11])
def test_try_send_stops_at_the_byte_and_goes_on(after):
    async def body(wire, a, b):
        arrived = []

        def look():  # at the instant of the action
            buffer = bytearray(100)
            arrived.append(bytes(buffer[: b.try_receive_into(memoryview(buffer)) or 0]))

        wire.arm(after, look)
        data, sent = b"0123456789ab", 0
        while sent < len(data):
            sent += a.try_send([data[sent : sent + 3], data[sent + 3 :]])
        assert arrived == [data[:after]]
        assert await drain(b) == data[after:]

    wired_pair(body)


def test_a_waiting_receiver_does_not_run_past_the_byte():
    async def body(wire, a, b):
        tripped = []
        wire.arm(10, lambda: tripped.append(True))
        got = []

        async def receive():
            got.append(await a.receive())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await a.send(b"123456")
            await b.send(b"abcdefgh")
        assert got == [b"abcd"]
        assert tripped

    wired_pair(body)


@pytest.mark.parametrize("method", ["receive", "receive_into", "try_receive_into"])
def test_receiving_stops_at_the_byte(method):
    async def body(wire, a, b):
        tripped = []
        await b.send(b"0123456789")
        wire.arm(4, lambda: tripped.append(True))
        buffer = bytearray(10)
        if method == "receive":
            assert await a.receive() == b"0123"
        elif method == "receive_into":
            assert await a.receive_into(memoryview(buffer)) == 4
        else:
            await wait_any([a], [])
            assert a.try_receive_into(memoryview(buffer)) == 4
        assert tripped == [True]
        assert await receive_exactly(a, 6) == b"456789"

    wired_pair(body)


def test_both_directions_and_all_streams_count_together():
    async def body(wire, a, b):
        tripped = []
        other = await wire.dial(Address.parse("memory://b:1"))
        wire.arm(10, lambda: tripped.append(True))
        await a.send(b"123")
        await other.send(b"456")
        await b.send(b"7890")
        await receive_exactly(a, 3)
        assert not tripped
        await receive_exactly(a, 1)
        assert tripped
        await other.aclose()

    wired_pair(body)


def test_nothing_counts_what_does_not_move():
    async def body(wire, a, b):
        tripped = []
        while a.try_send([bytes(50)]):
            pass
        wire.arm(0, lambda: tripped.append(True))
        assert a.try_send([b""]) == 0
        assert not tripped
        with pytest.raises(ValueError):
            wire.arm(-1, lambda: None)

    wired_pair(body, window=100)


SCRIPT = """
import os, signal, sys, anyio
from hydra_net.address import Address
from hydra_net.testing.faults import TripwireTransport
from hydra_net.transports import TcpTransport

async def main():
    wire = TripwireTransport(TcpTransport())
    stream = await wire.dial(Address.parse(sys.argv[1]))
    wire.arm(123_457, lambda: os.kill(os.getpid(), signal.SIGKILL))
    while True:
        await stream.send(bytes(50_000))

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.real
@pytest.mark.anyio
async def test_a_process_dies_at_the_byte(anyio_backend_name):
    received = []
    done = anyio.Event()

    async def handler(stream):
        received.append(sum([len(data) async for data in stream]))
        done.set()

    transport = TcpTransport()
    setup = Setup(transport, transport, Address.parse("tcp://127.0.0.1:0"))
    with anyio.fail_after(30):
        async with conformance.serving(setup, handler) as addresses:
            command = [sys.executable, "-c", SCRIPT, str(addresses[0]), anyio_backend_name]
            result = await anyio.run_process(command, check=False, stderr=subprocess.DEVNULL, env=dict(os.environ))
            await done.wait()
    assert result.returncode == -signal.SIGKILL
    assert received == [123_457]
