"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swarm.errors import UserError
from swarm.settings import SIZERS, Settings


@dataclass(frozen=True)
class SwarmOptions:
    """``mnist_swarm.py``: several peers on this machine.

    Attributes:
        settings: what all peers agree on.
        peers: how many to start.
        kill: the numbers of those that are to die inside an all-reduce.
        delay: seconds added to each job of a peer.
        slow: by which factor a peer computes slower.
        backend: "trio" or "asyncio", for all processes.
        listen: where peer 0 listens, for peers on other machines to join.
        json: where to write the run as JSON.
        plot: where to draw it.
    """

    settings: Settings
    peers: int = 4
    kill: tuple[int, ...] = (1,)
    delay: Mapping[int, float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)
    backend: str = "trio"
    listen: str = "tcp://127.0.0.1:0"
    json: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True)
class PeerOptions:
    """``mnist_swarm.py peer``: one peer, by hand.

    Attributes:
        join: addresses of peers to join; the settings are theirs. Without any, ``settings`` start a run of one's own.
        settings: what to run if ``join`` is empty.
        data: where the data set is on this machine, if elsewhere than on the others'.
        delay, slow: as in ``SwarmOptions``, for this peer.
        backend: "trio" or "asyncio".
        listen: where to listen; None: where the peers in ``join`` can reach us.
    """

    join: tuple[str, ...]
    settings: Settings
    data: str | None = None
    delay: float = 0.0
    slow: float = 1.0
    backend: str = "trio"
    listen: str | None = None


def parse_swarm(arguments: Sequence[str]) -> SwarmOptions:
    """The options of a swarm; raises UserError where they do not fit together, SystemExit where argparse does."""
    parser = argparse.ArgumentParser(
        prog="mnist_swarm.py",
        description="Train one network on MNIST in several processes; one of them is killed inside an all-reduce.",
        epilog="mnist_swarm.py peer --help: one peer by hand, on this machine or another.",
    )
    parser.add_argument("--peers", type=_at_least(1), default=4, metavar="N", help="processes to start (4)")
    parser.add_argument(
        "--kill", default=None, metavar="N[,M]|none", help="peers that die by SIGKILL inside an all-reduce (1)"
    )
    parser.add_argument(
        "--delay",
        type=_pairs,
        action="append",
        default=[],
        metavar="N:SECONDS",
        help="time added to each job of peer N",
    )
    parser.add_argument(
        "--slow",
        type=_pairs,
        action="append",
        default=[],
        metavar="N:FACTOR",
        help="peer N computes FACTOR times slower",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole run as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw loss, accuracy, peers and job sizes")
    _run_options(parser)
    given = parser.parse_args(arguments)
    peers: int = given.peers
    default_kill = "1" if peers > 1 else "none"
    kill = _numbers(default_kill if given.kill is None else given.kill)
    delay, slow = _merge(given.delay), _merge(given.slow)
    for option, numbers in (("--kill", kill), ("--delay", delay), ("--slow", slow)):
        for number in numbers:
            if not 0 <= number < peers:
                raise UserError(f"{option} {number}: the peers are numbered 0 to {peers - 1}")
    for number, factor in slow.items():
        if factor < 1:
            raise UserError(f"--slow {number}:{factor:g}: give a factor of at least 1")
    if len(kill) >= peers:
        raise UserError("--kill: at least one peer has to survive")
    settings = _settings(given, founders=given.founders or peers)
    if settings.founders < peers:
        raise UserError(f"--founders {settings.founders}: {peers} peers are started here, so at least {peers}")
    if settings.batch < settings.founders:
        raise UserError(f"--batch {settings.batch}: {settings.founders} peers need at least one image each")
    if kill and settings.rounds < 3 * len(kill):
        raise UserError(f"--rounds {settings.rounds}: too few to lose {len(kill)} peers in; at least {3 * len(kill)}")
    listen = given.listen or "tcp://127.0.0.1:0"
    return SwarmOptions(settings, peers, kill, delay, slow, given.backend, listen, given.json, given.plot)


def parse_peer(arguments: Sequence[str]) -> PeerOptions:
    """The options of one peer; raises as ``parse_swarm`` does."""
    parser = argparse.ArgumentParser(
        prog="mnist_swarm.py peer",
        description="Run one peer. With --join it asks the others for the settings; without, it begins a run.",
    )
    parser.add_argument(
        "--join", action="append", default=[], metavar="ADDRESS", help="a peer of the run, as it prints it"
    )
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="time added to each job")
    parser.add_argument("--slow", type=float, default=1.0, metavar="FACTOR", help="compute FACTOR times slower")
    _run_options(parser)
    given = parser.parse_args(arguments)
    if given.delay < 0 or given.slow < 1:
        raise UserError("--delay is at least 0 seconds, --slow a factor of at least 1")
    data = given.data
    settings = _settings(given, founders=given.founders or 1)
    if settings.batch < settings.founders:
        raise UserError(f"--batch {settings.batch}: {settings.founders} peers need at least one image each")
    return PeerOptions(tuple(given.join), settings, data, given.delay, given.slow, given.backend, given.listen)


def _run_options(parser: argparse.ArgumentParser) -> None:
    defaults = Settings()
    parser.add_argument(
        "--rounds", type=_at_least(1), default=defaults.rounds, metavar="N", help="rounds to train (200)"
    )
    parser.add_argument("--batch", type=_at_least(1), default=defaults.batch, metavar="N", help="images a round (256)")
    parser.add_argument("--founders", type=_at_least(1), metavar="N", help="peers that the first round waits for")
    parser.add_argument("--sizer", choices=SIZERS, default=defaults.sizer, help="how a batch is shared out (equal)")
    parser.add_argument("--seed", type=_at_least(0), default=defaults.seed, metavar="N", help="seed of everything (1)")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio", help="event loop (trio)")
    parser.add_argument("--listen", metavar="ADDRESS", help="where to listen, as in tcp://0.0.0.0:4001")
    parser.add_argument(
        "--data", metavar="DIR|digits", help="directory with MNIST's four IDX files, or scikit-learn's digits"
    )


def _settings(given: argparse.Namespace, *, founders: int) -> Settings:
    return Settings(
        data=given.data or Settings().data,
        rounds=given.rounds,
        batch=given.batch,
        founders=founders,
        sizer=given.sizer,
        seed=given.seed,
    )


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value < 2**31:
            raise argparse.ArgumentTypeError(f"{value} is not at least {least}")
        return value

    return number


def _numbers(text: str) -> tuple[int, ...]:
    if text.strip() == "none":
        return ()
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"--kill {text}: give peer numbers, as in 1 or 1,3, or none") from None


def _pairs(text: str) -> dict[int, float]:
    pairs = {}
    for part in text.split(","):
        number, colon, value = part.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(f"{text!r} is not PEER:VALUE, as in 3:0.08")
        try:
            pairs[int(number)] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not PEER:VALUE, as in 3:0.08") from None
        if not 0 <= pairs[int(number)] < 1e6:
            raise argparse.ArgumentTypeError(f"{value} is negative or absurd")
    return pairs


def _merge(given: Sequence[Mapping[int, float]]) -> dict[int, float]:
    merged: dict[int, float] = {}
    for pairs in given:
        merged |= pairs
    return merged
