"""An observer that keeps what it hears."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure import observers
from perdure.backend import hookimpl


class Recorder:
    """Keeps what it hears; waits at a gate before it takes note, if there is one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.events: list[Any] = []
        self.entered = threading.Event()
        self.gate = gate

    @hookimpl
    def perdure_event(self, event: object) -> None:
        self.entered.set()
        if self.gate is not None:
            self.gate.wait(60)
        self.events.append(event)

    def calls(self) -> list[tuple[str, str, str]]:
        return [(event.part, event.operation, event.outcome) for event in self.events]


@contextmanager
def registered() -> Iterator[Recorder]:
    """Register a recorder for a while."""
    recorder = Recorder()
    observers.register(recorder)
    try:
        yield recorder
    finally:
        observers.unregister(recorder)
