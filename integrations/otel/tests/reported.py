"""What was reported, as OpenTelemetry's own SDK keeps it in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from perdure import ToolCall, Usage, observers, tool
from perdure.models import ModelResponse
from perdure_otel import Telemetry

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


@tool(idempotent=True)
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"found {order}"


def asks(*calls: ToolCall) -> ModelResponse:
    return ModelResponse(tool_calls=calls, usage=Usage(input_tokens=10, output_tokens=5, requests=1))
