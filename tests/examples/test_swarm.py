"""The main job with real processes on real sockets, and what becomes of them when it is stopped."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import EXAMPLES

pytestmark = pytest.mark.real

LIMIT = 120  # seconds, many times what a run takes: a hanging swarm fails its test instead of blocking all of them
LONG = ["--peers", "2", "--kill", "none", "--rounds", "100000", "--batch", "64"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-u", str(EXAMPLES / "mnist_swarm.py"), *arguments]


def swarm(*arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout.splitlines()[-1])


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """The first line of its output with ``words``."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    pytest.fail(f"it ended without a line with {words!r}: {process.communicate()[1]}")


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started, from whichever of its threads."""
    listed = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for part in listed for child in part)


def have_ended(watched: list[int]) -> bool:
    """Wait until the processes behind these pidfds have ended; False after LIMIT seconds."""
    return all(select.select([pidfd], [], [], LIMIT)[0] for pidfd in watched)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_one_dies_inside_an_all_reduce_and_the_rest_finish_in_agreement(backend, tmp_path):
    options = ["--peers", "3", "--rounds", "80", "--batch", "512", "--kill", "0", "--backend", backend]
    done, line = swarm(*options, "--sizer", "proportional", "--json", str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = line.pop("seconds")
    accuracy, retried = line.pop("accuracy"), line.pop("retried_rounds")
    assert line == {
        "rounds": 80,
        "started": 3,
        "finished": 2,
        "lost": [0],
        "identical": True,
        "dataset": "mnist-5k",
        "test_images": 1000,
    }
    assert accuracy >= 0.90
    assert 0 < seconds < 60
    run = json.loads((tmp_path / "run.json").read_text())
    (death,) = run["deaths"]
    assert retried >= 1 or death["contributed"]
    assert [r["round"] for r in run["history"]] == list(range(1, 81))
    # Every round's jobs add up to the batch, but for the round in which a share was lost.
    short = [r["round"] for r in run["history"] if sum(r["sizes"].values()) != 512]
    assert short == ([] if death["contributed"] else [death["round"]])
    assert [r["world_size"] for r in run["history"]][-1] == 2
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_that_does_not_learn_enough_ends_with_1():
    done, line = swarm("--peers", "2", "--kill", "none", "--rounds", "3", "--batch", "16")
    assert done.returncode == 1
    assert line["identical"] is True
    assert "FAILED: the accuracy is" in done.stdout


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_ctrl_c_ends_everything(backend):
    with started(*LONG, "--backend", backend) as process:
        wait_for(process, "round    1/")
        pidfds = [os.pidfd_open(pid) for pid in children(process.pid)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "all peers have ended" in err
    assert "Traceback" not in err
    assert len(pidfds) == 2
    assert have_ended(pidfds)


def test_no_peer_outlives_a_launcher_that_was_killed():
    with started(*LONG) as process:
        wait_for(process, "round    1/")
        pidfds = [os.pidfd_open(pid) for pid in children(process.pid)]
        process.kill()
        process.communicate(timeout=LIMIT)
    assert len(pidfds) == 2
    assert have_ended(pidfds)


def test_a_peer_that_is_killed_before_the_group_is_there_ends_the_run():
    with started(*LONG[:2], "--founders", "3", "--kill", "none") as process:
        wait_for(process, "peer --join")
        os.kill(children(process.pid)[1], signal.SIGKILL)
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "FAILED: peer 1 did not finish" in out


def test_a_third_peer_joins_by_hand_and_a_fourth_comes_too_late():
    with started("--peers", "2", "--founders", "3", "--kill", "none", "--rounds", "400") as process:
        address = wait_for(process, "peer --join").split()[-1]
        with started("peer", "--join", address) as third:
            wait_for(third, "the group is there: 3 peers")
            wait_for(process, "round    1/")
            late = subprocess.run(
                command("peer", "--join", address), capture_output=True, text=True, timeout=LIMIT, check=False
            )
            assert late.returncode == 2
            assert "this run has begun" in late.stderr
            assert "Traceback" not in late.stderr
            by_hand, _ = third.communicate(timeout=LIMIT)
            assert third.returncode == 0
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out
    (digest,) = {line.split()[-1] for line in by_hand.splitlines() if "parameters" in line}
    assert f"SHA-256 {digest}" in out


def test_what_is_missing_is_said_without_a_traceback(tmp_path):
    done = subprocess.run(command("--data", str(tmp_path)), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mnist_swarm.py: ")
    assert "train-images-idx3-ubyte" in done.stderr
