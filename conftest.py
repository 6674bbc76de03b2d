"""What every test folder of the workspace shares."""

import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings

# A machine that builds is slow and shared: a deadline there measures its neighbours. The same examples each time, and none kept.
settings.register_profile("ci", derandomize=True, database=None, deadline=None)
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "nightly", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# The workspace has an observer installed, which would hear of everything that all tests do; its own tests switch it on.
os.environ.setdefault("PERDURE_OBSERVERS_OFF", "otel")

# A shell that starts this in the background has SIGINT ignored, and every process that a test interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The stores are written for asyncio, so the tests that are marked anyio run on it alone."""
    return "asyncio"
