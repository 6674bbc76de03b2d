"""What the model is told of calls: what tools said, and of those that did not simply succeed, why; in entries that can be stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from perdure.contracts.approvals import CANCELLED, EXPIRY, Approval
from perdure.contracts.records import encode_object
from perdure.errors import NotJsonError, RecordTooLargeError
from perdure.runtime.messages import ToolCall, stamp
from perdure.runtime.tools import ToolResultError
from perdure.runtime.turn.state import entry, largest_record

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.ownership.owned_journal import OwnedJournal
    from perdure.runtime.turn.state import CallState


REST: Final = 4096
"""More bytes than any entry or record with a message has beside that message."""

LONGEST: Final = 12
"""The most bytes that one character takes in JSON: a surrogate pair in ASCII."""

UNSTORABLE_NOTE: Final = "(too large to be stored)"
UNSTORABLE_EDIT: Final = "not run: it was approved with other arguments, which are too large to be stored"


def failure(error: Exception) -> str:
    """Return what a tool raised, also an exception whose own text fails."""
    kind = type(error).__name__
    try:
        text = storable(str(error))
    except Exception:  # noqa: BLE001  # reason: what is wrong with the text of an error does not hide the error
        return kind
    if isinstance(error, TimeoutError):
        return f"the tool did not end in time; whether it had an effect is not known ({text})".replace(" ()", "")
    return text if isinstance(error, ToolResultError) else f"{kind}: {text}"


def storable(text: str) -> str:
    """Return the text of an error with halves of characters escaped, of which JSON does not take every two."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def unknown(call: CallState) -> str:
    """Return what is said of a call in doubt that is not repeated."""
    return f"whether attempt {call.attempts} of this call had an effect is not known, and it was not repeated"


def rejection(approval: Approval, note: str | None) -> str:
    """Return what the model is told of a call that was not approved, with what the human noted."""
    decision = approval.decision
    by = None if decision is None else decision.decided_by
    reason = "cancelled" if approval.status == CANCELLED else "expired" if by == EXPIRY else "rejected"
    said: dict[str, Any] = {"status": reason, "tool": approval.tool_name}
    if approval.kind == "in-doubt":
        said["outcome"] = "unknown; the call was not repeated"
    if note is not None:
        said["note"] = note
    return json.dumps(said, ensure_ascii=False)


class Answers:
    """Makes the entries that answer the calls of one turn, so that each can be stored: any turn must be able to end."""

    def __init__(self, store: AgentStore, journal: OwnedJournal, run_id: str) -> None:
        self._store, self._journal, self._run_id = store, journal, run_id
        self._small = (min(store.checkpoints.max_record, store.sessions.max_record) - REST) // LONGEST

    def of(self, call: CallState, text: str) -> Record:
        """Return what the model is told of a call that did not succeed."""
        return self.told(call.call, call.step, call.place, text)

    def told(self, call: ToolCall, step: int, place: int, text: str) -> Record:
        """Return the same of a call that is not recorded yet. A text that cannot be stored whole is cut."""
        said = self._entry(call, step, place, text)
        if self._is_small(call, text):
            return said
        while text and not self.fits(said):
            text = text[: len(text) // 2]
            said = self._entry(call, step, place, f"{text} ... (cut: it cannot be stored whole)")
        return said

    def rejected(self, call: CallState, approval: Approval) -> Record:
        """Return what the model is told of a call that was not approved."""
        note = None if approval.decision is None else approval.decision.note
        whole = self._entry(call.call, call.step, call.place, rejection(approval, note))
        return whole if self.fits(whole) else self.of(call, rejection(approval, UNSTORABLE_NOTE))

    def kept(self, call: CallState, text: str, *, is_error: bool) -> Record:
        """Return what a tool said; a result that cannot be stored becomes an error that says that it ran."""
        said = self._entry(call.call, call.step, call.place, text, is_error=is_error)
        if self._is_small(call.call, text):
            return said
        where = f"the result of {call.call.name}"
        try:
            encode_object(said, where, self._store.checkpoints.max_record)
            self.fitting(said["message"], where)
        except (NotJsonError, RecordTooLargeError) as error:
            return self.of(call, f"the tool ran, but what it said cannot be stored: {error}")
        return said

    def _is_small(self, call: ToolCall, text: str) -> bool:
        """Whether an answer can be stored for certain, by the number of its characters; the others are encoded to see."""
        return len(call.id) + len(text) <= self._small and (text.isascii() or storable(text) == text)

    def fits(self, item: Record) -> bool:
        """Whether an entry, and the message that it may hold, can be stored."""
        try:
            encode_object(item, "entry", self._store.checkpoints.max_record)
            if "message" in item:
                self.fitting(item["message"], "message")
        except (NotJsonError, RecordTooLargeError):
            return False
        return True

    def fitting(self, message: Record, where: str) -> bytes:
        """Return a message as bytes, or raise: one that is journaled and cannot be saved would stop the turn for good."""
        data = encode_object(message, where, self._store.checkpoints.max_record)
        limit = self._store.sessions.max_record
        if len(data) + REST > limit and self._journal.head.session_id is not None:
            encode_object(largest_record(self._run_id, self._now(), message), where, limit)
        return data

    def _entry(self, call: ToolCall, step: int, place: int, text: str, *, is_error: bool = True) -> Record:
        message: Record = {"role": "tool", "content": text, "tool_call_id": call.id}
        if is_error:
            message["is_error"] = True
        return entry("tool", self._now(), step=step, call=place, message=message)

    def _now(self) -> str:
        return stamp(self._store.clock.now())
