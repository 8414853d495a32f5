"""Starts the peers of a swarm, follows what they report, and sees to it that none outlives the run."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from hydra_net import Address, Identity
from swarm.board import Board
from swarm.killing import kill_rounds
from swarm.options import SwarmOptions
from swarm.reports import Listening, decode
from swarm.settings import Settings
from swarm.view import View
from swarm.work import Work, encode_join

_PROGRAM = Path(__file__).resolve().parent.parent / "mnist_swarm.py"
_LINE = 1 << 20
_EVERY = 0.1  # seconds between two looks at the view and the signals


class Launcher:
    """Runs the peers of one swarm; ``board`` has what they report, ``view`` shows it."""

    def __init__(self, options: SwarmOptions, settings: Settings, board: Board, view: View) -> None:
        self._options = options
        self._settings = settings
        self._board = board
        self._view = view
        self._join: list[str] = []
        self._joinable = anyio.Event()
        self._running = options.peers
        self._stopped = 0

    def run(self) -> int:
        """Until every peer has ended. Returns the signal that ended it early, or 0.

        If a peer ends before the group was formed the rest would wait for it for ever, so all are ended then. On
        SIGINT and SIGTERM all are ended before this returns.
        """
        # Handlers of our own from before the event loop to after it: no moment in which a Ctrl-C could get lost in it.
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            anyio.run(self._run, backend=self._options.backend)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._stopped

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick, tasks.cancel_scope)
            for work in self._works():
                tasks.start_soon(self._peer, work, tasks.cancel_scope)

    def _works(self) -> list[Work]:
        """What each peer is to do. Peer ids ascend with the numbers: peer 0 founds the group and coordinates it."""
        options = self._options
        drawn = [secrets.token_bytes(32) for _ in range(options.peers)]
        drawn.sort(key=lambda secret: Identity.from_seed(secret).id)
        siblings = [str(Identity.from_seed(secret).id) for secret in drawn]
        kills = kill_rounds(options.kill, self._settings.rounds, self._settings.seed)
        elsewhere = replace(Address.parse(options.listen), port=0)
        return [
            Work(
                settings=self._settings,
                number=number,
                siblings=siblings,
                secret=secret.hex(),
                listen=str(elsewhere) if number else options.listen,
                waits=number > 0,
                backend=options.backend,
                delay=options.delay.get(number, 0.0),
                slow=options.slow.get(number, 1.0),
                kill_round=kills.get(number, 0),
            )
            for number, secret in enumerate(drawn)
        ]

    async def _peer(self, work: Work, everything: anyio.CancelScope) -> None:
        """One peer from its start to its end."""
        process = await anyio.open_process(
            [sys.executable, str(_PROGRAM), "child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C on the terminal is the launcher's alone
        )
        async with process:  # leaving early kills the process and waits for it
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._complaints, work.number, process.stderr)
                tasks.start_soon(self._instruct, work, process.stdin)
                await self._follow(work.number, process.stdout)
                tasks.cancel_scope.cancel()
            code = await process.wait()
        self._board.exited(work.number, code)
        self._view.refresh()
        formed = self._board.peers[work.number].status != "failed" or bool(self._board.history)
        self._running -= 1
        if not formed or not self._running:
            everything.cancel()

    async def _instruct(self, work: Work, stdin: anyio.abc.ByteSendStream) -> None:
        """Tell the peer what to do, and whom to join once peer 0 can be dialled; then hold the pipe open."""
        try:
            await stdin.send(work.encode())
            if work.waits:
                await self._joinable.wait()
                await stdin.send(encode_join(self._join))
        except anyio.BrokenResourceError:
            pass  # the peer has ended; whoever reads its reports finds out

    async def _follow(self, number: int, stdout: anyio.abc.ByteReceiveStream) -> None:
        """Put the peer's reports on the board until there are no more."""
        lines = BufferedByteReceiveStream(stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", _LINE)
            except (anyio.IncompleteRead, anyio.EndOfStream):
                return  # also when the last line was cut off by the peer's death
            report = decode(line.decode())
            for news in self._board.apply(number, report):
                self._view.news(news)
            if isinstance(report, Listening) and number == 0:
                self._announce(report)
            self._view.refresh()

    def _announce(self, report: Listening) -> None:
        self._join = report.addresses
        self._joinable.set()
        missing = self._settings.founders - self._options.peers
        if missing:
            self._view.news(f"waiting for {missing} more, each started with one of")
            for address in report.addresses:
                self._view.news(f"  python examples/mnist_swarm.py peer --join {address}")

    async def _complaints(self, number: int, stderr: anyio.abc.ByteReceiveStream) -> None:
        """What a peer writes to standard error is shown as it is."""
        lines = BufferedByteReceiveStream(stderr)
        while True:
            try:
                line = await lines.receive_until(b"\n", _LINE)
            except (anyio.IncompleteRead, anyio.EndOfStream):
                return
            self._view.news(f"peer {number}: {line.decode(errors='replace')}")

    async def _tick(self, everything: anyio.CancelScope) -> None:
        while not self._stopped:
            await anyio.sleep(_EVERY)
            self._view.refresh()
        self._board.interrupted = True
        everything.cancel()

    def _stop(self, signum: int, _frame: FrameType | None) -> None:
        self._stopped = signum
