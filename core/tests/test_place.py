"""What observers hear of besides the events of a conversation, and what each event belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, AgentStore, ToolCall, Usage, observers, tool
from perdure.backend import hookimpl
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel, TextDelta
from perdure.place import Place, place

pytestmark = pytest.mark.anyio

request_id: ContextVar[str] = ContextVar("request_id", default="")


class Placed:
    """Keeps what it hears, with the place and the request that it belongs to."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, Place | None, str]] = []

    @hookimpl
    def perdure_event(self, event: Any) -> None:
        self.heard.append((event, place(), request_id.get()))

    def of(self, kind: str) -> list[tuple[Any, Place | None, str]]:
        return [heard for heard in self.heard if heard[0].type == kind]

    def last(self, kind: str) -> Any:
        return self.of(kind)[-1][0]


@pytest.fixture
def placed() -> Iterator[Placed]:
    observer = Placed()
    observers.register(observer)
    yield observer
    observers.unregister(observer)


async def test_a_hook_is_called_in_the_context_of_whoever_sent_the_event(placed: Placed, store: AgentStore) -> None:
    agent = Agent(model=ScriptedModel(["Hello!"]), store=store)

    async def serve(name: str) -> None:
        request_id.set(name)
        await agent.session(name).send("Hi")

    await asyncio.gather(serve("a"), serve("b"))
    await observers.catch_up()
    done = placed.of("run.done")
    assert sorted((event.session_id, request) for event, _, request in done) == [("a", "a"), ("b", "b")]
    assert [here.run.session_id for event, here, _ in done if here] == [event.session_id for event, _, _ in done]


async def test_what_has_no_ids_is_placed_in_its_run_and_its_call(placed: Placed, store: AgentStore) -> None:
    @tool(idempotent=True)
    async def note(text: str) -> str:
        await store.sessions.append("notes", [{"text": text}])
        return "noted"

    calls = [ToolCall(f"c{n}", "note", {"text": f"{n}"}) for n in range(3)]
    agent = Agent(model=ScriptedModel([calls, "Done."]), tools=[note], store=store, name="clerk")
    result = await agent.session("s").send("Note these")
    await observers.catch_up()
    within = [here for event, here, _ in placed.of("store.called") if event.part == "sessions" and here]
    assert {here.tool_call_id for here in within} >= {"c0", "c1", "c2"}
    assert {(here.run.run_id, here.run.session_id, here.run.agent) for here in within} == {
        (result.run_id, "s", "clerk")
    }
    assert len({here.run for _, here, _ in placed.of("model.called") if here}) == 1
    assert place() is None


async def test_a_run_that_a_tool_starts_knows_whose_call_it_serves(placed: Placed, store: AgentStore) -> None:
    inner = Agent(model=ScriptedModel(["42"]), store=store, name="inner")

    @tool(idempotent=True)
    async def consult() -> str:
        return (await inner.session("inner").send("The answer?")).text

    outer = Agent(model=ScriptedModel([[ToolCall("c1", "consult")], "It is 42."]), tools=[consult], store=store)
    await outer.session("outer").send("Ask")
    await observers.catch_up()
    (left, here, _), (_, above, _) = placed.of("run.left")
    assert left.session_id == "inner"
    assert here is not None
    assert above is not None
    assert (here.tool_call_id, here.run.outer) == (None, Place(above.run, "c1"))


async def test_model_called_tells_the_time_the_cost_and_the_end(placed: Placed, store: AgentStore) -> None:
    async def answer(request: ModelRequest) -> AsyncIterator[object]:
        yield TextDelta("Hel")
        yield ModelResponse(text="Hello", usage=Usage(input_tokens=3, output_tokens=1, requests=1))

    model = FunctionModel(answer, name="small")
    await Agent(model=model, store=store).session("s").send("Hi")
    await observers.catch_up()
    called = placed.last("model.called")
    assert (called.model, called.provider, called.outcome, called.usage.input_tokens) == ("small", None, "ok", 3)
    assert called.first_text is not None
    assert timedelta(0) <= called.first_text <= called.duration


async def test_model_called_names_the_error_of_a_request_that_failed(placed: Placed, store: AgentStore) -> None:
    agent = Agent(model=ScriptedModel([ConnectionError("no route")]), store=store)
    with pytest.raises(ConnectionError):
        await agent.session("s").send("Hi")
    await observers.catch_up()
    called, left = placed.last("model.called"), placed.last("run.left")
    assert (called.outcome, called.first_text, called.usage) == ("ConnectionError", None, Usage())
    assert (left.finish_reason, left.error) == (None, "ConnectionError")


async def test_run_left_is_told_of_a_turn_that_waits_or_is_cut_off(placed: Placed, store: AgentStore) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "Paid."]), tools=[pay], store=store)
    await agent.session("s").send("Pay")
    await observers.catch_up()
    left = placed.last("run.left")
    assert (left.session_id, left.finish_reason, left.error) == ("s", "awaiting-approval", None)

    begun = asyncio.Event()

    async def never(request: ModelRequest) -> ModelResponse:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    sending = asyncio.create_task(Agent(model=FunctionModel(never), store=store).session("t").send("Hi"))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await observers.catch_up()
    left = placed.last("run.left")
    assert (left.session_id, left.finish_reason, left.error) == ("t", None, "CancelledError")
    assert placed.last("model.called").outcome == "CancelledError"
