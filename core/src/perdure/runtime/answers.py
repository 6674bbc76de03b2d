"""What the model is told of calls that did not simply succeed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.contracts.approvals import CANCELLED, EXPIRY, Approval
from perdure.runtime.tools import ToolArgumentsError, ToolResultError

if TYPE_CHECKING:
    from perdure.contracts.records import Record
    from perdure.runtime.tools import Tool
    from perdure.runtime.turn_state import CallState


def misfit(tool: Tool, arguments: Record) -> str | None:
    """Return why arguments do not fit a tool; `None` if they do."""
    try:
        tool.check(arguments)
    except ToolArgumentsError as error:
        return str(error)
    return None


def failure(error: Exception) -> str:
    """Return what a tool raised."""
    if isinstance(error, TimeoutError):
        return f"the tool did not end in time; whether it had an effect is not known ({error})".replace(" ()", "")
    if isinstance(error, ToolResultError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def unknown(call: CallState) -> str:
    """Return what is said of a call in doubt that is not repeated."""
    return f"whether attempt {call.attempts} of this call had an effect is not known, and it was not repeated"


def rejection(approval: Approval) -> str:
    """Return what the model is told of a call that was not approved."""
    decision = approval.decision
    by = None if decision is None else decision.decided_by
    reason = "cancelled" if approval.status == CANCELLED else "expired" if by == EXPIRY else "rejected"
    said: dict[str, Any] = {"status": reason, "tool": approval.tool_name}
    if approval.kind == "in-doubt":
        said["outcome"] = "unknown; the call was not repeated"
    if decision is not None and decision.note is not None:
        said["note"] = decision.note
    return json.dumps(said)
