"""How fast the ring alone is: n processes on this machine, loopback TCP, float32 mean, no agreement around it.

    python benchmarks/ring.py [--peers 4] [--megabytes 1,25,100] [--rounds 9] [--backend trio] [--buffer 1048576]

Prints, per size, the median and the minimum over the rounds of the slowest rank's seconds, the bytes of the vector per
second, and the CPU seconds of all ranks together per round; at the end one JSON line with every sample.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import statistics
import time
from multiprocessing.connection import Connection

import anyio
import numpy as np

from hydra_allreduce.ring import run_ring
from hydra_net import Address
from hydra_net.transports.stream import ByteStream
from hydra_net.transports.tcp import TcpTransport

WARM_UP = 2


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def neighbours(transport: TcpTransport, pipe: Connection, tasks: anyio.abc.TaskGroup) -> tuple[ByteStream, ...]:
    """Listen, tell the parent where, dial the next rank; returns the streams from the previous and to the next rank."""
    arrived: list[ByteStream] = []
    come = anyio.Event()

    async def keep(stream: ByteStream) -> None:
        arrived.append(stream)
        come.set()
        await anyio.sleep_forever()

    (address,) = await tasks.start(transport.serve, Address.parse("tcp://127.0.0.1:0"), keep)
    pipe.send(str(address))
    following = await transport.dial(Address.parse(await anyio.to_thread.run_sync(pipe.recv)))
    await come.wait()
    return arrived[0], following


async def rank_main(rank: int, args: argparse.Namespace, pipe: Connection) -> None:
    transport = TcpTransport(send_buffer=args.buffer or None, receive_buffer=args.buffer or None)
    results = []
    async with anyio.create_task_group() as tasks:
        previous, following = await neighbours(transport, pipe, tasks)

        async def one_round(segment: np.ndarray) -> None:
            await run_ring(
                rank=rank,
                size=args.peers,
                previous=previous,
                next=following,
                header=b"benchmark",
                check_header=lambda header: None,
                segments=[segment],
                meta=b"",
                finish=lambda metas: 1 / len(metas),
            )

        for megabytes in args.megabytes:
            mine = np.full(megabytes * 1_000_000 // 4, rank + 1, np.float32)
            segment = np.empty_like(mine)
            samples = []
            for _ in range(WARM_UP + args.rounds):
                np.copyto(segment, mine)
                await one_round(np.zeros(args.peers, np.float32))  # all ranks begin together
                cpu, began = cpu_seconds(), time.perf_counter()
                await one_round(segment)
                samples.append((time.perf_counter() - began, cpu_seconds() - cpu))
                assert segment[0] == segment[-1] == (args.peers + 1) / 2, "a wrong mean"
            results.append(samples[WARM_UP:])
        tasks.cancel_scope.cancel()
    pipe.send(results)


def rank_process(rank: int, args: argparse.Namespace, pipe: Connection) -> None:
    anyio.run(
        functools.partial(rank_main, rank, args, pipe),
        backend=args.backend.removesuffix("+uvloop"),
        backend_options={"use_uvloop": True} if args.backend == "asyncio+uvloop" else {},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--megabytes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 25, 100])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backend", choices=["trio", "asyncio", "asyncio+uvloop"], default="trio")
    parser.add_argument("--buffer", type=int, default=1024 * 1024, help="bytes of a socket buffer, 0: the kernel's own")
    args = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(args.peers):
        ours, theirs = context.Pipe()
        process = context.Process(target=rank_process, args=(rank, args, theirs), daemon=True)
        process.start()
        theirs.close()  # so that a rank that dies is an end of file here, and not a hang
        pipes.append(ours)
        processes.append(process)
    addresses = [pipe.recv() for pipe in pipes]
    for rank, pipe in enumerate(pipes):
        pipe.send(addresses[(rank + 1) % args.peers])
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()

    report: dict[str, object] = {"benchmark": "ring", "peers": args.peers, "backend": args.backend}
    for number, megabytes in enumerate(args.megabytes):
        rounds = list(zip(*(result[number] for result in results), strict=True))
        seconds = [max(wall for wall, _ in ranks) for ranks in rounds]
        cpu = [sum(used for _, used in ranks) for ranks in rounds]
        median = statistics.median(seconds)
        print(
            f"{args.backend} {args.peers} ranks {megabytes} MB: median {median:.4f} s  min {min(seconds):.4f} s  "
            f"{megabytes / median / 1000:.2f} GB/s  CPU {statistics.median(cpu):.3f} s",
            flush=True,
        )
        report[f"{megabytes}MB"] = {"seconds": seconds, "cpu_seconds": cpu}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
