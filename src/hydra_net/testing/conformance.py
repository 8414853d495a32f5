"""What every transport has to do: checks to run against a transport, ours or anybody's.

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", conformance.CHECKS)
    async def test_my_transport(check):
        transport = MyTransport()
        await check(Setup(transport, transport, listen=Address.parse("my://host:0")))

A check raises AssertionError, or whatever the transport raised, if the transport does not conform. It hangs only for as
long as the transport does; run the checks under a time limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel

from hydra_net.errors import DialError
from hydra_net.testing.connecting import Setup, connected, serving
from hydra_net.transports.stream import ByteStream, receive_exactly, wait_any

__all__ = ["CHECKS", "Setup", "connected", "serving"]

_BIG = 3_000_000  # bytes: a large transfer
_TOO_MUCH = 24_000_000  # bytes: more than a transport takes while nobody receives


Check = Callable[[Setup], Awaitable[None]]


# ---------------------------------------------------------------------- data


async def check_bytes_arrive_in_order(setup: Setup) -> None:
    """Small messages both ways, through every method."""
    async with connected(setup) as (a, b):
        await a.send(b"one")
        await a.send_vectored([b"two", bytearray(b"three"), memoryview(b"four"), b""])
        assert await receive_exactly(b, 15) == b"onetwothreefour"
        await b.send(b"back")
        assert await a.receive(2) == b"ba"
        buffer = bytearray(10)
        assert await a.receive_into(memoryview(buffer)) == 2
        assert buffer == b"ck" + bytes(8)


async def check_both_ways_at_once(setup: Setup) -> None:
    """Large transfers in both directions at the same time, with many buffers to a send."""
    pieces = [bytes([i % 251]) * (i % 700) for i in range(_BIG // 350)]
    data = b"".join(pieces)
    async with connected(setup) as streams, anyio.create_task_group() as tasks:

        async def send(stream: ByteStream) -> None:
            await stream.send_vectored(pieces)

        async def receive(stream: ByteStream) -> None:
            assert await receive_exactly(stream, len(data)) == data

        for stream in streams:
            tasks.start_soon(send, stream)
            tasks.start_soon(receive, stream)


async def check_half_close(setup: Setup) -> None:
    """``send_eof`` ends one direction, twice does no harm, and the other direction goes on."""
    async with connected(setup) as (a, b):
        await a.send(b"last words")
        await a.send_eof()
        await a.send_eof()
        assert await receive_exactly(b, 10) == b"last words"
        await _expect(anyio.EndOfStream, b.receive())
        assert await b.receive_into(memoryview(bytearray(1))) == 0
        assert await _try_receive(b, bytearray(1)) == 0
        await b.send(b"answer")
        assert await receive_exactly(a, 6) == b"answer"


async def check_close_ends_the_peer(setup: Setup) -> None:
    """After ``aclose`` the peer gets what was sent, then the end, and its sends fail before long."""
    async with connected(setup) as (a, b):
        await a.send(b"goodbye")
        await a.aclose()
        await a.aclose()
        assert await receive_exactly(b, 7) == b"goodbye"
        assert await b.receive_into(memoryview(bytearray(1))) == 0
        with suppress(anyio.BrokenResourceError):
            while True:
                await b.send(bytes(65536))


async def check_use_after_close(setup: Setup) -> None:
    """Every use of a closed stream raises ClosedResourceError."""
    async with connected(setup) as (a, b):
        await b.send(b"unread")
        assert await a.receive(1)
        await a.aclose()
        await _expect(anyio.ClosedResourceError, a.receive())
        await _expect(anyio.ClosedResourceError, a.receive_into(memoryview(bytearray(1))))
        await _expect(anyio.ClosedResourceError, a.send(b"x"))
        await _expect(anyio.ClosedResourceError, a.send_vectored([b"x", b"y"]))
        uses: list[Callable[[], object]] = [
            lambda: a.try_receive_into(memoryview(bytearray(1))),
            lambda: a.try_send([b"x"]),
        ]
        for use in uses:
            try:
                use()
            except anyio.ClosedResourceError:
                continue
            raise AssertionError("a closed stream can be used")
        await wait_any([a], [a])


# ---------------------------------------------------------------------- without blocking


async def check_try_receive(setup: Setup) -> None:
    """``try_receive_into`` says None when there is nothing, else gives what is there."""
    async with connected(setup) as (a, b):
        buffer = bytearray(4)
        assert a.try_receive_into(memoryview(buffer)) is None
        await b.send(b"abcdef")
        count = await _try_receive(a, buffer)
        assert 1 <= count <= 4
        assert buffer[:count] + await receive_exactly(a, 6 - count) == b"abcdef"
        assert a.try_receive_into(memoryview(buffer)) is None


async def check_try_send_never_blocks(setup: Setup) -> None:
    """``try_send`` takes a part, then says None while nobody receives, and goes on once somebody does."""
    data = bytes(i * i % 251 for i in range(100_000))
    async with connected(setup) as (a, b), anyio.create_task_group() as tasks:
        assert a.try_send([]) == 0
        assert a.try_send([b""]) == 0
        sent = 0
        while (count := a.try_send(_halves(data, sent))) is not None:
            assert count > 0
            sent += count
            assert sent < _TOO_MUCH
        sending = sent + _BIG
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await receive_exactly(b, sending))

        tasks.start_soon(receive)
        while sent < sending:
            await wait_any([], [a])
            sent += a.try_send([part[: sending - sent] for part in _halves(data, sent)][:1]) or 0
            assert a.try_receive_into(memoryview(bytearray(1))) is None
    assert received == [(data * (sending // len(data) + 1))[:sending]]


async def check_pump_in_a_ring(setup: Setup) -> None:
    """Three peers in a ring send large data to the next one, all at once, each in a single task."""
    async with (
        connected(setup) as x,
        connected(setup) as y,
        connected(setup) as z,
        anyio.create_task_group() as tasks,
    ):
        for rank, (previous, following) in enumerate(((z[1], x[0]), (x[1], y[0]), (y[1], z[0]))):
            tasks.start_soon(_pump, previous, following, rank)


async def check_mixed_methods(setup: Setup) -> None:
    """Blocking and non-blocking methods on one stream share one order of bytes."""
    data = bytes(i % 253 for i in range(400_000))
    async with connected(setup) as (a, b), anyio.create_task_group() as tasks:

        async def send() -> None:
            sent, step = 0, 0
            while sent < len(data):
                size = (7, 70_000, 1, 30_000)[step % 4]
                part = data[sent : sent + size]
                if step % 2:
                    await a.send(part)
                    sent += len(part)
                else:
                    sent += a.try_send([part]) or 0
                    if step % 3 == 0:
                        await wait_any([a], [a])
                step += 1
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(send)
        got, step = bytearray(), 0
        while len(got) < len(data):
            buffer = bytearray((3, 50_000, 900)[step % 3])
            if step % 4 == 0:
                got += await b.receive(len(buffer))
            elif step % 4 == 1:
                got += buffer[: await b.receive_into(memoryview(buffer))]
            else:
                await wait_any([b], [])
                got += buffer[: b.try_receive_into(memoryview(buffer)) or 0]
            step += 1
        assert got == data


# ---------------------------------------------------------------------- waiting


async def check_wait_any_wakes(setup: Setup) -> None:
    """``wait_any`` returns for data, for room to send, for the end, and at once if something is ready."""
    async with connected(setup) as (a, b), connected(setup) as (c, d):
        buffer = bytearray(8)
        await wait_any([a], [c])  # there is room to send
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.wait_all_tasks_blocked()
                await d.send(b"x")

            tasks.start_soon(later)
            while c.try_receive_into(memoryview(buffer)) is None:
                assert a.try_receive_into(memoryview(buffer)) is None
                await wait_any([a, c], [])
            assert buffer[:1] == b"x"
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await anyio.wait_all_tasks_blocked()
                await b.aclose()

            tasks.start_soon(end)
            while (count := a.try_receive_into(memoryview(buffer))) is None:
                await wait_any([a, c], [])
            assert count == 0


async def check_close_wakes_waiters(setup: Setup) -> None:
    """``aclose`` by another task wakes a receiver, a sender and a ``wait_any``."""
    for wait in (_blocked_receive, _blocked_send, _blocked_wait_any):
        async with connected(setup) as (a, _), connected(setup) as (other, _), anyio.create_task_group() as tasks:

            async def close(stream: ByteStream = a) -> None:
                await anyio.wait_all_tasks_blocked()
                await stream.aclose()

            tasks.start_soon(close)
            await wait(a, other)


async def check_one_task_per_direction(setup: Setup) -> None:
    """A second receiver gets BusyResourceError and disturbs nothing; so does a second sender."""
    async with connected(setup) as (a, b), anyio.create_task_group() as tasks:
        got: list[bytes] = []
        data = bytes(_TOO_MUCH)

        async def receive() -> None:
            got.append(await a.receive())

        tasks.start_soon(receive)
        tasks.start_soon(a.send, data)
        await anyio.wait_all_tasks_blocked()
        await _expect(anyio.BusyResourceError, a.receive())
        await _expect(anyio.BusyResourceError, a.send(b"intruder"))
        await b.send(b"ok")
        assert await receive_exactly(b, len(data)) == data
    assert got == [b"ok"]


async def check_cancelled_receive_takes_nothing(setup: Setup) -> None:
    """A cancelled ``receive``, ``receive_into`` or ``wait_any`` leaves the stream as it was."""
    async with connected(setup) as (a, b):
        for wait in (a.receive, lambda: a.receive_into(memoryview(bytearray(9))), lambda: wait_any([a], [])):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        await b.send(b"whole")
        assert await receive_exactly(a, 5) == b"whole"


async def check_cancelled_send_dooms(setup: Setup) -> None:
    """After a ``send`` that was cancelled half-way the stream is broken for sending."""
    async with connected(setup) as (a, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.send, bytes(_TOO_MUCH))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await _expect(anyio.BrokenResourceError, a.send(b"more"))


# ---------------------------------------------------------------------- dialling and serving


async def check_serve_reports_addresses(setup: Setup) -> None:
    """The addresses have one of the transport's schemes and a real port, and each can be dialled."""

    async def handler(stream: ByteStream) -> None:
        await stream.send(b"here")

    async with serving(setup, handler) as addresses:
        assert addresses
        for address in addresses:
            assert address.scheme in setup.server.schemes
            assert address.port != 0
            stream = await setup.client.dial(address)
            assert await receive_exactly(stream, 4) == b"here"
            assert await stream.receive_into(memoryview(bytearray(1))) == 0  # closed when the handler returned
            await stream.aclose()


async def check_dial_to_nobody(setup: Setup) -> None:
    """Dialling an address at which nobody listens any more raises DialError with the address and a cause."""

    async def handler(stream: ByteStream) -> None:
        raise AssertionError("nobody is expected here")

    async with serving(setup, handler) as addresses:
        pass
    error = await _expect(DialError, setup.client.dial(addresses[0]))
    assert error.address == addresses[0]
    assert error.__cause__ is not None
    assert str(addresses[0]) in str(error)


async def check_handler_errors_end_one_connection(setup: Setup) -> None:
    """A handler's exception closes its own connection; the others and the server live on."""

    async def handler(stream: ByteStream) -> None:
        while True:
            word = await receive_exactly(stream, 4)
            if word == b"fail":
                raise RuntimeError("as asked")
            await stream.send(word)

    async with serving(setup, handler) as addresses:
        steady = await setup.client.dial(addresses[0])
        for _ in range(3):
            stream = await setup.client.dial(addresses[0])
            await stream.send(b"fail")
            with suppress(anyio.BrokenResourceError):
                assert await stream.receive_into(memoryview(bytearray(1))) == 0
            await stream.aclose()
        await steady.send(b"work")
        assert await receive_exactly(steady, 4) == b"work"
        await steady.aclose()


async def check_many_connections(setup: Setup) -> None:
    """Twenty connections at once, each with a handler of its own."""

    async def handler(stream: ByteStream) -> None:
        await stream.send(await receive_exactly(stream, 2))

    async with serving(setup, handler) as addresses, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            stream = await setup.client.dial(addresses[0])
            await stream.send(b"%02d" % number)
            assert await receive_exactly(stream, 2) == b"%02d" % number
            await stream.aclose()

        for number in range(20):
            tasks.start_soon(one, number)


# ---------------------------------------------------------------------- helpers


_E = TypeVar("_E", bound=Exception)


async def _expect(kind: type[_E], call: Awaitable[object]) -> _E:
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def _halves(data: bytes, sent: int) -> list[memoryview]:
    """What follows after ``sent`` bytes of ``data`` repeated for ever, up to its end, in two buffers."""
    rest = memoryview(data)[sent % len(data) :]
    return [rest[: (len(rest) + 1) // 2], rest[(len(rest) + 1) // 2 :]]


async def _try_receive(stream: ByteStream, buffer: bytearray) -> int:
    while (count := stream.try_receive_into(memoryview(buffer))) is None:
        await wait_any([stream], [])
    return count


async def _blocked_receive(a: ByteStream, other: ByteStream) -> None:
    await _expect(anyio.ClosedResourceError, a.receive())


async def _blocked_send(a: ByteStream, other: ByteStream) -> None:
    await _expect(anyio.ClosedResourceError, a.send(bytes(_TOO_MUCH)))


async def _blocked_wait_any(a: ByteStream, other: ByteStream) -> None:
    try:
        while a.try_receive_into(memoryview(bytearray(1))) is None:
            await wait_any([a, other], [])
    except anyio.ClosedResourceError:
        return
    raise AssertionError("no ClosedResourceError was raised")


async def _pump(previous: ByteStream, following: ByteStream, rank: int) -> None:
    """Send much to ``following`` and receive as much from ``previous``, without ever blocking on one of them."""
    data = bytes([rank]) * _BIG
    expected = bytes([(rank - 1) % 3]) * _BIG
    got = bytearray(_BIG)
    sent = received = 0
    while sent < _BIG or received < _BIG:
        moved = 0
        if received < _BIG:
            count = previous.try_receive_into(memoryview(got)[received : received + 100_000])
            assert count != 0
            moved += count or 0
            received += count or 0
        if sent < _BIG:
            count = following.try_send([memoryview(data)[sent:]]) or 0
            moved += count
            sent += count
        if not moved:
            await wait_any([previous] if received < _BIG else [], [following] if sent < _BIG else [])
    assert got == expected


CHECKS: tuple[Check, ...] = (
    check_bytes_arrive_in_order,
    check_both_ways_at_once,
    check_half_close,
    check_close_ends_the_peer,
    check_use_after_close,
    check_try_receive,
    check_try_send_never_blocks,
    check_pump_in_a_ring,
    check_mixed_methods,
    check_wait_any_wakes,
    check_close_wakes_waiters,
    check_one_task_per_direction,
    check_cancelled_receive_takes_nothing,
    check_cancelled_send_dooms,
    check_serve_reports_addresses,
    check_dial_to_nobody,
    check_handler_errors_end_one_connection,
    check_many_connections,
)
