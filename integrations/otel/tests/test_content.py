"""Content of conversations: none, unless it is asked for."""

from __future__ import annotations

import json

import pytest
from integrations.otel.tests.reported import SECRET, Reported, asks, facts, look_up

from perdure import Agent, AgentStore, Message, ToolCall, observers
from perdure.models import ScriptedModel
from perdure_otel import Telemetry

pytestmark = pytest.mark.anyio


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


async def test_half_a_character_hinders_no_export(store: AgentStore) -> None:
    reported = Reported(capture_content=True)
    observers.register(reported.telemetry)
    try:
        model = ScriptedModel([asks(ToolCall("c1", "look_up", {"order": "\ud800"})), "Found."])
        await Agent(model=model, tools=[look_up], store=store).session("s").send("Where is \ud800?")
        turn = await reported.span("invoke_agent agent")
        call = await reported.span("execute_tool look_up")
    finally:
        observers.unregister(reported.telemetry)
    said = [value for span in (turn, call) for value in facts(span).values() if isinstance(value, str)]
    assert "\n".join(said).encode("utf-8")
    (given,) = json.loads(facts(turn)["gen_ai.input.messages"])
    assert given["parts"] == [{"type": "text", "content": "Where is \ud800?"}]
    assert json.loads(facts(call)["gen_ai.tool.call.arguments"]) == {"order": "\ud800"}
    assert facts(call)["gen_ai.tool.call.result"] == r"found \ud800"


async def test_half_a_character_in_an_error_hinders_no_export_either(store: AgentStore) -> None:
    reported = Reported(capture_content=True)
    observers.register(reported.telemetry)
    try:
        session = Agent(model=ScriptedModel([ValueError("no \ud800")]), store=store).session("s")
        with pytest.raises(ValueError, match="no"):
            await session.send("go")
        failed = await reported.span("invoke_agent agent")
    finally:
        observers.unregister(reported.telemetry)
    (raised,) = failed.events
    said = {name: str(value) for name, value in (raised.attributes or {}).items()}
    assert "".join(said.values()).encode("utf-8")
    assert (said["exception.type"], said["exception.message"]) == ("ValueError", r"no \ud800")
