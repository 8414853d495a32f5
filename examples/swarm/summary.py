"""Did the run do what it should? The summary, the JSON line, and the exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swarm.board import Board

GOOD_ACCURACY = 0.90


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        line: the JSON object that ends the output.
        problems: what went wrong, in words; the run succeeded if there is nothing.
    """

    line: dict[str, Any]
    problems: list[str]

    @property
    def code(self) -> int:
        """The exit status."""
        return 1 if self.problems else 0


def judge(board: Board, *, kill: Sequence[int], dataset: str, test_images: int, seconds: float) -> Outcome:
    """Judge a run that has ended, by what its peers reported.

    It succeeded if every peer that was not to be killed finished all rounds, all with the same parameters to the bit
    and an accuracy of at least 0.90; each peer that was to be killed was killed and lost, and nobody else was; and
    for each death a round was retried or committed with the dead peer's share.
    """
    finished = [p for p in board.peers if p.finished is not None and p.code == 0]
    digests = {p.number: p.finished.sha256 for p in finished if p.finished is not None}
    accuracies = [p.finished.accuracy for p in finished if p.finished is not None]
    rounds = min((p.finished.rounds for p in finished if p.finished is not None), default=0)
    identical = len(finished) > 0 and len(set(digests.values())) == 1
    accuracy = min(accuracies, default=0.0)
    retried = sum(1 for r in board.history.values() if r.attempts > 1)
    line = {
        "accuracy": round(accuracy, 4),
        "rounds": rounds,
        "started": len(board.peers),
        "finished": len(finished),
        "lost": [_name(board, peer) for peer in board.lost],
        "retried_rounds": retried,
        "identical": identical,
        "seconds": round(seconds, 1),
        "dataset": dataset,
        "test_images": test_images,
    }
    problems = [*_survivors(board, kill), *_deaths(board, kill)]
    if finished and not identical:
        problems.append("the survivors' parameters differ: " + ", ".join(f"{n}: {d[:8]}" for n, d in digests.items()))
    if finished and accuracy < GOOD_ACCURACY:
        problems.append(f"the accuracy is {accuracy:.3f}, below {GOOD_ACCURACY:.2f}; more --rounds may help")
    return Outcome(line, problems)


def record(board: Board, outcome: Outcome) -> dict[str, Any]:
    """The whole run, for ``--json``: the line and what led to it."""
    return {
        **outcome.line,
        "problems": outcome.problems,
        "peers": {str(p.number): p.id for p in board.peers},
        "deaths": [asdict(lost) for lost in board.lost.values()],
        "history": [asdict(board.history[r]) for r in sorted(board.history)],
    }


def _survivors(board: Board, kill: Sequence[int]) -> list[str]:
    problems = []
    for peer in board.peers:
        if peer.number in kill:
            continue
        if peer.finished is None or peer.code != 0:
            problems.append(f"peer {peer.number} did not finish: {peer.failure or 'it was still running'}")
        elif peer.finished.rounds != board.rounds:
            problems.append(f"peer {peer.number} finished after {peer.finished.rounds} of {board.rounds} rounds")
    return problems


def _deaths(board: Board, kill: Sequence[int]) -> list[str]:
    problems = []
    for number in kill:
        peer = board.peers[number]
        lost = board.lost.get(peer.id)
        if peer.status != "killed":
            problems.append(f"peer {number} was to be killed and was not")
        elif lost is None:
            problems.append(f"peer {number} was killed and no survivor noticed")
        elif lost.attempts < 2 and not lost.contributed:
            problems.append(f"peer {number} was lost, and round {lost.round} was neither retried nor had its share")
    for peer_id in board.lost:
        if board.number(peer_id) not in kill:
            problems.append(f"{board.name(peer_id)} was lost and was not to be: {board.lost[peer_id].cause}")
    return problems


def _name(board: Board, peer: str) -> int | str:
    number = board.number(peer)
    return peer[:8] if number is None else number
