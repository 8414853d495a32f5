"""Shared fixtures: what needs no virtual clock runs on both back ends."""

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine is at the moment: a test that fails, fails again.
settings.register_profile(
    "hydra", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hydra")


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The back ends of every test marked ``anyio``."""
    return str(request.param)
