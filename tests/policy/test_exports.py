"""The package's front door."""

import hydra_policy


def test_everything_exported_is_there_and_sorted():
    assert list(hydra_policy.__all__) == sorted(hydra_policy.__all__)
    assert all(hasattr(hydra_policy, name) for name in hydra_policy.__all__)
    assert {"Decision", "Equal", "PeerInfo", "Sizer", "SpeedProportional", "planner"} <= set(hydra_policy.__all__)
