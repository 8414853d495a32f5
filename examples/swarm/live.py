"""The live picture of a swarm on a terminal, drawn with rich."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarm.board import Board, PeerState

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
_STATUS = {
    "starting": ("…", "dim"),
    "joined": ("●", "cyan"),
    "training": ("●", "green"),
    "finished": ("✔", "bold green"),
    "killed": ("✝", "bold red"),
    "failed": ("✘", "bold red"),
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_EVERY = 0.08  # seconds between two pictures


class LiveView:
    """A panel with the run's figures and a row per peer; news scroll by above it."""

    def __init__(self, board: Board, title: str) -> None:
        self._board = board
        self._title = title
        self._console = Console(highlight=False)
        self._drawn = 0.0
        self._live = Live(self._picture(), console=self._console, auto_refresh=False)
        self._live.start()

    def refresh(self) -> None:
        """Draw anew, at most every 80 ms."""
        now = time.monotonic()
        if now - self._drawn >= _EVERY:
            self._drawn = now
            self._live.update(self._picture(), refresh=True)

    def news(self, line: str) -> None:
        """Let a line scroll by above the picture."""
        self._console.print(Text(line, style="bold yellow"))

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        self._live.update(self._picture(), refresh=True)
        self._live.stop()

    def _picture(self) -> RenderableType:
        title = Text(self._title, style="bold")
        return Panel(Group(self._progress(), self._figures(), Text(), self._peers()), title=title, padding=(1, 2))

    def _progress(self) -> RenderableType:
        done = self._board.latest.round if self._board.latest else 0
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        style = "red" if self._board.interrupted else "cyan"
        bar = ProgressBar(total=self._board.rounds, completed=done, complete_style=style, finished_style="green")
        grid.add_row(Text(f"round {done}/{self._board.rounds}"), bar)
        return grid

    def _figures(self) -> RenderableType:
        latest = self._board.latest
        if latest is None:
            return Text("waiting until all peers are there", style="dim")
        accuracy = "-" if self._board.accuracy is None else f"{self._board.accuracy:.1%}"
        text = Text()
        for label, value in (
            ("loss", f"{latest.loss:.3f}"),
            ("accuracy", accuracy),
            ("peers", f"{latest.world_size}"),
            ("round time", f"{self._round_time() * 1e3:.0f} ms"),
        ):
            text.append(f"{label} ", style="dim")
            text.append(f"{value}   ", style="bold")
        text.append("\nloss so far ", style="dim")
        text.append(self._sparkline(), style="cyan")
        return text

    def _round_time(self) -> float:
        last = sorted(self._board.history)[-10:]
        return sum(self._board.history[r].seconds for r in last) / len(last)

    def _sparkline(self) -> str:
        """The loss over the whole run so far, in one line; logarithmic."""
        losses = [math.log(max(1e-6, self._board.history[r].loss)) for r in sorted(self._board.history)]
        if len(losses) > _WIDTH:
            losses = [losses[i * len(losses) // _WIDTH] for i in range(_WIDTH)]
        low, high = min(losses), max(losses)
        return "".join(_BLOCKS[round(7 * (loss - low) / ((high - low) or 1.0))] for loss in losses)

    def _peers(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("peer", justify="right")
        table.add_column("id", style="dim")
        table.add_column("status", no_wrap=True)
        table.add_column("images", justify="right")
        table.add_column("share of the batch", ratio=1)
        table.add_column("job", justify="right", no_wrap=True)
        latest = self._board.latest
        largest = max(latest.sizes.values(), default=1) if latest else 1
        for peer in self._board.peers:
            colour = _COLOURS[peer.number % len(_COLOURS)]
            size = latest.sizes.get(peer.id, 0) if latest else 0
            bar = _bar(size, largest, colour)
            busy = f"{peer.busy * 1e3:.1f} ms" if peer.busy and size else ""
            table.add_row(
                Text(f"{peer.number}", style=f"bold {colour}"),
                peer.id[:8],
                self._status(peer),
                f"{size}" if size else "",
                bar,
                busy,
            )
        own = {peer.id for peer in self._board.peers}
        for other, size in latest.sizes.items() if latest else ():
            if other not in own:
                bar = _bar(size, largest, "white")
                table.add_row("", other[:8], Text("● by hand", style="white"), f"{size}", bar, "")
        return table

    def _status(self, peer: PeerState) -> Text:
        sign, style = _STATUS[peer.status]
        text = Text(f"{sign} {peer.status}", style=style)
        if peer.status == "killed" and peer.dying is not None:
            text.append(f" in round {peer.dying.round}")
        if self._board.latest and peer.id and peer.id == self._board.latest.coordinator and peer.status == "training":
            text.append(" ♛", style="yellow")
        return text


def _bar(size: int, largest: int, colour: str) -> RenderableType:
    """As long as the column is wide for the largest job."""
    if not size:
        return Text()
    return ProgressBar(total=largest, completed=size, complete_style=colour, finished_style=colour)
