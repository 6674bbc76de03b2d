"""Structured logging: one record of the logger `perdure.runs` for each thing that happens to a run.

A record has its facts in `record.perdure`, a dictionary of plain JSON: ids, numbers and names, never the content of a
message, an argument or an error's text. Nothing is logged unless the application sets logging up.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from perdure.events import (
    ApprovalDecided,
    ApprovalRequested,
    CompactionDone,
    CompactionStarted,
    RunDone,
    RunFailed,
    RunResumed,
    RunStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.events import Event, RunEvent

_log = logging.getLogger("perdure.runs")


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _resumed(event: RunResumed) -> dict[str, Any]:
    return {"attempt": event.attempt, "agent_changed": event.agent_changed}


def _requested(event: ApprovalRequested) -> dict[str, Any]:
    approval = event.approval
    return {
        "approval_id": approval.id,
        "tool_call_id": approval.tool_call_id,
        "tool_name": approval.tool_name,
        "kind": approval.kind,
        "agent": approval.agent,
    }


def _decided(event: ApprovalDecided) -> dict[str, Any]:
    return {"approval_id": event.approval_id, "tool_call_id": event.tool_call_id, "status": event.status}


def _compacted(event: CompactionDone) -> dict[str, Any]:
    return {"replaced": event.replaced, "archive_id": event.archive_id, "failed": event.error is not None}


def _done(event: RunDone) -> dict[str, Any]:
    result = event.result
    return {
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage),
        "approval_ids": list(result.approval_ids),
    }


def _failed(event: RunFailed) -> dict[str, Any]:
    return {"error": type(event.error).__name__, "retryable": getattr(event.error, "retryable", None)}


_FACTS: Final[dict[type, tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    RunStarted: ("run started", _nothing),
    RunResumed: ("run resumed", _resumed),
    ApprovalRequested: ("approval requested", _requested),
    ApprovalDecided: ("approval decided", _decided),
    CompactionStarted: ("compaction started", _nothing),
    CompactionDone: ("compaction done", _compacted),
    RunDone: ("run done", _done),
    RunFailed: ("run failed", _failed),
}


def is_logged(kind: type[Event]) -> bool:
    """Whether the logger wants the record of some event of a kind."""
    level = logging.WARNING if kind in (RunFailed, CompactionDone) else logging.INFO
    return kind in _FACTS and _log.isEnabledFor(level)


def log_event(event: RunEvent) -> None:
    """Write the record of an event, if it has one and the logger is enabled for its level."""
    known = _FACTS.get(type(event))
    if known is None:
        return
    failed = isinstance(event, RunFailed) or (isinstance(event, CompactionDone) and event.error is not None)
    level = logging.WARNING if failed else logging.INFO
    if not _log.isEnabledFor(level):
        return
    title, make = known
    common = {"event": event.type, "run_id": event.run_id, "session_id": event.session_id, "seq": event.seq}
    facts = common | {"resumed": event.resumed} | make(event)
    _log.log(level, "%s %s", title, _shown(facts), extra={"perdure": facts})


def _shown(facts: dict[str, Any]) -> str:
    """Return the facts for a reader of plain text, without what goes without saying."""
    left_out = ("event", "seq", "usage")
    return " ".join(f"{name}={value}" for name, value in facts.items() if name not in left_out and value)
