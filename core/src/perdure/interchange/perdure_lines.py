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
from perdure.contracts.checkpoints import IDLE, TURN_STATUSES, Checkpoint, CheckpointHead
from perdure.contracts.ids import check_approval_id, check_checkpoint_key, session_of
from perdure.contracts.sessions import Transcript
from perdure.conversations.claims import journal_of
from perdure.errors import PerdureError, SchemaVersionError
from perdure.interchange.lines import read_lines, unusable
from perdure.interchange.notes import LEFT_OUT, Note
from perdure.moving.snapshots import Snapshot, unowned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.contracts.records import Record
    from perdure.interchange.lines import Line

FORMAT: Final = "perdure"
VERSION: Final = 1
_OPEN: Final = ("conversation", "session", "record", "turn", "entry", "approval")
_SESSION: Final = ("session_id", "version", "count", "rewritten", "scope")


def header(at: datetime) -> bytes:
    """Return the first line of an export."""
    return _line({"type": "export", "format": FORMAT, "v": VERSION, "exported_at": at.isoformat()})


def footer(conversations: int) -> bytes:
    """Return the last line of an export."""
    return _line({"type": "export-end", "conversations": conversations})


def lines_of(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the lines of a conversation."""
    digest, number = hashlib.sha256(), 0
    for line in _lines(snapshot):
        digest.update(line)
        number += 1
        yield line
    yield _line({"type": "conversation-end", "key": snapshot.key, "lines": number, "sha256": digest.hexdigest()})


def _line(value: Record, name: str | None = None, stored: bytes = b"") -> bytes:
    """Return a line; what is stored goes into it as it is, since it may be as deep as a value may be."""
    line = codec.encode(value, "line")
    if name is not None:
        line = line[:-1] + b"," + codec.encode(name) + b":" + stored + b"}"
    return line + b"\n"


def _lines(snapshot: Snapshot) -> Iterator[bytes]:
    yield _line({"type": "conversation", "key": snapshot.key})
    for transcript in snapshot.sessions:
        facts = {name: getattr(transcript, name) for name in _SESSION}
        yield _line({"type": "session", **facts, **_times(transcript)}, "state", codec.encode(transcript.state))
        for record in transcript.records:
            yield _line({"type": "record"}, "record", codec.encode(record))
    if (turn := snapshot.turn) is not None:
        facts = {"key": turn.key, "version": turn.version, "count": len(turn.entries)}
        yield _line({"type": "turn", **facts, **_times(turn)}, "head", codec.encode(turn.head.to_record()))
        for entry in turn.entries:
            yield _line({"type": "entry"}, "entry", codec.encode(entry))
    for approval in snapshot.approvals:
        yield _line({"type": "approval", "version": approval.version}, "approval", approval.encode())


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
    told = 0  # conversations that were read, or are named in a note
    for line in source:
        kind = line.value.get("type") if isinstance(line.value, dict) else None
        if kind in ("conversation", "export-end") and gathered:
            notes.append(_cut_short(gathered))
            gathered, told = [], told + 1
        if kind in _OPEN:
            gathered.append(line)
        elif kind == "conversation-end":
            snapshot = _checked(gathered, line, notes)
            gathered = []
            told += snapshot is None or not snapshot.is_alone
            if snapshot is not None:
                yield snapshot
        elif kind == "export-end":
            ended = True
            notes.extend(_missing(line, told))
            told = 0
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


def _missing(end: Line, told: int) -> Iterator[Note]:
    """Yield a note if the last line of an export counts more conversations than were told of."""
    wanted = end.value.get("conversations")
    if type(wanted) is int and wanted > told:
        what = f"the export had {wanted} conversations, and {wanted - told} of them are missing from it"
        yield Note(f"line {end.number}", LEFT_OUT, what)


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
    except (PerdureError, AttributeError, KeyError, TypeError, ValueError) as error:
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
            turn = _released(turn)
        else:
            approval = codec.encode(value["approval"])
            approvals.append(Approval.decode(approval, _number(value, "version", 1), "approval"))
    made = Snapshot(values[0]["key"], tuple(sessions), turn, tuple(approvals))
    _require_one(made)
    return made


def _released(turn: Checkpoint) -> Checkpoint:
    """Return a turn that nobody owns and nothing claims, as an export writes it: a claim would say what to do with it."""
    if turn.head.status not in (IDLE, *TURN_STATUSES):
        raise ValueError(f"its turn is {turn.head.status!r}, which no export says")
    return unowned(turn)


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
    session_id = session_of(key)
    owners = [key if part.session_id == key else archive_of(part) for part in made.sessions]
    if made.turn is not None:
        owners += [made.turn.key, made.turn.head.session_id or key]
        for approval_id in made.turn.head.approval_ids:
            check_approval_id(approval_id)
    owners += [journal_of(approval) for approval in made.approvals]
    if any(owner != key for owner in owners) or (session_id is None and made.sessions):
        raise ValueError("a part of it belongs to another conversation")


def _transcript(value: Record, records: list[Record]) -> Transcript:
    facts: dict[str, Any] = {name: value[name] for name in (*_SESSION, "state")}
    for name, least in (("version", 1), ("rewritten", 0)):
        _number(value, name, least)
    created, updated = _instants(value)
    return Transcript(**facts, start=0, records=records, created_at=created, updated_at=updated)


def _instants(value: Record) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(value["created_at"]), datetime.fromisoformat(value["updated_at"])
