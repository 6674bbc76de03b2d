"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2031, 3, 14, 15, 9, 26, 535897, tzinfo=UTC)
"""Where a manual clock starts: an instant with microseconds, in no special year."""

TICK = timedelta(microseconds=1)
"""The smallest step of a stored instant."""


class ManualClock:
    """Tells the time that it was set to; the kit passes it to every store, and no law waits for time."""

    def __init__(self, start: datetime = START) -> None:
        """Start at an instant."""
        self._now = start
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Return the instant that the clock stands at."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that the clock was moved forward."""
        return self._elapsed

    def advance(self, step: timedelta = TICK) -> datetime:
        """Move the clock by a step, back if it is negative, and return the new instant."""
        self._now += step
        self._elapsed += max(step.total_seconds(), 0.0)
        return self._now

    def set(self, instant: datetime) -> datetime:
        """Set the clock to an instant, as an operator or a time server does."""
        return self.advance(instant - self._now)
