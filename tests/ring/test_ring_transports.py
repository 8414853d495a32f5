"""The pump over the transports that ship: TCP on the machine's loopback and the simulated network."""

from contextlib import asynccontextmanager
from random import Random

import anyio
import numpy as np
import pytest

from hydra_allreduce.ring.errors import RingBroken
from hydra_net import Address
from hydra_net.testing import simulate
from hydra_net.transports.memory import MemoryNetwork
from hydra_net.transports.tcp import TcpTransport

from .harness import Inputs, random_inputs
from .test_pump import all_ranks, finished, one_rank


@asynccontextmanager
async def ring_over(transports, addresses):
    """(previous, next) per rank: each listens on its address and dials its next rank."""
    size = len(transports)
    arrived: dict[int, object] = {}
    complete = anyio.Event()

    async with anyio.create_task_group() as tasks:

        def keeper(rank):
            async def keep(stream):
                arrived[rank] = stream
                if len(arrived) == size:
                    complete.set()
                await anyio.sleep_forever()

            return keep

        listening = [
            (await tasks.start(transport.serve, Address.parse(address), keeper(rank)))[0]
            for rank, (transport, address) in enumerate(zip(transports, addresses, strict=True))
        ]
        nexts = [await transports[rank].dial(listening[(rank + 1) % size]) for rank in range(size)]
        await complete.wait()
        yield [(arrived[rank], nexts[rank]) for rank in range(size)]
        for stream in nexts:
            await stream.aclose()
        tasks.cancel_scope.cancel()


def tcp(size):
    return ring_over([TcpTransport() for _ in range(size)], ["tcp://127.0.0.1:0"] * size)


def simulated_ring(size, network):
    hosts = [network.host(f"h{rank}") for rank in range(size)]
    return ring_over(hosts, [f"memory://h{rank}:1" for rank in range(size)])


@pytest.mark.anyio
@pytest.mark.real
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_a_ring_over_tcp(size):
    """Large enough to fill the kernel's buffers, so that both sides of every stream wait now and then."""
    inputs = random_inputs(size, size, [(700_001, "f4"), (100_003, "f8")])
    async with tcp(size) as streams:
        outcomes = await all_ranks(inputs, streams, rounds=2, sub_chunk=256 * 1024)
    assert None not in finished(outcomes)
    inputs.check(outcomes)


@pytest.mark.anyio
@pytest.mark.real
@pytest.mark.parametrize("side", ["previous", "next"])
async def test_a_neighbour_over_tcp_that_goes_away(side):
    inputs = random_inputs(0, 2, [(3_000_000, "f4")])
    async with tcp(2) as streams, anyio.create_task_group() as tasks:

        async def run():
            with pytest.raises(RingBroken) as caught:
                await one_rank(inputs, 0, streams[0], inputs.segments(0), sub_chunk=256 * 1024)
            assert caught.value.side == side

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        # The other rank's end of the stream in question: it goes away with unread data, or without a word.
        await streams[1][1 if side == "previous" else 0].aclose()


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_over_a_slow_simulated_network(seed):
    async def main():
        network = MemoryNetwork(seed=seed, latency=0.03, jitter=0.02, bandwidth=1e6, window=3000)
        inputs = random_inputs(seed, 4, [(5000, "f4"), (700, "f8")])
        async with simulated_ring(4, network) as streams:
            outcomes = await all_ranks(inputs, streams, rounds=2, sub_chunk=2048)
        assert None not in finished(outcomes)
        inputs.check(outcomes)

    simulate(main, seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_a_host_that_dies_at_any_byte_ends_runs_but_falsifies_none(seed):
    """The victim is gone when it has sent so many bytes; the others finish with the right bytes or name a side."""
    random = Random(seed)
    size = random.randint(2, 5)
    victim = random.randrange(size)
    inputs = Inputs([np.arange(60, dtype=np.float32) + rank for rank in range(size)], [1.0] * size)

    async def main():
        network = MemoryNetwork(seed=seed, latency=0.01, jitter=0.01, window=random.choice([20, 200, 1 << 18]))
        async with simulated_ring(size, network) as streams:
            network.kill_after(f"h{victim}", random.randrange(500))
            return await all_ranks(inputs, streams)

    outcomes = simulate(main, seed=seed)
    survivors = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    assert all(outcome is not None for outcome in survivors)
    assert all(isinstance(outcome, RingBroken) for outcome in survivors if isinstance(outcome, Exception))
    inputs.check(finished(survivors))
