"""The same agent on less: no checkpoint store, and session stores that only load and append."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another

from perdure import Agent, AgentStore, ToolCall, open_store, tool
from perdure.contracts.checkpoints import CheckpointHead, CheckpointReplace
from perdure.contracts.process import THIS_PROCESS
from perdure.contracts.sessions import SessionAppend
from perdure.errors import (
    InvalidArgumentError,
    SessionConflictError,
    TurnFailedError,
    UnsupportedOperationError,
    VersionConflictError,
    WrongLoopError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "plain", "plain with checkpoints"])
def less(request: pytest.FixtureRequest, store: AgentStore, clock: ManualClock) -> AgentStore:
    sessions = store.sessions if request.param == "memory" else PlainSessions()
    checkpoints = store.checkpoints if request.param == "plain with checkpoints" else None
    return AgentStore(sessions=sessions, checkpoints=checkpoints, clock=clock)


async def echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=f"re: {request.messages[-1].text}")


async def test_turns_that_have_ended_take_no_memory(store: AgentStore) -> None:
    bundle = AgentStore(sessions=store.sessions)
    agent = Agent(model=FunctionModel(echo), store=bundle)
    for name in ("a", "b", "a"):
        assert (await agent.session(name).send("hello")).text == "re: hello"
    assert agent.store is not None
    assert (await agent.store.checkpoints.list()).items == ()


async def test_turns_in_memory_are_compared_and_set(store: AgentStore) -> None:
    agent = Agent(model=FunctionModel(echo), store=AgentStore(sessions=store.sessions))
    assert agent.store is not None
    turns, head = agent.store.checkpoints, CheckpointHead("idle", session_id="s")
    version = await turns.append("s", [], expected_version=0, head=head)
    for expected in (0, version + 1):
        with pytest.raises(VersionConflictError):
            await turns.append("s", [], expected_version=expected, head=head)
        with pytest.raises(VersionConflictError):
            await turns.replace("s", [], expected_version=expected, head=head)
        with pytest.raises(VersionConflictError):
            await turns.delete("s", expected_version=expected)
    assert await turns.append("s", [], expected_version=version, head=head) == version + 1


async def test_a_third_partys_store_is_not_used_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = PlainSessions()
    assert await sessions.load("s") is None
    with monkeypatch.context() as forked:
        forked.setattr(THIS_PROCESS, "pid", -1)
        with pytest.raises(WrongLoopError, match="fork"):
            await sessions.load("s")


async def test_turns_and_what_is_read_back(less: AgentStore) -> None:
    @tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([[ToolCall("c1", "look")], "done", "bye"])
    agent = Agent(model=model, tools=[look], store=less)
    session = agent.session("s", scope="acme")
    result = await session.send("go", input_id="i1")
    assert [message.text for message in result.messages] == ["go", "", "seen", "done"]
    assert await session.result(result.run_id) == result
    assert await agent.session("s").send("go", input_id="i1") == result
    assert (await session.send("more")).text == "bye"
    assert len(await agent.session("s").load()) == 6
    assert await session.update_state(lambda state: {**state, "x": 1}) == {"x": 1}
    assert (await session.pending(), await session.resume(), await session.discard_pending()) == (None, None, False)
    with pytest.raises(InvalidArgumentError, match="scope"):
        await agent.session("s", scope="other").send("no")


async def test_a_failed_turn_is_pending_in_this_process(less: AgentStore) -> None:
    class NoError(Exception):
        retryable = False

    model = ScriptedModel([NoError("no")])
    agent = Agent(model=model, store=less)
    with pytest.raises(NoError):
        await agent.session("s").send("go")
    pending = await agent.session("s").pending()
    assert pending is not None
    assert (pending.status, pending.last_error, pending.attempts) == ("in-progress", "NoError: no", 1)
    assert [turn.run_id for turn in await agent.pending()] == [pending.run_id]
    with pytest.raises(TurnFailedError):
        await agent.session("s").send("more")
    model._script[:] = ["done"]
    result = await agent.resume("s")
    assert result is not None
    assert (result.text, result.run_id) == ("done", pending.run_id)


async def test_agents_of_one_bundle_share_its_turns(less: AgentStore) -> None:
    with pytest.raises(ConnectionError):
        await Agent(model=ScriptedModel([ConnectionError("no route")]), store=less).session("s").send("go")
    result = await Agent(model=ScriptedModel(["done"]), store=less).resume("s")
    assert result is not None
    assert [message.text for message in result.messages] == ["go", "done"]


async def test_discard_abort_and_order(less: AgentStore) -> None:
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].text == "wait":
            reached.set()
            await may_go_on.wait()
        return await echo(request)

    agent = Agent(model=FunctionModel(slow), store=less)
    task = asyncio.create_task(agent.session("s").send("wait"))
    await reached.wait()
    assert await agent.session("s").abort() is True
    assert (await task).finish_reason == "aborted"
    await asyncio.gather(*(agent.session("s").send(str(n)) for n in range(4)))
    texts = [message.text for message in await agent.session("s").load()]
    assert texts == [text for n in range(4) for text in (str(n), f"re: {n}")]


async def test_a_turn_is_saved_with_a_version_check(less: AgentStore) -> None:
    async def meddled(request: ModelRequest) -> ModelResponse:
        await less.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "between"}}])
        return ModelResponse(text="mine")

    session = Agent(model=FunctionModel(meddled), store=less).session("s")
    with pytest.raises(SessionConflictError):
        await session.send("go")
    assert [message.text for message in await session.load()] == ["between"]
    result = await session.resume(rebase=True)
    assert result is not None
    assert [message.text for message in await session.load()] == ["between", "go", "mine"]


async def test_without_a_checkpoint_store_nothing_but_the_turn_is_written(clock: ManualClock) -> None:
    sessions = PlainSessions()
    store = AgentStore(sessions=sessions, clock=clock)
    await Agent(model=FunctionModel(echo), store=store).session("s").send("hello")
    fresh = AgentStore(sessions=sessions, clock=clock)  # another process: nothing is pending there
    assert await Agent(model=FunctionModel(echo), store=fresh).session("s").pending() is None
    transcript = await fresh.sessions.load("s")
    assert transcript is not None
    assert transcript.count == 2


@pytest.mark.parametrize("options", [{"needs_approval": True}, {"needs_approval": bool}, {"in_doubt": "ask"}])
@pytest.mark.parametrize("missing", ["checkpoints", "approvals", "both"])
async def test_what_tools_need_is_said_at_construction(
    store: AgentStore, options: dict[str, Any], missing: str
) -> None:
    less = AgentStore(
        sessions=store.sessions,
        checkpoints=store.checkpoints if missing == "approvals" else None,
        approvals=store.approvals if missing == "checkpoints" else None,
    )
    gated = tool(name="pay", **options)(lambda: None)
    with pytest.raises(UnsupportedOperationError, match="pay"):
        Agent(model=ScriptedModel([]), tools=[gated], store=less)
    with pytest.raises(UnsupportedOperationError, match="pay"):
        Agent(model=ScriptedModel([]), tools=[gated]).session("s", store=less)


async def test_what_a_plain_store_cannot_do_is_said_before_anything_is_changed(clock: ManualClock) -> None:
    store = AgentStore(sessions=PlainSessions(), clock=clock)
    session = Agent(model=FunctionModel(echo), store=store).session("s")
    await session.send("hello")
    with pytest.raises(UnsupportedOperationError, match="replace"):
        await session.clear()
    with pytest.raises(UnsupportedOperationError, match="delete"):
        await store.delete_session("s")
    assert len(await session.load()) == 2


async def test_a_bundle_without_sessions(store: AgentStore) -> None:
    with pytest.raises(UnsupportedOperationError, match="sessions"):
        Agent(model=ScriptedModel([]), store=AgentStore(checkpoints=store.checkpoints))


async def test_a_bundle_is_atomic_within_one_journal_that_says_so(store: AgentStore) -> None:
    async with open_store("memory:") as other:
        two = AgentStore(sessions=store.sessions, checkpoints=other.checkpoints)
        split = another(store, atomic=False)
        assert (store.atomic, two.atomic, split.atomic) == (True, False, False)
        for bundle in (two, split):
            with pytest.raises(UnsupportedOperationError, match="atomic"):
                await bundle.write(SessionAppend("s", []), CheckpointReplace("s", [], CheckpointHead("idle"), None))
