"""Finding a run's members, and finding out whether one whose connection was lost is still there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio
import anyio.abc

from hydra_allreduce.agreement import MemberId
from hydra_net import Address, HydraError, Node, PeerId

logger = logging.getLogger("hydra_allreduce")

RETRY = 1.0
"""Seconds until a contact that could not be reached is tried again; doubled each time, up to ``RETRY_MAX``."""
RETRY_MAX = 30.0


class Contacts:
    """Asks the peers that were named for the run, and checks on members.

    Args:
        node: whose connections are used.
        patience: seconds that one try may take.
        found: told each peer that was reached.
        dead: told each member that could not be reached, and why.
    """

    def __init__(
        self,
        node: Node,
        *,
        patience: float,
        found: Callable[[PeerId], None],
        dead: Callable[[MemberId, str], None],
    ) -> None:
        self._node = node
        self._patience = patience
        self._found = found
        self._dead = dead
        self._checking: dict[MemberId, None] = {}

    async def ask(self, contacts: Sequence[PeerId | Address], tasks: anyio.abc.TaskGroup) -> None:
        """Try each contact once; those that fail are tried again for ever, in ``tasks``."""
        async with anyio.create_task_group() as first_tries:
            for contact in contacts:
                first_tries.start_soon(self._ask, contact, tasks)

    async def _ask(self, contact: PeerId | Address, tasks: anyio.abc.TaskGroup) -> None:
        if not await self._try(contact, logging.WARNING):
            tasks.start_soon(self._retry, contact)

    async def _retry(self, contact: PeerId | Address) -> None:
        wait = RETRY
        while True:
            await anyio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX)
            if await self._try(contact, logging.INFO):  # said once aloud is enough: it may be away for good
                return

    async def _try(self, contact: PeerId | Address, level: int) -> bool:
        try:
            with anyio.fail_after(self._patience):
                peer = await self._node.connect(contact)
        except (HydraError, TimeoutError) as error:
            logger.log(level, "cannot ask %s for the run, will try again: %s", contact, str(error) or "no answer")
            return False
        if peer != self._node.id:
            self._found(peer)
        return True

    async def check(self, member: MemberId, cause: str) -> None:
        """A process that died closes its connections, but so does a broken line: dial it to find out which it was."""
        if member in self._checking:
            return
        self._checking[member] = None
        try:
            with anyio.move_on_after(self._patience):
                try:
                    await self._node.connect(member.peer)
                except HydraError as error:
                    logger.info("%s cannot be reached again: %s", member, error)
                else:
                    return
        finally:
            del self._checking[member]
        self._dead(member, cause)
