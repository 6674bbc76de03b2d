"""The clock that every store and every lease reads, passed in so that tests steer time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time: `now()` for what is stored, `monotonic()` for waiting."""

    def now(self) -> datetime:
        """Return the current instant as an aware UTC datetime."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, comparable within one process only."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the current instant as an aware UTC datetime."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()


SYSTEM_CLOCK: Clock = SystemClock()
