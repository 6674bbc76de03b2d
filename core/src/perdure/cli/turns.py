"""Where a turn stands, as its journal tells it. Nothing here runs or writes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure.bundle import AgentStore
from perdure.cli.output import safe_line, when, when_stored
from perdure.cli.transcripts import call_text, message_lines
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import (
    AWAITING_APPROVAL,
    CLAIM_STATUSES,
    FINISHED,
    IN_PROGRESS,
    READY,
    Checkpoint,
    CheckpointHead,
    CheckpointInfo,
)
from perdure.conversations.claims import undecided
from perdure.errors import StoreCorruptedError
from perdure.runtime.turn.state import CallState, TurnState


async def turn_facts(store: AgentStore, found: Checkpoint | CheckpointInfo) -> dict[str, Any]:
    """Return what the head of a turn journal says of its turn, as JSON."""
    head, status = found.head, found.head.status
    waiting: Sequence[str] = ()
    damaged: str | None = None
    if status in (AWAITING_APPROVAL, READY):
        try:
            waiting = await undecided(store, head)
        except StoreCorruptedError as error:
            waiting, damaged = tuple(head.approval_ids), str(error)
        status = AWAITING_APPROVAL if waiting else READY
    return {
        "conversation": found.key,
        "session_id": head.session_id,
        "run_id": head.run_id,
        "agent": head.agent,
        "status": status,
        "approvals": list(waiting),
        "attempts": head.attempts,
        "failed": head.failed,
        "last_error": head.last_error,
        "owner": owner_name(head),
        "live": head.owner is not None and store.ownership.is_live(found),
        "lease_expires_at": head.lease_expires_at,
        "updated_at": found.updated_at,
        "damaged": damaged,
    }


def owner_name(head: CheckpointHead) -> str | None:
    """Return the owner of a turn as people name it, `None` if there is none."""
    if head.owner is None:
        return None
    parts = head.owner.split("/")
    return f"process {parts[3]} on {parts[0]}" if len(parts) == 6 else head.owner


def standing(facts: dict[str, Any]) -> str:
    """Return where a turn stands in one line, made safe."""
    status = facts["status"]
    if facts["live"]:
        return safe_line(f"{status}: {facts['owner']} runs it, until {when(facts['lease_expires_at'])} at the least")
    if status == AWAITING_APPROVAL:
        return f"{status}: {len(facts['approvals'])} to decide"
    if status == READY:
        return f"{status}: all is decided, and nobody runs it"
    if status == FINISHED:
        ended = "kept until it is pruned" if facts["session_id"] is None else "to be saved by whoever resumes it"
        return f"{status}: {ended}"
    if status in CLAIM_STATUSES:
        return f"{status}: whoever did that is gone; the next who uses the conversation settles it"
    if facts["failed"]:
        return safe_line(f"{status}: failed, until somebody resumes or discards it: {facts['last_error']}")
    if status == IN_PROGRESS and facts["attempts"] == 0:
        return f"{status}: submitted, and not begun"
    last = f"; the last to was {facts['owner']}" if facts["owner"] else ""
    problem = f"; last error: {facts['last_error']}" if facts["last_error"] else ""
    return safe_line(f"{status if status != IN_PROGRESS else 'interrupted'}: nobody runs it{last}{problem}")


def turn_lines(found: Checkpoint, approvals: Sequence[Approval]) -> Iterator[tuple[str, str | None]]:
    """Yield what a turn has come to so far, line by line, made safe, each with its style.

    Args:
        found: Its journal.
        approvals: The approvals of its conversation.

    Raises:
        StoreCorruptedError: Its entries do not fit.
    """
    state = TurnState.of(found.head.run_id or "", found.entries)
    decided = {approval.id: approval.status for approval in approvals if approval.decided}
    for given in state.inputs:
        waits = " (waits)" if given in state.untaken and state.steps else ""
        for message, _ in given.messages:
            yield from message_lines(message, f"  {{role}}  {safe_line(when_stored(given.at))}{waits}")
    for step in state.steps:
        yield from message_lines(replace(step.message, tool_calls=()), f"  {{role}}  {safe_line(when_stored(step.at))}")
        for call in step.calls:
            yield f"    {call_text(call.call, call.arguments)}: {_stands(call, decided)}", "magenta"
            if call.result is not None:
                yield from message_lines(call.result, f"  {{role}}  {safe_line(when_stored(call.result_at))}")


def _stands(call: CallState, decided: Mapping[str, str]) -> str:
    """Return where a call stands, made safe; `decided` has what is decided and may not be applied yet."""
    if call.result is not None:
        return "done"
    asked = sorted(question for question in call.asked if question not in call.decisions)
    waits = [question for question in asked if question not in decided]
    questions = f"waits for approval {', '.join(waits)}" if waits else ""
    if call.in_doubt:
        return "; ".join(filter(None, (f"IN DOUBT: started {call.attempts}x, no result", questions)))
    if questions:
        return questions
    known = [decided[question] for question in asked] + [str(one.get("status")) for one in call.decisions.values()]
    if known:
        return safe_line(f"{known[0]}, no result yet")
    return "needs an approval" if call.gated else "no result yet"  # an idempotent one may have been started
