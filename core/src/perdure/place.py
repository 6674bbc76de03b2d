"""Where a piece of work belongs: the run, and the call of a tool within it, that it is done for.

An observer's hook is called in a copy of the context of whoever sent the event, so `place()` there says what the event
belongs to, also for `store.called` and `model.called`, which have no ids.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perdure.events import RunLeft
from perdure.observers import observe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.clock import Clock


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CurrentRun:
    """One execution of a turn in this process; equal to itself alone, since two stores may hold one run id.

    Attributes:
        run_id: The run.
        session_id: Its session, `None` for a run without one.
        agent: The name of the agent.
        outer: What this run is done for: the place of a tool that runs another conversation; `None`: of no run.
    """

    run_id: str
    session_id: str | None
    agent: str
    outer: Place | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of work belongs.

    Attributes:
        run: The run.
        tool_call_id: The call of a tool within it, as the model named it; `None`: of none.
    """

    run: CurrentRun
    tool_call_id: str | None = None


@dataclass(slots=True)
class Leaving:
    """How a run is left.

    Attributes:
        finish_reason: That of its result; `None` as long as there is none.
    """

    finish_reason: str | None = None


_place: ContextVar[Place | None] = ContextVar("perdure_place", default=None)


def place() -> Place | None:
    """Return what the work that is done here belongs to; `None`: no run of an agent."""
    return _place.get()


@contextlib.contextmanager
def running(run_id: str, session_id: str | None, agent: str, clock: Clock) -> Iterator[Leaving]:
    """Be in a run, and tell the observers when it is left, however that comes about."""
    run = CurrentRun(run_id, session_id, agent, _place.get())
    before = _place.set(Place(run))
    leaving = Leaving()
    error: str | None = None
    try:
        yield leaving
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        reason, at = leaving.finish_reason, clock.now()
        observe(RunLeft(run_id=run_id, session_id=session_id, finish_reason=reason, error=error, at=at))
        _place.reset(before)


def enter_call(tool_call_id: str) -> None:
    """Have what this task does from now on belong to a call of a tool of the present run."""
    here = _place.get()
    if here is not None:
        _place.set(replace(here, tool_call_id=tool_call_id))
