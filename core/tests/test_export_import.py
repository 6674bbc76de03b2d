"""Our own JSON Lines: what goes out comes in again, whole or not at all, and the same file again changes nothing."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from core.tests.moving_world import CALLS, RAN, agent, differences, everything, fill
from core.tests.processes import another, dead, elsewhere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import AgentStore, codec, open_store
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure.conversations.claims import Claim
from perdure.errors import ImportDataError, InvalidArgumentError, SchemaVersionError, SessionHalfCopiedError
from perdure.interchange import export_conversations, import_conversations
from perdure_conformance.interception import Died, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def target(clock: ManualClock) -> AsyncIterator[AgentStore]:
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


async def exported(store: AgentStore, **options: Any) -> bytes:
    file = io.BytesIO()
    report = await export_conversations(store, file, **options)
    assert report.not_exported == {}
    return file.getvalue()


async def test_everything_comes_in_again_at_the_versions_that_it_had(any_store: AgentStore, target: AgentStore) -> None:
    await fill(any_store)
    before = await everything(any_store)
    data = await exported(any_store)
    assert differences(await everything(any_store), before) == []  # an export writes nothing
    report = await import_conversations(target, io.BytesIO(data))
    assert (report.not_copied, report.notes, report.copied, report.present) == ({}, [], 9, 0)
    assert differences(await everything(target), before) == []
    again = await import_conversations(target, io.BytesIO(data))
    assert (again.not_copied, again.notes, again.copied, again.present) == ({}, [], 0, 9)
    assert differences(await everything(target), before) == []


async def test_an_export_of_an_import_is_the_same_but_for_its_time(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    data = await exported(store)
    await import_conversations(target, io.BytesIO(data))
    assert (await exported(target)).splitlines()[1:] == data.splitlines()[1:]


async def test_a_pending_turn_goes_on_where_it_was_imported(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    await import_conversations(target, io.BytesIO(await exported(store)))
    RAN.clear()
    (asked,) = (await target.approvals.list(session_id="waiting")).items
    await target.decide(asked.id, approved=True)
    result = await agent(target, CALLS["waiting"]).resume("waiting")
    assert result is not None
    assert (result.text, RAN) == ("Paid.", ["pay ann"])


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
async def test_of_a_file_that_was_cut_short_what_is_whole_comes_in(
    store: AgentStore, target: AgentStore, cut: float
) -> None:
    await fill(store)
    data = await exported(store)
    report = await import_conversations(target, io.BytesIO(data[: int(len(data) * cut)]))
    assert 0 < report.copied < 9
    assert report.notes[-1].where == "the end"
    rest = await import_conversations(target, io.BytesIO(data))
    assert (rest.copied + rest.present, rest.present) == (9, report.copied)
    assert differences(await everything(target), await everything(store)) == []


async def test_damaged_lines_cost_their_conversation_and_no_other(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    lines = (await exported(store)).splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b"message 2" in line)
    for damage in (b'{"role":"us\n', lines[place].replace(b"message 2", b"message 7"), b"42\n"):
        damaged = [*lines[:place], damage, *lines[place + 1 :]]
        report = await import_conversations(target, damaged)
        assert report.copied + report.present == 8
        assert any("damaged" in str(note) or "not JSON" in str(note) for note in report.notes)


async def test_a_conversation_that_was_cut_out_of_a_file_is_missed(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    lines = (await exported(store)).splitlines(keepends=True)
    begin = next(n for n, line in enumerate(lines) if b'"conversation","key":"talk"' in line)
    end = next(n for n, line in enumerate(lines) if b'"conversation-end","key":"talk"' in line)
    report = await import_conversations(target, [*lines[:begin], *lines[end + 1 :]])
    assert report.copied == 8
    assert [note.what for note in report.notes] == ["the export had 9 conversations, and 1 of them are missing from it"]
    hurt = await import_conversations(target, [*lines[: begin + 1], *lines[begin + 2 :]])
    assert [note.outcome for note in hurt.notes] == ["left-out"]  # one that is damaged is named, and not missed too
    last = max(n for n, line in enumerate(lines) if b'"conversation-end"' in line)
    cut = await import_conversations(target, [*lines[:last], *lines[last + 1 :]])
    assert [note.outcome for note in cut.notes] == ["left-out"]  # neither is the last one without its end


async def test_what_is_as_deep_as_can_be_is_exported(store: AgentStore, target: AgentStore) -> None:
    deep: dict[str, Any] = {}
    for _ in range(codec.MAX_DEPTH - 1):
        deep = {"a": deep}
    await store.sessions.append("s", [deep], state=deep)
    asked = Approval("gone.run-1.s0.c0", "gone.run-1", "c", "pay", deep["a"]["a"], store.clock.now())
    await store.approvals.create(asked)
    report = await import_conversations(target, io.BytesIO(await exported(store)))
    assert (report.complete, report.notes) == (True, [])
    assert differences(await everything(target), await everything(store)) == []


async def test_what_is_no_export_of_ours_is_refused(target: AgentStore) -> None:
    for data in (b"", b"{}\n", b'[{"role":"user"}]\n', b'{"type":"export","format":"other","v":1}\n'):
        with pytest.raises(ImportDataError, match="line 1"):
            await import_conversations(target, io.BytesIO(data))
    with pytest.raises(SchemaVersionError, match="version 2"):
        await import_conversations(target, io.BytesIO(b'{"type":"export","format":"perdure","v":2}\n'))


async def test_other_data_is_never_overwritten(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    data = await exported(store)
    await target.sessions.append("plain", [{"mine": True}])
    await agent(target).session("talk").send("mine")
    before = await everything(target)
    report = await import_conversations(target, io.BytesIO(data))
    assert set(report.not_copied) == {"plain", "talk"}
    after = await everything(target)
    assert {name: after[name] for name in before} == before


async def test_one_id_is_no_list_of_ids(store: AgentStore) -> None:
    one_id: Any = "talk"
    with pytest.raises(InvalidArgumentError, match="session_ids"):
        await export_conversations(store, io.BytesIO(), session_ids=one_id)


async def test_chosen_conversations_and_what_is_not_there(store: AgentStore) -> None:
    await fill(store)
    file = io.BytesIO()
    report = await export_conversations(store, file, session_ids=["talk", "job.run", "nobody"])
    assert (report.conversations, report.not_exported) == (2, {"nobody": "there is no such conversation"})
    keys = [json.loads(line).get("key") for line in file.getvalue().splitlines() if b'"conversation"' in line]
    assert keys == ["talk", "job.run"]


async def test_a_conversation_that_is_being_changed_is_named(store: AgentStore) -> None:
    await fill(store)
    owner = another(store, process=elsewhere())
    with await Claim.take(owner, "talk", await owner.checkpoints.load("talk"), "clearing"):
        report = await export_conversations(store, io.BytesIO())
    assert list(report.not_exported) == ["talk"]
    assert report.conversations == 8


async def test_a_running_turn_is_exported_as_after_a_crash(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    found = await store.checkpoints.load("failed")
    assert found is not None
    owner = another(store, process=elsewhere())
    head = found.head.to_record() | {"owner": owner.ownership.process.new_owner(), "lease": 30.0}
    head["lease_expires_at"] = "2099-01-01T00:00:00+00:00"
    await store.checkpoints.append("failed", [], expected_version=found.version, head=CheckpointHead.from_record(head))
    await import_conversations(target, io.BytesIO(await exported(store, session_ids=["failed"])))
    pending = await agent(target, CALLS["failed"]).session("failed").pending()
    assert pending is not None
    assert (pending.status, pending.owner) == ("in-progress", None)


async def test_an_import_that_dies_at_any_write_is_finished_by_the_next(store: AgentStore, clock: ManualClock) -> None:
    await fill(store)
    names = ["long", "waiting", "cleared"]
    data = await exported(store, session_ids=names)
    await import_conversations(target := another(await empty(clock)), io.BytesIO(data))
    wanted = await everything(target, turn_versions=False)
    halves = 0
    number = 0
    while True:
        number += 1
        target = await empty(clock)
        try:
            await import_conversations(another(target, at(number, "die-after"), process=dead()), io.BytesIO(data))
        except Died:
            pass
        else:
            break
        clock.advance(timedelta(seconds=1))  # so that all of it is old enough for prune
        halves += await check_halves(target)
        report = await import_conversations(target, io.BytesIO(data))
        assert (report.not_copied, report.notes) == ({}, [])
        assert differences(await everything(target, turn_versions=False), wanted) == []
    assert number > 15
    assert halves > 8


async def empty(clock: ManualClock) -> AgentStore:
    return await open_store(f"memory:{uuid.uuid4().hex}", clock=clock)


async def check_halves(target: AgentStore) -> int:
    """See that nobody takes a conversation that is half there for a whole one; return how many there are."""
    halves = 0
    for info in (await target.checkpoints.list(status="copying")).items:
        before = await everything(target)
        try:
            await agent(target).session(info.key).send("Anybody there?")
        except SessionHalfCopiedError:
            halves += 1
            assert differences(await everything(target), before) == []
            await target.prune(older_than=timedelta(0))  # other conversations are whole, and old
            gone = differences(await everything(target), before)
            assert [name for name in gone if f'"{info.key}"' in repr(before[name]) or info.key in name] == []
        else:  # it was claimed, and nothing had been made yet: now a conversation of its own is there
            await target.delete_session(info.key)
    return halves


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=RECORDS,
    more=RECORDS,
    state=st.dictionaries(st.text(), JSON, max_size=3),
    scope=st.none() | st.text(max_size=20),
)
def test_whatever_a_session_holds_comes_in_again(
    records: list[Any], more: list[Any], state: dict[str, Any], scope: str | None
) -> None:
    async def run() -> None:
        async with (
            open_store(f"memory:{uuid.uuid4().hex}") as source,
            open_store(f"memory:{uuid.uuid4().hex}") as target,
        ):
            await source.sessions.append("s", records, state=state, scope=scope)
            await source.sessions.append("s", more)
            report = await import_conversations(target, io.BytesIO(await exported(source)))
            assert (report.copied, report.notes, report.not_copied) == (1, [], {})
            assert differences(await everything(target), await everything(source)) == []

    asyncio.run(run())
