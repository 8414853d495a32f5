"""Job sizes for a group: a ``Sizer`` behind the ``Planner`` interface of ``hydra_allreduce``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydra_allreduce.agreement.shape import MAX_MEMBERS
from hydra_allreduce.planning import MAX_BATCH, Plan, PlanError, Planner, PlanNumber, contributors
from hydra_net import PeerId
from hydra_net.codec import Cbor
from hydra_policy.sizing.measure import measurements
from hydra_policy.sizing.safety import Safety
from hydra_policy.sizing.sizers import Decision, Equal, PeerInfo, Sizer, SpeedProportional

if TYPE_CHECKING:
    from hydra_allreduce.agreement import Member, RoundRecord

SIZERS: Mapping[str, Callable[[], Sizer]] = MappingProxyType({"equal": Equal, "proportional": SpeedProportional})


def planner(sizer: Sizer | str = "equal", *, batch: int, safety: Safety | None = None) -> Planner:
    """A planner that shares ``batch`` samples out among a group's contributors, every round.

    Args:
        sizer: "equal", "proportional" (to speed), or an object with the methods of ``Sizer``.
        batch: samples per round over all peers, the same on every member of the group.
        safety: limits that hold whatever the sizer proposes; the same on every member of the group.

    Raises:
        ValueError: there is no sizer of that name, or the batch is not at least 1.
    """
    if isinstance(sizer, str):
        if sizer not in SIZERS:
            raise ValueError(f"there is no sizer {sizer!r}; choose one of {', '.join(map(repr, SIZERS))}")
        sizer = SIZERS[sizer]()
    return SizerPlanner(sizer, batch=batch, safety=safety or Safety())


class SizerPlanner:
    """What ``planner`` returns; the methods are those of ``hydra_allreduce.Planner``.

    Attributes:
        batch: samples per round.
        decision: what the sizer proposed for the last plan made here, with its reason; None before the first.
    """

    def __init__(self, sizer: Sizer, *, batch: int, safety: Safety) -> None:
        if isinstance(batch, bool) or not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"batch is {batch!r}; it must be a whole number from 1 to {MAX_BATCH}")
        self.batch = batch
        self.decision: Decision | None = None
        self._sizer = sizer
        self._safety = safety
        self._round = 0
        self._record: bytes | None = None  # the id of the last record observed
        self._last: dict[PeerId, int] = {}  # samples per contributor in that record

    def observe(self, record: RoundRecord) -> None:
        """Feed the sizer with a committed round; the same record twice counts once."""
        if record.id == self._record:
            return
        self._record, self._round = record.id, record.round
        self._last = {peer: m.samples for peer, m in measurements(record).items() if m.samples <= self.batch}
        self._sizer.observe(record)

    def plan(self, record: RoundRecord | None, members: Sequence[Member]) -> Plan:
        """The plan for the round after ``record``, numbered by the ballot of that record's view and the round.

        Sizes are listed in the order of ``members``.

        Raises:
            ValueError: no member is a contributor.
        """
        if record is not None:
            self.observe(record)
        peers = contributors(members)
        if not peers:
            raise ValueError("there is no contributor to plan for")
        bounds = self._safety.bounds(peers, self._last, self.batch)
        infos = {peer: PeerInfo(bounds[peer], self._last.get(peer)) for peer in peers}
        self.decision = self._sizer.propose(infos, self.batch)
        sizes = self._safety.enforce(self.decision, bounds, self.batch)
        number = PlanNumber(0, 1) if record is None else PlanNumber(record.ballot.n, record.round + 1)
        return Plan.of(number, self.batch, sizes)

    def check(self, plan: Plan, members: Sequence[Member]) -> None:
        """Refuse a plan with another batch, other peers, or jobs that grow faster than ``safety`` allows.

        A size of 0 is no error: the sizer leaves that peer out.

        Raises:
            PlanError: names the field that is wrong.
        """
        if plan.batch != self.batch:
            raise PlanError("batch", f"it is {plan.batch}, here it is {self.batch}")
        peers = contributors(members)
        for peer in plan.sizes:
            if peer not in peers:
                raise PlanError("sizes", f"{peer} is no contributor of this view")
        for peer in peers:
            if peer not in plan.sizes:
                raise PlanError("sizes", f"{peer} contributes but is not listed")
        if plan.round != self._round + 1:
            return  # growth is measured from the record just before the plan's round, which is not known here
        for peer, bound in self._safety.bounds(peers, self._last, self.batch).items():
            if plan.size(peer) > bound.high:
                problem = f"{peer} goes from {self._last.get(peer)} samples to {plan.size(peer)}, over {bound.high}"
                raise PlanError("growth", problem)

    def state_dict(self) -> Cbor:
        """``[round, record id, [[peer, samples], ...], sizer's state]``."""
        last: list[Cbor] = [[bytes(peer), samples] for peer, samples in self._last.items()]
        return [self._round, self._record, last, self._sizer.state_dict()]

    def load_state_dict(self, state: Cbor) -> None:
        """Go on from another member's ``state_dict``; raises ValueError, with nothing changed, if it is malformed."""
        match state:
            case [int(round), bytes() | None as record, list(last), sizer] if round >= 0 and len(last) <= MAX_MEMBERS:
                pairs = dict(self._pair(pair) for pair in last)
                self._sizer.load_state_dict(sizer)
                self._round, self._record, self._last = round, record, pairs
            case _:
                raise ValueError("the state is not one of a planner")

    def _pair(self, value: Cbor) -> tuple[PeerId, int]:
        match value:
            case [bytes(peer), int(samples)] if len(peer) == 32 and 1 <= samples <= self.batch:
                return PeerId(peer), samples
            case _:
                raise ValueError("an entry is not a peer id with its samples of the last round")
