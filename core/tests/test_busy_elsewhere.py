"""Inputs for a conversation that another process runs, or a tool of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from core.tests.joining_world import EVERY, Gate, Talk, at_once, begun
from core.tests.processes import another, die_at, elsewhere

from perdure import Agent, AgentStore, Session, ToolCall, TurnResult
from perdure.errors import InvalidArgumentError, SessionBusyError, TurnFailedError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.turns import TurnPolicy
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


# --- a tool that calls its own conversation ---


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("how", ["send", "stream", "submit", "resume", "discard", "clear"])
async def test_a_tool_may_not_call_its_own_conversation(store: AgentStore, policy: TurnPolicy, how: str) -> None:
    talk = Talk(store)
    problems: list[Exception] = []

    async def stream(session: Session) -> None:
        async with session.stream("me") as run:
            async for _ in run:
                pass

    acts: dict[str, Callable[[Session], Awaitable[Any]]] = {
        "send": lambda session: session.send("me"),
        "stream": stream,
        "submit": lambda session: session.submit("me"),
        "resume": lambda session: session.resume(),
        "discard": lambda session: session.discard_pending(),
        "clear": lambda session: session.clear(),
    }

    async def call_it() -> None:
        try:
            await acts[how](talk.session(policy))
        except SessionBusyError as error:
            problems.append(error)

    talk.in_tool = call_it
    async with asyncio.timeout(10):
        assert (await talk.session().send("work")).text == "re: worked"
    assert len(problems) == 1
    assert await talk.texts() == ["work", "", "worked", "re: worked"]


async def test_a_tool_may_not_call_its_own_conversation_through_another(store: AgentStore) -> None:
    talk, problems = Talk(store), list[Exception]()

    async def back() -> str:
        try:
            await talk.session("queue").send("me")
        except SessionBusyError as error:
            problems.append(error)
        return "back"

    async def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        return ModelResponse("ok") if last.role == "tool" else ModelResponse("", [ToolCall("c", "back")])

    other = Agent(model=FunctionModel(answer), tools=[back], store=store, name="other")

    async def call_it() -> None:
        await other.session("t").send("go")

    talk.in_tool = call_it
    async with asyncio.timeout(10):
        await talk.session().send("work")
    assert len(problems) == 1


# --- another process ---


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("named", [True, False])
async def test_a_conversation_that_another_process_runs(store: AgentStore, policy: TurnPolicy, named: bool) -> None:
    with pytest.raises(Died):
        await Talk(another(store, at(2, "die-after"), process=elsewhere())).session().send("hello")
    before = await store.checkpoints.load("s")
    with pytest.raises(SessionBusyError):
        await Talk(store).session(policy).send("more", input_id="m" if named else None)
    assert await store.checkpoints.load("s") == before


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("named", [True, False])
async def test_an_input_waits_for_another_process(
    store: AgentStore, clock: ManualClock, policy: TurnPolicy, named: bool
) -> None:
    there = Talk(another(store, process=elsewhere()))
    gate = there.in_model = Gate()
    running = await begun(gate, there.session().send("hello"))
    here, looked = Talk(store), asyncio.Event()
    session = here.session(policy, busy_timeout=timedelta(seconds=20))
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looked.set()
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: says when it was looked at
    waiting = asyncio.create_task(session.send("more", input_id="m" if named else None))
    await looked.wait()
    gate.opened.set()
    await running
    assert (await waiting).text == "re: more"
    assert await here.texts() == ["hello", "re: hello", "more", "re: more"]


@pytest.mark.parametrize("named", [True, False])
async def test_an_input_waits_no_longer_than_it_may(store: AgentStore, clock: ManualClock, named: bool) -> None:
    there = Talk(another(store, process=elsewhere()))
    gate = there.in_model = Gate()
    running = await begun(gate, there.session().send("hello"))
    here, looks = Talk(store), list[float]()
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=3))
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: each look takes a while
    with pytest.raises(SessionBusyError):
        await here.session(busy_timeout=timedelta(seconds=7)).send("more", input_id="m" if named else None)
    assert looks[:2] == [0.0, 3.0]
    assert looks[-1] <= 9.0
    gate.opened.set()
    await running


async def test_an_input_that_loses_to_another_process_does_not_wait_anew(store: AgentStore, clock: ManualClock) -> None:
    there, interception = Talk(another(store, process=elsewhere())), Interception()
    here, looks = Talk(another(store, interception)), list[float]()
    gate = there.in_model = Gate()
    rivals: list[asyncio.Task[TurnResult]] = []

    async def before(call: Call) -> None:
        if "runs" in str(call) and not rivals:
            clock.advance(timedelta(seconds=5))
            rivals.append(await begun(gate, there.session().send("hello")))

    interception.before = before
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=3))
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: each look takes a while
    with pytest.raises(SessionBusyError):
        await here.session(busy_timeout=timedelta(seconds=7)).send("more")
    assert looks == [5.0]
    gate.opened.set()
    await rivals[0]


async def test_a_time_to_wait_that_is_none(talk: Talk) -> None:
    for wrong in (timedelta(seconds=-1), 3):
        with pytest.raises(InvalidArgumentError, match="busy_timeout"):
            talk.session(busy_timeout=wrong)


async def test_a_failed_turn_takes_no_new_input(talk: Talk) -> None:
    error = ValueError("no")
    error.retryable = False  # type: ignore[attr-defined]  # reason: that is how an error says it

    async def fail() -> None:
        raise error

    talk.in_model = fail
    with pytest.raises(ValueError, match="no"):
        await talk.session("queue").send("hello")
    talk.in_model = at_once
    with pytest.raises(TurnFailedError):
        await talk.session("queue").send("more")
    assert await talk.finish() == ["hello", "re: hello"]
    await die_at(talk.store, 1, lambda used: talk.session("queue", used).send("after"))
    assert await talk.finish() == ["hello", "re: hello", "after", "re: after"]
