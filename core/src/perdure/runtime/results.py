"""What a turn comes to, and what is known of one that has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.archives import SUMMARY
from perdure.runtime.history import is_own
from perdure.runtime.messages import Message, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo
    from perdure.contracts.records import Record
    from perdure.ownership.leases import Ownership

REMEMBERED_TURNS: Final = 100
"""How many turns back an input is found by its id, also behind summaries."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended, or why it waits.

    Attributes:
        text: The text of the last response.
        finish_reason: `stop`, `awaiting-approval`, `aborted`, `limit` or `max-steps`.
        messages: The turn's messages, the input included.
        usage: What the turn has cost.
        run_id: The run.
        approval_ids: The approvals that it waits for.
    """

    text: str
    finish_reason: str
    messages: Sequence[Message]
    usage: Usage
    run_id: str
    approval_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A turn that has not ended.

    Attributes:
        session_id: Its session, `None` for a run without one.
        run_id: The run, `None` while a claim holds a conversation without a turn.
        status: `in-progress`, `awaiting-approval`, `ready`, `finished`, or what a claim does: `clearing`, `discarding`, ...
        approval_ids: The undecided approvals that it waits for.
        attempts: How often it was taken up.
        last_error: Its last failure.
        owner: Who runs it right now, `None` if nobody does.
        updated_at: When it was last written to.
    """

    session_id: str | None
    run_id: str | None
    status: str
    approval_ids: Sequence[str] = field(default=())
    attempts: int = 0
    last_error: str | None = None
    owner: str | None = None
    updated_at: datetime | None = None


def described(found: Checkpoint | CheckpointInfo, ownership: Ownership) -> PendingTurn:
    """Return what the head of a turn journal says of its turn; an owner that is gone runs it no longer."""
    head = found.head
    return PendingTurn(
        session_id=head.session_id,
        run_id=head.run_id,
        status=head.status,
        approval_ids=tuple(head.approval_ids),
        attempts=head.attempts,
        last_error=head.last_error,
        owner=head.owner if ownership.is_live(found) else None,
        updated_at=found.updated_at,
    )


def text_of(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message."""
    return next((message.text for message in reversed(messages) if message.role == "assistant"), "")


def result_of(records: Sequence[Record], run_id: str) -> TurnResult | None:
    """Return the result of a run that is in the transcript, or `None`; one that a summary stands for has no messages."""
    own = [record for record in _saved(records) if record.get("run_id") == run_id]
    if not own:
        told = next((turn for turn in turns_of(records) if turn["run_id"] == run_id), None)
        return None if told is None else _told_result(told)
    messages = tuple(Message.from_record(record["message"]) for record in own)
    last = own[-1]
    reason, usage = last.get("finish_reason") or "stop", Usage.from_record(last.get("usage", {}))
    return TurnResult(text_of(messages), reason, messages, usage, run_id)


def holds_run(records: Sequence[Record], run_id: str) -> bool:
    """Whether a transcript holds a run, itself or behind a summary."""
    return any(record.get("run_id") == run_id for record in _saved(records)) or any(
        turn["run_id"] == run_id for turn in turns_of(records)
    )


def run_of_input(records: Sequence[Record], input_id: str) -> str | None:
    """Return the run that an input started or joined, among the last 100 turns of a transcript; `None`: none of them."""
    runs: dict[str, None] = {}
    for record in reversed(records):
        for run_id, inputs in reversed(_runs_in(record)):
            runs.setdefault(run_id)
            if len(runs) > REMEMBERED_TURNS:
                return None
            if input_id in inputs:
                return str(run_id)
    return None


def said_by(records: Sequence[Record], input_id: str) -> Sequence[Record]:
    """Return the messages of a transcript from where an input begins; none if a summary stands for it, or none has it."""
    own = _saved(records)
    begins = next((place for place, record in enumerate(own) if record.get("input_id") == input_id), len(own))
    return [record["message"] for record in own[begins:]]


def turns_of(records: Sequence[Record]) -> list[Record]:
    """Return what a transcript tells of the turns that its summaries stand for, the oldest first."""
    summaries = [record for record in records if is_own(record) and record["kind"] == SUMMARY]
    return [turn for summary in summaries for turn in summary.get("turns", ())]


def _saved(records: Sequence[Record]) -> list[Record]:
    """Return the messages of a transcript, without summaries and what is somebody else's."""
    return [record for record in records if is_own(record) and record["kind"] != SUMMARY]


def _runs_in(record: Record) -> list[tuple[str, Sequence[Any]]]:
    """Return the runs that a record tells of, with the ids of the inputs that it names."""
    if not is_own(record):
        return []
    if record["kind"] == SUMMARY:
        return [(turn["run_id"], turn["input_ids"]) for turn in record.get("turns", ())]
    inputs = [record["input_id"]] if "input_id" in record else []
    return [(record["run_id"], inputs)] if record.get("run_id") is not None else []


def _told_result(turn: Record) -> TurnResult:
    return TurnResult("", turn["finish_reason"], (), Usage.from_record(turn["usage"]), turn["run_id"])
