"""What people see: plain lines, the live picture, the plot; and where a victim dies."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm import plot, view
from swarm.errors import Missing, UserError
from swarm.killing import kill_bytes, kill_rounds
from swarm.settings import Settings

from .test_summary import Run


def test_plain_lines(capsys):
    run = Run()
    shown = view.PlainView(run.board, "the title")
    shown.refresh()
    run.train()
    shown.refresh()
    shown.refresh()
    shown.news("something happened")
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the title"
    assert lines[1].startswith("round    5/5  loss 0.200  accuracy -  3 peers  20 ms  peer 0: 64")
    assert lines[2] == "something happened"
    assert len(lines) == 3


def test_without_a_terminal_the_view_is_plain(capsys):
    assert isinstance(view.choose(Run().board, "title"), view.PlainView)
    assert capsys.readouterr().out == "title\n"


def test_without_rich_a_terminal_gets_plain_lines_and_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert isinstance(view.choose(Run().board, "title"), view.PlainView)
    assert "pip install 'rich" in capsys.readouterr().out


def test_the_live_picture_shows_every_peer(capsys):
    from swarm.live import LiveView

    run = Run()
    shown = LiveView(run.board, "the title")
    run.train()
    run.end()
    shown.news("round 3: peer 1 was lost")
    shown.close()
    out = capsys.readouterr().out
    for words in ("the title", "round 5/5", "0.200", "93.0%", "killed in round 3", "✔ finished", "peer 1 was lost"):
        assert words in out


def test_a_plot_is_drawn(tmp_path):
    run = Run().train().end()
    run.board.history[2].accuracy = 0.5
    for name in ("run.png", "run.svg"):
        plot.check(tmp_path / name)
        plot.draw(run.board, "title", tmp_path / name)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert b"peer 1 died" in (tmp_path / "run.svg").read_bytes()


def test_a_plot_of_nothing_is_drawn_too(tmp_path):
    plot.draw(Run().board, "title", tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_a_plot_that_could_not_be_drawn_is_refused_before_the_run(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"\.png"):
        plot.check(tmp_path / "run.txt")
    with pytest.raises(UserError, match="no directory"):
        plot.check(tmp_path / "nowhere" / "run.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install 'matplotlib"):
        plot.check(tmp_path / "run.png")


# ----------------------------------------------------------------------------------------- where to die


@given(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=5), st.integers(15, 1000), st.integers(0, 99))
def test_victims_die_one_after_another_inside_the_run(kill, rounds, seed):
    when = kill_rounds(kill, rounds, seed)
    assert list(when) == kill
    assert sorted(set(when.values())) == list(when.values())
    assert all(2 <= round <= max(2, 4 * rounds // 5) < rounds for round in when.values())
    assert kill_rounds(kill, rounds, seed) == when


@given(st.integers(0, 9), st.integers(0, 99), st.integers(2, 9), st.integers(100, 10**6))
def test_a_victim_dies_in_the_middle_of_the_ring(number, seed, world_size, nbytes):
    moved = 2 * 2 * (world_size - 1) / world_size * nbytes  # sent and received, reduce-scatter and all-gather
    after = kill_bytes(number, seed, world_size=world_size, nbytes=nbytes)
    assert 0.24 * moved <= after <= 0.76 * moved


# --------------------------------------------------------------------------------------- the settings


def test_settings_survive_the_wire():
    settings = Settings("digits", "ff", 5, 6, 7, "proportional", 8)
    assert Settings.from_cbor(settings.to_cbor()) == settings


@pytest.mark.parametrize(
    "spoil",
    [
        {"rounds": "5"},
        {"rounds": 0},
        {"batch": 10**7},
        {"founders": 0},
        {"sizer": "best"},
        {"seed": -1},
        {"data": 5},
        {"more": 1},
    ],
    ids=repr,
)
def test_settings_that_cannot_be(spoil):
    with pytest.raises(UserError, match="version"):
        Settings.from_cbor({**Settings().to_cbor(), **spoil})


def test_settings_that_are_none():
    with pytest.raises(UserError, match="version"):
        Settings.from_cbor([1, 2])
