"""A copy and an export go on behind a damaged head, and name the conversation that it costs."""

from __future__ import annotations

import contextlib
import io

import pytest
from core.tests.moving_world import CALLS, agent, damage
from core.tests.processes import another, dead

from perdure import AgentStore, open_store
from perdure.contracts.approvals import Approval
from perdure.interchange import export_conversations, import_conversations
from perdure.journal.contract import Part
from perdure.moving import copy_conversations
from perdure.moving.walking import approvals
from perdure_conformance.interception import Died, at

pytestmark = pytest.mark.anyio

OTHERS = {"a", "waiting", "z"}


async def _filled(store: AgentStore) -> str:
    """Make three conversations, and return the id of the approval that one of them waits for."""
    for name in ("a", "z"):
        await agent(store).session(name).send("hello")
    (approval_id,) = (await agent(store, CALLS["waiting"]).session("waiting").send("pay")).approval_ids
    return approval_id


@pytest.mark.parametrize(
    ("part", "lost", "damaged"),
    [
        (Part.SESSIONS, "a", "session a"),
        (Part.SESSIONS, "waiting", "session waiting"),
        (Part.SESSIONS, "z", "session z"),
        (Part.RUNS, "waiting", "turn journal waiting"),
        (Part.APPROVALS, "waiting", "approval waiting.turn"),
    ],
)
async def test_a_damaged_head_costs_its_conversation_and_no_other(part: Part, lost: str, damaged: str) -> None:
    async with open_store("memory:") as source, open_store("memory:") as copied, open_store("memory:") as imported:
        approval_id = await _filled(source)
        await damage(source, part, approval_id if part is Part.APPROVALS else lost)

        report = await copy_conversations(source, copied)
        assert list(report.not_copied) == [lost]
        assert report.not_copied[lost].startswith(damaged)
        assert {info.session_id for info in (await copied.sessions.list()).items} == OTHERS - {lost}

        file = io.BytesIO()
        exported = await export_conversations(source, file)
        assert list(exported.not_exported) == [lost]
        assert exported.not_exported[lost].startswith(damaged)
        file.seek(0)
        assert (await import_conversations(imported, file)).complete
        assert {info.session_id for info in (await imported.sessions.list()).items} == OTHERS - {lost}


async def test_a_damaged_approval_of_which_no_conversation_knows_is_named() -> None:
    async with open_store("memory:") as source, open_store("memory:") as target:
        approval_id = await _filled(source)
        await source.sessions.delete("waiting")
        await source.checkpoints.delete("waiting")
        await damage(source, Part.APPROVALS, approval_id)
        report = await copy_conversations(source, target)
        assert (report.copied, list(report.not_copied)) == (2, [approval_id])
        assert list((await export_conversations(source, io.BytesIO())).not_exported) == [approval_id]


async def test_a_damaged_approval_on_a_later_page_hides_none() -> None:
    async with open_store("memory:") as source:
        names = [f"s{n:03}.turn-1.s0.c0" for n in range(150)]
        for name in reversed(names):  # a listing is in the order of creation, and a walk in that of the ids
            session = name[:4]
            await source.approvals.create(
                Approval(name, f"{session}.turn-1", "c", "pay", {}, source.clock.now(), session_id=session)
            )
        await damage(source, Part.APPROVALS, names[20])
        assert sorted([name async for name, _ in approvals(source)]) == names


async def test_what_is_damaged_at_the_target_is_named_and_hides_no_half_of_a_conversation() -> None:
    async with open_store("memory:") as source, open_store("memory:") as target:
        await _filled(source)
        for _ in range(2):  # the half of one conversation, and then of another, which the source has no longer
            with contextlib.suppress(Died):
                await copy_conversations(source, another(target, at(3, "die-after"), process=dead()))
            for info in (await target.checkpoints.list(status="copying")).items:
                await source.delete_session(info.key, force=True)
        damaged, half = (info.key for info in (await target.checkpoints.list(status="copying")).items)
        await damage(target, Part.RUNS, damaged)
        report = await copy_conversations(source, target)
        assert sorted(report.not_copied) == [damaged, half]
        assert report.not_copied[damaged].startswith(f"at the target turn journal {damaged}: head is damaged: ")
        assert report.not_copied[half].startswith("the target has the half of it")


async def test_a_lone_approval_that_is_damaged_at_the_target_stops_no_copy() -> None:
    async with open_store("memory:") as source, open_store("memory:") as target:
        approval_id = await _filled(source)
        await source.sessions.delete("waiting")
        await source.checkpoints.delete("waiting")
        await copy_conversations(source, target)
        await damage(target, Part.APPROVALS, approval_id)
        report = await copy_conversations(source, target)
        assert (report.present, list(report.not_copied)) == (2, [approval_id])
        assert report.not_copied[approval_id].startswith(f"at the target approval {approval_id} is damaged: ")
