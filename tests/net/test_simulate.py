"""The simulation replays, keeps time, and leaves nothing behind."""

import os
import random
import subprocess
import sys
import threading
import time

import anyio
import anyio.lowlevel
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_net.clock import SystemClock, default_clock
from hydra_net.testing import simulate
from hydra_net.testing.simulate import EPOCH, HORIZON
from hydra_net.threads import run_blocking


def test_returns_the_result_and_passes_arguments():
    async def main(a, b):
        await anyio.lowlevel.checkpoint()
        return a + b

    assert simulate(main, 0, 2, 3) == 5


def test_hours_take_no_time():
    async def main():
        await anyio.sleep(20_000)
        return anyio.current_time()

    start = time.perf_counter()
    assert simulate(main) == 20_000
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exception_comes_out_bare(error):
    async def main():
        await anyio.sleep(1)
        raise error

    with pytest.raises(type(error)) as caught:
        simulate(main)
    assert caught.value is error


def test_the_date_is_fixed_and_goes_with_virtual_time():
    async def main():
        clock = default_clock()
        first = clock.wall(), clock.monotonic()
        await anyio.sleep(100)
        return first, (clock.wall(), clock.monotonic())

    assert simulate(main) == ((EPOCH, 0.0), (EPOCH + 100, 100.0))
    assert isinstance(default_clock(), SystemClock)


def test_a_deadlock_is_an_error_and_not_a_hang():
    async def main():
        await anyio.sleep_forever()

    with pytest.raises(TimeoutError, match=str(int(HORIZON))):
        simulate(main)


async def race():
    """The order in which tasks that are ready at the same time run."""
    order = []

    async def runner(name):
        for _ in range(3):
            order.append(name)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for name in "abcdef":
            tasks.start_soon(runner, name)
    return "".join(order)


def test_a_seed_replays_and_another_one_runs_in_another_order():
    runs = [simulate(race, seed) for seed in range(8)]
    assert runs == [simulate(race, seed) for seed in range(8)]
    assert len(set(runs)) > 4


def test_the_scheduler_of_trio_is_put_back():
    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r

    async def main():
        assert scheduler._ALLOW_DETERMINISTIC_SCHEDULING is True
        assert scheduler._r is not before[1]
        raise ValueError

    with pytest.raises(ValueError):
        simulate(main)
    assert (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r) == before


def test_trio_still_has_the_private_names_that_seed_its_scheduler():
    # If this fails, trio has moved them: see hydra_net.testing.simulate._seeded_scheduler.
    scheduler = trio._core._run
    assert isinstance(scheduler._r, random.Random)
    assert isinstance(scheduler._ALLOW_DETERMINISTIC_SCHEDULING, bool)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_hypothesis_varies_the_interleaving(seed):
    assert simulate(race, seed) == simulate(race, seed)


SCRIPT = """
import sys, anyio
from hydra_net.address import Address
from hydra_net.testing import simulate
from hydra_net.transports import MemoryNetwork, receive_exactly

async def main():
    network = MemoryNetwork(seed=3, latency=0.01, jitter=0.02, bandwidth=1e6)
    log = []

    async def echo(stream):
        while True:
            await stream.send(await stream.receive(1000))

    async def client(name, tasks):
        stream = await network.host(name).dial(Address.parse("memory://server:1"))
        for number in range(5):
            await stream.send(name.encode() * 10)
            try:
                await receive_exactly(stream, 10 * len(name))
            except anyio.BrokenResourceError:
                pass
            log.append(f"{name}{number}@{anyio.current_time():.9f}")
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        await tasks.start(network.host("server").serve, Address.parse("memory://server:1"), echo)
        async with anyio.create_task_group() as clients:
            for name in "abcdefgh":
                clients.start_soon(client, name, clients)
            await anyio.sleep(0.1)
            network.partition([["a", "b"]])
            await anyio.sleep(0.1)
            network.heal()
        tasks.cancel_scope.cancel()
    return " ".join(log)

print(simulate(main, int(sys.argv[1])))
"""


@pytest.mark.real
def test_a_seed_replays_in_another_process_with_another_hash_seed():
    def run(seed, hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SCRIPT, str(seed)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = run(1, "1")
    assert first.count("@") == 40
    assert run(1, "2") == first
    assert run(1, "random") == first
    assert run(2, "1") != first


# ---------------------------------------------------------------------- run_blocking


def test_blocking_work_runs_in_line_inside():
    async def main():
        return await run_blocking(lambda x: (x, threading.get_ident()), 7)

    assert simulate(main) == (7, threading.get_ident())


def test_blocking_work_inside_lets_other_tasks_run_and_can_be_cancelled():
    async def main():
        calls = []
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_blocking(calls.append, 1)
        assert not calls
        order = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_blocking, order.append, "work")
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                order.append("other")
        assert order.index("work") < 3

    simulate(main)


@pytest.mark.anyio
async def test_blocking_work_runs_in_a_thread_outside():
    assert await run_blocking(threading.get_ident) != threading.get_ident()


@pytest.mark.anyio
async def test_an_error_of_blocking_work_is_raised():
    with pytest.raises(ZeroDivisionError):
        await run_blocking(lambda: 1 / 0)


@pytest.mark.anyio
async def test_cancelling_waits_for_blocking_work():
    started, release, finished = threading.Event(), threading.Event(), threading.Event()

    def work():
        started.set()
        release.wait()
        finished.set()

    async with anyio.create_task_group() as tasks:

        async def call():
            await run_blocking(work)

        async def cancel():
            await anyio.to_thread.run_sync(started.wait)
            tasks.cancel_scope.cancel()
            release.set()

        tasks.start_soon(call)
        tasks.start_soon(cancel)
    assert finished.is_set()
