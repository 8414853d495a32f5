"""After the faults: the detector is exact, frames arrive, and every connected part must get on."""

from __future__ import annotations

from random import Random

from hydra_allreduce.agreement import events
from hydra_allreduce.agreement.quorum import is_quorum
from hydra_allreduce.testing.world import Process, World

TURNS = 120
RENDEZVOUS = 30


def settle(world: World, rng: Random) -> None:
    """Run until every live part is in one view and has committed one more round; note what does not get there."""
    schedule = world.schedule
    world.step = schedule.steps
    if schedule.heal:
        for p in world.processes:
            p.side = 0
    world.cuts.clear()
    for p in world.processes:
        p.resumes = 0
        p.struck.clear()
    target = max(*(p.rec.round for p in world.processes), schedule.rounds, 0) + 1
    parts: dict[int, list[Process]] = {}
    for p in world.processes:
        if p.alive and not p.machine.left:
            parts.setdefault(p.side, []).append(p)
    for turn in range(TURNS):
        world.step += 1
        if turn % RENDEZVOUS == 0:
            _meet(world, parts, rng)
        _turn(world, parts, target)
        if all(_done(world, part, target) for part in parts.values()):
            return
    for part in parts.values():
        if not _done(world, part, target):
            world.broken("I3 no progress: " + "; ".join(_state(p) for p in part))


def _meet(world: World, parts: dict[int, list[Process]], rng: Random) -> None:
    """What a rendezvous is for: everybody hears of one that is there."""
    for part in parts.values():
        there = [p for p in part if not p.machine.left]
        if there:
            one = rng.choice(there)
            for p in there:
                if p is not one:
                    world.tell(p, events.Contact(one.id.peer))


def _turn(world: World, parts: dict[int, list[Process]], target: int) -> None:
    world.now += 0.5
    for part in parts.values():
        for p in part:
            if not p.machine.left:
                for q in world.processes:
                    gone = q.started and (not q.alive or q.machine.left or q.side != p.side)
                    if gone and q.id not in p.machine.suspects and q.id in p.machine.watched:
                        world.tell(p, events.Suspected(q.id, "gone"))
    for _ in range(3):
        frames, world.net = world.net, []
        for frame in frames:
            if world.processes[frame[0]].side == world.processes[frame[1]].side:
                world.deliver(frame)
        for part in parts.values():
            for p in part:
                if world.can_finish(p):
                    world.finish(p)
                elif not p.machine.left and p.machine.call is None and p.rec.round < target:
                    p.calls += 1
                    world.tell(p, events.Called(p.calls))
    for part in parts.values():
        for p in part:
            if not p.machine.left and p.machine.next_timer <= world.now:
                world.tell(p, events.Tick())


def _done(world: World, part: list[Process], target: int) -> bool:
    live = [p for p in part if not p.machine.left]
    if not live:
        return True
    genesis = world.genesis
    if all(p.machine.view is None for p in live):
        able = sum(1 for p in live if p.machine.founds)
        return able < max(genesis.founders, live[0].machine.min_peers)
    staying = [p for p in live if not p.machine.leaving]
    if genesis.quorum == "majority":
        best = max(live, key=lambda p: p.rec.round).rec
        voters = best.voters
        if best.round == 0:
            if any(p.view and p.view.base.round for p in live):
                return True  # whoever has what was committed is gone
            voters = max((p.view for p in live if p.view), key=lambda view: view.ballot).founders
        if not is_quorum([p.id for p in live], voters, genesis):
            return True
    elif len(staying) < live[0].machine.min_peers:
        return True
    for p in live:
        m = p.machine
        if m.leaving and genesis.quorum == "survivors":
            return False
        if m.view is None or m.view != live[0].machine.view or m.sealed or m.want:
            return False
        if p.rec.round < target or (m.call and (m.call.round or 0) <= p.rec.round):
            return False
    return True


def _state(p: Process) -> str:
    m = p.machine
    members = [str(x) for x in m.view.by_id] if m.view else []
    return (
        f"{p.index}={p.id} view {m.view.ballot if m.view else None} {members} promised {m.promised} "
        f"round {p.rec.round} call {m.call} want {m.want} join_to {m.join_to} leaving {m.leaving} "
        f"proposal {m.proposal.ballot if m.proposal else None}"
    )
