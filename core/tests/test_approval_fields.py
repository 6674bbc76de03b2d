"""An approval's fields stay what they are: unknown ones never pass for known ones, texts are texts, and it is no other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import perdure
from perdure import AgentStore
from perdure.contracts.approvals import Approval, Decision
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import (
    ApprovalExpiredError,
    ApprovalNotFoundError,
    InvalidArgumentError,
    RecordTooLargeError,
    StoreCorruptedError,
)
from perdure.journal.contract import Append, Head, Key, Part
from perdure.journal.stores import JournalApprovals

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


@pytest.mark.parametrize(
    ("field", "value"),
    [("extra", 5), ("extra", None), ("note", 5), ("decided_by", 7), ("arguments", ["ann"])],
)
async def test_what_could_not_be_read_again_is_not_written(field: str, value: Any) -> None:
    decision = replace(Decision(True, ASKED.created_at), **{field: value})
    decided = replace(ASKED, status="approved", decision=decision)
    asked = [decided, replace(ASKED, extra=value)] if field == "extra" else [decided]
    async with perdure.open_store(f"memory:{uuid4().hex}") as store:
        for approval in asked:
            with pytest.raises(InvalidArgumentError, match=field):
                await store.approvals.create(approval)
        assert await store.approvals.get(ASKED.id) is None


async def test_what_is_stored_under_the_id_of_another_is_damage(store: AgentStore) -> None:
    await store.approvals.create(ASKED)
    other = replace(ASKED, id="s1.turn-1.s0.c1")
    assert isinstance(store.approvals, JournalApprovals)
    head = Head(data=other.encode())
    await store.approvals.journal.write((Append(Key(Part.APPROVALS, ASKED.id), (), head, None, ASKED.created_at, 1),))
    for call in (store.approvals.get(ASKED.id), store.approvals.decide(ASKED.id, approved=True)):
        with pytest.raises(StoreCorruptedError, match=rf"approval {ASKED.id} "):
            await call


async def test_a_decision_that_sleeps_through_a_deletion_decides_no_other_request(
    store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.approvals.create(ASKED)
    other = replace(ASKED, tool_name="drain", arguments={"to": "bob"})
    settle = JournalApprovals._settle

    async def late(self: JournalApprovals, approval: Approval) -> Approval | None:
        await self.delete(ASKED.id)
        await self.create(other)
        return await settle(self, approval)

    monkeypatch.setattr(JournalApprovals, "_settle", late)
    with pytest.raises(ApprovalNotFoundError):
        await store.approvals.decide(ASKED.id, approved=True)
    found = await store.approvals.get(ASKED.id)
    assert found is not None
    assert (found.tool_name, found.arguments, found.status) == ("drain", {"to": "bob"}, "pending")


@pytest.mark.parametrize("part", [Part.RUNS, Part.APPROVALS])
@pytest.mark.parametrize("expired", [False, True])
async def test_a_decision_is_answered_also_beside_damage(store: AgentStore, part: Part, expired: bool) -> None:
    until = store.clock.now() if expired else None
    asked = await store.approvals.create(replace(ASKED, session_id="s1", expires_at=until))
    beside = await store.approvals.create(replace(asked, id="s1.turn-1.s0.c1"))
    waiting = CheckpointHead(
        "awaiting-approval", run_id=ASKED.run_id, session_id="s1", approval_ids=[asked.id, beside.id]
    )
    await store.checkpoints.append("s1", [], expected_version=0, head=waiting)
    assert isinstance(store.approvals, JournalApprovals)
    damaged = Key(part, "s1" if part is Part.RUNS else beside.id)
    head = Head(data=b"damaged")
    await store.approvals.journal.write((Append(damaged, (), head, None, ASKED.created_at, 1),))
    for _ in range(2):
        if expired:
            with pytest.raises(ApprovalExpiredError):
                await store.decide(asked.id, approved=True)
        else:
            assert (await store.decide(asked.id, approved=True)).status == "approved"


@pytest.mark.parametrize("field", ["note", "decided_by"])
async def test_a_text_of_a_decision_is_no_larger_than_a_record(field: str) -> None:
    async with perdure.open_store(f"memory:{uuid4().hex}?max_record=100") as store:
        await store.approvals.create(ASKED)
        given: dict[str, Any] = {field: "x" * 99}
        with pytest.raises(RecordTooLargeError, match=f"{field} is 101 bytes"):
            await store.approvals.decide(ASKED.id, approved=True, **given)
        assert await store.approvals.get(ASKED.id) == await store.approvals.create(ASKED)
        given[field] = "x" * 98
        assert (await store.approvals.decide(ASKED.id, approved=True, **given)).status == "approved"
