"""Transcripts on their way out as Claude-shaped JSON Lines."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from perdure.interchange.claude_blocks import block_from_call, block_from_result, blocks, blocks_from_parts
from perdure.interchange.claude_reading import CARRIED, FOREIGN, OWN, SAID
from perdure.interchange.notes import CHANGED, Converted, Note
from perdure.runtime.messages import Message, is_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.contracts.records import Record

_WHOSE: Final = ("sessionId", "isSidechain", "agentId")
"""The fields of a line that say which conversation it is of."""
_IDS: Final = uuid.UUID("6f0a1f3e-6a55-5d0c-9b57-5a8e4b1d9c11")


def claude_from_transcripts(session_id: str, parts: Sequence[Sequence[Record]], *, at: str) -> Converted[list[Record]]:
    """Make the lines of a Claude-shaped transcript.

    Args:
        session_id: The session.
        parts: The records of its archives, the oldest first and each as far as the summary behind it stands for it, and
            of its transcript.
        at: The instant (ISO 8601) of records that tell none.

    Returns:
        The lines as JSON objects, the same for the same records; and a note for each record that is none of a message:
        it goes out in a line of a type that only perdure reads.

    Raises:
        StoreCorruptedError: A record that says that it is a message is none.
    """
    writer = _Writer(session_id, at)
    for number, records in enumerate(parts):
        writer.add(records, behind_compaction=number > 0)
    return Converted(writer.lines, tuple(writer.notes))


class _Writer:
    """Writes lines, each with the one before it as its parent."""

    def __init__(self, session_id: str, at: str) -> None:
        self.lines: list[Record] = []
        self.notes: list[Note] = []
        self._session_id = session_id
        self._at = at
        self._last: str | None = None
        self._whose: Record = {"sessionId": session_id, "isSidechain": False}

    def add(self, records: Sequence[Record], *, behind_compaction: bool) -> None:
        for place, record in enumerate(records):
            if is_own(record):
                Message.from_record(record["message"], f"records[{place}]")  # or it is said to be damaged
        place = 0
        while place < len(records):
            record = records[place]
            if not is_own(record):
                self._foreign(record, place)
                place += 1
            elif behind_compaction and place == 0:
                self._boundary(record)
                place = 1
            else:
                end = _end_of_line(records, place)
                self._message(records[place:end])
                place = end

    def _foreign(self, record: Record, place: int) -> None:
        line = record.get(OWN)
        if str(record.get("kind")).startswith(FOREIGN) and isinstance(line, dict):
            self.lines.append(line)
            parent = line.get("parentUuid") or line.get("logicalParentUuid")
            goes_on = parent == self._last  # else it is of a branch that was taken back
            if goes_on and isinstance(line.get("uuid"), str) and line.get("type") not in ("user", "assistant"):
                self._last = line["uuid"]
            return
        kind = record.get("kind")
        self.notes.append(
            Note(f"records[{place}]", CHANGED, f"a record of the kind {kind!r} is a line of its own type")
        )
        at = self._time(record)
        self.lines.append({"type": CARRIED, **self._whose, "timestamp": at, CARRIED: record})

    def _boundary(self, record: Record) -> None:
        """Write the boundary of a compaction, and its summary."""
        own = _own(record)
        given = own.get("boundary")
        known: Record = given if isinstance(given, dict) else {}
        line = self._line("system", known, record) | {
            "parentUuid": None,
            "logicalParentUuid": self._last,
            "subtype": "compact_boundary",
            "content": known.get("content", "Conversation compacted"),
        }
        self._put(line)
        message = {"role": "user", "content": blocks_from_parts(record["message"].get("content", ""))}
        summary = self._line("user", _line_of(own), record) | {
            "isCompactSummary": True,
            "message": message,
            CARRIED: [_without_content(record)],
        }
        self._put(summary)

    def _message(self, records: Sequence[Record]) -> None:
        first = records[0]
        known = _line_of(_own(first))
        kind = "assistant" if first["message"].get("role") == "assistant" else "user"
        kept = known.get("message")
        message: Record = (kept if isinstance(kept, dict) else {}) | {"role": kind, "content": _content(records)}
        if kind == "assistant":
            message = {"type": "message"} | message
        line = self._line(kind, known, first) | {
            "message": message,
            CARRIED: [_without_content(one) for one in records],
        }
        self._put(line)

    def _line(self, kind: str, known: Record, record: Record) -> Record:
        """Return a line without what it says: what the format knows of it, or what it must have."""
        given = known.get("uuid")
        own = given if isinstance(given, str) else str(uuid.uuid5(_IDS, f"{self._session_id}/{len(self.lines)}"))
        self._whose |= {name: known[name] for name in _WHOSE if name in known}  # what comes behind it is of the same
        must = {**self._whose, "userType": "external", "timestamp": self._time(record)}
        return {"parentUuid": self._last} | must | known | {"parentUuid": self._last, "type": kind, "uuid": own}

    def _put(self, line: Record) -> None:
        self.lines.append(line)
        self._last = line["uuid"]

    def _time(self, record: Record) -> str:
        at = record.get("at")
        return at if isinstance(at, str) else self._at


def _end_of_line(records: Sequence[Record], place: int) -> int:
    """Return where the records end that go into one line: results that came from one, and what was said with them."""
    first = _line_of(_own(records[place])).get("uuid")
    end = place + 1
    while first is not None and end < len(records) and _own(records[end]).get("of") == first:
        end += 1
    return end


def _content(records: Sequence[Record]) -> Any:
    """Return what a line says: the results of its records first, and what else they say."""
    made: list[Any] = []
    for record in records:
        message = record["message"]
        content = blocks_from_parts(message.get("content", ""))
        if message.get("role") == "tool":
            made.append(block_from_result(message))
        elif len(records) == 1 and not message.get("tool_calls"):
            return content
        else:
            made += blocks(content) or ([{"type": "text", "text": content}] if content else [])
            made += [block_from_call(call) for call in message.get("tool_calls", ())]
    return made


def _without_content(record: Record) -> Record:
    """Return what the format has no place for."""
    left = {key: value for key, value in record.items() if key not in (OWN, "message")}
    return left | {"message": {key: value for key, value in record["message"].items() if key not in SAID}}


def _own(record: Record) -> Record:
    found = record.get(OWN)
    return found if isinstance(found, dict) else {}


def _line_of(own: Record) -> Record:
    found = own.get("line")
    return found if isinstance(found, dict) else {}
