"""How the batch is shared out: the ``Sizer`` interface and the two simplest ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from hydra_net import PeerId
from hydra_net.codec import Cbor
from hydra_policy.sizing.apportion import Bounds, apportion
from hydra_policy.sizing.measure import Measurement, measurements

if TYPE_CHECKING:
    from hydra_allreduce.agreement import RoundRecord


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What a sizer is told about one peer.

    Attributes:
        bounds: the fewest and the most samples that the peer may get this round (both included).
        last: samples that it contributed to the last round, or None if it was not in it.
    """

    bounds: Bounds
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A sizer's proposal for one round, with its reasons.

    Attributes:
        sizes: samples per peer.
        left_out: peers that are to have no share in the round, and why; they are not in ``sizes`` or have 0 there.
        reason: how the sizes came about, for logs and people.
    """

    sizes: Mapping[PeerId, int]
    left_out: Mapping[PeerId, str] = field(default_factory=dict)
    reason: str = ""


class Sizer(Protocol):
    """Proposes job sizes. A planner wraps it and puts right what a proposal gets wrong (sum, bounds)."""

    def propose(self, peers: Mapping[PeerId, PeerInfo], batch: int) -> Decision:
        """Sizes for ``peers`` (at least one) that add up to ``batch`` (at least 1)."""
        ...

    def observe(self, record: RoundRecord) -> None:
        """Learn from a committed round; nothing that a peer put into it makes this raise."""
        ...

    def state_dict(self) -> Cbor:
        """What was learnt, as CBOR."""
        ...

    def load_state_dict(self, state: Cbor) -> None:
        """Go on from another sizer's ``state_dict``.

        Raises:
            ValueError: the state is malformed; nothing has changed then.
        """
        ...


class Equal:
    """The same number of samples for everybody, whatever their speed."""

    def propose(self, peers: Mapping[PeerId, PeerInfo], batch: int) -> Decision:
        """Equal sizes, within the bounds."""
        return _share_out(dict.fromkeys(peers, 1), peers, batch, "equal sizes")

    def observe(self, record: RoundRecord) -> None:
        """Nothing to learn."""

    def state_dict(self) -> Cbor:
        """Nothing to keep."""
        return None

    def load_state_dict(self, state: Cbor) -> None:
        """Nothing to load."""
        if state is not None:
            raise ValueError("the state is not one of an equal sizer")


class SpeedProportional:
    """Samples in proportion to the speed that each peer showed in its last rounds.

    A peer's speed is the median of samples per second over its last five measured rounds, so that one bad measurement
    changes nothing; a peer that has not been measured gets the median speed of the others. This makes the round times
    equal where a job's time is proportional to its samples; a peer with a large fixed cost per job (a long way to it,
    say) is better served by a model of that cost.
    """

    WINDOW = 5  # rounds
    CAPACITY = 1024  # peers remembered; the one not seen for longest goes first

    def __init__(self) -> None:
        self._seen: dict[PeerId, deque[Measurement]] = {}  # the one seen last is last

    def propose(self, peers: Mapping[PeerId, PeerInfo], batch: int) -> Decision:
        """Sizes proportional to speed, within the bounds."""
        speeds = {peer: self._speed(peer) for peer in peers}
        known = sorted(speed for speed in speeds.values() if speed is not None)
        if not known:
            return _share_out(dict.fromkeys(peers, 1), peers, batch, "equal sizes: nobody has been measured yet")
        median = median_low(known)
        weights = {peer: median if speed is None else speed for peer, speed in speeds.items()}
        reason = f"proportional to speed, {len(known)} of {len(peers)} peers measured"
        return _share_out(weights, peers, batch, reason)

    def observe(self, record: RoundRecord) -> None:
        """Remember how long each contributor took for how many samples."""
        for peer, measurement in measurements(record).items():
            window = self._seen.pop(peer, deque(maxlen=self.WINDOW))
            window.append(measurement)
            self._seen[peer] = window
        for peer in list(islice(self._seen, max(0, len(self._seen) - self.CAPACITY))):
            del self._seen[peer]

    def state_dict(self) -> Cbor:
        """``[[peer, [[samples, microseconds], ...]], ...]``, the peer seen last last."""
        return [[bytes(peer), [list(m) for m in window]] for peer, window in self._seen.items()]

    def load_state_dict(self, state: Cbor) -> None:
        """Take over measurements; raises ValueError if they are malformed."""
        if not isinstance(state, list) or len(state) > self.CAPACITY:
            raise ValueError(f"the state is not a list of at most {self.CAPACITY} peers")
        self._seen = dict(self._entry(entry) for entry in state)

    def _speed(self, peer: PeerId) -> int | None:
        """Samples per million seconds, at least 1."""
        window = self._seen.get(peer)
        if not window:
            return None
        return max(1, median_low(m.samples * 10**12 // m.microseconds for m in window))

    def _entry(self, value: Cbor) -> tuple[PeerId, deque[Measurement]]:
        match value:
            case [bytes(peer), list(window)] if len(peer) == 32 and len(window) <= self.WINDOW:
                return PeerId(peer), deque((_measurement(m) for m in window), self.WINDOW)
            case _:
                raise ValueError("an entry is not a peer id with its last measurements")


def _measurement(value: Cbor) -> Measurement:
    match value:
        case [int(samples), int(micros)] if samples >= 1 and micros >= 1:
            return Measurement(samples, micros)
        case _:
            raise ValueError("a measurement is not a pair of samples and microseconds")


def _share_out(weights: Mapping[PeerId, int], peers: Mapping[PeerId, PeerInfo], batch: int, reason: str) -> Decision:
    """Proportional to ``weights``; with fewer samples than peers, those with the smallest ids get one each."""
    least = sum(info.bounds.low for info in peers.values())
    if least <= batch:
        return Decision(apportion(weights, batch, {p: info.bounds for p, info in peers.items()}), {}, reason)
    served = frozenset(sorted(peers)[:batch])
    why = f"the batch of {batch} is smaller than the {len(peers)} peers"
    return Decision({p: int(p in served) for p in peers}, {p: why for p in peers if p not in served}, reason)
