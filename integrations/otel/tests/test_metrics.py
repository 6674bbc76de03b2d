"""Metrics, and calls of stores that belong to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from integrations.otel.tests.reported import Reported

from perdure import Agent, AgentStore, Usage
from perdure.models import FunctionModel, ModelRequest, ModelResponse, TextDelta

pytestmark = pytest.mark.anyio


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
