"""The spans of one run: its own, and those of its calls of tools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from perdure_otel import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer
    from opentelemetry.util.types import AttributeValue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(at: datetime) -> int:
    """Return an instant as OpenTelemetry counts it, without the rounding of floating point."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def fail(span: Span, error: str) -> None:
    """Mark a span as failed. The text of an error may have content, so only its type is said."""
    span.set_attribute(names.ERROR_TYPE, error)
    span.set_status(Status(StatusCode.ERROR))


class ToolSpan:
    """A call of a tool that runs.

    Attributes:
        span: Its span.
        name: The tool.
        started: When it began.
    """

    def __init__(self, span: Span, name: str, started: datetime) -> None:
        self.span = span
        self.name = name
        self.started = started


class RunSpans:
    """The span of a run and its open calls of tools.

    Attributes:
        span: The run's.
        started: When it began here.
    """

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        parent: Context,
        started: datetime,
        facts: dict[str, AttributeValue],
        links: Sequence[Link] = (),
    ) -> None:
        self.started = started
        self.span = tracer.start_span(
            name, parent, SpanKind.INTERNAL, attributes=facts, links=links, start_time=nanoseconds(started)
        )
        self._tracer = tracer
        # A model may name two calls alike; then the one that began first is taken to end first.
        self._tools: dict[str, list[ToolSpan]] = {}

    def parent(self, tool_call_id: str | None = None) -> Context:
        """Return the context for a span below this run, or below one of its calls while that runs."""
        running = self._tools.get(tool_call_id) if tool_call_id is not None else None
        return trace.set_span_in_context(running[0].span if running else self.span)

    def start_tool(self, name: str, call_id: str, at: datetime, facts: dict[str, AttributeValue]) -> Span:
        """Begin a call of a tool."""
        span = self._tracer.start_span(
            f"execute_tool {name}", self.parent(), SpanKind.INTERNAL, attributes=facts, start_time=nanoseconds(at)
        )
        self._tools.setdefault(call_id, []).append(ToolSpan(span, name, at))
        return span

    def take_tool(self, call_id: str) -> ToolSpan | None:
        """Return a call that has ended, to be finished; `None`: it has not run."""
        running = self._tools.get(call_id)
        if not running:
            return None
        taken = running.pop(0)
        if not running:
            del self._tools[call_id]
        return taken

    def take_all_tools(self) -> list[ToolSpan]:
        """Return the calls that have not ended, to be finished."""
        taken = [call for running in self._tools.values() for call in running]
        self._tools.clear()
        return taken
