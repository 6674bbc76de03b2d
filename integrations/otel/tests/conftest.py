"""A store whose clock moves with each look at it, and what is reported of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from integrations.otel.tests.reported import Clock, Reported

from perdure import AgentStore, observers, open_store


@pytest.fixture
def reported() -> Iterator[Reported]:
    reported = Reported()
    observers.register(reported.telemetry)
    yield reported
    observers.unregister(reported.telemetry)


@pytest.fixture
async def store() -> AsyncIterator[AgentStore]:
    async with open_store("memory:", clock=Clock()) as store:
        yield store
