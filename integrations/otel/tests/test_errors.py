"""Errors: on which spans they are, and that those of telemetry break nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from integrations.otel.tests.reported import SECRET, Reported, facts
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from perdure import Agent, AgentStore, ToolCall, observers, tool
from perdure.errors import PropagatingToolError
from perdure.models import ScriptedModel
from perdure_otel import Telemetry

pytestmark = pytest.mark.anyio


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
