"""Spans: which there are, whose children they are, and what they say."""

from __future__ import annotations

import asyncio

import pytest
from integrations.otel.tests.reported import SECRET, Clock, Reported, asks, facts, identity, is_child, look_up, within
from opentelemetry.trace import SpanKind, StatusCode

from perdure import Agent, AgentStore, ToolCall, observers, open_store, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel

pytestmark = pytest.mark.anyio


async def test_a_turn_is_one_trace_of_its_requests_tools_and_store_calls(reported: Reported, store: AgentStore) -> None:
    model = ScriptedModel([asks(ToolCall("c1", "look_up", {"order": SECRET})), "Found."], name="small")
    agent = Agent(model=model, tools=[look_up], store=store, name="clerk")
    with reported.tracer.start_as_current_span("POST /orders") as request:
        result = await agent.session("s").send(f"Where is {SECRET}?")
    turn = await reported.span("invoke_agent clerk")
    assert turn.parent == request.get_span_context()
    assert facts(turn) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "perdure.usage.cost_usd": 0.0,
        "perdure.run.id": result.run_id,
        "perdure.run.resumed": False,
        "perdure.finish_reason": "stop",
    }
    chats, call = await reported.spans("chat small"), await reported.span("execute_tool look_up")
    assert [is_child(span, turn) and within(span, turn) for span in (*chats, call)] == [True] * 3
    assert chats[0].kind is SpanKind.CLIENT
    assert facts(chats[0]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    assert "gen_ai.usage.input_tokens" not in facts(chats[1])  # not told is not zero
    assert facts(call) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
        "perdure.attempt": 1,
    }
    written = [span for span in await reported.spans("checkpoints.") if is_child(span, call)]
    assert [span.name for span in written] == ["checkpoints.append"]
    assert written[0].kind is SpanKind.CLIENT
    assert all(identity(span).trace_id == identity(turn).trace_id for span in reported.exporter.get_finished_spans())


async def test_parallel_tools_are_siblings_and_each_has_what_is_done_for_it(
    reported: Reported, store: AgentStore
) -> None:
    inner = Agent(model=ScriptedModel(["yes"]), store=store, name="inner")

    @tool(idempotent=True)
    async def consult(about: str) -> str:
        return (await inner.session(f"about-{about}").send("Well?")).text

    calls = [ToolCall(f"c{about}", "consult", {"about": about}) for about in "abc"]
    outer = Agent(model=ScriptedModel([calls, "Done."]), tools=[consult], store=store, name="outer")
    await outer.session("s").send("Ask all of them")
    turn = await reported.span("invoke_agent outer")
    tools = {facts(span)["gen_ai.tool.call.id"]: span for span in await reported.spans("execute_tool consult")}
    assert {call_id: is_child(span, turn) for call_id, span in tools.items()} == dict.fromkeys(("ca", "cb", "cc"), True)
    consulted = await reported.spans("invoke_agent inner")
    assert len(consulted) == 3
    for span in consulted:
        about = facts(span)["gen_ai.conversation.id"].removeprefix("about-")
        assert is_child(span, tools[f"c{about}"])
        assert within(span, tools[f"c{about}"])
    for chat in (span for span in await reported.spans("chat") if not is_child(span, turn)):
        assert sum(is_child(chat, span) for span in consulted) == 1


async def test_calls_that_a_model_names_alike_each_have_a_span(reported: Reported, store: AgentStore) -> None:
    calls = [ToolCall("same", "look_up", {"order": order}) for order in ("7", "8")]
    agent = Agent(model=ScriptedModel([calls, "Found."]), tools=[look_up], store=store)
    await agent.session("s").send("Find them")
    spans = await reported.spans("execute_tool look_up")
    assert [(facts(span)["gen_ai.tool.call.id"], span.status.status_code) for span in spans] == [
        ("same", StatusCode.UNSET)
    ] * 2


async def test_a_turn_that_waits_ends_its_span_and_the_resumed_one_is_linked_to_it(
    reported: Reported, store: AgentStore
) -> None:
    @tool(needs_approval=True)
    def pay(to: str) -> str:
        return f"paid {to}"

    calls = [ToolCall("c1", "pay", {"to": "ann"}), ToolCall("c2", "pay", {"to": "bob"})]
    agent = Agent(model=ScriptedModel([calls, "Paid."]), tools=[pay], store=store)
    result = await agent.session("s").send("Pay both")
    waiting = await reported.span("invoke_agent agent")
    assert facts(waiting)["perdure.finish_reason"] == "awaiting-approval"
    assert [event.name for event in waiting.events] == ["perdure.approval.requested"] * 2
    await store.decide(result.approval_ids[0], approved=True)
    await agent.approvals.resolve(result.approval_ids[1], approved=False)
    _, resumed = await reported.spans("invoke_agent agent")
    assert [link.context.span_id for link in resumed.links] == [identity(waiting).span_id]
    assert (facts(resumed)["perdure.run.resumed"], facts(resumed)["perdure.attempt"]) == (True, 2)
    assert facts(resumed)["perdure.run.id"] == facts(waiting)["perdure.run.id"] == result.run_id
    decided = [dict(event.attributes or {}) for event in resumed.events if event.name == "perdure.approval.decided"]
    assert sorted(str(event["perdure.approval.status"]) for event in decided) == ["approved", "rejected"]
    (not_run,) = [event for event in resumed.events if event.name == "perdure.tool.not_run"]
    assert (not_run.attributes or {})["gen_ai.tool.call.id"] == "c2"
    assert [facts(span)["gen_ai.tool.call.id"] for span in await reported.spans("execute_tool pay")] == ["c1"]
    counted = {
        point["perdure.approval.status"]: found.value for point, found in await reported.points("perdure.approvals")
    }
    assert counted == {"requested": 2, "approved": 1, "rejected": 1}


async def test_a_run_that_was_taken_up_in_another_process_has_no_link_and_says_that_it_was_resumed(
    store: AgentStore,
) -> None:
    agent = Agent(model=ScriptedModel([ConnectionError("away")]), store=store)
    with pytest.raises(ConnectionError):
        await agent.session("s").send("Hi")
    later = Reported()
    observers.register(later.telemetry)
    try:
        await Agent(model=ScriptedModel(["Hello"]), store=store).session("s").resume()
        resumed = await later.span("invoke_agent agent")
    finally:
        observers.unregister(later.telemetry)
    assert (len(resumed.links), facts(resumed)["perdure.run.resumed"]) == (0, True)


async def test_two_stores_that_hold_the_same_session_do_not_mix_their_spans(reported: Reported) -> None:
    async def turn(name: str, store: AgentStore, asked: asyncio.Event, other: asyncio.Event) -> None:
        async def answer(request: ModelRequest) -> ModelResponse:
            asked.set()
            await other.wait()
            return ModelResponse(text=name)

        with reported.tracer.start_as_current_span(name):
            await Agent(model=FunctionModel(answer, name=name), store=store, name=name).session("same").send("Hi")

    one, two = asyncio.Event(), asyncio.Event()
    async with open_store("memory:", clock=Clock()) as first, open_store("memory:", clock=Clock()) as second:
        await asyncio.gather(turn("a", first, one, two), turn("b", second, two, one))
        for name in "ab":
            spans = [await reported.span(f"invoke_agent {name}"), await reported.span(f"chat {name}")]
            assert is_child(spans[1], spans[0])
            assert identity(spans[0]).trace_id == identity(await reported.span(name)).trace_id
