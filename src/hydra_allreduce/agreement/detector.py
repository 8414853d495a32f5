"""The failure detector: which members have been silent for too long.

Silence means two different things. A member that has entered a round has nothing to do but answer, so it is suspected
after ``stall`` seconds. Before that it may be computing, perhaps on the very thread that answers, so only ``lease``
makes it dead. A suspicion expels nobody: the member is asked like all others, and any frame from it clears it.

Sans-IO: it knows no clock and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hydra_allreduce.agreement.view import MemberId


@dataclass(slots=True)
class _Watched:
    heard: float
    in_round: bool = False
    reported: bool = False


class Detector:
    """Watches the members that somebody named, and says which have gone silent.

    Args:
        stall: seconds of silence after which a member that is inside a round is suspected.
        lease: the same for a member that may be computing.
    """

    def __init__(self, *, stall: float, lease: float) -> None:
        if not 0 < stall <= lease:
            raise ValueError(f"need 0 < stall <= lease, not stall={stall}, lease={lease}")
        self.stall = stall
        self.lease = lease
        self._watched: dict[MemberId, _Watched] = {}

    def watch(self, members: Iterable[MemberId], now: float) -> None:
        """Watch exactly these members. One that is new starts with a full allowance."""
        old = self._watched
        self._watched = {member: old.get(member) or _Watched(now) for member in members}

    def heard(self, member: MemberId, now: float) -> None:
        """Note a frame from ``member``."""
        if watched := self._watched.get(member):
            watched.heard = now
            watched.reported = False

    def entered(self, member: MemberId) -> None:
        """Note that ``member`` has entered the round: from now on it has nothing to do but answer."""
        if watched := self._watched.get(member):
            watched.in_round = True

    def round_over(self) -> None:
        """Note that the round was committed or torn down: everybody may be computing again."""
        for watched in self._watched.values():
            watched.in_round = False

    def suspects(self, now: float) -> Iterator[tuple[MemberId, str]]:
        """Yield each member whose silence has just become too long, once per silence, with the cause in words."""
        for member, watched in self._watched.items():
            if not watched.reported and now >= watched.heard + self._allowance(watched):
                watched.reported = True
                where = "inside a round" if watched.in_round else "outside a round"
                yield member, f"silent for {now - watched.heard:.1f} s {where}"

    @property
    def deadline(self) -> float:
        """When ``suspects`` is worth asking again, in the caller's clock; infinity if nobody is watched."""
        return min(
            (w.heard + self._allowance(w) for w in self._watched.values() if not w.reported), default=float("inf")
        )

    def _allowance(self, watched: _Watched) -> float:
        return self.stall if watched.in_round else self.lease
