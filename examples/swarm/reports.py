"""What a peer tells its launcher, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

LEFT = "left"  # the cause given for a peer that left in good order


@dataclass(frozen=True)
class Listening:
    """The peer can be dialled."""

    peer: str
    pid: int
    addresses: list[str]


@dataclass(frozen=True)
class Joined:
    """The peer is in a view."""

    world_size: int
    coordinator: str


@dataclass(frozen=True)
class Death:
    """A peer that was lost in a round."""

    cause: str
    contributed: bool


@dataclass(frozen=True)
class RoundDone:
    """A round was committed, as one member saw it.

    Attributes:
        sizes: images per peer that contributed.
        lost: who went since the round before.
        accuracy: on the held-out images, where it was measured.
        seconds: from one commit to the next.
        busy: of those, the seconds in which this peer worked on its own job.
    """

    round: int
    loss: float
    attempts: int
    world_size: int
    coordinator: str
    sizes: dict[str, int]
    lost: dict[str, Death]
    seconds: float
    busy: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Dying:
    """The peer kills itself in this round, after this many bytes."""

    round: int
    after_bytes: int


@dataclass(frozen=True)
class Finished:
    """All rounds are done."""

    rounds: int
    sha256: str
    accuracy: float


@dataclass(frozen=True)
class Failed:
    """The peer gives up; ``code`` is its exit status."""

    message: str
    code: int


Report = Listening | Joined | RoundDone | Dying | Finished | Failed
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Listening, Joined, RoundDone, Dying, Finished, Failed)}


class Reporter(Protocol):
    """Where a peer's reports go."""

    def __call__(self, report: Report) -> None:
        """Take a report; must not block for long."""
        ...


def encode(report: Report) -> str:
    """One line of JSON, without its end."""
    return json.dumps({"report": type(report).__name__, **asdict(report)}, separators=(",", ":"))


def decode(line: str) -> Report:
    """The report that ``encode`` wrote; raises ValueError for anything else."""
    value = json.loads(line)
    if not isinstance(value, dict) or value.get("report") not in _KINDS:
        raise ValueError(f"not a report: {line[:80]}")
    kind = _KINDS[value.pop("report")]
    if kind is RoundDone:
        value["lost"] = {peer: Death(**death) for peer, death in value["lost"].items()}
    try:
        report: Report = kind(**value)
    except TypeError as error:
        raise ValueError(f"not a report: {error}") from None
    return report


def print_json(report: Report) -> None:
    """To a launcher, over standard output."""
    print(encode(report), flush=True)


class PrintText:
    """To a person, over standard output: the first rounds, then every tenth of the run, and whatever happens."""

    def __init__(self) -> None:
        self.rounds = 0  # of the whole run, once known

    def __call__(self, report: Report) -> None:
        match report:
            case Listening(addresses=addresses):
                print("listening; others join with --join and one of")
                for address in addresses:
                    print(f"  {address}")
                print("waiting for the others", flush=True)
            case Joined(world_size=size):
                print(f"the group is there: {size} peers", flush=True)
            case RoundDone(round=round, loss=loss, attempts=attempts, world_size=size, lost=lost):
                for peer, death in lost.items():
                    if death.cause == LEFT:
                        continue
                    share = "its share counted" if death.contributed else "its share is not in the result"
                    print(f"round {round}: lost {peer[:8]} ({death.cause}); {share}")
                every = max(1, self.rounds // 10)
                if round == 1 or round % every == 0 or attempts > 1:
                    again = f", {attempts} attempts" if attempts > 1 else ""
                    print(f"round {round}: loss {loss:.3f}, {size} peers{again}", flush=True)
            case Finished(rounds=rounds, sha256=sha, accuracy=accuracy):
                print(f"{rounds} rounds done, accuracy {accuracy:.3f}, parameters {sha[:16]}", flush=True)
            case Dying() | Failed():
                pass  # only a launcher's peers are killed; failures are printed by whoever ends the process
