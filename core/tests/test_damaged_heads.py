"""A stored head that cannot be one is damage, and is said to be."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure import AgentStore, codec
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import InvalidArgumentError, StoreCorruptedError
from perdure.journal.contract import Append, Head, Key, Part
from perdure.journal.stores import JournalCheckpoints

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lease", ["30", [], 1e300], ids=repr)
def test_a_lease_that_is_no_duration(lease: Any) -> None:
    with pytest.raises(StoreCorruptedError, match=r"head\.lease"):
        CheckpointHead.from_record({"status": "idle", "lease": lease})


@pytest.mark.parametrize("until", ["soon", 7, "2031-03-14T15:09:26"], ids=repr)
def test_an_end_of_a_lease_that_is_no_instant(until: Any) -> None:
    with pytest.raises(StoreCorruptedError, match=r"head\.lease_expires_at"):
        CheckpointHead.from_record({"status": "idle", "lease_expires_at": until})


def test_a_head_without_a_status() -> None:
    with pytest.raises(StoreCorruptedError, match="head"):
        CheckpointHead.from_record({})


WRONG: list[tuple[str, Any]] = [
    ("owner", 5),
    ("agent", None),
    ("attempts", True),
    ("base_version", "7"),
    ("failed", "no"),
    ("approval_ids", 5),
    ("approval_ids", [5]),
    ("last_error", {}),
]


@pytest.mark.parametrize(("field", "value"), [*WRONG, ("status", ["idle"]), ("run_id", 5)])
def test_a_field_that_holds_what_it_cannot(field: str, value: Any) -> None:
    with pytest.raises(StoreCorruptedError, match=rf"head\.{field} .*must be of type"):
        CheckpointHead.from_record({"status": "idle", field: value})


@pytest.mark.parametrize("field", ["session_id", "run_id"])
async def test_a_head_that_names_another_conversation(store: AgentStore, field: str) -> None:
    await store.checkpoints.append("s", [], expected_version=0, head=CheckpointHead("idle"))
    assert isinstance(store.checkpoints, JournalCheckpoints)
    head = Head(data=codec.encode({"status": "idle", field: "another"}))
    await store.checkpoints.journal.write((Append(Key(Part.RUNS, "s"), (), head, None, store.clock.now(), 1),))
    with pytest.raises(StoreCorruptedError, match="turn journal s: head"):
        await store.checkpoints.load("s")
    with pytest.raises(StoreCorruptedError, match="turn journal s: head"):
        await store.checkpoints.list()


@pytest.mark.parametrize(
    ("field", "value"),
    [*WRONG, ("extra", 5), ("extra", None), ("lease", 30), ("lease", timedelta.max), ("lease", -timedelta(seconds=1))],
)
async def test_what_could_not_be_read_again_is_not_written(store: AgentStore, field: str, value: Any) -> None:
    head = replace(CheckpointHead("idle"), **{field: value})
    with pytest.raises(InvalidArgumentError, match=rf"head\.{field}"):
        await store.checkpoints.append("s", [], expected_version=0, head=head)
    assert await store.checkpoints.load("s") is None


@pytest.mark.parametrize("claim", [{}, {"action": "deleting", "was": 5}, {"archives": "all"}], ids=repr)
@pytest.mark.parametrize("status", ["deleting", "compacting", "copying"])
async def test_a_claim_that_does_not_say_what_it_claims(store: AgentStore, status: str, claim: dict[str, Any]) -> None:
    whole = {"kind": "claim", "action": status, "was": "idle", "session_version": 0}
    entry = whole | claim if claim else {"kind": "claim"}
    await store.checkpoints.append("s", [entry], expected_version=0, head=CheckpointHead(status, session_id="s"))
    with pytest.raises(StoreCorruptedError, match="turn journal s: entries"):
        await store.delete_session("s")


async def test_a_copy_that_does_not_say_what_it_makes(store: AgentStore) -> None:
    claim = {"kind": "claim", "action": "copying", "was": "absent", "session_version": 0, "making": {"sessions": ["s"]}}
    await store.checkpoints.append("s", [claim], expected_version=0, head=CheckpointHead("copying", session_id="s"))
    with pytest.raises(StoreCorruptedError, match=r"turn journal s: entries\[0\]"):
        await store.delete_session("s")
