"""Observers: plugins of the group `perdure.observers` that take note of events, in a thread of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.events import ObservedEvent


def observe(event: ObservedEvent) -> None:
    """Tell every observer of an event; returns at once, and does nothing where there is no observer."""
