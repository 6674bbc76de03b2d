"""What a turn comes to, and what is known of one that has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from perdure.archives import SUMMARY
from perdure.runtime.messages import Message, Usage, is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo
    from perdure.contracts.records import Record
    from perdure.ownership.leases import Ownership
    from perdure.runtime.transcript.digest import Digest

STOP: Final = "stop"
AWAITING: Final = "awaiting-approval"
ABORTED: Final = "aborted"
LIMIT: Final = "limit"
MAX_STEPS: Final = "max-steps"

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

    def for_others(self) -> TurnResult:
        """Return the result for somebody who may change what is in its messages."""
        return replace(self, messages=tuple([message.for_others() for message in self.messages]))


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


def result_of(read: Digest, run_id: str) -> TurnResult | None:
    """Return the result of a run that is in the transcript, or `None`; one that a summary stands for has no messages."""
    places = [place for place, run in enumerate(read.runs) if run == run_id]
    if not places:
        told = next((turn for turn in turns_of(read.notes.values()) if turn["run_id"] == run_id), None)
        return None if told is None else _told_result(told)
    messages = tuple([read.messages[place].for_others() for place in places])
    last = read.notes.get(places[-1], {})
    reason, usage = last.get("finish_reason") or STOP, Usage.from_record(last.get("usage", {}))
    return TurnResult(text_of(messages), reason, messages, usage, run_id)


def holds_run(records: Sequence[Record], run_id: str) -> bool:
    """Whether a transcript holds a run, itself or behind a summary."""
    own = [record for record in records if is_own(record)]
    return any(record.get("run_id") == run_id for record in own if record["kind"] != SUMMARY) or any(
        turn["run_id"] == run_id for turn in turns_of(own)
    )


def run_of_input(read: Digest, input_id: str) -> str | None:
    """Return the run that an input started or joined, among the last 100 turns of a transcript; `None`: none of them."""
    runs: dict[str, None] = {}
    for place in reversed(range(len(read.runs))):
        for run_id, inputs in reversed(_runs_at(read, place)):
            runs.setdefault(run_id)
            if len(runs) > REMEMBERED_TURNS:
                return None
            if input_id in inputs:
                return str(run_id)
    return None


def said_by(read: Digest, input_id: str) -> Sequence[Message]:
    """Return the messages of a transcript from where an input begins; none if a summary stands for it, or none has it."""
    named = (
        place for place, note in read.notes.items() if note["kind"] != SUMMARY and note.get("input_id") == input_id
    )
    return read.messages[next(named, len(read.messages)) :]


def turns_of(own: Iterable[Record]) -> list[Record]:
    """Return what a transcript tells of the turns that its summaries stand for, the oldest first."""
    return [turn for record in own if record["kind"] == SUMMARY for turn in record.get("turns", ())]


def _runs_at(read: Digest, place: int) -> list[tuple[str, Sequence[Any]]]:
    """Return the runs that the record of a message tells of, with the ids of the inputs that it names."""
    note, run_id = read.notes.get(place, {}), read.runs[place]
    if note.get("kind") == SUMMARY:
        return [(turn["run_id"], turn["input_ids"]) for turn in note.get("turns", ())]
    return [] if run_id is None else [(run_id, [note["input_id"]] if "input_id" in note else [])]


def _told_result(turn: Record) -> TurnResult:
    return TurnResult("", turn["finish_reason"], (), Usage.from_record(turn["usage"]), turn["run_id"])
