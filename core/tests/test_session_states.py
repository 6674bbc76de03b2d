"""What each call does in each state: the table of the runtime, cell by cell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.processes import another, die_at, elsewhere, everything
from core.tests.session_world import CALLS, FIRST, World, awaiting, elsewhere_running, finished, in_progress, ready

from perdure import Agent, AgentStore, ToolCall, tool
from perdure.errors import SessionAwaitingApprovalError, SessionBusyError, SessionConflictError
from perdure.models import ScriptedModel
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(any_store: AgentStore) -> World:
    world = World(any_store)
    await world.session.send("first")
    return world


# --- idle ---


async def test_idle(world: World) -> None:
    session = world.session
    assert await session.pending() is None
    assert await session.resume() is None
    assert await session.discard_pending() is False
    assert await session.abort() is False
    assert await world.texts() == FIRST
    assert (await session.send("hello")).text == "re: hello"
    await session.clear()
    assert await world.texts() == []
    assert list(session.messages) == []


async def test_absent_session_stays_absent(any_store: AgentStore) -> None:
    session = World(any_store).session
    assert await session.pending() is None
    assert await session.resume() is None
    assert await session.discard_pending() is False
    assert await session.abort() is False
    await session.clear()
    assert list(await session.load()) == []
    assert await session.result("s.turn-1") is None
    assert await everything(any_store) == {"sessions": [], "runs": [], "approvals": []}


# --- in progress, nobody runs it ---


async def test_in_progress_pending(world: World) -> None:
    await in_progress(world)
    pending = await world.session.pending()
    assert pending is not None
    assert (pending.status, pending.session_id, pending.attempts) == ("in-progress", "s", 1)
    assert pending.run_id is not None
    assert pending.run_id.startswith("s.turn-")
    assert await world.status() == "in-progress"  # looking changes nothing


async def test_in_progress_resume(world: World) -> None:
    await in_progress(world)
    asked = world.asked
    result = await world.session.resume()
    assert result is not None
    assert result.text == "re: hello"
    assert world.asked == asked  # the recorded response was not asked for again
    assert await world.texts() == [*FIRST, "hello", "re: hello"]
    assert await world.session.result(result.run_id) == result


async def test_in_progress_send(world: World) -> None:
    await in_progress(world)
    assert (await world.session.send("next")).text == "re: next"
    assert await world.texts() == [*FIRST, "hello", "re: hello", "next", "re: next"]


@pytest.mark.parametrize("call", ["discard_pending", "abort"])
async def test_in_progress_discard(world: World, call: str) -> None:
    await in_progress(world)
    assert await getattr(world.session, call)() is True
    assert await world.session.pending() is None
    assert await world.texts() == FIRST
    assert (await world.session.send("next")).text == "re: next"


async def test_in_progress_clear(world: World) -> None:
    await in_progress(world)
    await world.session.clear()
    assert await world.session.pending() is None
    assert await world.texts() == []


# --- awaiting approval ---


async def test_awaiting_pending(world: World) -> None:
    approval_id = await awaiting(world)
    pending = await world.session.pending()
    assert pending is not None
    assert (pending.status, pending.approval_ids, pending.owner) == ("awaiting-approval", (approval_id,), None)


@pytest.mark.parametrize("call", ["resume", "send", "clear"])
async def test_awaiting_refuses_and_takes_nothing(world: World, call: str) -> None:
    approval_id = await awaiting(world)
    before = await everything(world.store)
    with pytest.raises(SessionAwaitingApprovalError) as caught:
        await getattr(world.session, call)(*(["next"] if call == "send" else []))
    assert caught.value.approval_ids == (approval_id,)
    assert await everything(world.store) == before


@pytest.mark.parametrize("call", ["discard_pending", "abort"])
async def test_awaiting_discard_cancels_the_approval(world: World, call: str) -> None:
    approval_id = await awaiting(world)
    assert await getattr(world.session, call)() is True
    approval = await world.store.approvals.get(approval_id)
    assert approval is not None
    assert approval.status == "cancelled"
    assert await world.texts() == FIRST
    assert world.paid == []


async def test_ready_pending(world: World) -> None:
    await ready(world)
    pending = await world.session.pending()
    assert pending is not None
    assert (pending.status, pending.approval_ids) == ("ready", ())


async def test_ready_resume(world: World) -> None:
    await ready(world)
    result = await world.session.resume()
    assert result is not None
    assert (result.text, world.paid) == ("re: paid ann", ["ann"])


async def test_ready_send(world: World) -> None:
    await ready(world)
    assert (await world.session.send("next")).text == "re: next"
    assert await world.texts() == [*FIRST, "pay ann", "", "paid ann", "re: paid ann", "next", "re: next"]


async def test_ready_once_resumed_waits_for_nothing(world: World) -> None:
    await ready(world)
    await die_at(world.store, 1, lambda store: world.by(store).resume())
    pending = await world.session.pending()
    assert pending is not None
    assert (pending.status, list(pending.approval_ids)) == ("in-progress", [])


async def test_ready_is_not_written_over_a_turn_that_went_on(world: World) -> None:
    async def before(call: Call) -> None:
        if call.number == 2:  # after the decision
            await world.session.resume()

    approval_id = await awaiting(world)
    await another(world.store, Interception(before=before)).decide(approval_id, approved=True)
    assert (await world.status(), world.paid) == ("idle", ["ann"])


async def test_ready_clear_and_discard_run_nothing(world: World) -> None:
    await ready(world)
    await world.session.clear()
    assert (await world.texts(), world.paid) == ([], [])
    await ready(world)
    assert await world.session.discard_pending() is True
    assert (await world.texts(), world.paid) == ([], [])


# --- finished, not committed ---


async def test_finished_pending_commits(world: World) -> None:
    await finished(world)
    assert await world.session.pending() is None
    assert await world.texts() == [*FIRST, "hello", "re: hello"]
    assert await world.status() == "idle"


async def test_a_claim_that_somebody_else_finishes_just_now_is_told_of(world: World) -> None:
    await in_progress(world)
    await die_at(world.store, 1, lambda store: world.by(store).discard_pending())
    assert await world.status() == "discarding"
    reached, may_go_on = asyncio.Event(), asyncio.Event()
    others: list[asyncio.Task[object]] = []

    async def hold(call: Call) -> None:
        if call.number == 2:
            reached.set()
            await may_go_on.wait()

    async def before(_: Call) -> None:
        interception.before = None
        others.append(asyncio.create_task(world.by(another(world.store, Interception(before=hold))).resume()))
        await reached.wait()

    interception = Interception(before=before)
    session = world.by(another(world.store, interception))
    pending = await session.pending()
    assert pending is not None
    assert (pending.status, pending.owner is None) == ("discarding", False)
    may_go_on.set()
    assert await others[0] is None
    assert await session.pending() is None


async def test_finished_resume_commits(world: World) -> None:
    await finished(world)
    asked = world.asked
    result = await world.session.resume()
    assert result is not None
    assert (result.text, result.finish_reason, world.asked) == ("re: hello", "stop", asked)
    assert await world.session.resume() is None


async def test_finished_send_commits_then_runs(world: World) -> None:
    await finished(world)
    await world.session.send("next")
    assert await world.texts() == [*FIRST, "hello", "re: hello", "next", "re: next"]


async def test_finished_discard_commits(world: World) -> None:
    await finished(world)
    assert await world.session.discard_pending() is False
    assert await world.texts() == [*FIRST, "hello", "re: hello"]


async def test_finished_clear_commits_then_clears(world: World) -> None:
    await finished(world)
    await world.session.clear()
    assert (await world.texts(), await world.status()) == ([], "idle")


async def test_finished_in_conflict_stays_until_the_user_decides(world: World) -> None:
    await finished(world)
    await world.store.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "other"}}])
    pending = await world.session.pending()
    assert pending is not None
    assert pending.status == "finished"
    for call in (world.session.resume, lambda: world.session.send("next"), world.session.clear):
        with pytest.raises(SessionConflictError):
            await call()
    assert await world.texts() == [*FIRST, "other"]


async def test_a_transcript_that_was_rewritten_is_a_conflict(world: World) -> None:
    await finished(world)
    seen = await world.store.sessions.load("s")
    assert seen is not None
    other = {"kind": "message", "message": {"role": "user", "content": "other"}}
    await world.store.sessions.replace("s", [other] * seen.count, expected_version=seen.version)
    with pytest.raises(SessionConflictError):
        await world.session.resume()
    assert await world.texts() == ["other", "other"]


async def test_a_turn_whose_transcript_was_rewritten_does_not_go_on(world: World) -> None:
    await ready(world)
    await world.store.sessions.replace("s", [], expected_version=None)
    with pytest.raises(SessionConflictError):
        await world.session.resume()
    assert world.paid == []
    assert await world.session.resume(rebase=True) is not None
    assert (world.paid, await world.texts()) == (["ann"], ["pay ann", "", "paid ann", "re: paid ann"])


async def test_what_came_in_since_a_turn_began_is_not_shown_to_its_model(store: AgentStore) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    model = ScriptedModel(["re: first", [ToolCall("c1", "pay")], "done"])
    session = Agent(model=model, tools=[pay], store=store).session("s")
    await session.send("first")
    (approval_id,) = (await session.send("pay")).approval_ids
    await store.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "other"}}])
    await store.decide(approval_id, approved=True)
    with pytest.raises(SessionConflictError, match="other records came in"):
        await session.resume()
    assert [message.text for message in model.calls[-1].messages] == [*FIRST, "pay", "", "paid"]


async def test_finished_in_conflict_rebased(world: World) -> None:
    await finished(world)
    await world.store.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "other"}}])
    result = await world.session.resume(rebase=True)
    assert result is not None
    assert await world.texts() == [*FIRST, "other", "hello", "re: hello"]
    assert await world.session.pending() is None


async def test_finished_in_conflict_dropped(world: World) -> None:
    await finished(world)
    await world.store.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "other"}}])
    assert await world.session.discard_pending() is True
    assert await world.texts() == [*FIRST, "other"]
    assert (await world.session.send("next")).text == "re: next"


async def test_finished_and_a_title_was_set(world: World) -> None:
    await finished(world)
    await world.session.update_state(lambda state: {**state, "title": "Hello"})
    result = await world.session.resume()
    assert result is not None
    assert await world.texts() == [*FIRST, "hello", "re: hello"]


# --- running elsewhere ---


async def test_elsewhere_pending(world: World) -> None:
    await elsewhere_running(world)
    pending = await world.session.pending()
    assert pending is not None
    assert pending.status == "in-progress"
    assert pending.owner is not None
    assert pending.owner.startswith("elsewhere/")


@pytest.mark.parametrize("call", CALLS)
async def test_elsewhere_refuses(world: World, call: str) -> None:
    await elsewhere_running(world)
    before = await everything(world.store)
    with pytest.raises(SessionBusyError) as caught:
        await CALLS[call](world.session)
    assert caught.value.owner is not None
    assert caught.value.owner.startswith("elsewhere/")
    assert caught.value.until is not None
    assert await everything(world.store) == before


async def test_elsewhere_resolve_leaves_the_turn_to_its_owner(world: World) -> None:
    approval_id = await awaiting(world)
    await world.store.decide(approval_id, approved=True)
    with pytest.raises(Died):
        await world.by(another(world.store, at(1, "die-after"), process=elsewhere())).resume()
    before = await everything(world.store)
    result = await world.session.agent.approvals.resolve(approval_id, approved=True)
    assert (result.finish_reason, result.approval_ids, world.paid) == ("awaiting-approval", (), [])
    assert await everything(world.store) == before


async def test_elsewhere_forced_out(world: World) -> None:
    await elsewhere_running(world)
    assert await world.session.discard_pending(force=True) is True
    assert (await world.session.send("next")).text == "re: next"


@pytest.mark.parametrize("call", ["clear", "discard_pending", "abort"])
async def test_who_listens_hears_of_the_end_of_a_turn_that_is_dropped(store: AgentStore, call: str) -> None:
    world = World(store)
    await world.session.send("first")
    heard: list[tuple[str, str | None]] = []

    async def hear(event: Any) -> None:
        reason = event.result.finish_reason if event.type == "run.done" else None
        heard.append((event.type, reason))

    world.session.on(hear)
    await getattr(world.session, call)()  # without a turn
    await in_progress(world)
    await getattr(world.session, call)()
    await world.session._channel.catch_up()
    cleared = [("context.cleared", None)] * (call == "clear")
    assert heard == [*cleared, ("run.done", "aborted"), *cleared]
