"""Job sizes for peers of unequal speed."""

from hydra_policy.planner import SizerPlanner, planner
from hydra_policy.sizing import Bounds, Decision, Equal, PeerInfo, Safety, Sizer, SpeedProportional

__all__ = [
    "Bounds",
    "Decision",
    "Equal",
    "PeerInfo",
    "Safety",
    "Sizer",
    "SizerPlanner",
    "SpeedProportional",
    "planner",
]
