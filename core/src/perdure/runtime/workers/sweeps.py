"""What a worker finds and does in a sweep, and what a turn's journal tells it of the attempts before."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead

logger = logging.getLogger("perdure.worker")

HANDED_OVER: Final = "handed-over"
"""The entry of a life that ended by no fault of its turn: the worker was stopped, or the store was away."""
POISONED: Final = "max-attempts"
FAILED: Final = "failed"
_PROGRESS: Final = ("model", "tool", "approval-requested", "approval-applied", "finished")
_MENDABLE: Final = ("AgentChangedError", "ToolOutcomeUnknownError")


@dataclass(frozen=True, slots=True)
class ResumedTurn:
    """A turn that the worker took and ran to its end, or to where it waits for decisions.

    Attributes:
        session_id: Its session; for a run without one, the key of its turn journal.
        run_id: The run.
        finish_reason: As in `TurnResult`.
    """

    session_id: str
    run_id: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class SetAsideTurn:
    """A turn that the worker does not take, until somebody resumes or discards it.

    Attributes:
        session_id: Its session; for a run without one, the key of its turn journal.
        run_id: The run.
        attempts: How often it was taken up.
        last_error: Its last failure, one line.
        reason: `failed`: its failure is one that another attempt does not mend. `max-attempts`: so many attempts in a
            row brought it no further.
    """

    session_id: str
    run_id: str | None
    attempts: int
    last_error: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SweepFailure:
    """What went wrong in a sweep; the next one tries again, unless the turn is set aside.

    Attributes:
        session_id: The session; `None` if the turns could not be listed.
        run_id: The run, if there is one.
        error: What was raised.
    """

    session_id: str | None
    run_id: str | None
    error: Exception


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a worker found and did in one pass over the turns, in no particular order.

    Attributes:
        resumed: The turns that it ran.
        set_aside: The turns that it does not take.
        waiting: The sessions whose turn waits for a decision, or for its next attempt after a failure.
        busy: The sessions whose turn somebody runs, this process included, or ended meanwhile.
        settled: The sessions in which it finished or undid a claim whose owner was gone.
        failed: What went wrong.
    """

    resumed: list[ResumedTurn] = field(default_factory=list)
    set_aside: list[SetAsideTurn] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    failed: list[SweepFailure] = field(default_factory=list)


def fruitless_lives(found: Checkpoint) -> int:
    """Return how many lives of a turn in a row brought it no further: no response, result, question or decision.

    A life begins when a runner opens the turn or takes it up. One that was handed over does not count.
    """
    lives = found.head.attempts - len([item for item in found.entries if item.get("kind") == "resumed"])
    fruitless = lives > 0
    for item in found.entries:
        kind = item.get("kind")
        if kind in _PROGRESS:
            lives, fruitless = 0, False
        elif kind == "resumed":
            lives, fruitless = lives + 1, True
        elif kind == HANDED_OVER and fruitless:
            lives, fruitless = lives - 1, False
    return max(lives, 0)


def is_mendable(head: CheckpointHead) -> bool:
    """Whether a turn's failure is one that another release of the agent may mend."""
    return (head.last_error or "").partition(":")[0] in _MENDABLE


def log(level: int, event: str, **facts: Any) -> None:
    """Log an event with its facts, in the text and as attributes of the record; never what a message says."""
    text = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
    logger.log(level, "%s %s", event, text, extra=facts)


def backoff(first: timedelta, factor: int, times: int, longest: timedelta) -> timedelta:
    """Return how long to rest after so many failures: the first rest, times a factor for each, up to a limit."""
    if first >= longest:
        return first
    return timedelta(seconds=min(first.total_seconds() * factor ** min(max(times, 0), 64), longest.total_seconds()))
