"""A run drawn as a picture: loss, accuracy, the number of peers, and job sizes over the rounds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarm.board import Board
from swarm.errors import Missing, UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by colour-blind people too.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_RED = "#B2182B"
_GREY = "#666666"


def check(file: Path) -> None:
    """Raise before a run if its plot could not be drawn after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Missing("--plot needs matplotlib; get it with: python -m pip install 'matplotlib>=3.9'")
    if not file.parent.is_dir():
        raise UserError(f"--plot {file}: there is no directory {file.parent}")
    if file.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise UserError(f"--plot {file}: the name must end in .png, .pdf or .svg")


def draw(board: Board, title: str, file: Path) -> None:
    """Write the picture of a run to ``file``."""
    import matplotlib as mpl  # noqa: PLC0415  (an extra, and slow to load)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    style: dict[str, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "font.size": 9.5,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(2, 2, figsize=(11, 6.6), sharex=True, layout="constrained")
        (loss, accuracy), (sizes, world) = axes
        _loss(loss, board)
        _accuracy(accuracy, board)
        _sizes(sizes, board)
        _world(world, board)
        for row in axes:
            for panel in row:
                _deaths(panel, board, labelled=panel is world)
        for panel in (sizes, world):
            panel.set_xlabel("round")
        loss.set_xlim(0, max(board.history, default=1))
        figure.suptitle(title, fontsize=12.5)
        figure.savefig(file, dpi=150)
        plt.close(figure)


def _rounds(board: Board) -> list[int]:
    return sorted(board.history)


def _loss(panel: Axes, board: Board) -> None:
    panel.set_title("Training loss")
    panel.plot(_rounds(board), [board.history[r].loss for r in _rounds(board)], color=_COLOURS[0], linewidth=1.3)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")


def _accuracy(panel: Axes, board: Board) -> None:
    panel.set_title("Accuracy on held-out images")
    measured = [(r, a) for r in _rounds(board) if (a := board.history[r].accuracy) is not None]
    panel.plot(*zip(*measured, strict=True) if measured else ([], []), color=_COLOURS[2], linewidth=1.5)
    panel.axhline(0.9, color=_GREY, linewidth=0.8, linestyle=":")
    panel.text(0.01, 0.905, "0.90", color=_GREY, fontsize=8.5, va="bottom", transform=panel.get_yaxis_transform())
    panel.set_ylim(0, 1)


def _sizes(panel: Axes, board: Board) -> None:
    panel.set_title("Job sizes (images per round)")
    peers = [p.id for p in board.peers]
    peers += [p for p in dict.fromkeys(p for r in board.history.values() for p in r.sizes) if p not in peers]
    series = [[board.history[r].sizes.get(peer, 0) for r in _rounds(board)] for peer in peers]
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(peers))]
    labels = [board.name(peer) for peer in peers]
    if board.history:
        panel.stackplot(_rounds(board), series, labels=labels, colors=colours, alpha=0.85, step="mid", linewidth=0)
        panel.set_ylim(0, max(sum(r.sizes.values()) for r in board.history.values()) * 1.22)
        panel.legend(loc="upper center", ncols=min(4, len(peers)), frameon=False, fontsize=8.5)


def _world(panel: Axes, board: Board) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    panel.set_title("Peers in the group")
    sizes = [board.history[r].world_size for r in _rounds(board)]
    panel.step(_rounds(board), sizes, where="mid", color=_COLOURS[5], linewidth=1.8)
    panel.set_ylim(0, max(sizes, default=1) + 1)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))


def _deaths(panel: Axes, board: Board, *, labelled: bool) -> None:
    for index, lost in enumerate(board.lost.values()):
        panel.axvline(lost.round, color=_RED, linewidth=1, linestyle="--")
        if labelled:
            share = "its share counted" if lost.contributed else "round run again"
            text = f" {board.name(lost.peer)} died\n {share}"
            height = 0.06 + 0.16 * (index % 4)
            panel.text(lost.round, height, text, color=_RED, fontsize=8.5, transform=panel.get_xaxis_transform())
