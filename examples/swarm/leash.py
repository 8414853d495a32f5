"""The pipe that ties a peer to its launcher: work comes in over it, and when it closes the peer ends at once.

It closes however the launcher ends, by SIGKILL too, so no peer is ever left behind.
"""

from __future__ import annotations

import os
import queue
import threading

ORPHANED = 3  # the exit status of a peer whose launcher has gone


class Leash:
    """The read end of the pipe, on file descriptor ``fd`` (standard input), watched from now on."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def line(self) -> bytes:
        """The next line, without its end; waits for it."""
        return self._lines.get()

    def _watch(self) -> None:
        # os.read and no file object: a buffered reader that a thread is blocked in breaks the interpreter's exit.
        rest = b""
        while data := os.read(self._fd, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._lines.put(line)
        os._exit(ORPHANED)
