"""The bundles, and the conversation, that the tests of the core work on."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from core.tests.joining_world import Talk

from perdure import AgentStore, open_store
from perdure_conformance.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[AgentStore]:
    """A bundle in memory, with the manual clock."""
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
async def any_store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[AgentStore]:
    """A bundle in memory, and one in a file."""
    url = f"memory:{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite:{tmp_path / 'any.db'}"
    async with open_store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def talk(store: AgentStore) -> Talk:
    """A conversation in memory that inputs join."""
    return Talk(store)
