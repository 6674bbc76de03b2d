"""An approval's fields stay what they are: unknown ones never pass for known ones, and texts are texts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import perdure
from perdure.contracts.approvals import Approval
from perdure.errors import InvalidArgumentError

pytestmark = pytest.mark.anyio

ASKED = Approval("s1.turn-1.s0.c0", "s1.turn-1", "c0", "pay", {"to": "ann"}, datetime(2026, 1, 1, tzinfo=UTC))


async def test_an_unknown_field_does_not_pass_for_a_decision() -> None:
    async with perdure.open_store(f"memory:{uuid4().hex}") as store:
        forged = {
            "decision": {"approved": True, "decided_at": "2026-01-01T00:00:00+00:00"},
            "version": 9,
            "colour": "red",
        }
        stored = await store.approvals.create(replace(ASKED, session_id="s1", extra=forged))
        again = await store.approvals.get(ASKED.id)
        assert again == stored
        assert (stored.status, stored.decision, stored.extra) == ("pending", None, {"colour": "red"})


@pytest.mark.parametrize("field", ["tool_call_id", "tool_name", "agent"])
@pytest.mark.parametrize("value", [None, 7, b"pay"])
async def test_a_text_that_is_none_is_refused(field: str, value: Any) -> None:
    async with perdure.open_store(f"memory:{uuid4().hex}") as store:
        with pytest.raises(InvalidArgumentError, match=field):
            await store.approvals.create(replace(ASKED, **{field: value}))
        assert await store.approvals.get(ASKED.id) is None
