"""What every server does with an accepted connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from hydra_net.transports.stream import ByteStream

_log = logging.getLogger(__name__)


async def run_handler(stream: ByteStream, peer: object, handler: Callable[[ByteStream], Awaitable[None]]) -> None:
    """Run ``handler(stream)`` and close the stream. An exception is logged with ``peer`` and ends nothing else."""
    try:
        await handler(stream)
    except Exception as error:  # noqa: BLE001 - one peer's connection must not end the server, whatever went wrong
        _log.warning("the connection from %s ended: %r", peer, error, exc_info=error)
    finally:
        await stream.aclose()
