"""How much a step of a turn does, as counts: what it encodes and validates, the tasks it makes, the events that nobody hears."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import Agent, AgentStore, Message, ToolCall, codec, observers, open_store, tool
from perdure.events import RunDone
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure.observers.listening import Channel
from perdure.ownership.uninterrupted import Work
from perdure.runtime.tools import Tool
from perdure.runtime.transcript.joined_messages import JoinedMessages
from perdure.runtime.turn import asking

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
    # The response, so that the model shares nothing of it; two entries, whose head stays the same; two records at the end.
    assert await a_step_adds(lambda: encode.calls) <= 1 + 2 + 2


async def test_a_step_validates_the_arguments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Counted(Tool.check)
    monkeypatch.setattr(Tool, "check", lambda *given: check(*given))
    assert await a_step_adds(lambda: check.calls) == 1


async def test_a_turn_makes_a_task_to_open_its_journal_beside_its_own_and_a_step_makes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Counter[str] = Counter()
    begin = Counted(Work.__init__)  # work is not made by the loop
    monkeypatch.setattr(Work, "__init__", lambda *given, **named: begin(*given, **named))

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        made["tasks"] += 1
        return asyncio.Task(work, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(make)  # type: ignore[arg-type]  # reason: the stubs want a factory that is generic
    try:
        async with open_store("memory:") as store:
            await agent_of(store, 1).session("s").send("Where is it?")
            assert made["tasks"] + begin.calls == 2
        assert await a_step_adds(lambda: made["tasks"] + begin.calls) == 0
    finally:
        loop.set_task_factory(None)


async def test_a_step_that_waits_for_nothing_lets_others_go_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    soon = Counted(loop.call_soon)
    monkeypatch.setattr(loop, "call_soon", soon)
    assert await a_step_adds(lambda: soon.calls) == 1


async def test_no_event_is_made_that_nobody_hears(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.runs")
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


class Profiled:
    """Counts what is called, function by function, while each of ten steps runs: early ones and late ones.

    Attributes:
        counts: The calls in ten steps, by the step that they begin with.
    """

    def __init__(self, *begins: int) -> None:
        self.counts = dict.fromkeys(begins, 0)
        self._now: int | None = None
        self._asked = 0

    async def answer(self, request: ModelRequest) -> ModelResponse:
        """Call the tool in each step."""
        self._asked += 1
        self._now = next((begin for begin in self.counts if begin <= self._asked < begin + 10), None)
        call = ToolCall(f"c{self._asked:06}", "look_up", {"order": 7})
        return ModelResponse("I look it up.", [call] if self._asked < max(self.counts) + 10 else [])

    def note(self, _frame: object, event: str, _argument: object) -> None:
        """Count a call; what it iterates over in C is none."""
        if self._now is not None and event in ("call", "c_call"):
            self.counts[self._now] += 1


async def test_a_late_step_calls_as_many_functions_as_an_early_one() -> None:
    profiled = Profiled(10, 300)
    async with open_store("memory:") as store:
        session = Agent(model=FunctionModel(profiled.answer), tools=[look_up], store=store).session("s")
        sys.setprofile(profiled.note)
        try:
            await session.send("Where is it?")
        finally:
            sys.setprofile(None)
    early, late = profiled.counts.values()
    assert abs(late - early) <= 0.02 * early, profiled.counts


async def test_a_model_is_asked_with_the_messages_as_they_were() -> None:
    one, two, three = (Message("user", text) for text in ("one", "two", "three"))
    begun, more = [one], [two]
    joined = JoinedMessages(begun, [], more)
    begun.append(three)
    assert (joined[0], joined[1], joined[-1], joined[-2]) == (one, two, two, one)
    assert (list(joined), list(reversed(joined)), len(joined)) == ([one, two], [two, one], 2)
    assert joined[:1] == (one,)
    assert joined[5:] == ()
    assert joined == (one, two) == joined
    assert joined != (one,)
    assert joined != 1
    assert two in joined
    assert three not in joined
    assert repr(joined) == repr((one, two))
    for place in (2, -3):
        with pytest.raises(IndexError):
            joined[place]
