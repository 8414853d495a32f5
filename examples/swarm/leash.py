"""The pipe that ties a peer to its launcher: work comes in over it, and when it closes the peer ends at once.

It closes however the launcher ends, by SIGKILL too, so no peer is ever left behind.
"""

from __future__ import annotations

import os
import threading

ORPHANED = 3  # the exit status of a peer whose launcher has gone


class Leash:
    """The read end of the pipe, on file descriptor ``fd`` (standard input)."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd

    def line(self) -> bytes:
        """The next line, without its end; ends the process if the launcher has gone before sending one."""
        line = b""
        # Byte by byte, with no buffer: a buffered reader that a thread is blocked in breaks the interpreter's exit.
        while (byte := os.read(self._fd, 1)) != b"\n":
            if not byte:
                os._exit(ORPHANED)
            line += byte
        return line

    def hold(self) -> None:
        """From now on, end the process as soon as the pipe closes."""
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._fd, 4096):
            pass
        os._exit(ORPHANED)
