"""An approval as JSON and as a line."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from perdure.cli.output import safe_line, when
from perdure.cli.transcripts import compact
from perdure.contracts.approvals import Approval, is_denied_by_time


def approval_facts(approval: Approval, now: datetime) -> dict[str, Any]:
    """Return an approval as JSON; `expired` says whether a pending one can no longer be decided."""
    return asdict(approval) | {"expired": is_denied_by_time(approval, now)}


def approval_line(facts: dict[str, Any]) -> str:
    """Return what there is to know of an approval at a glance, made safe."""
    what = f"{facts['tool_name']} {compact(arguments_to_run(facts))}"
    return safe_line(f"{facts['id']}  {status_text(facts)}: {what}")


def arguments_to_run(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the tool gets: those of the decision, if it has any, and else those that were asked for."""
    edited: dict[str, Any] | None = (facts["decision"] or {}).get("arguments")
    asked: dict[str, Any] = facts["arguments"]
    return asked if edited is None else edited


def status_text(facts: dict[str, Any]) -> str:
    """Return the status of an approval, with who decided and why."""
    decision = facts["decision"]
    if decision is None:
        question = "pending" if facts["kind"] == "approve" else "pending, in doubt whether it ran"
        return f"{question} (expired {when(facts['expires_at'])})" if facts["expired"] else question
    by = f" by {decision['decided_by']}" if decision["decided_by"] else ""
    note = f" ({decision['note']})" if decision["note"] else ""
    return f"{facts['status']}{' with edited arguments' if decision['arguments'] is not None else ''}{by}{note}"
