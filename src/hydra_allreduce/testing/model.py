"""Groups at model level: thousands of fault schedules a minute, because nothing but the members themselves runs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Literal

from hydra_allreduce.agreement import Genesis, MemberMachine, events
from hydra_allreduce.testing import schedule as faults
from hydra_allreduce.testing.schedule import Fault, Schedule, random_schedule
from hydra_allreduce.testing.settle import settle
from hydra_allreduce.testing.trace import Trace
from hydra_allreduce.testing.world import Process, World


class Model:
    """A group of ``n`` founders and some joiners, without any I/O.

    The members are the real ones. The data plane is abstract: a member can finish a ring once the inputs of all
    contributors of its view are in.

    Args:
        n: founders.
        joiners: how many more processes there are for ``Join``.
        quorum, min_peers, tie_break, newcomers_follow: as of a member.
        founders: how many joiners make the first view; None: all ``n``.
        machine: the member's class; tests put broken ones here.
    """

    def __init__(
        self,
        n: int,
        *,
        joiners: int = 0,
        quorum: Literal["survivors", "majority"] = "survivors",
        min_peers: int = 1,
        tie_break: bool = False,
        founders: int | None = None,
        newcomers_follow: bool = True,
        machine: Callable[..., MemberMachine] = MemberMachine,
    ) -> None:
        self.n = n
        self.joiners = joiners
        self.min_peers = min_peers
        self.genesis = Genesis("model", quorum=quorum, founders=founders or n, tie_break=tie_break)
        self.newcomers_follow = newcomers_follow
        self.machine = machine

    def __repr__(self) -> str:
        g = self.genesis
        return (
            f"Model({self.n}, joiners={self.joiners}, quorum={g.quorum!r}, min_peers={self.min_peers}, "
            f"tie_break={g.tie_break}, founders={g.founders}, newcomers_follow={self.newcomers_follow})"
        )

    def run(self, schedule: Schedule, *, verbose: bool = False) -> Trace:
        """Run a schedule to its end and return what happened; ``check`` says whether it may."""
        trace = Trace(repr(self), schedule, self.genesis.quorum == "majority")
        options = {"min_peers": self.min_peers, "newcomers_follow": self.newcomers_follow}
        world = World(trace, self.genesis, self.machine, options, verbose)
        walk = _Walk(world, schedule)
        founders = [world.add(i) for i in range(self.n)]
        for i in range(self.joiners):
            world.add(self.n + i, founds=walk.islands)
        if schedule.founding == "wild":
            world.faulty = True  # two islands may be founded
            for p in founders:
                world.start(p, tuple(walk.rng.sample(founders, min(2, self.n))))
        else:
            walk.found(founders)
            if schedule.founding == "warm":
                walk.quiet_round()
        walk.wander()
        settle(world, walk.rng)
        return trace


class _Walk:
    """One schedule being run: at each step a frame arrives, a process acts, a timer fires or a fault happens."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.rng = Random(schedule.seed)
        # Latecomers that find nobody begin anew: an island that has to be merged, and a second history.
        self.islands = schedule.founding == "wild" and not world.trace.majority
        self.due: dict[int, list[Fault]] = {}
        for fault in schedule.faults:
            self.due.setdefault(fault.step, []).append(fault)
        self.cause: dict[type, Callable[[Any], None]] = {
            faults.Crash: self._crash,
            faults.Restart: self._restart,
            faults.Close: self._close,
            faults.Pause: self._pause,
            faults.Partition: self._partition,
            faults.Heal: self._heal,
            faults.Cut: self._cut,
            faults.Suspect: self._suspect,
            faults.Duel: self._duel,
            faults.Late: self._late,
            faults.Leave: self._leave,
            faults.Join: self._join,
            faults.Break: self._break,
            faults.Void: self._void,
        }

    # ------------------------------------------------------------------------------------------------- a quiet start

    def found(self, founders: list[Process]) -> None:
        """Make the first view, in good order."""
        world = self.world
        first = min(founders, key=lambda p: p.id)
        world.start(first)
        for p in founders:
            if p is not first:
                world.start(p, (first,))
        self._drain()
        world.now = first.machine.next_timer + 2.0
        world.tell(first, events.Tick())
        self._drain()

    def quiet_round(self) -> None:
        """Commit one round, in good order."""
        for p in self.world.processes:
            if p.alive:
                self._call(p)
        for p in self.world.processes:
            if self.world.can_finish(p):
                self.world.finish(p)
        self._drain()

    def _drain(self) -> None:
        net = self.world.net
        while net:
            self.world.deliver(net.pop(0))

    # ---------------------------------------------------------------------------------------------------- the walk

    def wander(self) -> None:
        """Take the schedule's steps."""
        world, schedule, rng = self.world, self.schedule, self.rng
        tick = 0.85 + schedule.tick
        for step in range(schedule.steps):
            world.step = step
            world.now += 0.01
            for fault in self.due.get(step, ()):
                if world.verbose:
                    world.note(f"FAULT {fault}")
                self.cause[type(fault)](fault)
            x = rng.random()
            if x < 0.55 and world.net:
                self._deliver()
                continue
            i = int(rng.random() * len(world.processes))
            p = world.processes[i]
            if not self._can_act(p):
                continue
            if x < 0.85:
                if world.can_finish(p):
                    world.finish(p)
                elif p.machine.call is None and p.rec.round <= schedule.rounds:
                    self._call(p)
            elif x < tick:
                world.now = max(world.now, p.machine.next_timer)
                world.tell(p, events.Tick())
            else:
                self._detect(p, int(rng.random() * len(world.processes)))

    def _can_act(self, p: Process) -> bool:
        return p.alive and not p.machine.left and p.resumes <= self.world.step

    def _deliver(self) -> None:
        world, rng = self.world, self.rng
        k = 0 if self.schedule.fifo else int(rng.random() * len(world.net))
        frame = world.net[k]
        if world.processes[frame[1]].resumes > world.step:
            return
        if not world.reachable(frame[0], frame[1]):
            if rng.random() < 0.5:
                del world.net[k]
            return
        del world.net[k]
        if self.schedule.drop and rng.random() < self.schedule.drop:
            return
        world.deliver(frame)

    def _call(self, p: Process) -> None:
        p.calls += 1
        self.world.tell(p, events.Called(p.calls))

    def _detect(self, p: Process, other: int) -> None:
        """The detector finds what it can find: the dead, the silent, and those out of reach."""
        q = self.world.processes[other]
        if q is p or not q.started or q.id in p.machine.suspects:
            return
        if q.alive and not q.machine.left:
            if q.resumes <= self.world.step and self.world.reachable(other, p.index):
                return
            self.world.faulty = True
        self.world.tell(p, events.Suspected(q.id, "silent"))

    # --------------------------------------------------------------------------------------------------------- faults

    def _who(self, index: int) -> Process:
        return self.world.processes[index % len(self.world.processes)]

    def _crash(self, fault: faults.Crash) -> None:
        p = self._who(fault.member)

        def die() -> None:
            p.alive = False
            if fault.loses:
                self.world.net[:] = [f for f in self.world.net if f[0] != p.index or self.rng.random() < 0.5]

        self._at(p, fault.at, die)

    def _at(self, p: Process, moment: str, blow: Callable[[], None]) -> None:
        if not p.alive:
            return
        if moment == "once":
            blow()
        else:
            p.struck.append((moment, blow))

    def _restart(self, fault: faults.Restart) -> None:
        old = self._who(fault.member)
        if not old.started:
            return
        old = self.world.processes[self.world.by_peer[old.id.peer]]
        old.alive = False
        new = self.world.add(old.peer_index, founds=self.islands)
        others = [p for p in self.world.live() if p.machine.view]
        self.world.start(new, tuple(self.rng.sample(others, min(1, len(others)))))

    def _close(self, fault: faults.Close) -> None:
        p = self._who(fault.member)
        if self._can_act(p):
            self.world.tell(p, events.Closing())

    def _pause(self, fault: faults.Pause) -> None:
        p = self._who(fault.member)

        def stop() -> None:
            p.resumes = self.world.step + fault.steps

        self._at(p, fault.at, stop)

    def _partition(self, fault: faults.Partition) -> None:
        if fault.sides:
            self.world.faulty = True
            for p in self.world.processes:
                p.side = fault.sides[p.index % len(fault.sides)]

    def _heal(self, fault: faults.Heal) -> None:
        self.world.cuts.clear()
        for p in self.world.processes:
            p.side = 0

    def _cut(self, fault: faults.Cut) -> None:
        a, b = self._who(fault.a), self._who(fault.b)
        if a is not b:
            self.world.faulty = True
            self.world.cuts[a.index, b.index] = None

    def _suspect(self, fault: faults.Suspect) -> None:
        by, of = self._who(fault.by), self._who(fault.of)
        if by is not of and self._can_act(by) and of.started and of.id not in by.machine.suspects:
            if of.alive and not of.machine.left:
                self.world.faulty = True
            self.world.tell(by, events.Suspected(of.id, "silent"))

    def _duel(self, fault: faults.Duel) -> None:
        self._suspect(faults.Suspect(fault.step, fault.a, fault.b))
        self._suspect(faults.Suspect(fault.step, fault.b, fault.a))

    def _late(self, fault: faults.Late) -> None:
        late = self._who(fault.member)
        for p in self.world.live():
            view = p.machine.view
            if view and view.coordinator == p.id and late.id in view.ring and self._can_act(p):
                self.world.tell(p, events.Late(late.id))
                return

    def _leave(self, fault: faults.Leave) -> None:
        p = self._who(fault.member)
        if self._can_act(p) and p.machine.view:
            self.world.tell(p, events.LeaveRequested())

    def _join(self, fault: faults.Join) -> None:
        for p in self.world.processes:
            if not p.started:
                contact = self._who(fault.contact)
                self.world.start(p, (contact,) if contact.started else ())
                return

    def _break(self, fault: faults.Break) -> None:
        a, b = self._who(fault.a), self._who(fault.b)
        if a.ring and self._can_act(a) and b.id in self.world.rings[a.ring].view.ring and a is not b:
            attempt, a.ring = a.ring[0], None
            self.world.tell(a, events.RingFailed(attempt, b.id, fault.dial_failed, "reset"))

    def _void(self, fault: faults.Void) -> None:
        p = self._who(fault.member)
        if p.ring and self._can_act(p):
            ring = self.world.rings[p.ring]
            if ring.record is None:  # members whose calls do not fit together cannot finish a ring
                ring.void = True
                self.world.tell(p, events.RoundVoid(p.ring[0], p.ring[1], "dtype"))


def random_run(seed: int, machine: Callable[..., MemberMachine] = MemberMachine) -> Trace:
    """Draw a group of 1 to 8 and a schedule for it, and run it."""
    rng = Random(seed)
    n = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8))
    joiners = rng.choice((0, 0, 1, 2))
    quorum: Literal["survivors", "majority"] = rng.choice(("survivors", "majority"))
    model = Model(
        n,
        joiners=joiners,
        quorum=quorum,
        min_peers=rng.choice((1, 1, 1, 2)) if n > 1 and quorum == "survivors" else 1,
        tie_break=rng.random() < 0.7,
        founders=n if quorum == "majority" or rng.random() < 0.7 else rng.randint(1, n),
        newcomers_follow=rng.random() < 0.6,
        machine=machine,
    )
    return model.run(random_schedule(rng, n, joiners))
