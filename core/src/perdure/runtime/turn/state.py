"""A turn as its journal tells it: which responses, calls, decisions and results are recorded.

Entries are the only source. The runner appends an entry first and applies it here second, and a fresh process applies
them all: both see the same turn. What is saved is what the entries hold; the messages that are handed out are copies,
since a model may change the ones that it is asked with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from perdure import codec
from perdure.errors import StoreCorruptedError
from perdure.runtime.messages import Message, ToolCall, Usage, message_record
from perdure.runtime.results import MAX_STEPS, STOP, TurnResult, text_of
from perdure.runtime.turn.limits import Limits, Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record

ENTRY_VERSION: Final = 1
_MANY: Final = 10**18
_LONG: Final = 1.7976931348623157e308
"""Numbers that take as much room as any: no turn that fits shall lack the room for what it has spent."""


def entry(kind: str, at: str, **fields: Any) -> Record:
    """Return an entry of a turn journal."""
    return {"v": ENTRY_VERSION, "kind": kind, "at": at, **fields}


def given_input(messages: Sequence[Record], input_id: str, limits: Limits | None) -> Record:
    """Return what an entry says of an input."""
    said: Record = {"messages": list(messages), "input_id": input_id}
    return said if limits is None else said | {"limits": limits.to_record()}


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
    asked: frozenset[str] = frozenset()
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
        arguments = self.call.arguments
        for decision in self.decisions.values():
            arguments = decision.get("arguments", arguments)
        return arguments

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


@dataclass(slots=True)
class Input:
    """An input of the turn: the one that opened it, or one that joined it later.

    Attributes:
        id: Its name.
        at: When it was accepted.
        messages: What it says, and each as it stands in its entry.
        steer: Whether it shall be heard as soon as it can be.
        limits: What the conversation may spend, as the session says through which it came; `None`: it says nothing.
        before: The step whose request was the first to hold it; `None`: no response has followed yet.
    """

    id: str
    at: str
    messages: list[tuple[Message, Record]]
    steer: bool = False
    limits: Limits | None = None
    before: int | None = None

    @property
    def records(self) -> list[Record]:
        """The messages as they stand in the entry."""
        return [record for _, record in self.messages]

    def entry(self, kind: str) -> Record:
        """Return it as an entry of another turn's journal."""
        return entry(kind, self.at, **given_input(self.records, self.id, self.limits))


class TurnState:
    """What the entries of a turn say."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.inputs: list[Input] = []
        self.usage = Usage()
        self.seconds = 0.0
        self.steps: list[Step] = []
        self.resumed = 0
        self.finish_reason: str | None = None
        self._last_at: datetime | None = None
        self._past: list[Message] = []  # up to the last step: what can change no more

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
            handler = self._handlers.get(str(item.get("kind")))
            if handler is not None:
                try:
                    self._take_time(item)
                    handler(self, item)
                except (LookupError, TypeError, AttributeError, ValueError) as error:
                    where = f"turn journal of run {self.run_id}: an entry {item['kind']!r}"
                    raise StoreCorruptedError(where, repr(error)) from error

    def call(self, item: Record) -> CallState:
        """Return the call that an entry is about."""
        return self.steps[item["step"]].calls[item["call"]]

    @property
    def spent(self) -> Spent:
        """What the turn has spent so far."""
        return Spent(self.usage, len(self.steps), self.seconds)

    def finish(self, reason: str, now: datetime) -> None:
        """End the turn; what came to nothing since its last entry has taken time, too."""
        self.finish_reason = reason
        self.seconds += self._since_last(now)
        self._last_at = now

    def running(self, now: datetime) -> Spent:
        """Return what the turn has spent, the time since its last entry included."""
        return replace(self.spent, seconds=self.seconds + self._since_last(now))

    @property
    def limits(self) -> Limits | None:
        """What the conversation may spend, as the turn was begun; `None`: nothing was said."""
        return self.inputs[0].limits

    @property
    def untaken(self) -> list[Input]:
        """The joined inputs that no response has followed yet; when the turn has ended, they open the next one."""
        return [given for given in self.inputs[1:] if given.before is None]

    @property
    def steered(self) -> bool:
        """Whether an input waits that shall be heard as soon as it can be."""
        return len(self.inputs) > 1 and any(given.steer for given in self.untaken)

    def holds(self, input_id: str) -> bool:
        """Whether an input is part of the turn, or waits in its journal."""
        return any(given.id == input_id for given in self.inputs)

    def said_by(self, input_id: str) -> Sequence[Record]:
        """Return what an input says that is part of the turn."""
        return next(given.records for given in self.inputs if given.id == input_id)

    @property
    def messages(self) -> list[Message]:
        """The turn's messages in the order of the conversation; results in the order of their calls."""
        if not self.steps:
            return [message for message, _ in self.inputs[0].messages]
        return self._past + self._last_step()

    @property
    def asking(self) -> tuple[Sequence[Message], ...]:
        """The messages of the next request, in lists that may grow: the turn's, and those of inputs that wait."""
        waiting = [message for given in self.untaken for message, _ in given.messages]
        return (self._past, self._last_step(), waiting) if self.steps else (self.messages, waiting)

    def result(self, reason: str, approval_ids: Sequence[str] = ()) -> TurnResult:
        """Return what the turn comes to."""
        messages = tuple(self.messages)
        return TurnResult(text_of(messages), reason, messages, self.usage, self.run_id, tuple(approval_ids))

    def records(self, before: Spent) -> list[Record]:
        """Return the turn as records of the transcript; the last one says how it ended and what is spent so far."""
        records: list[Record] = []
        for at, input_id, _, record in self._stamped():
            records.append(message_record(self.run_id, at, record))
            if input_id is not None:
                records[-1]["input_id"] = input_id
        records[-1] |= {
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_record(),
            "spent": (before + self.spent).to_record(),
        }
        return records

    def _last_step(self) -> list[Message]:
        step = self.steps[-1]
        return [step.message, *[call.result for call in step.calls if call.result is not None]]

    def _stamped(self) -> Iterator[tuple[str, str | None, Message, Record]]:
        """Yield the turn's messages in their order: instant, the input that begins there, message, and its record."""
        taken: dict[int, list[Input]] = {}
        for place, given in enumerate(self.inputs):
            if place == 0 or given.before is not None:
                taken.setdefault(given.before or 0, []).append(given)
        yield from _of_inputs(taken.get(0, ()))
        for number, step in enumerate(self.steps):
            if number:
                yield from _of_inputs(taken.get(number, ()))
            yield step.at, None, step.message, step.record
            for call in step.calls:
                if call.result is not None:
                    yield call.result_at, None, call.result, call.result_record

    def _take_time(self, item: Record) -> None:
        """Count the time since the entry before; not that in which nobody ran the turn."""
        at = datetime.fromisoformat(item["at"])
        if item["kind"] not in ("input", "resumed"):
            self.seconds += self._since_last(at)
        self._last_at = at

    def _since_last(self, at: datetime) -> float:
        return 0.0 if self._last_at is None else max(0.0, (at - self._last_at).total_seconds())

    def _on_input(self, item: Record) -> None:
        self.inputs.append(_input_of(item))

    def _on_model(self, item: Record) -> None:
        message = _copied(item["message"])
        step = len(self.steps)
        if step:
            self._past.extend(self._last_step())
        for given in self.inputs[: item.get("inputs", len(self.inputs))]:
            if given.before is None:
                given.before = step
                self._past.extend([said for said, _ in given.messages])
        calls = [
            CallState(
                f"{self.run_id}.s{step}.c{place}",
                *(step, place, call, place in item["gated"]),
                resumed_before=self.resumed,
            )
            for place, call in enumerate(message.tool_calls)
        ]
        usage = Usage.from_record(item["usage"])
        self.steps.append(Step(message, item["message"], item["at"], usage, calls))
        self.usage += usage

    def _on_tool_started(self, item: Record) -> None:
        self.call(item).attempts += 1

    def _on_tool_failed(self, item: Record) -> None:
        self.call(item).failures += 1

    def _on_tool(self, item: Record) -> None:
        call = self.call(item)
        call.result, call.result_at = _copied(item["message"]), item["at"]
        call.result_record = item["message"]

    def _on_approval_requested(self, item: Record) -> None:
        self.call(item).asked |= {item["approval_id"]}

    def _on_approval_applied(self, item: Record) -> None:
        call = self.call(item)
        call.decisions[item["approval_id"]] = item
        if item["approval_id"] == call.id:
            call.resumed_before = self.resumed

    def _on_resumed(self, _: Record) -> None:
        self.resumed += 1

    def _on_finished(self, item: Record) -> None:
        self.finish_reason = item["finish_reason"]

    _handlers: ClassVar[dict[str, Callable[[TurnState, Record], None]]] = {
        "input": _on_input,
        "input-queued": _on_input,
        "model": _on_model,
        "tool-started": _on_tool_started,
        "tool-failed": _on_tool_failed,
        "tool": _on_tool,
        "approval-requested": _on_approval_requested,
        "approval-applied": _on_approval_applied,
        "resumed": _on_resumed,
        "finished": _on_finished,
    }


def largest_record(run_id: str, at: str, message: Record) -> Record:
    """Return a message as the largest record of the transcript that it can become: the last one of its turn."""
    usage = Usage(_MANY, _MANY, _MANY, _LONG)
    last = {"finish_reason": MAX_STEPS, "usage": usage.to_record(), "spent": Spent(usage, _MANY, _LONG).to_record()}
    return message_record(run_id, at, message) | last


def kept_result(found: Checkpoint) -> TurnResult:
    """Return the result that the journal of a finished run holds."""
    state = TurnState.of(found.head.run_id or "", found.entries)
    return state.result(state.finish_reason or STOP)


def _input_of(item: Record) -> Input:
    messages = [(_copied(record), record) for record in item["messages"]]
    limits = Limits.from_record(item["limits"]) if "limits" in item else None
    return Input(item["input_id"], item["at"], messages, steer=item.get("steer", False), limits=limits)


def _of_inputs(inputs: Iterable[Input]) -> Iterator[tuple[str, str | None, Message, Record]]:
    for given in inputs:
        for place, (message, record) in enumerate(given.messages):
            yield given.at, given.id if place == 0 else None, message, record


def _copied(record: Record) -> Message:
    return Message.from_record(codec.copied(record))
