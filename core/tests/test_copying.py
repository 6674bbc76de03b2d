"""Copying conversations from one store to another."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from core.tests.moving_world import differences, everything, fill

from perdure import AgentStore, open_store
from perdure.moving import Progress, copy_conversations
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def target(clock: ManualClock) -> AsyncIterator[AgentStore]:
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


async def test_everything_is_copied_at_the_versions_that_it_has(any_store: AgentStore, target: AgentStore) -> None:
    await fill(any_store)
    seen: list[Progress] = []
    report = await copy_conversations(any_store, target, progress=seen.append)
    there, here = await everything(target), await everything(any_store)
    assert differences(there, here) == []
    assert len(here) > 15
    assert report.not_copied == {}
    assert report.copied == 9
    assert [step.outcome for step in seen] == ["copied"] * 9
    assert (seen[-1].done, seen[-1].total) == (9, 9)
