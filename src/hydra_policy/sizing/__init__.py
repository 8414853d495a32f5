"""Who works on how many samples."""

from hydra_policy.sizing.apportion import Bounds, apportion
from hydra_policy.sizing.measure import Measurement, measurements
from hydra_policy.sizing.safety import Safety
from hydra_policy.sizing.sizers import Decision, Equal, PeerInfo, Sizer, SpeedProportional

__all__ = [
    "Bounds",
    "Decision",
    "Equal",
    "Measurement",
    "PeerInfo",
    "Safety",
    "Sizer",
    "SpeedProportional",
    "apportion",
    "measurements",
]
