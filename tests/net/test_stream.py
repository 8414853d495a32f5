"""A third party's transport, which has only anyio's methods, and mixes of all kinds of streams."""

import errno
import logging

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from hydra_net.address import Address
from hydra_net.errors import DialError
from hydra_net.testing import conformance, simulate
from hydra_net.testing.conformance import Setup, connected
from hydra_net.transports.memory import MemoryNetwork
from hydra_net.transports.stream import (
    OFFER,
    ByteStream,
    Transport,
    receive_exactly,
    receive_exactly_into,
    wait_any,
)
from hydra_net.transports.tcp import TcpTransport


class PlainStream(ByteStream):
    """What a third party writes: anyio's four methods, here over one of anyio's own streams."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream

    async def receive(self, max_bytes=65536):
        return await self.stream.receive(max_bytes)

    async def send(self, item):
        await self.stream.send(item)

    async def send_eof(self):
        await self.stream.send_eof()

    async def aclose(self):
        await self.stream.aclose()


class PlainTransport:
    """A third party's transport on anyio's own sockets."""

    schemes = frozenset({"plain"})

    async def dial(self, address):
        try:
            return PlainStream(await anyio.connect_tcp(address.host, address.port))
        except OSError as error:
            raise DialError(address, error) from error

    async def serve(self, address, handler, *, task_status=anyio.TASK_STATUS_IGNORED):
        async def handle(stream):
            try:
                await handler(PlainStream(stream))
            except Exception:
                logging.getLogger("plain").warning("handler failed", exc_info=True)
            finally:
                await stream.aclose()

        async with await anyio.create_tcp_listener(local_host=address.host, local_port=address.port) as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            task_status.started([Address("plain", address.host, port)])
            await listener.serve(handle)


def plain() -> Setup:
    return Setup(PlainTransport(), PlainTransport(), Address.parse("plain://127.0.0.1:0"))


def tcp() -> Setup:
    return Setup(TcpTransport(), TcpTransport(), Address.parse("tcp://127.0.0.1:0"))


def memory() -> Setup:
    network = MemoryNetwork()
    return Setup(network.host("b"), network.host("a"), Address.parse("memory://b:0"))


@pytest.mark.anyio
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_a_third_party_transport_conforms(check):
    with anyio.fail_after(30):
        await check(plain())


def test_transports_are_transports():
    for transport in (PlainTransport(), TcpTransport(), MemoryNetwork().host("a")):
        assert isinstance(transport, Transport)


# ---------------------------------------------------------------------- a stream in the test's hands


class HandStream(ByteStream):
    """Only anyio's methods; the test decides what they do."""

    def __init__(self):
        self.incoming = []
        self.sent = []
        self.arrived = anyio.Event()
        self.may_send = anyio.Event()
        self.receives_cancelled = 0
        self.closed = False

    def feed(self, item):
        self.incoming.append(item)
        self.arrived.set()

    async def receive(self, max_bytes=65536):
        await anyio.lowlevel.checkpoint()
        while not self.incoming:
            self.arrived = anyio.Event()
            try:
                await self.arrived.wait()
            except anyio.get_cancelled_exc_class():
                self.receives_cancelled += 1
                raise
        item = self.incoming[0]
        if isinstance(item, Exception):
            raise item
        data, rest = item[:max_bytes], item[max_bytes:]
        self.incoming[:1] = [rest] if rest else []
        return data

    async def send(self, item):
        await self.may_send.wait()
        if self.closed:
            raise anyio.BrokenResourceError("gone")
        self.sent.append(item)

    async def send_eof(self):
        await anyio.lowlevel.checkpoint()

    async def aclose(self):
        self.closed = True
        await anyio.lowlevel.checkpoint()


def in_simulation(body):
    for seed in range(5):
        simulate(body, seed)


def test_what_was_read_ahead_is_received_first_by_every_method():
    async def body():
        for method in ("receive", "receive_into", "try_receive_into"):
            stream = HandStream()
            stream.feed(b"abc")
            stream.feed(b"def")
            await wait_any([stream], [])
            await wait_any([stream], [])  # at once: nothing more is read ahead
            buffer = bytearray(2)
            if method == "receive":
                buffer[:] = await stream.receive(2)
            elif method == "receive_into":
                assert await stream.receive_into(memoryview(buffer)) == 2
            else:
                assert stream.try_receive_into(memoryview(buffer)) == 2
            assert buffer == b"ab"
            assert await receive_exactly(stream, 4) == b"cdef"

    in_simulation(body)


def test_the_end_and_a_failure_are_read_ahead_too():
    async def body():
        stream = HandStream()
        stream.feed(anyio.EndOfStream())
        await wait_any([stream], [])
        assert stream.try_receive_into(memoryview(bytearray(1))) == 0
        assert await stream.receive_into(memoryview(bytearray(1))) == 0
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        stream = HandStream()
        stream.feed(OSError(errno.EIO, "a third party's own error"))
        await wait_any([stream], [])
        for _ in range(2):
            with pytest.raises(OSError, match="own error"):
                stream.try_receive_into(memoryview(bytearray(1)))

    in_simulation(body)


def test_an_offer_is_reported_only_after_it_was_sent():
    async def body():
        stream = HandStream()
        assert stream.try_send([b"abc", b"def"]) is None
        assert stream.try_send([b"abc", b"def"]) is None
        assert stream.sent == []
        stream.may_send.set()
        await wait_any([], [stream])
        assert stream.sent == [b"abcdef"]
        assert stream.try_send([b"abcdefghi"]) == 6
        assert stream.try_send([b"ghi"]) is None

    in_simulation(body)


def test_after_an_offer_was_sent_other_methods_skip_it():
    async def body():
        for send in ("send", "send_vectored", "two sends"):
            stream = HandStream()
            stream.may_send.set()
            assert stream.try_send([b"abcd"]) is None
            await wait_any([], [stream])
            if send == "send":
                await stream.send(b"abcdef")
            elif send == "send_vectored":
                await stream.send_vectored([b"ab", b"cdef"])
            else:
                await stream.send(b"ab")
                await stream.send(b"cdef")
            assert b"".join(stream.sent) == b"abcdef"

    in_simulation(body)


def test_an_offer_that_was_not_begun_is_dropped_by_send():
    async def body():
        stream = HandStream()
        stream.may_send.set()
        assert stream.try_send([b"abcd"]) is None
        await stream.send(b"abcdef")
        assert stream.sent == [b"abcdef"]

    in_simulation(body)


def test_other_bytes_than_the_offered_are_an_error():
    async def body():
        stream = HandStream()
        stream.may_send.set()
        assert stream.try_send([b"abcd"]) is None
        await wait_any([], [stream])
        with pytest.raises(ValueError, match="same bytes"):
            stream.try_send([b"abXX"])

    in_simulation(body)


def test_a_half_done_send_is_not_cancelled_when_something_arrives():
    async def body():
        incoming, outgoing = HandStream(), HandStream()
        assert outgoing.try_send([b"payload"]) is None
        returned = []

        async def wait():
            await wait_any([incoming], [outgoing])
            returned.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(1.0)
            incoming.feed(b"first")
            await anyio.sleep(1.0)
            incoming.feed(b"second")
            await anyio.sleep(1.0)
            assert not returned
            outgoing.may_send.set()
        assert returned == [3.0]
        assert outgoing.sent == [b"payload"]
        assert await receive_exactly(incoming, 11) == b"firstsecond"

    in_simulation(body)


def test_reading_ahead_is_bounded():
    async def body():
        incoming, outgoing = HandStream(), HandStream()
        assert outgoing.try_send([b"payload"]) is None
        incoming.feed(bytes(3 * OFFER))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_any, [incoming], [outgoing])
            await anyio.sleep(1.0)
            assert len(incoming.incoming[0]) == 2 * OFFER
            outgoing.may_send.set()
        assert len(await receive_exactly(incoming, 3 * OFFER)) == 3 * OFFER

    in_simulation(body)


def test_cancelling_the_wait_dooms_a_begun_send_and_keeps_what_was_received():
    async def body():
        stream = HandStream()
        assert stream.try_send([b"payload"]) is None
        with anyio.move_on_after(1.0):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_any, [stream], [stream])
                stream.feed(b"kept")
        for call in (lambda: stream.send(b"payload"), lambda: stream.send_vectored([b"payload"])):
            with pytest.raises(anyio.BrokenResourceError, match="interrupted"):
                await call()
        with pytest.raises(anyio.BrokenResourceError, match="interrupted"):
            stream.try_send([b"payload"])
        assert await stream.receive() == b"kept"

    in_simulation(body)


def test_an_error_of_send_is_raised_at_the_next_call():
    async def body():
        stream = HandStream()
        assert stream.try_send([b"payload"]) is None
        stream.may_send.set()
        stream.closed = True
        await wait_any([], [stream])
        with pytest.raises(anyio.BrokenResourceError, match="gone"):
            stream.try_send([b"payload"])

    in_simulation(body)


def test_a_second_task_is_refused_while_one_waits():
    async def body():
        stream = HandStream()
        assert stream.try_send([b"payload"]) is None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_any, [stream], [stream])
            await anyio.wait_all_tasks_blocked()
            for call in (
                lambda: stream.receive(),
                lambda: stream.receive_into(memoryview(bytearray(1))),
                lambda: stream.send(b"x"),
                lambda: stream.send_vectored([b"x"]),
                lambda: wait_any([stream], []),
            ):
                with pytest.raises(anyio.BusyResourceError):
                    await call()
            with pytest.raises(anyio.BusyResourceError):
                stream.try_send([b"payload"])
            with pytest.raises(anyio.BusyResourceError):
                stream.try_receive_into(memoryview(bytearray(1)))
            stream.may_send.set()

    in_simulation(body)


# ---------------------------------------------------------------------- mixes and wrappers


@pytest.mark.anyio
async def test_wait_any_over_every_kind_of_stream():
    kinds = [tcp(), memory(), plain()]
    async with connected(kinds[0]) as x, connected(kinds[1]) as y, connected(kinds[2]) as z:
        mine, theirs = zip(x, y, z, strict=True)
        for number, stream in enumerate(theirs):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_any, mine, [])
                await anyio.wait_all_tasks_blocked()
                await stream.send(b"x")
            with anyio.fail_after(5):
                while mine[number].try_receive_into(memoryview(bytearray(1))) is None:
                    await wait_any(mine, [])
            with anyio.CancelScope() as scope:
                scope.cancel()
                await wait_any(mine, [])
            assert [s.try_receive_into(memoryview(bytearray(1))) for s in mine] == [None] * 3


@pytest.mark.anyio
async def test_a_ring_of_mixed_streams_pumps_without_deadlock():
    with anyio.fail_after(20):
        async with (
            connected(tcp()) as x,
            connected(memory()) as y,
            connected(plain()) as z,
            anyio.create_task_group() as tasks,
        ):
            for rank, (previous, following) in enumerate(((z[1], x[0]), (x[1], y[0]), (y[1], z[0]))):
                tasks.start_soon(conformance._pump, previous, following, rank)


class Wrapper(ByteStream):
    """A stream that keeps a few bytes of its own in front of another stream's."""

    def __init__(self, inner, kept):
        self.inner, self.kept = inner, kept

    async def receive(self, max_bytes=65536):
        return await self.inner.receive(max_bytes)

    async def send(self, item):
        await self.inner.send(item)

    async def send_eof(self):
        await self.inner.send_eof()

    async def aclose(self):
        await self.inner.aclose()

    def try_receive_into(self, buffer):
        if self.kept:
            count = min(len(buffer), len(self.kept))
            buffer[:count], self.kept = self.kept[:count], self.kept[count:]
            return count
        return self.inner.try_receive_into(buffer)

    def try_send(self, buffers):
        return self.inner.try_send(buffers)

    def ready_to_receive(self):
        return bool(self.kept)

    def waits_on(self):
        return self.inner


@pytest.mark.anyio
@pytest.mark.parametrize("setup", [tcp, memory, plain])
async def test_a_wrapper_waits_on_what_it_wraps(setup):
    async with connected(setup()) as (a, b):
        outer = Wrapper(Wrapper(a, b"in"), b"out")
        buffer = bytearray(9)
        with anyio.fail_after(5):
            for expected in (b"out", b"in"):
                await wait_any([outer], [])
                count = outer.try_receive_into(memoryview(buffer))
                assert buffer[:count] == expected
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_any, [outer], [])
                await anyio.wait_all_tasks_blocked()
                await b.send(b"wire")
            while (count := outer.try_receive_into(memoryview(buffer))) is None:
                await wait_any([outer], [])
            assert buffer[:count] == b"wire"


# ---------------------------------------------------------------------- helpers


@pytest.mark.anyio
async def test_receive_exactly_tells_a_clean_end_from_a_torn_one():
    async with connected(memory()) as (a, b):
        await a.send(b"abcdef")
        await a.send_eof()
        assert await receive_exactly(b, 4) == b"abcd"
        with pytest.raises(anyio.IncompleteRead):
            await receive_exactly(b, 4)
        with pytest.raises(anyio.EndOfStream):
            await receive_exactly_into(b, memoryview(bytearray(1)))
        assert await receive_exactly(b, 0) == b""
