"""What is reported, as OpenTelemetry's own SDK keeps it in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from perdure import Agent, AgentStore, Message, ToolCall, Usage, observers, open_store, tool
from perdure.errors import PropagatingToolError
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel, TextDelta
from perdure_otel import Telemetry

pytestmark = pytest.mark.anyio

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECRET = "order 7 of Ann"


class Clock:
    """A second passes with each look at it."""

    def __init__(self) -> None:
        self.seconds = 0

    def now(self) -> datetime:
        self.seconds += 1
        return NOON + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        self.seconds += 1
        return float(self.seconds)


class Reported:
    """What was reported, after all observers have heard of everything."""

    def __init__(self, *, capture_content: bool = False) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        self.tracer = self.tracers.get_tracer("application")
        self.telemetry = Telemetry(
            tracer_provider=self.tracers, meter_provider=self.meters, capture_content=capture_content
        )

    async def spans(self, prefix: str = "") -> list[ReadableSpan]:
        assert await observers.catch_up(60)
        spans = [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]
        return sorted(spans, key=lambda span: span.start_time or 0)

    async def span(self, name: str) -> ReadableSpan:
        (span,) = [span for span in await self.spans(name) if span.name == name]
        return span

    async def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        assert await observers.catch_up(60)
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name]
        return [(dict(point.attributes or {}), point) for metric in found for point in metric.data.data_points]

    def everything(self) -> str:
        spans = "".join(span.to_json() for span in self.exporter.get_finished_spans())
        data = self.reader.get_metrics_data()
        return spans + ("" if data is None else data.to_json())


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def identity(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def within(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    assert None not in (inner.start_time, inner.end_time, outer.start_time, outer.end_time)
    return outer.start_time <= inner.start_time <= inner.end_time <= outer.end_time  # type: ignore[operator]  # reason: asserted


def is_child(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    return inner.parent is not None and inner.parent.span_id == identity(outer).span_id


@pytest.fixture
def reported() -> Iterator[Reported]:
    reported = Reported()
    observers.register(reported.telemetry)
    yield reported
    observers.unregister(reported.telemetry)


@pytest.fixture
async def store() -> AsyncIterator[AgentStore]:
    async with open_store("memory:", clock=Clock()) as store:
        yield store


@tool(idempotent=True)
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"found {order}"


def asks(*calls: ToolCall) -> ModelResponse:
    return ModelResponse(tool_calls=calls, usage=Usage(input_tokens=10, output_tokens=5, requests=1))


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


# --- errors ---


async def test_errors_of_models_tools_and_turns_are_on_their_spans_by_type_alone(
    reported: Reported, store: AgentStore
) -> None:
    @tool(idempotent=True)
    async def fails() -> str:
        raise ValueError(SECRET)

    @tool(idempotent=True)
    async def stops() -> str:
        raise PropagatingToolError(SECRET, retryable=True)

    script: list[Any] = [[ToolCall("c1", "fails")], [ToolCall("c2", "stops")], ConnectionError(SECRET)]
    agent = Agent(model=ScriptedModel(script), tools=[fails, stops], store=store)
    with pytest.raises(PropagatingToolError):
        await agent.session("s").send("Go")
    failed, stopped = await reported.span("execute_tool fails"), await reported.span("execute_tool stops")
    assert (failed.status.status_code, facts(failed)["error.type"]) == (StatusCode.ERROR, "tool_error")
    assert (stopped.status.status_code, facts(stopped)["error.type"]) == (StatusCode.ERROR, "PropagatingToolError")
    turn = await reported.span("invoke_agent agent")
    assert (turn.status.status_code, facts(turn)["error.type"]) == (StatusCode.ERROR, "PropagatingToolError")

    other = Agent(model=ScriptedModel([ConnectionError(SECRET)], name="away"), store=store, name="other")
    with pytest.raises(ConnectionError):
        await other.session("t").send("Go")
    chat = await reported.span("chat away")
    assert (chat.status.status_code, facts(chat)["error.type"]) == (StatusCode.ERROR, "ConnectionError")
    durations = await reported.points("gen_ai.client.operation.duration")
    assert [point["error.type"] for point, _ in durations if "error.type" in point] == ["ConnectionError"]
    assert SECRET not in reported.everything()


async def test_what_was_cut_off_is_ended_as_such(reported: Reported, store: AgentStore) -> None:
    begun = asyncio.Event()

    @tool(idempotent=True)
    async def hangs() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "hangs")]]), tools=[hangs], store=store)
    sending = asyncio.create_task(agent.session("s").send("Go"))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    for name in ("execute_tool hangs", "invoke_agent agent"):
        span = await reported.span(name)
        assert (span.status.status_code, facts(span)["error.type"]) == (StatusCode.ERROR, "CancelledError")


async def test_a_failing_exporter_breaks_no_turn(store: AgentStore, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            raise OSError("the collector is away")

    class BrokenTelemetry(Telemetry):
        def report(self, event: Any) -> None:
            raise RuntimeError("a mistake")

    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(Broken()))
    broken = [Telemetry(tracer_provider=tracers), BrokenTelemetry()]
    for telemetry in broken:
        observers.register(telemetry)
    try:
        result = await Agent(model=ScriptedModel(["Hello"]), store=store).session("s").send("Hi")
        assert await observers.catch_up(60)
    finally:
        for telemetry in broken:
            observers.unregister(telemetry)
    assert result.text == "Hello"
    assert "an observer raised" in caplog.text


# --- content ---


async def test_without_the_switch_nothing_of_a_conversation_is_reported(
    reported: Reported, store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel([asks(ToolCall("c1", "look_up", {"order": SECRET})), f"Found {SECRET}."])
    await Agent(model=model, tools=[look_up], store=store).session("s").send(SECRET)
    await reported.spans()
    assert SECRET not in reported.everything()
    for value, wanted in (("", False), ("false", False), ("event_only", False), ("true", True), ("SPAN_ONLY", True)):
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
        assert Telemetry()._content is wanted


async def test_with_the_switch_content_has_the_shape_of_the_conventions(store: AgentStore) -> None:
    reported = Reported(capture_content=True)
    observers.register(reported.telemetry)
    try:
        model = ScriptedModel([asks(ToolCall("c1", "look_up", {"order": "7"})), "Found."])
        image = {"type": "image", "media_type": "image/png", "data": b"bytes"}
        given = Message("user", [{"type": "text", "text": "Where?"}, image])
        await Agent(model=model, tools=[look_up], store=store).session("s").send(given)
        with pytest.raises(ConnectionError):
            await Agent(model=ScriptedModel([ConnectionError("no route")]), store=store).session("t").send("Hi")
        turn, failed = await reported.spans("invoke_agent agent")
        call = await reported.span("execute_tool look_up")
    finally:
        observers.unregister(reported.telemetry)
    assert json.loads(facts(turn)["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Where?"}, {"type": "image"}]}
    ]
    assert json.loads(facts(turn)["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "look_up", "arguments": {"order": "7"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "found 7"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "Found."}]},
    ]
    assert json.loads(facts(call)["gen_ai.tool.call.arguments"]) == {"order": "7"}
    assert facts(call)["gen_ai.tool.call.result"] == "found 7"
    (raised,) = failed.events
    assert (raised.name, (raised.attributes or {})["exception.message"]) == ("exception", "no route")


# --- metrics, stores, providers ---


async def test_metrics_count_time_tokens_and_bytes_without_ids(reported: Reported, store: AgentStore) -> None:
    async def answer(request: ModelRequest) -> AsyncIterator[object]:
        yield TextDelta("Hel")
        yield ModelResponse(text="Hello", usage=Usage(input_tokens=3, output_tokens=2, requests=1))

    model = FunctionModel(answer, name="small")
    model.provider = "openai"  # type: ignore[attr-defined]  # reason: a model may have one
    agent = Agent(model=model, store=store, name="clerk")
    for session in ("s", "t"):
        await agent.session(session).send("Hi")
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small", "gen_ai.provider.name": "openai"}
    ((point, asked),) = await reported.points("gen_ai.client.operation.duration")
    assert (point, asked.count) == (chat, 2)
    ((point, first),) = await reported.points("gen_ai.client.operation.time_to_first_chunk")
    assert (point, first.count, first.sum <= asked.sum) == (chat, 2, True)
    tokens = {
        point["gen_ai.token.type"]: found.sum for point, found in await reported.points("gen_ai.client.token.usage")
    }
    assert tokens == {"input": 6, "output": 4}
    ((point, ran),) = await reported.points("gen_ai.invoke_agent.duration")
    expected = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "clerk", "perdure.finish_reason": "stop"}
    assert (point, ran.count) == (expected, 2)
    spans = await reported.spans("invoke_agent")
    assert ran.sum == pytest.approx(sum((span.end_time or 0) - (span.start_time or 0) for span in spans) / 1e9)
    loads = [found for point, found in await reported.points("perdure.store.duration") if "load" in point.values()]
    assert loads
    assert sum(found.value for _, found in await reported.points("perdure.store.io")) > 0


async def test_a_store_call_that_belongs_to_nothing_is_counted_without_a_span(
    reported: Reported, store: AgentStore
) -> None:
    await store.sessions.load("s")
    await store.sessions.append("s", [])
    with pytest.raises(Exception, match="version"):
        await store.sessions.append("s", [], expected_version=99)
    assert await reported.spans() == []
    outcomes = [point.get("error.type") for point, _ in await reported.points("perdure.store.duration")]
    assert sorted(map(str, outcomes)) == ["None", "None", "VersionConflictError"]
    with reported.tracer.start_as_current_span("job") as job:
        await store.sessions.load("s")
    load = await reported.span("sessions.load")
    assert load.parent == job.get_span_context()
    assert (load.end_time or 0) > (load.start_time or 0)


async def test_two_stores_that_hold_the_same_run_do_not_mix_their_spans(reported: Reported) -> None:
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


INSTALLED = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from perdure import Agent, observers, open_store
from perdure.models import ScriptedModel

async def main():
    async with open_store("memory:") as store:
        agent = Agent(model=ScriptedModel(["one", "two"]), store=store)
        await agent.session("s").send("before there is a provider")
        await observers.catch_up()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
        trace.set_tracer_provider(provider)
        await agent.session("s").send("and after")

asyncio.run(main())
"""


def test_the_installed_plugin_reports_to_the_global_provider_also_if_it_is_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PERDURE_OBSERVERS_OFF", raising=False)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", INSTALLED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    names = ran.stdout.split("\n")
    assert (names.count("invoke_agent agent"), names.count("chat scripted")) == (1, 1)
