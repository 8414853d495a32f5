"""A few peers in one process: real nodes and groups on a simulated network, or on loopback TCP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio

from hydra_allreduce import Group
from hydra_net import Address, Identity, MemoryNetwork, Node


@dataclass
class Peer:
    """One peer of a test."""

    number: int
    node: Node
    group: Group


@dataclass
class Net:
    """Hosts called ``p0``, ``p1``, ... on one simulated network."""

    seed: int = 0
    latency: float = 0.01
    network: MemoryNetwork = field(init=False)

    def __post_init__(self) -> None:
        self.network = MemoryNetwork(seed=self.seed, latency=self.latency)

    def node(self, number: int, incarnation: int = 0) -> Node:
        """A node on host ``p<number>``; the same identity each time."""
        return Node(
            listen=[f"memory://p{number}:1"],
            identity=Identity.from_seed(bytes([number + 1]) * 32),
            transports=[self.network.host(f"p{number}")],
            rng=Random(1000 * self.seed + 10 * number + incarnation),
        )

    def address(self, number: int) -> Address:
        return Address.parse(f"memory://p{number}:1")

    def group(self, node: Node, number: int, peers: Sequence[int] = (0,), **options: Any) -> Group:
        contacts = [self.address(other) for other in peers if other != number]
        return Group(node, "test", peers=contacts, rng=Random(self.seed * 77 + number), **options)


async def together(
    count: int, body: Callable[[Peer], Awaitable[Any]], *, net: Net | None = None, **options: Any
) -> list[Any]:
    """Run ``body(peer)`` at ``count`` founders at once; returns what each returned."""
    net = net or Net()
    results: list[Any] = [None] * count
    options.setdefault("founders", count)

    async def run(number: int) -> None:
        async with net.node(number) as node, net.group(node, number, **options) as group:
            results[number] = await body(Peer(number, node, group))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(run, number)
    return results


async def over_tcp(count: int, body: Callable[[Peer], Awaitable[Any]], **options: Any) -> list[Any]:
    """The same over loopback TCP and real time."""
    results: list[Any] = [None] * count
    options.setdefault("founders", count)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(listen=["tcp://127.0.0.1:0"])) for _ in range(count)]

        async def run(number: int) -> None:
            peers = nodes[0].addresses if number else ()
            async with Group(nodes[number], "test", peers=peers, **options) as group:
                results[number] = await body(Peer(number, nodes[number], group))

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(run, number)
    return results
