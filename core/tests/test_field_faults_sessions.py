"""Faults that users of comparable systems met in their transcripts, each as its smallest case here."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from core.tests.processes import another, elsewhere, everything

from perdure import Agent, AgentStore, Message, Session, ToolCall, open_store, tool
from perdure.errors import SessionBusyError, SessionConflictError, VersionConflictError, WrongLoopError
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, Interception
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


def user(text: str) -> dict[str, Any]:
    return {"v": 1, "kind": "message", "message": {"role": "user", "content": text}}


async def echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=f"re: {request.messages[-1].text}")


def agent(store: AgentStore) -> Agent:
    return Agent(model=FunctionModel(echo), store=store)


async def texts(store: AgentStore, session_id: str = "s") -> list[str]:
    return [message.text for message in await agent(store).session(session_id).load()]


class Blocked:
    """A model that waits in its first response."""

    def __init__(self, text: str) -> None:
        self.reached, self.may_go_on, self.text = asyncio.Event(), asyncio.Event(), text
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.reached.set()
        await self.may_go_on.wait()
        return ModelResponse(text=self.text)


async def test_two_writers_at_one_version(any_store: AgentStore) -> None:
    """B001: the second of two writers that read the same version is refused, and after reading again both are there."""
    version = await any_store.sessions.append("s", [user("start")], expected_version=0)
    await any_store.sessions.append("s", [user("a")], expected_version=version)
    with pytest.raises(VersionConflictError) as caught:
        await any_store.sessions.append("s", [user("b")], expected_version=version)
    assert caught.value.actual == version + 1
    await any_store.sessions.append("s", [user("b")], expected_version=version + 1)
    assert await texts(any_store) == ["start", "a", "b"]


async def test_a_turn_that_is_continued_while_another_process_sends(any_store: AgentStore) -> None:
    """B002: the other send is told who runs the turn; both turns are there in the order in which they were saved."""
    failing = Agent(model=ScriptedModel([ConnectionError("no route")]), store=any_store)
    with pytest.raises(ConnectionError):
        await failing.session("s").send("first")
    blocked = Blocked("late")
    other = another(any_store, process=elsewhere())
    task = asyncio.create_task(Agent(model=blocked.model, store=any_store).resume("s"))
    await blocked.reached.wait()
    with pytest.raises(SessionBusyError):
        await agent(other).session("s").send("other")
    blocked.may_go_on.set()
    await task
    await agent(other).session("s").send("other")
    assert await texts(any_store) == ["first", "late", "other", "re: other"]


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_foreign_write_during_a_turn_is_neither_lost_nor_buried(store: AgentStore, atomic: bool) -> None:
    """B002: a turn that finds records of others behind its base fails before it writes, and keeps its work."""
    blocked = Blocked("mine")
    used = another(store, atomic=atomic)
    task = asyncio.create_task(Agent(model=blocked.model, store=used).session("s").send("go"))
    await blocked.reached.wait()
    await store.sessions.append("s", [user("theirs")])
    blocked.may_go_on.set()
    with pytest.raises(SessionConflictError):
        await task
    assert await texts(store) == ["theirs"]
    assert await agent(store).session("s").pending() is not None


async def test_order_under_a_clock_that_stands_still(any_store: AgentStore, clock: ManualClock) -> None:
    """B004, B008: records of one instant come back in the order of their writing, and no write is called stale."""

    @tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([[ToolCall("c1", "look")], "done", *map(str, range(50))])
    session = Agent(model=model, tools=[look], store=any_store).session("s")
    want = ["go", "", "seen", "done"]
    await session.send("go")
    for n in range(50):
        await session.send(f"q{n}")
        want += [f"q{n}", str(n)]
    for _ in range(20):
        assert await texts(any_store) == want
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    assert {record["at"] for record in transcript.records} == {clock.now().isoformat()}


async def test_what_callers_change_while_a_turn_runs_is_not_stored(any_store: AgentStore) -> None:
    """B011: the input, the model's answer and a tool's arguments are stored as they were."""
    blocked, parts, metadata = asyncio.Event(), [{"type": "text", "text": "one"}], {"n": [1]}
    reached, answer = asyncio.Event(), {"list": [1]}

    @tool
    async def take(items: Any) -> str:
        items.append("changed by the tool")
        answer["list"].append(2)
        reached.set()
        await blocked.wait()
        return "taken"

    async def model(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool":
            return ModelResponse(text="done")
        return ModelResponse(tool_calls=[ToolCall("c1", "take", {"items": answer["list"]})])

    session = Agent(model=FunctionModel(model), tools=[take], store=any_store).session("s")
    task = asyncio.create_task(session.send(Message("user", parts, metadata=metadata)))
    await reached.wait()
    parts[0]["text"] = "two"
    metadata["n"].append(2)
    blocked.set()
    await task
    messages = await agent(any_store).session("s").load()
    assert (messages[0].text, messages[0].metadata) == ("one", {"n": [1]})
    assert messages[1].tool_calls[0].arguments == {"items": [1]}


async def test_what_a_model_changes_of_its_request_is_not_stored(any_store: AgentStore) -> None:
    """B011: an adapter marks up the very parts and arguments that it is asked with, as some providers want it."""

    @tool
    def look(at: dict[str, str]) -> str:
        return "seen"

    async def marks(request: ModelRequest) -> ModelResponse:
        for message in request.messages:
            for part in message.content if isinstance(message.content, list) else ():
                part["cache_control"] = "ephemeral"
            for call in message.tool_calls:
                call.arguments["at"] = "changed"
            message.metadata["seen"] = True
        if request.messages[-1].role == "user":
            return ModelResponse(tool_calls=[ToolCall("c1", "look", {"at": {"x": "1"}})])
        return ModelResponse(text="done")

    session = Agent(model=FunctionModel(marks), tools=[look], store=any_store).session("s")
    await session.send([{"type": "text", "text": "hello"}])
    asked, called, seen, done = [message.to_record() for message in await agent(any_store).session("s").load()]
    assert asked == {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert called["tool_calls"] == [{"id": "c1", "name": "look", "arguments": {"at": {"x": "1"}}}]
    assert ["metadata" in message for message in (called, seen, done)] == [False, False, False]


async def test_looking_up_what_is_missing_creates_nothing(any_store: AgentStore) -> None:
    """B013: no look-up of any kind leaves a ghost session."""
    for n in range(200):
        session = agent(any_store).session(f"missing-{n}")
        assert list(await session.load()) == []
        assert await session.pending() is None
        assert await any_store.sessions.load(session.id) is None
        assert await any_store.checkpoints.load(session.id) is None
        assert await any_store.approvals.get(f"{session.id}.turn-1.s0.c0") is None
    assert await agent(any_store).pending() == []
    assert await everything(any_store) == {"sessions": [], "runs": [], "approvals": []}


async def test_clear_leaves_nothing_behind(any_store: AgentStore) -> None:
    """B107: after a clear no turn, no input id, no sum, no decision and no text of before reaches the next turn."""

    @tool(needs_approval=True)
    def pay(to: str) -> str:
        return f"paid {to}"

    model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "one"])
    asking = Agent(model=model, store=any_store, tools=[pay])
    waits = await asking.session("s").send("hello", input_id="i1")
    before = await asking.approvals.resolve(waits.approval_ids[0], approved=True)
    model = ScriptedModel(["one"])
    session = Agent(model=model, store=any_store).session("s")
    await session.clear()
    assert (await any_store.approvals.list(session_id="s")).items == ()
    assert (list(session.messages), await session.pending()) == ([], None)
    assert await session.result(before.run_id) is None
    found = await any_store.checkpoints.load("s")
    assert found is not None
    assert (found.entries, found.head.status, found.head.run_id) == ((), "idle", None)
    after = await session.send("hello", input_id="i1")
    assert after.run_id != before.run_id
    assert [message.text for message in model.calls[-1].messages] == ["hello"]
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    assert transcript.records[-1]["spent"] == {**transcript.records[-1]["usage"], "steps": 1, "seconds": 0.0}


async def test_an_aborted_input_is_not_merged_into_the_next(any_store: AgentStore) -> None:
    """B122: what is stored is what the session shows, after an abort as well."""
    blocked = Blocked("never")
    session = Agent(model=blocked.model, store=any_store).session("s")
    task = asyncio.create_task(session.send("a"))
    await blocked.reached.wait()
    await session.abort()
    await task
    live = agent(any_store).session("s")
    await live.send("b")
    assert [message.text for message in live.messages] == await texts(any_store) == ["b", "re: b"]


# --- loops and processes ---


def test_a_store_belongs_to_its_loop(tmp_path: Path) -> None:
    """B073: used from the next loop, a store says so; nothing hangs, and a store of its own works."""
    url = f"sqlite:{tmp_path / 'a.db'}"

    async def use(store: AgentStore) -> None:
        await agent(store).session("s").send("hello")

    async def use_and_leave_open() -> AgentStore:
        store = await open_store(url)
        await use(store)
        return store

    async def close(store: AgentStore) -> None:
        await store.close()

    with asyncio.Runner() as first:
        store = first.run(use_and_leave_open())
        with asyncio.Runner() as second, pytest.raises(WrongLoopError, match="another event loop"):
            second.run(use(store))
        first.run(close(store))

    async def again() -> list[str]:
        async with open_store(url) as own:
            return await texts(own)

    assert asyncio.run(again()) == ["hello", "re: hello"]


def test_a_second_loop_is_refused_while_the_first_runs_a_turn() -> None:
    """B073: two threads share a bundle: neither hangs on a lock of the other's loop."""
    entered, may_go_on = threading.Event(), threading.Event()

    async def answer(_: ModelRequest) -> ModelResponse:
        entered.set()
        await asyncio.to_thread(may_go_on.wait)
        return ModelResponse(text="done")

    async def refused(shared: Session) -> None:
        for call in (shared.send("b"), shared.abort(), shared.clear()):
            with pytest.raises(WrongLoopError):
                await asyncio.wait_for(call, 5)

    async def first() -> str:
        async with open_store("memory:") as store:
            session = Agent(model=FunctionModel(answer), store=store).session("s")
            turn = asyncio.create_task(session.send("a"))
            try:
                await asyncio.to_thread(entered.wait)
                await asyncio.to_thread(asyncio.run, refused(session))
            finally:
                may_go_on.set()
            return (await turn).text

    assert asyncio.run(first()) == "done"


def use_in_a_child(store: AgentStore) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(agent(store).session("s").send("in the child"))
        except WrongLoopError:
            code = 42
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_forked_child_is_refused_and_harms_nobody(tmp_path: Path, scheme: str) -> None:
    """B074: a child that was forked with an open store is told so, and the parent goes on."""
    url = "memory:" if scheme == "memory" else f"sqlite:{tmp_path / 'a.db'}"

    async def parent() -> list[str]:
        async with open_store(url) as store:
            await agent(store).session("s").send("before")
            assert use_in_a_child(store) == 42
            await agent(store).session("s").send("after")
            return await texts(store)

    assert asyncio.run(parent()) == ["before", "re: before", "after", "re: after"]


async def test_a_turn_writes_as_much_in_a_long_conversation_as_in_a_short_one(any_store: AgentStore) -> None:
    """B115: nothing is stored a second time, in the transcript or beside it."""
    sizes: list[int] = []

    async def weigh(call: Call) -> None:
        written = (getattr(operation, "items", ()) for operation in call.operations)
        sizes[-1] += sum(len(item) for items in written for item in items)

    agent = Agent(model=ScriptedModel(["y" * 500] * 60), store=another(any_store, Interception(after=weigh)))
    session = agent.session("s")
    for number in range(60):
        sizes.append(0)
        await session.send("x" * 500, input_id=f"i{number}")
    assert max(sizes[1:]) - min(sizes[1:]) <= 16  # numbers have more digits
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    assert len(transcript.records) == 120
    journal = await any_store.checkpoints.load("s")
    assert journal is not None
    assert journal.entries == ()
