"""Shared fixtures: what needs no virtual clock runs on both back ends."""

import pytest


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The back ends of every test marked ``anyio``."""
    return str(request.param)
