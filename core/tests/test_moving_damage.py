"""A copy and an export go on behind what is damaged, or does not fit the target, and name the conversation that it costs."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from core.tests.moving_world import CALLS, agent, damage, differences, everything, pay
from core.tests.processes import another, dead

from perdure import Agent, AgentStore, ToolCall, open_store, tool
from perdure.contracts.approvals import Approval
from perdure.errors import StoreUnavailableError
from perdure.interchange import export_conversations, import_conversations
from perdure.journal.contract import Part
from perdure.journal.stores import JournalSessions
from perdure.journal.walking import PAGE
from perdure.models import ScriptedModel
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


async def test_a_store_that_goes_away_while_a_copy_goes_around_damage_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_store("memory:") as source, open_store("memory:") as target:
        await source.sessions.append("a", [])
        await damage(source, Part.SESSIONS, "a")
        assert isinstance(source.sessions, JournalSessions)
        journal = source.sessions.journal
        scan = journal.scan

        async def goes_away(part: Part, **options: Any) -> object:
            if options["limit"] == PAGE:  # as who goes around damage asks, and no listing
                raise OSError("no route")
            return await scan(part, **options)

        monkeypatch.setattr(journal, "scan", goes_away)
        with pytest.raises(StoreUnavailableError, match="no route"):
            await copy_conversations(source, target)


# --- what does not fit the target ---


LIMIT = "memory:?max_record=3000"


@tool(idempotent=True)
def tell(letters: int) -> str:
    """Say something long."""
    return "x" * letters


async def _waits(store: AgentStore, *calls: ToolCall) -> None:
    await Agent(model=ScriptedModel([[*calls], "Done."]), tools=[tell, pay], store=store).session("s").send("Go.")


async def test_a_turn_that_does_not_fit_the_target_leaves_nothing_of_its_conversation_there() -> None:
    """Also where it is found out last: when the turn takes the place of the claim."""
    file = io.BytesIO()
    async with open_store("memory:") as source, open_store(LIMIT) as target:
        await _waits(source, ToolCall("c0", "tell", {"letters": 5000}), ToolCall("c1", "pay", {"to": "ann"}))
        copied = await copy_conversations(source, target)
        assert "the limit is 3000" in copied.not_copied["s"]
        assert await everything(target) == {}
        await export_conversations(source, file)
        file.seek(0)
        imported = await import_conversations(target, file)
        assert "the limit is 3000" in imported.not_copied["s"]
        assert await everything(target) == {}


async def test_a_copy_that_is_undone_leaves_what_was_there_before() -> None:
    async with open_store("memory:") as source, open_store(LIMIT) as target:
        await source.sessions.append("s", [{"n": 1}])
        await copy_conversations(source, target)
        before = await everything(target)
        await _waits(source, ToolCall("c1", "pay", {"to": "x" * 5000}))
        report = await copy_conversations(source, target)
        assert "the limit is 3000" in report.not_copied["s"]
        assert differences(await everything(target), before) == []


async def test_a_copy_does_not_take_what_was_there_before_for_its_half() -> None:
    """Also where that is how a half of what the conversation is now would look: undone, all of it would be gone."""
    async with open_store("memory:") as source, open_store(LIMIT) as target:
        await source.sessions.append("s", [], state={"title": "mine"})
        await copy_conversations(source, target)
        before = await everything(target)
        await source.sessions.append("s", [{"text": "x" * 5000}])
        report = await copy_conversations(source, target)
        assert report.not_copied["s"].startswith("session s has another number of records (0, not 1)")
        assert differences(await everything(target), before) == []


async def test_a_copy_that_died_overwrites_nothing_that_was_there_before() -> None:
    async with open_store("memory:") as source, open_store("memory:") as target:
        await source.sessions.append("s", [{"n": 1}])
        await copy_conversations(source, target)
        before = await everything(target)
        session = agent(source, CALLS["waiting"]).session("s")
        await session.send("Go.")
        with contextlib.suppress(Died):
            await copy_conversations(source, another(target, at(2, "die-after"), process=dead()))
        assert (await target.checkpoints.list(status="copying")).items != ()
        await session.discard_pending()
        await source.sessions.append("s", [{"n": 2}])
        report = await copy_conversations(source, target)
        assert report.not_copied["s"].startswith("session s has another number of records (1, not 2)")
        assert differences(await everything(target), before) == []


async def test_a_lone_approval_that_does_not_fit_the_target_stops_no_copy() -> None:
    async with open_store("memory:") as source, open_store(LIMIT) as target:
        for number, to in enumerate(("x" * 5000, "ann")):
            run = f"gone.run-{number}"
            await source.approvals.create(Approval(f"{run}.s0.c0", run, "c", "pay", {"to": to}, source.clock.now()))
        report = await copy_conversations(source, target)
        assert list(report.not_copied) == ["gone.run-0.s0.c0"]
        assert [found.id for found in (await target.approvals.list()).items] == ["gone.run-1.s0.c0"]


async def test_approvals_wait_for_their_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a turn that begins when its conversation was passed already, no part is copied without the others."""
    async with open_store("memory:") as source, open_store("memory:") as target:
        await source.sessions.append("z", [{"n": 1}])
        listed = source.approvals.list

        async def begins(**options: object) -> object:
            if not options.keys() & {"session_id", "run_id"} and await source.sessions.load("a") is None:
                await agent(source, CALLS["waiting"]).session("a").send("Go.")
            return await listed(**options)  # type: ignore[arg-type]  # reason: as they were given

        monkeypatch.setattr(source.approvals, "list", begins)
        assert (await copy_conversations(source, target)).complete
        assert [name.split()[0] for name in await everything(target)] == ["session"]
        (asked,) = (await source.approvals.list()).items
        await source.decide(asked.id, approved=True)
        assert (await copy_conversations(source, target)).complete
        assert (
            differences(await everything(source, turn_versions=False), await everything(target, turn_versions=False))
            == []
        )
