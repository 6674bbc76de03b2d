"""JSON Lines of our own: everything that a store holds, in a file, at the versions that it has.

    {"type": "export", "format": "perdure", "v": 1, "exported_at": "..."}
    {"type": "conversation", "key": "user-42"}
    {"type": "session", "session_id": "user-42", "version": ..., "count": 2, ...}
    {"type": "record", "record": {...}}
    {"type": "record", "record": {...}}
    {"type": "turn", "key": "user-42", "version": ..., "count": 1, "head": {...}, ...}
    {"type": "entry", "entry": {...}}
    {"type": "approval", "version": ..., "approval": {...}}
    {"type": "conversation-end", "key": "user-42", "lines": 6, "sha256": "..."}
    {"type": "export-end", "conversations": 1}

A conversation counts only with its last line, which has the hash of all lines from its first to the one before.
"""

from __future__ import annotations

import hashlib
import itertools
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from perdure import codec
from perdure.archives import archive_of
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import Checkpoint, CheckpointHead
from perdure.contracts.ids import check_approval_id, check_checkpoint_key
from perdure.contracts.sessions import Transcript
from perdure.conversation import journal_of
from perdure.errors import PerdureError, SchemaVersionError
from perdure.interchange.lines import read_lines, unusable
from perdure.interchange.notes import LEFT_OUT, Note
from perdure.moving.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.contracts.records import Record
    from perdure.interchange.lines import Line

FORMAT: Final = "perdure"
VERSION: Final = 1
_OPEN: Final = ("conversation", "session", "record", "turn", "entry", "approval")
_SESSION: Final = ("session_id", "version", "count", "rewritten", "scope", "state")


def header(at: datetime) -> bytes:
    """Return the first line of an export."""
    return _line({"type": "export", "format": FORMAT, "v": VERSION, "exported_at": at.isoformat()})


def footer(conversations: int) -> bytes:
    """Return the last line of an export."""
    return _line({"type": "export-end", "conversations": conversations})


def lines_of(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the lines of a conversation."""
    digest, number = hashlib.sha256(), 0
    for value in _values(snapshot):
        line = _line(value)
        digest.update(line)
        number += 1
        yield line
    yield _line({"type": "conversation-end", "key": snapshot.key, "lines": number, "sha256": digest.hexdigest()})


def _line(value: Record) -> bytes:
    return codec.encode(value, "line") + b"\n"


def _values(snapshot: Snapshot) -> Iterator[Record]:
    yield {"type": "conversation", "key": snapshot.key}
    for transcript in snapshot.sessions:
        facts = {name: getattr(transcript, name) for name in _SESSION}
        yield {"type": "session", **facts, **_times(transcript)}
        for record in transcript.records:
            yield {"type": "record", "record": record}
    if (turn := snapshot.turn) is not None:
        facts = {"key": turn.key, "version": turn.version, "count": len(turn.entries), "head": turn.head.to_record()}
        yield {"type": "turn", **facts, **_times(turn)}
        for entry in turn.entries:
            yield {"type": "entry", "entry": entry}
    for approval in snapshot.approvals:
        yield {"type": "approval", "version": approval.version, "approval": codec.decode(approval.encode())}


def _times(part: Transcript | Checkpoint) -> Record:
    return {"created_at": part.created_at.isoformat(), "updated_at": part.updated_at.isoformat()}


# --- reading ---


def read_snapshots(lines: Iterable[bytes], notes: list[Note]) -> Iterator[Snapshot]:
    """Read an export, a conversation at a time.

    One that is damaged, or of which the end is missing, is passed over, with a note.

    Raises:
        ImportDataError: It is no export of ours.
        SchemaVersionError: A newer release wrote it.
    """
    source = read_lines(lines, notes, strict=False)
    _check_header(next(source, None))
    gathered: list[Line] = []
    ended = False
    for line in source:
        kind = line.value.get("type") if isinstance(line.value, dict) else None
        if kind == "conversation" and gathered:
            notes.append(_cut_short(gathered))
            gathered = []
        if kind in _OPEN:
            gathered.append(line)
        elif kind == "conversation-end":
            snapshot = _checked(gathered, line, notes)
            gathered = []
            if snapshot is not None:
                yield snapshot
        elif kind == "export-end":
            ended = True
        else:
            notes.append(Note(f"line {line.number}", LEFT_OUT, f"a line of the type {kind!r} is not known"))
    if gathered:
        notes.append(_cut_short(gathered))
    if not ended:
        notes.append(Note("the end", LEFT_OUT, "the last line of the export is missing: conversations may be, too"))


def _check_header(line: Line | None) -> None:
    value = line.value if line is not None and isinstance(line.value, dict) else {}
    if value.get("type") != "export" or value.get("format") != FORMAT:
        raise unusable("line 1", "is not the first line of a perdure export")
    version = value.get("v")
    if type(version) is not int or version < 1:
        raise unusable("line 1", "names no version of the format")
    if version > VERSION:
        raise SchemaVersionError("the export", version, VERSION)


def _cut_short(gathered: list[Line]) -> Note:
    key = gathered[0].value.get("key")
    return Note(
        f"line {gathered[0].number}", LEFT_OUT, f"the conversation {key} is not whole: its last line is missing"
    )


def _checked(gathered: list[Line], end: Line, notes: list[Note]) -> Snapshot | None:
    """Return the conversation that some lines tell of, if they are what was written."""
    digest = hashlib.sha256(b"".join(line.data + b"\n" for line in gathered)).hexdigest()
    key = end.value.get("key")
    if not gathered or (len(gathered), digest) != (end.value.get("lines"), end.value.get("sha256")):
        notes.append(
            Note(f"line {end.number}", LEFT_OUT, f"the conversation {key} is damaged: its lines are not those written")
        )
        return None
    try:
        return _snapshot([line.value for line in gathered])
    except (PerdureError, KeyError, TypeError, ValueError) as error:
        notes.append(Note(f"line {end.number}", LEFT_OUT, f"the conversation {key} cannot be read: {error}"))
        return None


def _snapshot(values: list[Record]) -> Snapshot:
    sessions: list[Transcript] = []
    turn: Checkpoint | None = None
    approvals: list[Approval] = []
    rest = iter(values[1:])
    for value in rest:
        if value["type"] == "session":
            sessions.append(_transcript(value, _behind(value, rest, "record")))
        elif value["type"] == "turn":
            head = CheckpointHead.from_record(value["head"], "turn.head")
            entries = _behind(value, rest, "entry")
            turn = Checkpoint(value["key"], _number(value, "version", 1), entries, head, *_instants(value))
        else:
            approval = codec.encode(value["approval"])
            approvals.append(Approval.decode(approval, _number(value, "version", 1), "approval"))
    made = Snapshot(values[0]["key"], tuple(sessions), turn, tuple(approvals))
    _require_one(made)
    return made


def _behind(value: Record, rest: Iterator[Record], kind: str) -> list[Record]:
    """Return as many values as a line says that stand behind it."""
    count = _number(value, "count", 0)
    found = [one[kind] for one in itertools.islice(rest, count)]
    if len(found) != count:
        raise ValueError(f"its {value['type']} counts {count} lines behind it, and there are {len(found)}")
    return found


def _number(value: Record, name: str, least: int) -> int:
    number = value[name]
    if type(number) is not int or number < least:
        raise ValueError(f"the {name} of its {value['type']} is no whole number of {least} or more")
    return number


def _require_one(made: Snapshot) -> None:
    """Refuse parts of another conversation: what claims this one does not claim that, so they would be written unguarded."""
    if made.is_alone:
        check_approval_id(made.key)
        return
    key = check_checkpoint_key(made.key)
    session_id = None if key.endswith(".run") else key
    owners = [key if part.session_id == key else archive_of(part) for part in made.sessions]
    if made.turn is not None:
        owners += [made.turn.key, made.turn.head.session_id or key]
    owners += [journal_of(approval) for approval in made.approvals]
    if any(owner != key for owner in owners) or (session_id is None and made.sessions):
        raise ValueError("a part of it belongs to another conversation")


def _transcript(value: Record, records: list[Record]) -> Transcript:
    facts: dict[str, Any] = {name: value[name] for name in _SESSION}
    for name, least in (("version", 1), ("rewritten", 0)):
        _number(value, name, least)
    created, updated = _instants(value)
    return Transcript(**facts, start=0, records=records, created_at=created, updated_at=updated)


def _instants(value: Record) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(value["created_at"]), datetime.fromisoformat(value["updated_at"])
