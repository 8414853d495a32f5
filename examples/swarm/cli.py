"""The program: a swarm of processes, or one peer by hand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from swarm import data, plot, view
from swarm.board import Board
from swarm.errors import UserError
from swarm.launcher import Launcher
from swarm.options import SwarmOptions, parse_peer, parse_swarm
from swarm.summary import Outcome, judge, record


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit status.

    0: everything went as it should. 1: it did not; the output says what. 2: it could not begin. 128 and the signal's
    number: it was stopped, so 130 after Ctrl-C.
    """
    began = time.monotonic()
    try:
        match arguments:
            case ["peer", *rest]:
                return _peer(rest)
            case _:
                return _swarm(parse_swarm(arguments), began)
    except UserError as error:
        print(f"mnist_swarm.py: {error}", file=sys.stderr)
        return error.code


def _swarm(options: SwarmOptions, began: float) -> int:
    for file in (options.json, options.plot):
        if file is not None and not file.parent.is_dir():
            raise UserError(f"{file}: there is no directory {file.parent}")
    if options.plot is not None:
        plot.check(options.plot)
    dataset = data.load(options.settings.data)
    settings = replace(options.settings, digest=dataset.digest)
    title = f"{options.peers} peers train on {dataset.name} ({options.backend}, seed {settings.seed})"
    board = Board(options.peers, settings.rounds)
    shown = view.choose(board, title)
    try:
        signum = Launcher(options, settings, board, shown).run()
    finally:
        shown.close()
    if signum:
        done = board.latest.round if board.latest else 0
        print(f"stopped after round {done} of {settings.rounds}; all peers have ended", file=sys.stderr)
        return 128 + signum
    outcome = judge(
        board,
        kill=options.kill,
        dataset=dataset.name,
        test_images=len(dataset.test_y),
        seconds=time.monotonic() - began,
    )
    if options.plot is not None:
        plot.draw(board, title, options.plot)
    if options.json is not None:
        options.json.write_text(json.dumps(record(board, outcome), indent=1) + "\n")
    _say(board, outcome, [file for file in (options.json, options.plot) if file is not None])
    return outcome.code


def _say(board: Board, outcome: Outcome, files: Sequence[Path]) -> None:
    line = outcome.line
    print(
        f"\n{line['started']} peers started, {line['finished']} finished {line['rounds']} rounds in {line['seconds']} s"
    )
    for lost in board.lost.values():
        peer = board.number(lost.peer)
        dying = board.peers[peer].dying if peer is not None else None
        how = f"killed itself after {dying.after_bytes:,} bytes of the ring in" if dying else "was lost in"
        then = "committed with its share" if lost.contributed else f"run again ({lost.attempts} attempts)"
        print(f"{board.name(lost.peer)} {how} round {dying.round if dying else lost.round}, which was {then}")
    digests = {p.finished.sha256 for p in board.peers if p.finished is not None}
    if line["identical"]:
        print(f"the survivors' parameters are identical: SHA-256 {digests.pop()[:16]}…")
    print(f"accuracy {line['accuracy']:.3f} on {line['test_images']} held-out images of {line['dataset']}")
    for file in files:
        print(f"written: {file}")
    for problem in outcome.problems:
        print(f"FAILED: {problem}")
    print(json.dumps(line), flush=True)


def _peer(arguments: Sequence[str]) -> int:
    from hydra_net import HydraError  # noqa: PLC0415
    from swarm.peer import run_by_hand  # noqa: PLC0415

    options = parse_peer(arguments)
    try:
        anyio.run(run_by_hand, options, backend=options.backend)
    except HydraError as error:
        print(f"mnist_swarm.py: {error}", file=sys.stderr)
        return 1
    return 0
