"""What happens to a group, for those who watch it (``Group.events``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hydra_allreduce.agreement import View
from hydra_allreduce.planning import Plan
from hydra_net import PeerId


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """``peer`` is a member from ``view`` on."""

    peer: PeerId
    view: View


@dataclass(frozen=True, slots=True)
class MemberLost:
    """``peer`` is no longer a member from ``view`` on, and why."""

    peer: PeerId
    cause: str
    view: View


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The group agreed on ``view``; told after who joined and who was lost."""

    view: View


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The coordinator sent new job sizes."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class RoundsSuperseded:
    """The group had split; these rounds of this member's part were given up in favour of the other part's."""

    rounds: tuple[int, ...]


GroupEvent: TypeAlias = MemberJoined | MemberLost | ViewChanged | PlanChanged | RoundsSuperseded
