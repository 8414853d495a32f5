"""TCP: the conformance suite and what only TCP has."""

import errno
import logging
import os
import resource
import socket
import sys
from functools import partial

import anyio
import anyio.abc
import pytest

from hydra_net.address import Address
from hydra_net.errors import DialError
from hydra_net.testing import conformance
from hydra_net.testing.conformance import Setup, connected, serving
from hydra_net.transports import waiting
from hydra_net.transports.sockets import SocketStream
from hydra_net.transports.stream import receive_exactly, wait_any
from hydra_net.transports.tcp import TcpTransport

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

V4 = Address.parse("tcp://127.0.0.1:0")
V6 = Address.parse("tcp://[::1]:0")
BACK_ENDS = [
    pytest.param(("trio", {}), id="trio"),
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]


@pytest.fixture(params=BACK_ENDS)
def anyio_backend(request):
    return request.param


def loopback_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def tcp(listen=V4, **options) -> Setup:
    transport = TcpTransport(**options)
    return Setup(transport, transport, listen)


LISTEN = [V4, V6] if loopback_v6() else [V4]


@pytest.mark.anyio
@pytest.mark.parametrize("listen", LISTEN, ids=str)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check, listen):
    with anyio.fail_after(20):
        await check(tcp(listen))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "check",
    [conformance.check_wait_any_wakes, conformance.check_close_wakes_waiters, conformance.check_pump_in_a_ring],
    ids=lambda check: check.__name__,
)
async def test_waiting_without_epoll(check, monkeypatch):
    monkeypatch.setattr(waiting, "_epoll", None)
    with anyio.fail_after(20):
        await check(tcp())


@pytest.mark.anyio
async def test_options_are_set_on_both_ends():
    async with connected(tcp(send_buffer=300_000, receive_buffer=200_000)) as streams:
        for stream in streams:
            sock = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 300_000
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 200_000


@pytest.mark.anyio
async def test_extra_attributes_name_both_ends():
    async with connected(tcp()) as (a, b):
        remote, local = anyio.abc.SocketAttribute.remote_address, anyio.abc.SocketAttribute.local_address
        assert a.extra(remote) == b.extra(local)
        assert b.extra(remote) == a.extra(local)


@pytest.mark.anyio
async def test_a_reset_is_a_broken_stream():
    async with connected(tcp()) as (a, b):
        sock = a.extra(anyio.abc.SocketAttribute.raw_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing now resets
        await a.aclose()
        with pytest.raises(anyio.BrokenResourceError) as failure:
            await b.receive()
        assert isinstance(failure.value.__cause__, ConnectionResetError)
        with pytest.raises(anyio.BrokenResourceError):
            await b.send(b"x")


@pytest.mark.anyio
async def test_dial_error_has_the_cause():
    with socket.socket() as sock:  # bound and not listening: nobody else can take the port meanwhile
        sock.bind(("127.0.0.1", 0))
        address = Address("tcp", "127.0.0.1", sock.getsockname()[1])
        with pytest.raises(DialError) as failure:
            await TcpTransport().dial(address)
    assert isinstance(failure.value.__cause__, ConnectionRefusedError)


@pytest.mark.anyio
async def test_dial_error_for_a_name_that_does_not_exist(monkeypatch):
    async def no_such_name(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(anyio, "getaddrinfo", no_such_name)
    with pytest.raises(DialError, match="no such name"):
        await TcpTransport().dial(Address.parse("tcp://nowhere.invalid:4001"))


@pytest.mark.anyio
async def test_a_name_is_looked_up_and_every_address_tried(monkeypatch):
    async def handler(stream):
        await stream.send(b"hi")

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        async with serving(tcp(), handler) as addresses:

            async def look_up(host, port, **kwargs):
                assert (host, port) == ("some.name", 4001)
                return [
                    (socket.AF_INET, socket.SOCK_STREAM, 6, "", silent.getsockname()),
                    (socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[0].host, addresses[0].port)),
                ]

            monkeypatch.setattr(anyio, "getaddrinfo", look_up)
            stream = await TcpTransport().dial(Address.parse("tcp://some.name:4001"))
            assert await receive_exactly(stream, 2) == b"hi"
            await stream.aclose()


@pytest.mark.anyio
async def test_a_socket_connected_to_itself_is_refused():
    # Dialling a port of the ephemeral range from that very port succeeds in the kernel.
    transport = TcpTransport()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    original = TcpTransport._set_buffers

    def bind_first(self, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        original(self, sock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TcpTransport, "_set_buffers", bind_first)
        with pytest.raises(DialError) as failure:
            await transport.dial(Address("tcp", "127.0.0.1", port))
    assert isinstance(failure.value.__cause__, ConnectionRefusedError)


@pytest.mark.anyio
async def test_serving_a_taken_port_raises():
    async def handler(stream):
        pass

    async with serving(tcp(), handler) as addresses:
        with pytest.raises(OSError) as failure:
            await TcpTransport().serve(addresses[0], handler)
    assert failure.value.errno == errno.EADDRINUSE


@pytest.mark.anyio
async def test_a_failing_handler_is_logged_with_the_reason(caplog):
    async def handler(stream):
        raise RuntimeError("the handler's reason")

    with caplog.at_level(logging.WARNING, "hydra_net"):
        async with serving(tcp(), handler) as addresses:
            stream = await TcpTransport().dial(addresses[0])
            assert await stream.receive_into(memoryview(bytearray(1))) == 0
            await stream.aclose()
    (record,) = caplog.records
    assert "127.0.0.1" in record.getMessage()
    assert "the handler's reason" in record.getMessage()


@pytest.mark.anyio
async def test_no_descriptors_left_means_waiting(caplog, monkeypatch):
    monkeypatch.setattr("hydra_net.transports.tcp._RETRY", 0.001)

    async def handler(stream):
        await stream.send(b"at last")

    async with serving(tcp(), handler) as addresses:
        client = socket.socket()
        client.setblocking(False)
        await anyio.wait_all_tasks_blocked()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = os.dup(0)
        os.close(used)
        warned = anyio.Event()
        loop_token = warned.set

        class Watch(logging.Handler):
            def emit(self, record):
                loop_token()

        watch = Watch()
        logging.getLogger("hydra_net.transports.tcp").addHandler(watch)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        try:
            client.connect_ex((addresses[0].host, addresses[0].port))
            with anyio.fail_after(5):
                await warned.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            logging.getLogger("hydra_net.transports.tcp").removeHandler(watch)
        stream = SocketStream(client)
        with anyio.fail_after(5):
            assert await receive_exactly(stream, 7) == b"at last"
        await stream.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "warnings"), [(errno.ECONNABORTED, 0), (errno.ENOBUFS, 1), (errno.EOPNOTSUPP, 1)])
async def test_a_failing_accept_is_tried_again_and_said_once(code, warnings, caplog, monkeypatch):
    """A firewall or a system that is short of something may fail any accept, for one connection or for a while."""
    failures = [OSError(code, os.strerror(code)) for _ in range(3)]
    accept = socket.socket.accept

    def failing(listener):
        if failures:
            raise failures.pop()
        return accept(listener)

    async def handler(stream):
        await stream.send(b"here")

    monkeypatch.setattr("hydra_net.transports.tcp._RETRY", 0.001)
    monkeypatch.setattr(socket.socket, "accept", failing)
    with anyio.fail_after(10):
        async with serving(tcp(), handler) as addresses, await TcpTransport().dial(addresses[0]) as stream:
            assert await receive_exactly(stream, 4) == b"here"
    assert not failures
    assert len(caplog.records) == warnings


@pytest.mark.anyio
async def test_a_connection_that_was_reset_before_it_was_accepted_ends_nothing(monkeypatch):
    """Some systems then refuse to set options on it."""
    refused = anyio.Event()

    def refuse(sock):
        refused.set()
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    async def handler(stream):
        await stream.send(b"here")

    with anyio.fail_after(10):
        async with serving(tcp(), handler) as addresses:
            with monkeypatch.context() as patch:
                patch.setattr("hydra_net.transports.tcp._set_options", refuse)
                client = socket.create_connection((addresses[0].host, addresses[0].port))
                client.close()
                await refused.wait()
            async with await TcpTransport().dial(addresses[0]) as stream:
                assert await receive_exactly(stream, 4) == b"here"


@pytest.mark.anyio
async def test_cancelled_dial_leaves_no_socket():
    def descriptors():
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None

    before = descriptors()
    with socket.socket() as full:  # a listener with a full queue: connecting hangs
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = Address("tcp", *full.getsockname())
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(TcpTransport().dial, address)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        for filler in fillers:
            filler.close()
    assert descriptors() == before


@pytest.mark.anyio
async def test_cancelled_before_anything_was_sent_does_not_doom():
    async with connected(tcp()) as (a, b):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await a.send(b"never")
        await a.send(b"whole")
        assert await receive_exactly(b, 5) == b"whole"


@pytest.mark.anyio
async def test_wait_any_with_one_stream_in_both_lists_twice():
    async with connected(tcp()) as (a, b):
        await wait_any([a, a], [a])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(wait_any, [a, a, b], []))
            await anyio.wait_all_tasks_blocked()
            await b.send(b"x")


@pytest.mark.anyio
async def test_wait_any_of_nothing_is_an_error():
    with pytest.raises(ValueError):
        await wait_any([], [])


@pytest.mark.anyio
async def test_non_blocking_calls_are_refused_while_another_task_is_at_it():
    async with connected(tcp()) as (a, _), anyio.create_task_group() as tasks:
        tasks.start_soon(a.receive)
        tasks.start_soon(a.send, bytes(24_000_000))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            a.try_receive_into(memoryview(bytearray(1)))
        with pytest.raises(anyio.BusyResourceError):
            a.try_send([b"x"])
        with pytest.raises(anyio.BusyResourceError):
            await a.send_eof()
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_sending_after_the_end_was_sent_is_an_error():
    async with connected(tcp()) as (a, _):
        await a.send_eof()
        with pytest.raises(anyio.ClosedResourceError):
            await a.send(b"x")
        with pytest.raises(anyio.ClosedResourceError):
            a.try_send([b"x"])


@pytest.mark.anyio
async def test_wait_any_for_both_directions_of_one_stream_wakes_for_either():
    async with connected(tcp()) as (a, b):
        while a.try_send([bytes(100_000)]):
            pass
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_any, [a], [a])
                await anyio.wait_all_tasks_blocked()
                await b.send(b"x")
            assert await receive_exactly(a, 1) == b"x"
            async with anyio.create_task_group() as tasks:

                async def drain():
                    await anyio.wait_all_tasks_blocked()
                    async for _ in b:
                        pass

                tasks.start_soon(drain)
                await wait_any([a], [a])
                assert a.try_send([b"y"]) == 1
                tasks.cancel_scope.cancel()
