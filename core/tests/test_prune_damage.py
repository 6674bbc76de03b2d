"""Pruning goes round what is damaged: that is kept and named, and everything else that is old is removed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from core.tests.moving_world import CALLS, agent, damage
from core.tests.processes import everything

from perdure import AgentStore, codec, open_store
from perdure.contracts.checkpoints import CheckpointHead
from perdure.journal.contract import Append, Head, Key, Part
from perdure.journal.stores import JournalSessions
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


async def _filled(store: AgentStore) -> str:
    """Make three finished conversations and a run without one, and return the id of the approval of one of them."""
    for name in ("a", "z"):
        await agent(store).session(name).send("hello")
    await agent(store).run("hello", run_id="alone")
    (approval_id,) = (await agent(store, CALLS["waiting"]).session("paid").send("pay")).approval_ids
    await agent(store).approvals.resolve(approval_id, approved=True)
    return approval_id


@pytest.mark.parametrize(
    ("part", "name"), [(Part.SESSIONS, "a"), (Part.SESSIONS, "z"), (Part.RUNS, "paid"), (Part.APPROVALS, "paid")]
)
async def test_a_damaged_head_keeps_its_conversation_and_no_other(part: Part, name: str, clock: ManualClock) -> None:
    async with open_store("memory:", clock=clock) as store:
        approval_id = await _filled(store)
        damaged = approval_id if part is Part.APPROVALS else name
        await damage(store, part, damaged)
        clock.advance(DAY)
        foretold = await store.prune(older_than=timedelta(0), dry_run=True)
        report = await store.prune(older_than=timedelta(0))
        assert (foretold.sessions, foretold.runs, foretold.damaged) == (report.sessions, report.runs, report.damaged)
        assert set(report.sessions) == {"a", "z", "paid"} - {name}
        assert set(report.damaged) == {name, damaged}
        assert "is damaged" in report.damaged[name]
        assert set(report.runs) == {"a", "z", "paid", "alone.run"} - {name}
        for kept in (Part.SESSIONS, Part.RUNS):
            assert isinstance(store.sessions, JournalSessions)
            assert await store.sessions.journal.read(Key(kept, name)) is not None
        again = await store.prune(older_than=timedelta(0))
        assert (again.sessions, again.runs, again.damaged) == ((), (), report.damaged)


def _damage_a_file(folder: Path) -> tuple[Path, bytes]:
    (path,) = folder.glob("paid*")
    path.write_bytes(path.read_bytes() + b"x\n")
    return path, path.read_bytes()


@pytest.mark.parametrize("part", ["sessions", "runs", "approvals"])
async def test_a_damaged_file_keeps_its_conversation_and_no_other(
    part: str, clock: ManualClock, tmp_path: Path
) -> None:
    async with open_store(f"file:{tmp_path / 'files'}", clock=clock) as store:
        await _filled(store)
        path, before = await asyncio.to_thread(_damage_a_file, tmp_path / "files/default" / part)
        clock.advance(DAY)
        report = await store.prune(older_than=timedelta(0))
        assert sorted(report.sessions) == ["a", "z"]
        assert sorted(report.runs) == ["a", "alone.run", "z"]
        assert "paid" in report.damaged
        assert await asyncio.to_thread(path.read_bytes) == before


@pytest.mark.parametrize(
    ("part", "name", "wrong"),
    [
        (Part.RUNS, "paid", {"owner": 5}),
        (Part.RUNS, "paid", {"run_id": 5}),
        (Part.RUNS, "paid", {"session_id": "another"}),
        (Part.RUNS, "paid", {"agent": 5}),
        (Part.APPROVALS, "paid", {"id": 5}),
        (Part.APPROVALS, "paid", {"session_id": 5}),
        (Part.APPROVALS, "paid", {"arguments": None}),
        (Part.APPROVALS, "paid", {"id": "paid.another"}),
    ],
    ids=repr,
)
async def test_a_head_with_a_wrong_field_keeps_its_conversation_and_no_other(
    part: Part, name: str, wrong: dict[str, object], clock: ManualClock
) -> None:
    async with open_store("memory:", clock=clock) as store:
        approval_id = await _filled(store)
        key = Key(part, approval_id if part is Part.APPROVALS else name)
        assert isinstance(store.sessions, JournalSessions)
        journal = store.sessions.journal
        found = await journal.read(key)
        assert found is not None
        head = Head(data=codec.encode(codec.decode(found.head.data or b"") | wrong))
        await journal.write((Append(key, (), head, None, found.updated_at, 1),))
        clock.advance(DAY)
        report = await store.prune(older_than=timedelta(0))
        assert sorted(report.sessions) == ["a", "z"]
        assert name in report.damaged
        assert await journal.read(key) is not None


async def test_a_lease_to_the_end_of_time_stops_nothing_else(clock: ManualClock) -> None:
    async with open_store("memory:", clock=clock) as store:
        await _filled(store)
        end = datetime.max.replace(tzinfo=UTC)
        head = CheckpointHead("in-progress", session_id="z", owner="elsewhere", lease_expires_at=end)
        await store.checkpoints.append("z", [], expected_version=None, head=head)
        clock.advance(DAY)
        report = await store.prune(older_than=timedelta(0))
        assert sorted(report.sessions) == ["a", "paid"]
        assert report.kept == {"z": "a live owner holds it"}


async def test_nothing_is_damaged_in_a_whole_store(clock: ManualClock) -> None:
    async with open_store("memory:", clock=clock) as store:
        await _filled(store)
        clock.advance(DAY)
        assert (await store.prune(older_than=timedelta(0))).damaged == {}
        assert (await everything(store))["sessions"] == []
