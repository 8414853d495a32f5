"""A transport under test: what it serves, and pairs of its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.abc

from hydra_net.address import Address
from hydra_net.transports.stream import ByteStream, Transport

__all__ = ["Setup", "connected", "serving"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is checked: ``client`` dials what ``server`` serves at ``listen`` (port 0 for a free one)."""

    server: Transport
    client: Transport
    listen: Address


@asynccontextmanager
async def connected(setup: Setup) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A dialled stream and the accepted one that belongs to it, both closed at the end."""
    accepted: list[ByteStream] = []
    arrived, finished = anyio.Event(), anyio.Event()

    async def handler(stream: ByteStream) -> None:
        accepted.append(stream)
        arrived.set()
        await finished.wait()

    async with serving(setup, handler) as addresses:
        client = await setup.client.dial(addresses[0])
        try:
            await arrived.wait()
            yield client, accepted[0]
        finally:
            finished.set()
            with anyio.CancelScope(shield=True):
                await client.aclose()


@asynccontextmanager
async def serving(setup: Setup, handler: Callable[[ByteStream], Awaitable[None]]) -> AsyncIterator[Sequence[Address]]:
    """The addresses of a server that runs ``handler`` until the end of the block."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        addresses: Sequence[Address] = await tasks.start(_serve, setup, handler)
        try:
            yield addresses
        except BaseException as error:  # noqa: BLE001 - raised again below, bare instead of inside an exception group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _serve(
    setup: Setup,
    handler: Callable[[ByteStream], Awaitable[None]],
    *,
    task_status: anyio.abc.TaskStatus[Sequence[Address]],
) -> None:
    await setup.server.serve(setup.listen, handler, task_status=task_status)
