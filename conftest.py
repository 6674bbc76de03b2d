"""What every test folder of the workspace shares."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A machine that builds is slow and shared: a deadline there measures its neighbours. The same examples each time, and none kept.
settings.register_profile("ci", derandomize=True, database=None, deadline=None)
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "nightly", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The stores are written for asyncio, so the tests that are marked anyio run on it alone."""
    return "asyncio"
