"""Carries out a schedule's faults on a network in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from hydra_allreduce.testing.swarm.faults import (
    Cut,
    Fault,
    Kill,
    Partition,
    Pause,
    Reset,
    Schedule,
    Slow,
    Vanish,
    Who,
)
from hydra_net.transports.memory import MemoryNetwork


class Injector:
    """Makes a schedule's faults happen.

    Args:
        network: where.
        names: the peers' hosts.
        schedule: what.
        coordinator: says who coordinates now; None if nobody can tell.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        names: Sequence[str],
        schedule: Schedule,
        coordinator: Callable[[], int | None],
    ) -> None:
        self._network = network
        self._names = names
        self._schedule = schedule
        self._coordinator = coordinator
        self._lasting: list[tuple[Fault, list[str]]] = []  # with the hosts that were meant when it began

    async def run(self) -> None:
        """Run the schedule, whose zero is now; ends when nothing more will happen."""
        zero = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for fault in self._schedule.faults:
                tasks.start_soon(self._cause, fault, zero)

    async def _cause(self, fault: Fault, zero: float) -> None:
        await anyio.sleep_until(zero + fault.at)
        hosts = [self._host(who) for who in _whom(fault)]
        if None in hosts or (len(hosts) == 2 and hosts[0] == hosts[1]):
            return
        named = [host for host in hosts if host is not None]
        match fault:
            case Kill(after_bytes=0):
                self._network.kill(named[0])
            case Kill(after_bytes=count):
                self._network.kill_after(named[0], count)
            case Vanish():
                self._network.vanish(named[0])
            case Reset():
                self._network.reset(named[0], named[1])
            case Pause() | Partition() | Cut() | Slow():
                entry = (fault, named)
                self._lasting.append(entry)
                self._update(fault)
                if fault.seconds < math.inf:
                    await anyio.sleep(fault.seconds)
                    self._lasting.remove(entry)
                    self._update(fault)

    def _host(self, who: Who) -> str | None:
        index = self._coordinator() if isinstance(who, str) else who
        return None if index is None else self._names[index % len(self._names)]

    def _update(self, changed: Fault) -> None:
        """Bring the network into the state that all lasting faults together make."""
        network, schedule = self._network, self._schedule
        match changed:
            case Pause():
                for name in self._names:
                    network.resume(name)
            case Slow():
                for a in self._names:
                    for b in self._names:
                        network.set_link(a, b, latency=schedule.latency, bandwidth=schedule.bandwidth)
            case _:
                network.heal()
        sides: dict[str, tuple[int, ...]] = dict.fromkeys(self._names, ())
        for fault, hosts in self._lasting:
            match fault:
                case Pause():
                    network.pause(*hosts)
                case Cut():
                    network.cut(*hosts)
                case Slow(latency=latency, bandwidth=bandwidth):
                    for a, b in (hosts, hosts[::-1]):
                        network.set_link(a, b, latency=latency, bandwidth=bandwidth)
                case Partition(sides=numbers) if numbers:
                    for index, name in enumerate(self._names):
                        sides[name] = (*sides[name], numbers[index % len(numbers)])
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, side in sides.items():
            groups.setdefault(side, []).append(name)
        if len(groups) > 1:
            network.partition(list(groups.values()))


def _whom(fault: Fault) -> tuple[Who, ...]:
    match fault:
        case Kill(peer=peer) | Vanish(peer=peer) | Pause(peer=peer):
            return (peer,)
        case Cut(a=a, b=b) | Reset(a=a, b=b) | Slow(a=a, b=b):
            return (a, b)
        case Partition():
            return ()
