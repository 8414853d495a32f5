"""What a person sees while a swarm runs: plain lines, or a live picture on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from typing import Protocol

from swarm.board import Board


class View(Protocol):
    """Shows a run."""

    def refresh(self) -> None:
        """Something has changed on the board; cheap enough to be called for every report."""
        ...

    def news(self, line: str) -> None:
        """Something has happened that stays on the screen."""
        ...

    def close(self) -> None:
        """The run is over, or is being given up."""
        ...


def choose(board: Board, title: str) -> View:
    """The live view on a terminal if rich is installed, else plain lines."""
    if not sys.stdout.isatty():
        return PlainView(board, title)
    if importlib.util.find_spec("rich") is None:
        print("rich is not installed, so here are plain lines; for the live view: python -m pip install 'rich>=14'")
        return PlainView(board, title)
    from swarm.live import LiveView  # noqa: PLC0415  (rich is an extra)

    return LiveView(board, title)


class PlainView:
    """A line for the first round and each tenth of the run, and one for whatever happens."""

    def __init__(self, board: Board, title: str) -> None:
        self._board = board
        self._shown = 0
        print(title, flush=True)

    def refresh(self) -> None:
        """Print a line if a tenth of the rounds has gone by."""
        latest = self._board.latest
        if latest is None:
            return
        step = max(1, self._board.rounds // 10)
        due = 1 if not self._shown else (self._shown // step + 1) * step
        if latest.round < due:
            return
        self._shown = latest.round
        accuracy = "-" if self._board.accuracy is None else f"{self._board.accuracy:.3f}"
        sizes = self._board.in_order(latest.sizes).items()
        jobs = "  ".join(f"{self._board.name(peer)}: {size}" for peer, size in sizes)
        print(
            f"round {latest.round:>4}/{self._board.rounds}  loss {latest.loss:.3f}  accuracy {accuracy}  "
            f"{latest.world_size} peers  {latest.seconds * 1e3:.0f} ms  {jobs}",
            flush=True,
        )

    def news(self, line: str) -> None:
        """Print it."""
        print(line, flush=True)

    def close(self) -> None:
        """Nothing to put back."""
