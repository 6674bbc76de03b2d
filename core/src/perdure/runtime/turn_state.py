"""A turn as its journal tells it: which responses, calls, decisions and results are recorded.

Entries are the only source. The runner appends an entry first and applies it here second, and a fresh process applies
them all: both see the same turn. What is saved is what the entries hold; the messages that are handed out are copies,
since a model may change the ones that it is asked with.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import StoreCorruptedError
from perdure.runtime.messages import Message, ToolCall, Usage, message_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.contracts.records import Record

ENTRY_VERSION: Final = 1


def entry(kind: str, at: str, **fields: Any) -> Record:
    """Return an entry of a turn journal."""
    return {"v": ENTRY_VERSION, "kind": kind, "at": at, **fields}


@dataclass(slots=True)
class CallState:
    """One call of a response.

    Attributes:
        id: `<run id>.s<step>.c<call>`: names the call, and the approval that gates it.
        step: Which response, from 0.
        place: Its place among all calls of the response.
        call: What the model asked for.
        gated: Whether a human decides first.
        attempts: How often it was started; an attempt that is known to have failed does not count.
        failures: How many attempts are known to have failed without an effect that counts.
        resumed_before: How often the turn had been resumed when the call could first run.
        asked: The approvals requested for it.
        decisions: The decisions applied to it, by approval.
        result: Its result, once it is recorded.
        result_record: The same as it stands in its entry.
        result_at: When.
    """

    id: str
    step: int
    place: int
    call: ToolCall
    gated: bool
    attempts: int = 0
    failures: int = 0
    resumed_before: int = 0
    asked: set[str] = field(default_factory=set)
    decisions: dict[str, Record] = field(default_factory=dict)
    result: Message | None = None
    result_record: Record = field(default_factory=dict)
    result_at: str = ""

    @property
    def in_doubt(self) -> bool:
        """Whether it was started and has neither a result nor a known failure."""
        return self.result is None and self.attempts > self.failures

    @property
    def arguments(self) -> Record:
        """The arguments to run with: those of the last decision that edited them."""
        edited = [decision["arguments"] for decision in self.decisions.values() if "arguments" in decision]
        return edited[-1] if edited else self.call.arguments

    @property
    def doubt_id(self) -> str:
        """The id of the question whether the attempt in doubt may be repeated."""
        return f"{self.id}.d{self.attempts}"


@dataclass(slots=True)
class Step:
    """One response of the model, and what became of its calls."""

    message: Message
    record: Record
    at: str
    usage: Usage
    calls: list[CallState]

    def unanswered(self) -> list[CallState]:
        """The calls without a result."""
        return [call for call in self.calls if call.result is None]


class TurnState:
    """What the entries of a turn say."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.input: list[tuple[Message, Record]] = []
        self.input_id = ""
        self.input_at = ""
        self.steps: list[Step] = []
        self.resumed = 0
        self.finish_reason: str | None = None

    @classmethod
    def of(cls, run_id: str, entries: Iterable[Record]) -> TurnState:
        """Make the state that entries tell."""
        state = cls(run_id)
        state.apply(entries)
        return state

    def apply(self, entries: Iterable[Record]) -> None:
        """Take entries in; kinds that belong to others (claims) say nothing of the turn.

        Raises:
            StoreCorruptedError: An entry does not fit those before it, or lacks what its kind has.
        """
        for item in entries:
            handler = getattr(self, "_on_" + str(item.get("kind")).replace("-", "_"), None)
            if handler is not None:
                try:
                    handler(item)
                except (LookupError, TypeError, AttributeError, ValueError) as error:
                    where = f"turn journal of run {self.run_id}: an entry {item['kind']!r}"
                    raise StoreCorruptedError(where, repr(error)) from error

    def call(self, item: Record) -> CallState:
        """Return the call that an entry is about."""
        return self.steps[item["step"]].calls[item["call"]]

    @property
    def usage(self) -> Usage:
        """What the turn has cost so far."""
        return sum((step.usage for step in self.steps), Usage())

    @property
    def messages(self) -> list[Message]:
        """The turn's messages in the order of the conversation; results in the order of their calls."""
        return [message for _, message, _ in self._stamped()]

    def records(self, spent: Usage) -> list[Record]:
        """Return the turn as records of the transcript; the last one says how it ended and what is spent so far."""
        records = [message_record(self.run_id, at, record) for at, _, record in self._stamped()]
        records[0]["input_id"] = self.input_id
        records[-1] |= {
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_record(),
            "spent": (spent + self.usage).to_record(),
        }
        return records

    def _stamped(self) -> list[tuple[str, Message, Record]]:
        """Return the turn's messages in their order, each with its instant and as it stands in its entry."""
        stamped = [(self.input_at, message, record) for message, record in self.input]
        for step in self.steps:
            stamped.append((step.at, step.message, step.record))
            stamped.extend(
                (call.result_at, call.result, call.result_record) for call in step.calls if call.result is not None
            )
        return stamped

    def _on_input(self, item: Record) -> None:
        self.input = [(_copied(record), record) for record in item["messages"]]
        self.input_id, self.input_at = item["input_id"], item["at"]

    def _on_model(self, item: Record) -> None:
        message = _copied(item["message"])
        step = len(self.steps)
        calls = [
            CallState(
                f"{self.run_id}.s{step}.c{place}",
                *(step, place, call, place in item["gated"]),
                resumed_before=self.resumed,
            )
            for place, call in enumerate(message.tool_calls)
        ]
        self.steps.append(Step(message, item["message"], item["at"], Usage.from_record(item["usage"]), calls))

    def _on_tool_started(self, item: Record) -> None:
        self.call(item).attempts += 1

    def _on_tool_failed(self, item: Record) -> None:
        self.call(item).failures += 1

    def _on_tool(self, item: Record) -> None:
        call = self.call(item)
        call.result, call.result_at = _copied(item["message"]), item["at"]
        call.result_record = item["message"]

    def _on_approval_requested(self, item: Record) -> None:
        self.call(item).asked.add(item["approval_id"])

    def _on_approval_applied(self, item: Record) -> None:
        call = self.call(item)
        call.decisions[item["approval_id"]] = item
        if item["approval_id"] == call.id:
            call.resumed_before = self.resumed

    def _on_resumed(self, _: Record) -> None:
        self.resumed += 1

    def _on_finished(self, item: Record) -> None:
        self.finish_reason = item["finish_reason"]


def _copied(record: Record) -> Message:
    return Message.from_record(copy.deepcopy(record))
