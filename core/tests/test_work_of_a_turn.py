"""How much a step of a turn does, as counts: what it encodes and validates, the tasks it makes, the events that nobody hears."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import Agent, AgentStore, ToolCall, codec, observers, open_store, tool
from perdure.events import RunDone
from perdure.models import ModelResponse, ScriptedModel
from perdure.observers.listening import Channel
from perdure.runtime import asking
from perdure.runtime.tools import Tool

pytestmark = pytest.mark.anyio


@tool(idempotent=True)
async def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}: sent on Monday"


def agent_of(store: AgentStore, steps: int) -> Agent:
    """Return an agent whose turn calls the tool in so many steps, and then answers."""
    calls = [
        ModelResponse("I look it up.", [ToolCall(f"c{number}", "look_up", {"order": number})])
        for number in range(steps)
    ]
    return Agent(model=ScriptedModel([*calls, "It was sent on Monday."]), tools=[look_up], store=store)


async def a_step_adds(counted: Callable[[], int]) -> int:
    """Return what one step more adds to a count in a turn."""
    found = []
    for steps in (3, 4):
        async with open_store("memory:") as store:
            before = counted()
            await agent_of(store, steps).session("s").send("Where is it?")
            found.append(counted() - before)
    return found[1] - found[0]


class Counted:
    """Counts the calls of a function that it stands for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        return self.function(*given, **named)


async def test_a_step_encodes_each_message_for_its_entry_and_for_the_transcript(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = Counted(codec.encode)
    monkeypatch.setattr(codec, "encode", encode)
    # The response, so that the model shares nothing of it; two entries with their heads; two records at the end.
    assert await a_step_adds(lambda: encode.calls) <= 1 + 2 * 2 + 2


async def test_a_step_validates_the_arguments_when_they_come_and_when_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = Counted(Tool.check)
    monkeypatch.setattr(Tool, "check", lambda *given: check(*given))
    assert await a_step_adds(lambda: check.calls) == 2


async def test_a_step_makes_a_task_for_the_model_for_the_tool_and_for_each_write() -> None:
    made: Counter[str] = Counter()

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        made["tasks"] += 1
        return asyncio.Task(work, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(make)  # type: ignore[arg-type]  # reason: the stubs want a factory that is generic
    try:
        assert await a_step_adds(lambda: made["tasks"]) == 4
    finally:
        loop.set_task_factory(None)


async def test_no_event_is_made_that_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    make = Channel.make

    def noted(channel: Channel, kind: type[Any], *given: Any, **facts: Any) -> Any:
        made.append(kind)
        return make(channel, kind, *given, **facts)

    monkeypatch.setattr(Channel, "make", noted)
    monkeypatch.setattr(observers, "wanted", lambda: False)
    monkeypatch.setattr(asking, "wanted", lambda: False)
    heard: list[Any] = []
    async with open_store("memory:") as store:
        session = agent_of(store, 2).session("s")
        await session.send("Where is it?")
        assert made == [RunDone]  # which an input that joins the turn is shown
        session.on(heard.append)
        session.agent.model = ScriptedModel(["", "", "", "Yes."])
        await session.send("Is it here now?")
    # Those of which nobody heard were counted: nine, as a listener would have heard them.
    assert [(event.type, event.seq) for event in heard] == [
        ("run.started", 10),
        ("model.responded", 11),
        ("run.done", 12),
    ]
