"""Tools to test what is built on hydra_net. Needs trio, which the simulation runs under."""

from hydra_net.testing.simulate import SimulatedClock, simulate

__all__ = ["SimulatedClock", "simulate"]
