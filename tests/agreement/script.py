"""Told traces: a group whose every frame, finish and suspicion is placed by hand. Members are named by seniority."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hydra_allreduce.agreement import Genesis, MemberMachine, events
from hydra_allreduce.testing import Schedule, Trace, check
from hydra_allreduce.testing.settle import settle
from hydra_allreduce.testing.world import Process, World


class Script:
    """``n`` members in their first view, one round committed unless ``warm`` is false."""

    def __init__(
        self,
        n: int,
        *,
        joiners: int = 0,
        quorum: str = "survivors",
        min_peers: int = 1,
        tie_break: bool = False,
        warm: bool = True,
        machine: Callable[..., MemberMachine] = MemberMachine,
    ) -> None:
        genesis = Genesis("told", quorum=quorum, founders=n, tie_break=tie_break)
        self.trace = Trace("a script", Schedule(seed=0, steps=0, rounds=0), quorum == "majority")
        self.world = World(self.trace, genesis, machine, {"min_peers": min_peers}, False)
        made = sorted((self.world.add(i) for i in range(n)), key=lambda p: p.id)
        self.joiners = [self.world.add(n + i, founds=False) for i in range(joiners)]
        first = made[0]
        for p in made:
            self.world.start(p, (first,))
        for p in made[1:]:
            self.world.tell(p, events.Contact(first.id.peer))
        self.deliver()
        self.world.now = 10.0
        self.tick_process(first)
        self.deliver()
        self.members: list[Process] = [self._by_id(m) for m in first.machine.view.by_id]
        assert len(self.members) == n
        if warm:
            self.round()

    def _by_id(self, member: Any) -> Process:
        return next(p for p in self.world.processes if p.id == member)

    def __getitem__(self, i: int) -> MemberMachine:
        return self.members[i].machine

    def commits(self, i: int) -> list[int]:
        """The rounds that member ``i`` has committed."""
        return [self.trace.records[r.record].round for r in self.trace.returned if r.member == self.members[i].id]

    # ------------------------------------------------------------------------------------------------------- steps

    def call(self, *who: int) -> None:
        for i in who:
            p = self.members[i]
            p.calls += 1
            self.world.tell(p, events.Called(p.calls))

    def finish(self, *who: int) -> None:
        for i in who:
            assert self.world.can_finish(self.members[i]), f"member {i} cannot finish"
            self.world.finish(self.members[i])

    def suspect(self, by: int, of: int) -> None:
        self.world.faulty = self.world.faulty or self.members[of].alive
        self.world.tell(self.members[by], events.Suspected(self.members[of].id, "silent"))

    def tick(self, *who: int) -> None:
        for i in who:
            self.tick_process(self.members[i])

    def tick_process(self, p: Process) -> None:
        self.world.now = max(self.world.now, p.machine.next_timer)
        self.world.tell(p, events.Tick())

    def tell(self, i: int, event: events.Event) -> None:
        self.world.tell(self.members[i], event)

    def crash(self, *who: int) -> None:
        for i in who:
            self.members[i].alive = False

    def join(self, via: int) -> int:
        """Start the next joiner; it becomes the last of ``members``."""
        p = self.joiners.pop(0)
        self.members.append(p)
        self.world.start(p, (self.members[via],))
        return len(self.members) - 1

    def round(self) -> None:
        """A round without failures."""
        live = [i for i, p in enumerate(self.members) if p.alive and not p.machine.left]
        self.call(*(i for i in live if self[i].call is None))
        self.deliver()
        self.finish(*(i for i in live if self.world.can_finish(self.members[i])))
        self.deliver()

    # ------------------------------------------------------------------------------------------------------- frames

    def _matches(self, frame: Any, kind: type | None, source: int | None, to: int | None) -> bool:
        return (
            (kind is None or isinstance(frame[3], kind))
            and (source is None or frame[0] == self.members[source].index)
            and (to is None or frame[1] == self.members[to].index)
        )

    def under_way(self, kind: type | None = None, source: int | None = None, to: int | None = None) -> list[Any]:
        return [f for f in self.world.net if self._matches(f, kind, source, to)]

    def deliver(self, kind: type | None = None, source: int | None = None, to: int | None = None) -> int:
        """Let all matching frames arrive, and what they cause, in order. Returns how many."""
        count = 0
        while True:
            at = next((i for i, f in enumerate(self.world.net) if self._matches(f, kind, source, to)), None)
            if at is None:
                return count
            count += 1
            assert count < 10_000, "the members never stop talking"
            self.world.deliver(self.world.net.pop(at))

    def lose(self, kind: type | None = None, source: int | None = None, to: int | None = None) -> int:
        """Lose all matching frames."""
        lost = self.under_way(kind, source, to)
        self.world.net = [f for f in self.world.net if not self._matches(f, kind, source, to)]
        return len(lost)

    def end(self) -> Trace:
        """Faults stop: everybody must get on, and everything must hold."""
        settle(self.world, Random(0))
        check(self.trace)
        return self.trace
