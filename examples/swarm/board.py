"""The launcher's picture of a run, put together from what the peers report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.reports import LEFT, Death, Dying, Failed, Finished, Joined, Listening, Report, RoundDone


@dataclass
class PeerState:
    """One peer that was started here. ``status`` is one of starting, joined, training, finished, killed, failed."""

    number: int
    status: str = "starting"
    id: str = ""
    pid: int = 0
    addresses: list[str] = field(default_factory=list)
    round: int = 0
    size: int = 0
    busy: float = 0.0
    dying: Dying | None = None
    finished: Finished | None = None
    failure: str = ""
    code: int | None = None


@dataclass
class RoundState:
    """One committed round, put together from its members' reports; sizes are per peer id."""

    round: int
    loss: float
    world_size: int
    seconds: float
    coordinator: str
    sizes: dict[str, int]
    attempts: int = 1
    accuracy: float | None = None


@dataclass
class LostPeer:
    """A peer that has gone, as the others report it."""

    peer: str
    round: int
    cause: str
    contributed: bool
    attempts: int


class Board:
    """Everything that is known of a run. Views and the summary read it, reports change it."""

    def __init__(self, peers: int, rounds: int) -> None:
        self.rounds = rounds
        self.peers = [PeerState(number) for number in range(peers)]
        self.history: dict[int, RoundState] = {}
        self._gone: dict[str, LostPeer] = {}
        self.accuracy: float | None = None
        self.interrupted = False

    @property
    def latest(self) -> RoundState | None:
        """The last round that was committed."""
        return self.history[max(self.history)] if self.history else None

    @property
    def lost(self) -> dict[str, LostPeer]:
        """Who was lost, by peer id. Whoever leaves in good order is not: after the last round everybody does."""
        done = {peer.id for peer in self.peers if peer.finished is not None}
        return {id: gone for id, gone in self._gone.items() if gone.cause != LEFT and id not in done}

    def name(self, peer: str) -> str:
        """How to call a peer: its number if it was started here, else the start of its id."""
        return next((f"peer {p.number}" for p in self.peers if p.id == peer), f"peer {peer[:8]}")

    def number(self, peer: str) -> int | None:
        """The number of a peer that was started here."""
        return next((p.number for p in self.peers if p.id == peer), None)

    def in_order(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The same sizes, those of the peers started here first and by number."""
        numbers = {peer.id: peer.number for peer in self.peers}
        return dict(sorted(sizes.items(), key=lambda item: numbers.get(item[0], len(numbers))))

    def apply(self, number: int, report: Report) -> list[str]:
        """Take in a report of peer ``number``; returns what is worth telling a person, as lines."""
        peer = self.peers[number]
        match report:
            case Listening():
                peer.id, peer.pid, peer.addresses = report.peer, report.pid, report.addresses
            case Joined():
                peer.status = "joined"
            case RoundDone():
                return self._round(peer, report)
            case Dying():
                peer.dying = report
            case Finished():
                peer.status, peer.finished = "finished", report
                self.accuracy = report.accuracy
            case Failed():
                peer.status, peer.failure = "failed", report.message
                return [f"peer {number} failed: {report.message}"]
        return []

    def exited(self, number: int, code: int) -> None:
        """Peer ``number`` has ended with ``code`` (negative: by that signal)."""
        peer = self.peers[number]
        peer.code = code
        if peer.dying is not None and code < 0:
            peer.status = "killed"
        elif code != 0 or peer.finished is None:
            peer.status = "failed"
            peer.failure = peer.failure or f"it ended with exit status {code}"

    def _round(self, peer: PeerState, report: RoundDone) -> list[str]:
        peer.status, peer.round, peer.busy = "training", report.round, report.busy
        peer.size = report.sizes.get(peer.id, 0)
        known = self.history.setdefault(
            report.round,
            RoundState(report.round, report.loss, report.world_size, report.seconds, report.coordinator, report.sizes),
        )
        known.attempts = max(known.attempts, report.attempts)
        if report.accuracy is not None:
            known.accuracy = self.accuracy = report.accuracy
        news = []
        for lost, death in report.lost.items():
            if lost not in self._gone:
                self._gone[lost] = LostPeer(lost, report.round, death.cause, death.contributed, known.attempts)
                if lost in self.lost:
                    news.append(self._obituary(report.round, lost, death))
            self._gone[lost].attempts = max(self._gone[lost].attempts, known.attempts)
        return news

    def _obituary(self, round: int, lost: str, death: Death) -> str:
        share = "with its share" if death.contributed else "without its share"
        return f"round {round}: {self.name(lost)} was lost ({death.cause}); committed {share}"
