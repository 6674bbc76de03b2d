"""What is kept in memory of a transcript that was read: its messages, and the little that is known beside them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from perdure.archives import SUMMARY
from perdure.recent import memory_of
from perdure.runtime.messages import Message, is_own
from perdure.runtime.transcript.history import starts
from perdure.runtime.turn.limits import Spent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.contracts.records import Record

_PLAIN = frozenset({"v", "kind", "run_id", "at", "message"})
_BARE: Final = 300
"""About how many bytes of memory a message takes that says nothing."""
_SMALL: Final = 64 * 1024
"""Up to how many bytes of memory the last record is kept, to be read again and compared with each reading."""
_BARE_PLACE: Final = 40
"""About how many bytes of memory the place of a record takes that is somebody else's."""


class Digest:
    """What the records of a transcript say; the records themselves are not kept, they would take as much memory again.

    A message has a place among the messages, which is not its place among the records where these are others', too.

    Attributes:
        messages: The messages and summaries.
        runs: For each of them the id of its run; `None`: it has none, or is a summary.
        notes: What is said beside some of them: by the place of the message, the record without it.
        foreign: The places, among the records, of those that are somebody else's.
        records: All of the records, of a digest that is to keep them; else none.
        last: The last record, unless it is large; `None`: there is none.
        weight: About how many bytes of memory the rest takes.
    """

    def __init__(self, records: Iterable[Record] = (), *, whole: bool = False) -> None:
        """Take in the first records; `whole`: keep them."""
        self.messages: list[Message] = []
        self.runs: list[str | None] = []
        self.notes: dict[int, Record] = {}
        self.foreign: list[int] = []
        self.records: list[Record] = []
        self.last: Record | None = None
        self.weight = 0
        self._whole = whole
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Take in the records that come next; what they hold becomes part of the messages and notes."""
        if self._whole:
            records = [*records]
            self.records.extend(records)
        run: str | None = None
        record: Record | None = None
        for record in records:
            if not is_own(record):
                self.foreign.append(self.count)
                self.weight += _BARE_PLACE
                continue
            is_summary = record["kind"] == SUMMARY
            if is_summary or not _PLAIN.issuperset(record):
                note = self.notes[len(self.messages)] = record.copy()
                del note["message"]
                self.weight += memory_of(note)
            found = None if is_summary else record.get("run_id")
            run = run if found == run else found  # one text for all of a run
            self.runs.append(run)
            message = Message.from_record(record["message"])
            self.messages.append(message)
            self.weight += _memory_of(message)
        if record is not None:
            self.last = record if memory_of(record) <= _SMALL else None

    def extend(self, other: Digest) -> None:
        """Take in what comes next as another digest has it, which began at the first record behind these."""
        begun = len(self.messages)
        self.foreign.extend([self.count + place for place in other.foreign])
        self.messages.extend(other.messages)
        self.runs.extend(other.runs)
        self.notes.update((begun + place, note) for place, note in other.notes.items())
        self.records.extend(other.records)
        self.weight += other.weight
        self.last = other.last if other.count else self.last

    @property
    def count(self) -> int:
        """How many records were taken in."""
        return len(self.messages) + len(self.foreign)

    def messages_in(self, count: int) -> int:
        """Return how many messages are in the first `count` records."""
        return count - bisect_left(self.foreign, count)

    def spent(self, count: int) -> Spent:
        """Return what the conversation had spent in its first `count` records."""
        behind = self.messages_in(count)
        for place in reversed(self.notes):
            if place < behind and "spent" in self.notes[place]:
                return Spent.from_record(self.notes[place]["spent"])
        return Spent()

    @property
    def turns(self) -> int:
        """How many turns the messages are of."""
        summaries = {place for place, note in self.notes.items() if note["kind"] == SUMMARY}
        said = enumerate(zip(self.runs, self.messages, strict=True))
        return len(starts((place, run, one.role) for place, (run, one) in said if place not in summaries))

    @property
    def opening(self) -> Record:
        """The summary that begins the transcript, without its message; `{}` if none does."""
        note = self.notes.get(0, {}) if self.messages_in(1) else {}
        return note if note.get("kind") == SUMMARY else {}


def _memory_of(message: Message) -> int:
    weight = _BARE + memory_of(message.content)
    if message.tool_calls:
        weight += sum([_BARE + memory_of(call.arguments) for call in message.tool_calls])
    if message.metadata or message.extra:
        weight += memory_of(message.metadata) + memory_of(message.extra)
    return weight
