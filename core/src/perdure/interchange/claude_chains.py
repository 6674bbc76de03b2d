"""The lines of a Claude-shaped transcript as a graph: which of them are the conversation, and which are beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure import codec
from perdure.errors import ImportDataError, NotJsonError
from perdure.interchange.claude_blocks import CALL, RESULT, blocks
from perdure.interchange.lines import read_lines
from perdure.interchange.notes import LEFT_OUT, REPAIRED, Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.contracts.records import Record


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One line.

    Attributes:
        number: Of the line.
        value: What it says.
    """

    number: int
    value: Record

    @property
    def where(self) -> str:
        """Its place, for notes."""
        return f"line {self.number}"

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.value.get("type"))

    @property
    def uuid(self) -> str | None:
        """Its id, by which others name it as their parent."""
        found = self.value.get("uuid")
        return found if isinstance(found, str) else None

    @property
    def parent(self) -> str | None:
        """The line before it; behind a compaction, the one that was before the boundary."""
        found = self.value.get("parentUuid") or self.value.get("logicalParentUuid")
        return found if isinstance(found, str) else None

    @property
    def aside(self) -> bool:
        """Whether it is of a sidechain."""
        return self.value.get("isSidechain") is True

    @property
    def message(self) -> Record:
        """Its message; empty if it has none."""
        found = self.value.get("message")
        return found if isinstance(found, dict) else {}

    @property
    def message_id(self) -> str | None:
        """The id of the assistant's message, of which this line may be a piece."""
        found = self.message.get("id") if self.kind == "assistant" else None
        return found if isinstance(found, str) else None

    @property
    def is_boundary(self) -> bool:
        """Whether a compaction begins behind it."""
        return self.kind == "system" and self.value.get("subtype") == "compact_boundary"

    @property
    def is_summary(self) -> bool:
        """Whether it stands for what a compaction has replaced."""
        return self.spoken and self.value.get("isCompactSummary") is True

    @property
    def spoken(self) -> bool:
        """Whether it is a message of the user or the assistant."""
        return self.kind in ("user", "assistant") and "content" in self.message


def read_entries(lines: Iterable[bytes], notes: list[Note], *, strict: bool) -> list[Entry]:
    """Read all lines; one that was written twice counts once."""
    entries: list[Entry] = []
    known: dict[str, Record] = {}
    for line in read_lines(lines, notes, strict=strict):
        if (problem := _problem(line.value)) is not None:
            if strict:
                raise ImportDataError(f"line {line.number}", problem)
            notes.append(Note(f"line {line.number}", LEFT_OUT, f"the line {problem}"))
            continue
        entry = Entry(line.number, line.value)
        if entry.uuid is not None and entry.uuid in known:
            same = "again" if known[entry.uuid] == entry.value else "with other content"
            notes.append(Note(entry.where, LEFT_OUT, f"the id {entry.uuid} was used before; it stands there {same}"))
            continue
        if entry.uuid is not None:
            known[entry.uuid] = entry.value
        entries.append(entry)
    return entries


def _problem(value: object) -> str | None:
    """Return why a line cannot be kept; `None` if it can."""
    if not isinstance(value, dict):
        return "is no JSON object"
    try:
        codec.encode(value)
    except NotJsonError as error:  # what is read may be more than can be stored: 1e999, for instance
        return f"cannot be stored: {error}"
    return None


def chain(entries: Sequence[Entry], notes: list[Note]) -> set[Entry]:
    """Return the lines that are the conversation: what leads to its last message, and what belongs to that.

    Messages that were written in pieces, and results of calls made at once, branch off the line of parents; they belong
    to it. A parent that is not there is taken to be the line before, so that nothing before it is lost.
    """
    by_id = {entry.uuid: place for place, entry in enumerate(entries) if entry.uuid is not None}
    place = next((place for place in reversed(range(len(entries))) if entries[place].spoken), None)
    found: set[Entry] = set()
    while place is not None and entries[place] not in found:
        entry = entries[place]
        found.add(entry)
        before = by_id.get(entry.parent) if entry.parent is not None else None
        if entry.parent is not None and (before is None or before >= place):
            notes.append(Note(entry.where, REPAIRED, f"its parent {entry.parent} is not before it; the line before is"))
            before = _line_before(entries, place)
        elif entry.parent is None and (entry.is_boundary or entry.is_summary):
            before = _line_before(entries, place)  # a compaction begins a new line of parents
        place = before
    return found | _belonging(entries, found)


def _line_before(entries: Sequence[Entry], place: int) -> int | None:
    return next((at for at in reversed(range(place)) if entries[at].uuid is not None), None)


def _belonging(entries: Sequence[Entry], found: set[Entry]) -> set[Entry]:
    """Return what belongs to a chain beside it: other pieces of its messages, and results of their calls."""
    pieces = {entry.message_id for entry in found} - {None}
    more = {entry for entry in entries if entry.message_id in pieces}
    calls = {name for entry in found | more for name in _names(entry, CALL, "id")}
    answered = {name for entry in found for name in _names(entry, RESULT, "tool_use_id")}
    for entry in entries:
        asked = set(_names(entry, RESULT, "tool_use_id"))
        if entry.kind == "user" and entry not in found and asked and asked <= calls - answered:
            more.add(entry)
    return more


def _names(entry: Entry, kind: str, field: str) -> list[str]:
    """Return the calls that the blocks of a kind name."""
    found: list[Any] = [block for block in blocks(entry.message.get("content")) if isinstance(block, dict)]
    return [str(block[field]) for block in found if block.get("type") == kind and field in block]


def sidechains(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the lines of each sidechain by its name: that of its agent, or the id of its first line."""
    names: dict[str, str] = {}
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        agent = entry.value.get("agentId")
        own = entry.uuid or f"line-{entry.number}"
        name = agent if isinstance(agent, str) else names.get(entry.parent or "", own)
        names[own] = name
        found.setdefault(name, []).append(entry)
    return found
