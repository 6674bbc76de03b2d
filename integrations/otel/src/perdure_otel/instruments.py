"""The metrics. None has an attribute with more than a handful of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure_otel import names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.util.types import AttributeValue

    from perdure import Usage

SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Buckets that the conventions give for what waits for a model."""

TOKENS: Final = tuple(4**power for power in range(14))
"""Buckets that the conventions give for tokens."""

STORE_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Buckets for calls of stores, from memory to a server that is away."""


class Instruments:
    """Records what has happened; durations in seconds, sizes in bytes."""

    def __init__(self, meter: Meter) -> None:
        self._run = meter.create_histogram(
            "gen_ai.invoke_agent.duration",
            unit="s",
            description="How long this process ran a turn.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._model = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            unit="s",
            description="Time to the first piece of text.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKENS,
        )
        self._tool = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            unit="s",
            description="The duration of a single tool execution.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._store = meter.create_histogram(
            "perdure.store.duration",
            unit="s",
            description="How long a call of a store took.",
            explicit_bucket_boundaries_advisory=STORE_SECONDS,
        )
        self._moved = meter.create_counter(
            "perdure.store.io", unit="By", description="Bytes that stores were given or returned."
        )
        self._approvals = meter.create_counter(
            "perdure.approvals",
            unit="{approval}",
            description="Approvals, as they are requested and as they are applied.",
        )

    def run(self, seconds: float, facts: dict[str, AttributeValue]) -> None:
        """Record that a run was left."""
        self._run.record(seconds, facts)

    def model(self, seconds: float, first: float | None, usage: Usage, facts: dict[str, AttributeValue]) -> None:
        """Record a request of a model; tokens only where there are any."""
        self._model.record(seconds, facts)
        if first is not None:
            self._first.record(first, facts)
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._tokens.record(count, {**facts, names.TOKEN_TYPE: kind})

    def tool(self, seconds: float, facts: dict[str, AttributeValue]) -> None:
        """Record a call of a tool."""
        self._tool.record(seconds, facts)

    def store(self, seconds: float, size: int, facts: dict[str, AttributeValue]) -> None:
        """Record a call of a store."""
        self._store.record(seconds, facts)
        self._moved.add(size, facts)

    def approval(self, status: str) -> None:
        """Count an approval: `requested`, or the status that was applied."""
        self._approvals.add(1, {names.APPROVAL_STATUS: status})
