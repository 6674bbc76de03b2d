"""The repair of calls without results and results without calls. It is idempotent, and alters no message that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perdure.interchange.notes import REPAIRED, Converted, Note
from perdure.runtime.messages import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.contracts.records import Record

UNMATCHED: Final = "unmatched-result"
"""The kind of a record that holds a result which answers no call: it is kept, and no model sees it."""

MISSING_RESULT: Final = "The result of this call is not known: the call may or may not have run."


class _Step:
    """The calls of one message, and the places of their results."""

    def __init__(self, place: int, calls: Sequence[Any]) -> None:
        self.place = place
        self.calls = [str(call["id"]) for call in calls]
        self.results: dict[int, int] = {}
        self._open: dict[str, list[int]] = {}
        for index in reversed(range(len(self.calls))):
            self._open.setdefault(self.calls[index], []).append(index)

    def answer(self, call_id: str, place: int) -> bool:
        """Take a result for the first call of its id that has none."""
        if not self._open[call_id]:
            return False
        self.results[self._open[call_id].pop()] = place
        return True


def repair_calls(records: Sequence[Record]) -> Converted[list[Record]]:
    """Give every call exactly one result, right behind the message that makes it.

    A result that stands elsewhere behind its call is moved to it. A call without one gets an error result which says
    that it is not known whether it ran. A result that answers no call, or one that is answered, is set aside in a
    record of the kind `unmatched-result`. Everything else stays as it is, in its order.

    Args:
        records: Of a transcript. What is no message is passed over.

    Returns:
        The records, and a note for each that was moved, added or set aside.
    """
    steps, aside = _matched(records)
    repaired: list[Record] = []
    notes: list[Note] = []
    late = {place for step in steps for place in _late(records, step)}
    closing = {_end(records, step): step for step in steps}
    for place in range(len(records) + 1):
        step = closing.get(place)
        if step is not None:
            for found in _late(records, step):
                repaired.append(records[found])
                notes.append(Note(f"records[{found}]", REPAIRED, "a result was moved to its call"))
            for call_id in _unanswered(step):
                repaired.append(_missing(records[step.place], call_id))
                notes.append(Note(f"records[{step.place}]", REPAIRED, f"the call {call_id} had no result; it got one"))
        if place == len(records):
            break
        if place in aside:
            repaired.append({**records[place], "kind": UNMATCHED})
            notes.append(Note(f"records[{place}]", REPAIRED, "a result answers no call; it was set aside"))
        elif place not in late:
            repaired.append(records[place])
    return Converted(repaired, tuple(notes))


def _matched(records: Sequence[Record]) -> tuple[list[_Step], set[int]]:
    """Match each result with the last step before it that makes its call; and return the places of those without one."""
    steps: list[_Step] = []
    latest: dict[str, _Step] = {}
    aside: set[int] = set()
    for place, record in enumerate(records):
        if not is_own(record):
            continue
        message = record["message"]
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            step = latest.get(call_id) if isinstance(call_id, str) else None
            if step is None or not step.answer(call_id, place):
                aside.add(place)
        elif message.get("tool_calls"):
            steps.append(_Step(place, message["tool_calls"]))
            latest |= dict.fromkeys(steps[-1].calls, steps[-1])
    return steps, aside


def _end(records: Sequence[Record], step: _Step) -> int:
    """Return the place behind the results that stand right behind a step, where no model sees anything between."""
    end = step.place + 1
    places = set(step.results.values())
    for place in range(step.place + 1, len(records)):
        if place in places:
            end = place + 1
        elif is_own(records[place]):
            break
    return end


def _late(records: Sequence[Record], step: _Step) -> list[int]:
    end = _end(records, step)
    return sorted(place for place in step.results.values() if place >= end)


def _unanswered(step: _Step) -> Iterator[str]:
    return (call_id for index, call_id in enumerate(step.calls) if index not in step.results)


def _missing(call: Record, call_id: str) -> Record:
    """Return the result of a call that has none, in the same turn."""
    message = {
        "role": "tool",
        "content": MISSING_RESULT,
        "tool_call_id": call_id,
        "is_error": True,
        "metadata": {"repaired": True},
    }
    turn: Record = {name: call[name] for name in ("run_id", "at") if name in call}
    return {"v": 1, "kind": "message", **turn, "message": message}
