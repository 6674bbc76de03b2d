"""From events to spans and metrics.

Events come after the fact and in a thread of their own, so each span is made with the times that the events tell, and a
turn never waits for telemetry. Its parent comes from the context of whoever sent the event: the hook is called in it.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Link, SpanKind

from perdure.backend import hookimpl
from perdure.events import (
    ApprovalDecided,
    ApprovalRequested,
    ModelCalled,
    RunDone,
    RunFailed,
    RunLeft,
    RunResumed,
    RunStarted,
    StoreCalled,
    ToolFinished,
    ToolStarted,
)
from perdure.place import Place, place
from perdure_otel import content, names
from perdure_otel.instruments import Instruments
from perdure_otel.run_spans import RunSpans, ToolSpan, fail, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanContext, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from perdure.place import CurrentRun

REMEMBERED: Final = 1000
"""How many runs are remembered for the link from a resumed one to where it stopped."""

INTERRUPTED: Final = "CancelledError"


class Telemetry:
    """An observer that reports to OpenTelemetry.

    Example:
        >>> from perdure import observers
        >>> observers.register(Telemetry(tracer_provider=provider))  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
    ) -> None:
        """Report to providers.

        Args:
            tracer_provider: Where spans go; `None`: to the global one, also if it is set later.
            meter_provider: Where metrics go; `None`: as above.
            capture_content: Whether inputs, answers, arguments, results and the texts of errors are reported; `None`: as
                the environment variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says, by default not.
        """
        release = version("perdure-otel")
        self._tracer = trace.get_tracer("perdure_otel", release, tracer_provider)
        self._instruments = Instruments(metrics.get_meter("perdure_otel", release, meter_provider))
        self._content = content.is_wanted() if capture_content is None else capture_content
        self._runs: WeakKeyDictionary[CurrentRun, RunSpans] = WeakKeyDictionary()
        self._left: OrderedDict[str, SpanContext] = OrderedDict()
        self._handlers: dict[type, Callable[[Any, Place | None], None]] = {
            RunStarted: self._on_started,
            RunResumed: self._on_resumed,
            RunDone: self._on_done,
            RunFailed: self._on_failed,
            RunLeft: self._on_left,
            ModelCalled: self._on_model,
            ToolStarted: self._on_tool_started,
            ToolFinished: self._on_tool_finished,
            ApprovalRequested: self._on_requested,
            ApprovalDecided: self._on_decided,
            StoreCalled: self._on_store,
        }

    @hookimpl
    def perdure_event(self, event: Any) -> None:
        """Report an event."""
        self.report(event)

    def report(self, event: Any) -> None:
        """Report an event that belongs to the present context; one of another kind is passed over."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, place())

    # --- runs ---

    def _on_started(self, event: RunStarted, here: Place | None) -> None:
        self._begin(event, here, {})

    def _on_resumed(self, event: RunResumed, here: Place | None) -> None:
        before = self._left.get(event.run_id or "")
        links = [] if before is None else [Link(before, {names.RUN_ID: event.run_id or ""})]
        self._begin(event, here, {names.ATTEMPT: event.attempt, names.AGENT_CHANGED: event.agent_changed}, links)

    def _begin(
        self, event: RunStarted | RunResumed, here: Place | None, more: dict[str, AttributeValue], links: Any = ()
    ) -> None:
        if here is None:
            return
        run = here.run
        facts: dict[str, AttributeValue] = {
            **_agent_facts(run),
            names.RUN_ID: run.run_id,
            names.RESUMED: event.resumed,
            **more,
        }
        if run.session_id is not None:
            facts[names.CONVERSATION_ID] = run.session_id
        parent = self._parent(run.outer)
        self._runs[run] = RunSpans(self._tracer, f"invoke_agent {run.agent}", parent, event.at, facts, links)

    def _parent(self, here: Place | None) -> Context:
        """Return the context for a span at a place: below its run or call, else below whatever the application traces."""
        spans = None if here is None else self._runs.get(here.run)
        if here is None or spans is None:
            return otel_context.get_current()
        return spans.parent(here.tool_call_id)

    def _spans(self, here: Place | None, event: Any) -> RunSpans | None:
        """Return the spans of the run that an event tells of; an event may be sent from within another run."""
        if here is not None and here.run.run_id == event.run_id:
            return self._runs.get(here.run)
        return None

    def _on_done(self, event: RunDone, here: Place | None) -> None:
        spans = self._spans(here, event)
        if spans is None:
            return
        usage = event.result.usage
        spans.span.set_attributes(
            {
                names.INPUT_TOKENS: usage.input_tokens,
                names.OUTPUT_TOKENS: usage.output_tokens,
                names.COST: float(usage.cost_usd),
            }
        )
        if self._content:
            given, answered = content.split(event.result.messages)
            spans.span.set_attribute(names.INPUT_MESSAGES, content.as_json(given))
            spans.span.set_attribute(names.OUTPUT_MESSAGES, content.as_json(answered))

    def _on_failed(self, event: RunFailed, here: Place | None) -> None:
        spans = self._spans(here, event)
        if spans is not None and self._content:
            spans.span.record_exception(event.error, content.of_error(event.error), nanoseconds(event.at))

    def _on_left(self, event: RunLeft, here: Place | None) -> None:
        spans = self._spans(here, event)
        if spans is None or here is None:
            return
        for call in spans.take_all_tools():
            self._end_tool(call, event.at, event.error or INTERRUPTED)
        facts: dict[str, AttributeValue] = _agent_facts(here.run)
        if event.finish_reason is not None:
            facts[names.FINISH_REASON] = event.finish_reason
            spans.span.set_attribute(names.FINISH_REASON, event.finish_reason)
        if event.error is not None:
            facts[names.ERROR_TYPE] = event.error
            fail(spans.span, event.error)
        spans.span.end(nanoseconds(event.at))
        self._instruments.run(_seconds(spans.started, event.at), facts)
        self._remember(event.run_id, spans.span.get_span_context())

    def _remember(self, run_id: str, left: SpanContext) -> None:
        self._left[run_id] = left
        self._left.move_to_end(run_id)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)

    # --- models ---

    def _on_model(self, event: ModelCalled, here: Place | None) -> None:
        facts: dict[str, AttributeValue] = {names.OPERATION: "chat", names.REQUEST_MODEL: event.model}
        if event.provider is not None:
            facts[names.PROVIDER] = event.provider
        span = self._span(f"chat {event.model}", here, event, facts)
        usage, first = event.usage, event.first_text
        if usage.input_tokens or usage.output_tokens:  # a model that does not tell what it used has used something
            span.set_attributes({names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens})
        if first is not None:
            span.set_attribute(names.TIME_TO_FIRST_CHUNK, first.total_seconds())
        _end(span, event, facts)
        seconds = None if first is None else first.total_seconds()
        self._instruments.model(event.duration.total_seconds(), seconds, usage, facts)

    # --- tools ---

    def _on_tool_started(self, event: ToolStarted, here: Place | None) -> None:
        spans = self._spans(here, event)
        if spans is None:
            return
        facts: dict[str, AttributeValue] = {
            **_tool_facts(event.tool_name),
            names.TOOL_CALL_ID: event.tool_call_id,
            names.ATTEMPT: event.attempt,
        }
        span = spans.start_tool(event.tool_name, event.tool_call_id, event.at, facts)
        if self._content:
            span.set_attribute(names.TOOL_ARGUMENTS, content.as_json(event.arguments))

    def _on_tool_finished(self, event: ToolFinished, here: Place | None) -> None:
        spans = self._spans(here, event)
        if spans is None:
            return
        call = spans.take_tool(event.tool_call_id)
        if call is None:  # rejected, unknown, or with arguments that do not fit
            facts: dict[str, AttributeValue] = {
                names.TOOL_NAME: event.tool_name,
                names.TOOL_CALL_ID: event.tool_call_id,
            }
            spans.span.add_event("perdure.tool.not_run", facts, nanoseconds(event.at))
            return
        if self._content:
            call.span.set_attribute(names.TOOL_RESULT, content.as_text(event.message.text))
        self._end_tool(call, event.at, "tool_error" if event.message.is_error else None)

    def _end_tool(self, call: ToolSpan, at: datetime, error: str | None) -> None:
        facts: dict[str, AttributeValue] = _tool_facts(call.name)
        if error is not None:
            facts[names.ERROR_TYPE] = error
            fail(call.span, error)
        call.span.end(nanoseconds(at))
        self._instruments.tool(_seconds(call.started, at), facts)

    # --- approvals ---

    def _on_requested(self, event: ApprovalRequested, here: Place | None) -> None:
        approval = event.approval
        self._instruments.approval("requested")
        if (spans := self._spans(here, event)) is not None:
            facts = {
                names.APPROVAL_ID: approval.id,
                names.APPROVAL_KIND: approval.kind,
                names.TOOL_NAME: approval.tool_name,
            }
            spans.span.add_event("perdure.approval.requested", facts, nanoseconds(event.at))

    def _on_decided(self, event: ApprovalDecided, here: Place | None) -> None:
        self._instruments.approval(event.status)
        if (spans := self._spans(here, event)) is not None:
            facts = {names.APPROVAL_ID: event.approval_id, names.APPROVAL_STATUS: event.status}
            spans.span.add_event("perdure.approval.decided", facts, nanoseconds(event.at))

    # --- stores ---

    def _on_store(self, event: StoreCalled, here: Place | None) -> None:
        facts: dict[str, AttributeValue] = {
            names.STORE_PART: event.part,
            names.STORE_OPERATION: event.operation,
        }
        # A worker looks around all day; only what belongs to something is worth a span.
        if trace.get_current_span(self._parent(here)).get_span_context().is_valid:
            span = self._span(f"{event.part}.{event.operation}", here, event, facts)
            span.set_attribute(names.STORE_SIZE, event.size)
            _end(span, event, facts)
        elif event.outcome != "ok":
            facts[names.ERROR_TYPE] = event.outcome
        self._instruments.store(event.duration.total_seconds(), event.size, facts)

    def _span(
        self, name: str, here: Place | None, event: ModelCalled | StoreCalled, facts: dict[str, AttributeValue]
    ) -> Span:
        """Return a span of something that has ended, to be ended."""
        began = nanoseconds(event.at - event.duration)
        return self._tracer.start_span(name, self._parent(here), SpanKind.CLIENT, attributes=facts, start_time=began)


def _end(span: Span, event: ModelCalled | StoreCalled, facts: dict[str, AttributeValue]) -> None:
    """End a span, and say in the facts for metrics how."""
    if event.outcome != "ok":
        facts[names.ERROR_TYPE] = event.outcome
        fail(span, event.outcome)
    span.end(nanoseconds(event.at))


def _agent_facts(run: CurrentRun) -> dict[str, AttributeValue]:
    return {names.OPERATION: "invoke_agent", names.AGENT_NAME: run.agent}


def _tool_facts(name: str) -> dict[str, AttributeValue]:
    return {names.OPERATION: "execute_tool", names.TOOL_NAME: name, names.TOOL_TYPE: "function"}


def _seconds(begin: datetime, end: datetime) -> float:
    return max((end - begin).total_seconds(), 0.0)  # a wall clock may go back
