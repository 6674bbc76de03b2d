"""What is told of each call of a store: the operation, how long it took, how it ended, and how many bytes it moved.

No id and no content. Nothing that goes wrong here changes what the call does.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from perdure.clock import Clock


class StoreSink(Protocol):
    """Takes note of the calls of one store; the bundle binds it."""

    @property
    def wanted(self) -> bool:
        """Whether anybody listens; while nobody does, nothing is measured."""
        ...

    def called(self, operation: str, *, seconds: float, outcome: str, size: int, at: datetime) -> None:
        """Take note of a call that has ended. Returns at once and raises nothing."""
        ...


class Watch:
    """Stands around one call of a backend, and tells a sink of it, also if it raised or was cancelled."""

    __slots__ = ("_clock", "_operation", "_sink", "_size", "_started")

    def __init__(self, sink: StoreSink, clock: Clock, operation: str) -> None:
        self._sink = sink
        self._clock = clock
        self._operation = operation
        self._size = 0
        self._started = 0.0

    def __enter__(self) -> Watch:
        self._started = self._clock.monotonic()
        return self

    def moved(self, *values: object) -> None:
        """Measure what the backend was given, or what it returned."""
        with contextlib.suppress(Exception):  # what cannot be measured is the store's own affair
            self._size = sum(map(encoded_size, values))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.called(
            self._operation,
            seconds=self._clock.monotonic() - self._started,
            outcome="ok" if kind is None else kind.__name__,
            size=self._size,
            at=self._clock.now(),
        )


def encoded_size(value: Any) -> int:
    """Return how many bytes of records, entries, heads, states and approvals a value of the contract holds."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, (tuple, list)):
        return sum(map(encoded_size, value))
    if hasattr(value, "encode") and not isinstance(value, str):  # an approval: the one value that stores get decoded
        return len(value.encode())
    if is_dataclass(value) and not isinstance(value, type):
        return sum(encoded_size(getattr(value, field.name)) for field in fields(value))
    return 0
