"""The command line: what it takes, and what it says to what it does not take."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from swarm.errors import UserError
from swarm.options import parse_peer, parse_swarm

EVERYTHING = """
    --peers 5 --kill 1,3 --delay 3:0.08 --slow 2:4.0,4:2 --slow 0:3 --sizer proportional --backend asyncio --seed 7
    --rounds 50 --batch 64 --founders 6 --listen tcp://0.0.0.0:4001 --data digits --json r.json --plot r.png
"""
BY_HAND = "--join tcp://192.0.2.7:4001 --join tcp://192.0.2.8:4001 --delay 0.1 --slow 2 --data d"


def test_the_defaults():
    options = parse_swarm([])
    assert (options.peers, options.kill, options.backend) == (4, (1,), "trio")
    assert (options.delay, options.slow, options.json, options.plot) == ({}, {}, None, None)
    settings = options.settings
    assert (settings.rounds, settings.batch, settings.founders, settings.sizer) == (200, 256, 4, "equal")
    assert (settings.data, settings.seed) == ("mnist-5k", 1)


def test_everything_at_once():
    options = parse_swarm(shlex.split(EVERYTHING))
    assert options.kill == (1, 3)
    assert options.delay == {3: 0.08}
    assert options.slow == {2: 4.0, 4: 2.0, 0: 3.0}
    assert (options.backend, options.listen) == ("asyncio", "tcp://0.0.0.0:4001")
    assert (options.json, options.plot) == (Path("r.json"), Path("r.png"))
    settings = options.settings
    assert (settings.data, settings.rounds, settings.batch, settings.founders) == ("digits", 50, 64, 6)
    assert (settings.sizer, settings.seed) == ("proportional", 7)


def test_nobody_dies_if_asked_or_alone():
    assert parse_swarm(["--kill", "none"]).kill == ()
    assert parse_swarm(["--peers", "1"]).kill == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--kill 4", "--kill 4: the peers are numbered 0 to 3"),
        ("--kill -1", "--kill -1: the peers are numbered 0 to 3"),
        ("--kill two", "give peer numbers"),
        ("--kill 0,1,2,3", "at least one peer has to survive"),
        ("--delay 4:1", "--delay 4: the peers are numbered"),
        ("--slow 9:2", "--slow 9: the peers are numbered"),
        ("--slow 2:0.5", "a factor of at least 1"),
        ("--founders 3", "at least 4"),
        ("--batch 3", "at least one image each"),
        ("--kill 1,2 --rounds 5", "at least 6"),
    ],
)
def test_what_does_not_fit_together(arguments, says):
    with pytest.raises(UserError) as caught:
        parse_swarm(arguments.split())
    assert says in str(caught.value)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "--peers 0",
        "--rounds 0",
        "--seed -1",
        "--delay 3",
        "--delay x:1",
        "--delay 1:-1",
        "--backend curio",
        "--sizer best",
    ],
)
def test_what_is_no_option(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_swarm(arguments.split())
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_peer_by_hand():
    options = parse_peer(shlex.split(BY_HAND))
    assert options.join == ("tcp://192.0.2.7:4001", "tcp://192.0.2.8:4001")
    assert (options.delay, options.slow, options.data, options.listen) == (0.1, 2.0, "d", None)
    assert parse_peer(["--founders", "2"]).settings.founders == 2


def test_a_peer_cannot_be_faster_than_it_is():
    with pytest.raises(UserError, match="at least 1"):
        parse_peer(["--slow", "0.5"])
