"""Aborting drops a turn; cancelling the task of a `send` is a crash, after which the turn is pending."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from core.tests.processes import another, elsewhere

from perdure import Agent, AgentStore, Lease, Session, ToolCall, TurnResult, tool
from perdure.errors import (
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
)
from perdure.events import ModelResponded, RunDone, RunStarted
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, InterceptedJournal, Interception
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class Held:
    """A model, or a tool, that says when it was reached and waits until it may go on."""

    def __init__(self) -> None:
        self.reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.may_go_on.wait()

    def agent(self, store: AgentStore) -> Agent:
        """An agent whose model waits whenever the input is `wait`."""

        async def answer(request: ModelRequest) -> ModelResponse:
            if request.messages[-1].text == "wait":
                await self.wait()
            return ModelResponse(text=f"re: {request.messages[-1].text}")

        return Agent(model=FunctionModel(answer), store=store)

    def paying(self, store: AgentStore, **options: Any) -> Agent:
        """An agent whose tool waits."""

        @tool(**options)
        async def pay() -> str:
            await self.wait()
            return "paid"

        return Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done", "more"]), tools=[pay], store=store)


async def start(held: Held, send: Awaitable[TurnResult]) -> asyncio.Task[TurnResult]:
    task = asyncio.ensure_future(send)
    await held.reached.wait()
    return task


async def texts(session: Session) -> list[str]:
    return [message.text for message in await session.load()]


# --- abort ---


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_abort_from_another_session_object(any_store: AgentStore, where: str) -> None:
    held = Held()
    agent = held.agent(any_store) if where == "model" else held.paying(any_store)
    task = await start(held, agent.session("s").send("wait"))
    assert await agent.session("s").abort() is True
    result = await task
    assert result.finish_reason == "aborted"
    assert await agent.session("s").pending() is None
    assert await texts(agent.session("s")) == []
    assert await agent.session("s").result(result.run_id) is None
    other = Agent(model=ScriptedModel(["again"]), store=any_store)
    assert (await other.session("s").send("more")).text == "again"  # an aborted turn is absent: nothing is merged


async def test_abort_cancels_what_was_asked(store: AgentStore) -> None:
    held = Held()

    @tool(needs_approval=True)
    def gated() -> None: ...

    @tool
    async def free() -> None:
        await held.wait()

    model = ScriptedModel([[ToolCall("c1", "gated"), ToolCall("c2", "free")]])
    session = Agent(model=model, tools=[gated, free], store=store).session("s")
    task = await start(held, session.send("go"))
    await session.abort()
    assert (await task).finish_reason == "aborted"
    (approval,) = (await store.approvals.list()).items
    assert approval.status == "cancelled"


@pytest.mark.parametrize("write", [1, 2], ids=["session", "journal"])
async def test_abort_while_the_turn_is_being_opened(store: AgentStore, write: int) -> None:
    """Whoever stops a turn right after it was sent does not wait for its end; the next in line is not touched."""
    held, opening = Held(), Held()
    interception = Interception()
    agent = held.agent(another(store, interception))

    async def before(call: Call) -> None:
        if call.number == write:
            await opening.wait()

    interception.before = before
    task = await start(opening, agent.session("s").send("wait"))
    next_in_line = asyncio.create_task(agent.session("s").send("next"))
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    opening.may_go_on.set()
    assert await abort is True
    assert (await task).finish_reason == "aborted"
    assert (await next_in_line).text == "re: next"
    assert await texts(agent.session("s")) == ["next", "re: next"]


async def test_abort_while_a_call_without_a_turn_is_served(store: AgentStore) -> None:
    held, interception = Held(), Interception()
    agent = held.agent(another(store, interception))
    await agent.session("s").send("hello")

    async def before(_: Call) -> None:
        await held.wait()

    interception.before = before
    clear = asyncio.create_task(agent.session("s").clear())
    await held.reached.wait()
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    held.may_go_on.set()
    await clear
    assert await abort is False


async def test_a_tool_may_abort_its_own_turn(store: AgentStore) -> None:
    @tool
    async def stop() -> None:
        await agent.session("s").abort()

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "stop")], "never"]), tools=[stop], store=store)
    assert (await agent.session("s").send("go")).finish_reason == "aborted"
    assert await agent.session("s").pending() is None


async def test_abort_while_the_turn_is_being_saved_lets_it_be_saved(store: AgentStore) -> None:
    held, interception = Held(), Interception()
    agent = held.agent(another(store, interception))

    async def before(call: Call) -> None:
        if "Replace" in str(call):
            await held.wait()

    interception.before = before
    task = await start(held, agent.session("s").send("hello"))
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    held.may_go_on.set()
    assert await abort is True
    assert (await task).finish_reason == "stop"
    assert await texts(agent.session("s")) == ["hello", "re: hello"]


async def test_an_abort_that_could_not_drop_the_turn_says_so(store: AgentStore) -> None:
    held, interception = Held(), Interception()
    agent = held.agent(another(store, interception))
    task = await start(held, agent.session("s").send("wait"))

    async def away(_: Call) -> None:
        raise StoreUnavailableError("write", "s")

    interception.before = away
    with pytest.raises(StoreUnavailableError):
        await agent.session("s").abort()
    with pytest.raises(StoreUnavailableError):
        await task
    interception.before = None
    assert await agent.session("s").pending() is not None
    assert await agent.session("s").abort() is True
    assert await agent.session("s").pending() is None


async def test_an_abort_of_a_turn_that_is_interrupted_at_once_says_that_it_is_pending(store: AgentStore) -> None:
    held = Held()
    agent = held.agent(store)
    task = await start(held, agent.session("s").send("wait"))
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    task.cancel()
    assert await abort is (await agent.session("s").pending() is None)
    with pytest.raises(asyncio.CancelledError):
        await task


class Three:
    """An agent whose model calls a tool three times at once, and what has become of the calls."""

    def __init__(self, store: AgentStore) -> None:
        self.begun, self.ended = asyncio.Event(), list[str]()

        @tool
        async def pay(to: str) -> str:
            self.begun.set()
            await asyncio.sleep(0)
            self.ended.append(to)
            return "paid"

        calls = [ToolCall(f"c{place}", "pay", {"to": f"{place}"}) for place in range(3)]
        self.agent = Agent(model=ScriptedModel([calls, "done"]), tools=[pay], store=store)


@pytest.mark.parametrize("first", ["abort", "cancel"])
@pytest.mark.parametrize("where", ["model", "tools"])
async def test_a_turn_that_is_aborted_and_cancelled_keeps_no_lease_and_no_result_to_itself(
    store: AgentStore, where: str, first: str
) -> None:
    """Whichever comes first, and wherever the turn is: its writes are whole, and it is dropped, or anybody's."""
    bundle = another(store, Interception(before=paused, after=paused))
    for rounds, between in itertools.product(range(25), range(0, 16, 3)):
        three = Three(bundle)
        session = three.agent.session(f"s{rounds}-{between}")
        sending = asyncio.create_task(session.send("go"))
        if where == "tools":
            await three.begun.wait()
        for _ in range(rounds):
            await asyncio.sleep(0)
        if first == "cancel":
            sending.cancel()
        aborting = asyncio.create_task(session.abort())
        for _ in range(between):
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending, aborting])
        for _ in range(40):  # what is written behind the cancellation
            await asyncio.sleep(0)
        found = await store.checkpoints.load(session.id)
        if found is not None:
            assert found.head.owner is None, (rounds, between)
            if found.head.status == "in-progress":
                recorded = sum(entry["kind"] == "tool" for entry in found.entries)
                assert recorded == len(three.ended), (rounds, between)


async def test_a_stream_that_is_left_while_it_opens_its_turn_and_cancelled_keeps_no_lease(store: AgentStore) -> None:
    bundle = another(store, Interception(("read", "write"), before=paused, after=paused))

    async def leave(session: Session, rounds: int) -> None:
        async with session.stream("go"):
            for _ in range(rounds):
                await asyncio.sleep(0)

    for rounds, between in itertools.product(range(2, 20, 2), range(20)):
        session = Agent(model=ScriptedModel(["never"]), store=bundle).session(f"s{rounds}-{between}")
        leaving = asyncio.create_task(leave(session, rounds))
        for _ in range(rounds + between):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        for _ in range(40):  # what is written behind the cancellation
            await asyncio.sleep(0)
        found = await store.checkpoints.load(session.id)
        assert found is None or found.head.owner is None, (rounds, between)


async def test_a_turn_that_is_stopped_twice_waits_for_its_tools(store: AgentStore) -> None:
    """While one of them still cleans up, nobody else may take the turn and call it again."""
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def pay(to: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.append(to)
        return "never"

    calls = [ToolCall(f"c{place}", "pay", {"to": f"{place}"}) for place in range(2)]
    session = Agent(model=ScriptedModel([calls, "done"]), tools=[pay], store=store).session("s")
    sending = asyncio.create_task(session.send("go"))
    await begun.wait()
    await asyncio.sleep(0)  # both have begun
    aborting = asyncio.create_task(session.abort())
    await asyncio.sleep(0)
    sending.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (sending.done(), found.head.owner is not None) == (False, True)
    may_end.set()
    assert await aborting is False
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert ended == ["0", "1"]
    pending = await session.pending()
    assert pending is not None
    assert pending.owner is None


async def test_a_turn_is_aborted_although_its_task_has_kept_a_cancellation_to_itself_before(store: AgentStore) -> None:
    held = Held()
    session = held.agent(store).session("s")

    async def send() -> TurnResult:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await session.send("wait")

    task = await start(held, send())
    assert await session.abort() is True
    assert (await task).finish_reason == "aborted"
    assert await session.pending() is None


async def test_abort_between_waiting_and_looking_once_more(store: AgentStore) -> None:
    """An abort that comes while a turn is about to wait is not lost."""
    held, interception = Held(), Interception()

    @tool(needs_approval=True)
    def pay() -> None: ...

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")]]), tools=[pay], store=another(store, interception))

    async def after(call: Call) -> None:
        if call.number == 6:  # the turn was set to wait
            await held.wait()

    interception.after = after
    task = await start(held, agent.session("s").send("go"))
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    held.may_go_on.set()
    await abort
    assert (await task).finish_reason == "aborted"
    assert await agent.session("s").pending() is None


async def test_an_abort_drops_a_turn_that_is_marked_ready_meanwhile(store: AgentStore) -> None:
    held, interception = Held(), Interception()

    @tool(needs_approval=True)
    def pay() -> None: ...

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")]]), tools=[pay], store=another(store, interception))

    async def before(call: Call) -> None:
        if call.number == 7:  # the claim that drops the turn, at the version that was read before
            (approval,) = (await store.approvals.list()).items
            await store.decide(approval.id, approved=True)

    async def after(call: Call) -> None:
        if call.number == 6:  # the turn was set to wait
            await held.wait()

    interception.before, interception.after = before, after
    task = await start(held, agent.session("s").send("go"))
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    held.may_go_on.set()
    await abort
    assert (await task).finish_reason == "aborted"
    assert await agent.session("s").pending() is None


# --- cancelling the task of a send ---


@pytest.mark.parametrize("where", ["model", "idempotent", "doubtful"])
async def test_a_cancelled_send_leaves_the_turn_pending(any_store: AgentStore, where: str) -> None:
    held = Held()
    agent = held.agent(any_store) if where == "model" else held.paying(any_store, idempotent=where == "idempotent")
    task = await start(held, agent.session("s").send("wait"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pending = await agent.session("s").pending()
    assert pending is not None
    assert (pending.status, pending.owner) == ("in-progress", None)  # given up in the same breath
    held.may_go_on.set()
    if where == "doubtful":
        with pytest.raises(ToolOutcomeUnknownError):
            await agent.session("s").resume()
        return
    result = await agent.session("s").resume()
    assert result is not None
    assert result.finish_reason == "stop"


async def test_a_send_that_is_cancelled_in_line_writes_nothing(store: AgentStore) -> None:
    held = Held()
    agent = held.agent(store)
    first = await start(held, agent.session("s").send("wait"))
    second = asyncio.create_task(agent.session("s").send("never"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    held.may_go_on.set()
    await first
    assert await texts(agent.session("s")) == ["wait", "re: wait"]


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_send_that_is_cancelled_while_it_is_saved_is_saved(store: AgentStore, atomic: bool) -> None:
    held, interception = Held(), Interception()
    agent = held.agent(another(store, interception, atomic=atomic))

    async def before(call: Call) -> None:
        if call.number == 4:
            await held.wait()

    interception.before = before
    task = await start(held, agent.session("s").send("hello"))
    task.cancel()
    held.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await agent.session("s").pending() is None
    assert await texts(agent.session("s")) == ["hello", "re: hello"]


@pytest.mark.parametrize("times", [1, 2])
async def test_that_a_turn_was_saved_is_told_also_if_its_send_is_cancelled_meanwhile(
    store: AgentStore, times: int
) -> None:
    held, interception, ended, heard = Held(), Interception(), asyncio.Event(), list[type]()

    async def before(call: Call) -> None:
        if "Replace" in str(call):
            await held.wait()

    async def listen(event: object) -> None:
        heard.append(type(event))
        if isinstance(event, RunDone):
            ended.set()

    interception.before = before
    session = held.agent(another(store, interception)).session("s")
    session.on(listen)
    task = await start(held, session.send("hello"))
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    held.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()
    assert heard == [RunStarted, ModelResponded, RunDone]
    assert await texts(session) == ["hello", "re: hello"]


async def test_a_cancelled_sync_tool_is_in_doubt(store: AgentStore) -> None:
    loop = asyncio.get_running_loop()
    reached, may_end = asyncio.Event(), threading.Event()

    @tool(in_doubt="fail")
    def pay() -> str:
        loop.call_soon_threadsafe(reached.set)
        may_end.wait(60)
        return "paid"

    session = Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=store).session("s")
    task = asyncio.create_task(session.send("go"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    result = await session.resume()
    assert result is not None
    assert "not known" in result.messages[2].text


# --- taken over ---


async def taken_over(
    store: AgentStore, clock: ManualClock, act: Callable[[Agent], Awaitable[Any]]
) -> tuple[asyncio.Task[TurnResult], Held]:
    """A process that sleeps in its model for so long that another acts on the conversation."""
    held = Held()
    sleeper = held.agent(another(store, process=elsewhere(), lease=Lease()))
    task = await start(held, sleeper.session("s").send("wait"))
    clock.advance(Lease().length + Lease().max_clock_skew * 2)
    other = Held()
    other.may_go_on.set()
    await act(other.agent(store))
    return task, held


async def test_a_sleeper_returns_the_result_that_another_saved(any_store: AgentStore, clock: ManualClock) -> None:
    task, held = await taken_over(any_store, clock, lambda agent: agent.resume("s"))
    held.may_go_on.set()
    result = await task
    assert (result.text, result.finish_reason) == ("re: wait", "stop")
    assert await texts(held.agent(any_store).session("s")) == ["wait", "re: wait"]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda agent: agent.session("s").discard_pending(), SessionConflictError),
        (lambda agent: agent.session("s").clear(), SessionConflictError),
        (lambda agent: agent.store.delete_session("s"), SessionDeletedError),
    ],
)
async def test_a_sleeper_whose_turn_is_gone_writes_nothing(
    store: AgentStore, clock: ManualClock, act: Callable[[Agent], Awaitable[Any]], error: type[Exception]
) -> None:
    task, held = await taken_over(store, clock, act)
    before = await store.checkpoints.load("s"), await store.sessions.load("s")
    held.may_go_on.set()
    with pytest.raises(error):
        await task
    assert (await store.checkpoints.load("s"), await store.sessions.load("s")) == before


async def test_a_sleeper_whose_turn_another_still_runs(store: AgentStore, clock: ManualClock) -> None:
    again = Held()
    running: list[asyncio.Task[Any]] = []

    async def act(_: Agent) -> None:
        running.append(asyncio.create_task(again.agent(store).resume("s")))
        await again.reached.wait()

    task, held = await taken_over(store, clock, act)
    held.may_go_on.set()
    with pytest.raises(SessionBusyError):
        await task
    again.may_go_on.set()
    assert (await running[0]).text == "re: wait"


async def test_a_send_that_is_cancelled_while_it_opens_its_turn_keeps_no_lease(store: AgentStore) -> None:
    """Other hosts need not wait for the lease of an owner that gave up before it began."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def before(call: Call) -> None:
        if any(operation.key.part == "runs" for operation in call.operations) and not reached.is_set():
            reached.set()
            await go_on.wait()

    assert isinstance(store.sessions, JournalSessions)
    stores = journal_stores(InterceptedJournal(store.sessions.journal, Interception(before=before)))
    bundle = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)
    task = asyncio.create_task(Agent(model=ScriptedModel(["never"]), store=bundle).session("s").send("hello"))
    await reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (found.head.status, found.head.owner, found.head.lease_expires_at) == ("in-progress", None, None)
    assert [entry["kind"] for entry in found.entries] == ["input"]


async def test_an_abort_of_a_turn_that_somebody_else_has_taken_says_who_runs_it(any_store: AgentStore) -> None:
    clock = any_store.clock
    assert isinstance(clock, ManualClock)
    held, begun = asyncio.Event(), asyncio.Event()

    async def hold(_: ModelRequest) -> ModelResponse:
        begun.set()
        await held.wait()
        return ModelResponse(text="done")

    there = another(any_store, process=elsewhere())
    here = Agent(model=FunctionModel(hold), store=any_store).session("s")
    running = asyncio.create_task(here.send("go"))
    await begun.wait()
    begun.clear()
    clock.advance(timedelta(hours=1))
    taken = asyncio.create_task(Agent(model=FunctionModel(hold), store=there).session("s").resume())
    await begun.wait()
    with pytest.raises(SessionBusyError):
        await here.abort()
    with pytest.raises(SessionBusyError):
        await running
    held.set()
    result = await taken
    assert result is not None
    assert result.text == "done"
    assert len(await here.load()) == 2


# --- cancelled again and again ---


async def paused(_: Call) -> None:
    """Let the loop turn in the middle of a write."""
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["twice", "scope"])
async def test_a_send_that_is_cancelled_again_and_again_keeps_no_lease(store: AgentStore, how: str) -> None:
    """A cancel scope of anyio cancels in every round of the loop, wherever the turn is: nobody has to wait for it."""

    @tool(in_doubt="rerun")
    async def pay() -> str:
        try:
            await asyncio.sleep(0)
        finally:
            for _ in range(3):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        return "paid"

    bundle = another(store, Interception(before=paused, after=paused))
    sender, other = (
        Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=used)
        for used in (bundle, another(store, process=elsewhere()))
    )
    held = set(bundle.ownership.process.held)  # of other tests in this process
    for rounds in range(45):
        name, scope = f"s{rounds}", anyio.CancelScope()

        async def send(name: str = name, scope: anyio.CancelScope = scope) -> None:
            with scope:
                await sender.session(name).send("go")

        task = asyncio.create_task(send())
        for _ in range(rounds):
            await asyncio.sleep(0)
        if how == "scope":
            scope.cancel()
        for _ in range(2):
            if how == "twice":
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        for _ in range(40):  # what is written behind the cancellation
            await asyncio.sleep(0)
        found = await store.checkpoints.load(name)
        assert found is None or found.head.owner is None, rounds
        assert bundle.ownership.process.held == held
        await other.session(name).resume()
        assert [message.text for message in await other.session(name).load()] in ([], ["go", "", "paid", "done"])
