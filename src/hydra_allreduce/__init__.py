"""Groups that agree on rounds, and the fault-tolerant all-reduce that they run.

``async with Group(node, "run") as group: result = await group.all_reduce(arrays)``
"""

from hydra_allreduce.agreement import Ballot, Contribution, Genesis, Member, MemberId, RoundRecord, View
from hydra_allreduce.arrays import Arrays, Op
from hydra_allreduce.errors import (
    Diverged,
    FellBehind,
    GroupClosed,
    GroupError,
    GroupFailed,
    Mismatch,
    Superseded,
    TooFewPeers,
)
from hydra_allreduce.group import Group
from hydra_allreduce.group_events import (
    GroupEvent,
    MemberJoined,
    MemberLost,
    PlanChanged,
    RoundsSuperseded,
    ViewChanged,
)
from hydra_allreduce.planning import Plan, PlanError, Planner, PlanNumber
from hydra_allreduce.reduction import Lost, Reduction, Timings

__all__ = [
    "Arrays",
    "Ballot",
    "Contribution",
    "Diverged",
    "FellBehind",
    "Genesis",
    "Group",
    "GroupClosed",
    "GroupError",
    "GroupEvent",
    "GroupFailed",
    "Lost",
    "Member",
    "MemberId",
    "MemberJoined",
    "MemberLost",
    "Mismatch",
    "Op",
    "Plan",
    "PlanChanged",
    "PlanError",
    "PlanNumber",
    "Planner",
    "Reduction",
    "RoundRecord",
    "RoundsSuperseded",
    "Superseded",
    "Timings",
    "TooFewPeers",
    "View",
    "ViewChanged",
]
