"""What every test folder of the workspace shares."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from perdure import observers

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


def _state_of_the_process() -> dict[str, object]:
    """Return what a test of the same process would notice if another had changed it."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "perdure"]
    return {
        "working directory": Path.cwd(),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "levels of loggers": {name: level for name in ("", *names) if (level := logging.getLogger(name).level)},
        "handlers of loggers": {name: found for name in names if (found := logging.getLogger(name).handlers[:])},
        "observers": observers._observers._observers,
    }


@pytest.fixture(autouse=True)
def _the_process_is_left_as_it_was() -> Iterator[None]:
    before = _state_of_the_process()
    yield
    assert _state_of_the_process() == before


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The stores are written for asyncio, so the tests that are marked anyio run on it alone."""
    return "asyncio"
