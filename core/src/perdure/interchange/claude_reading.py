"""Claude-shaped transcripts (JSON Lines with `uuid` and `parentUuid`) on their way in."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from perdure.contracts.ids import safe_id
from perdure.interchange.calls import repair_calls
from perdure.interchange.claude_blocks import (
    CALL,
    RESULT,
    blocks,
    call_from_block,
    parts_from_blocks,
    result_from_block,
)
from perdure.interchange.claude_chains import Entry, chain, read_entries, sidechains
from perdure.interchange.drafts import Draft, summary_record
from perdure.interchange.lines import unusable
from perdure.interchange.notes import CHANGED, KEPT, Converted, Note
from perdure.runtime.messages import RECORD_VERSION, is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.contracts.records import Record

OWN: Final = "claude"
"""The field of a record that has what only this format knows."""
FOREIGN: Final = "claude."
"""How the kind of a record begins that holds a line which is no message of the conversation."""
SAID: Final = ("role", "content", "tool_calls", "tool_call_id", "is_error")
"""The fields of a message for which the format has a place."""
CARRIED: Final = "perdure"
"""The field of a line that has what only our records know; and the type of a line that is one of our records."""


def drafts_from_claude(
    lines: Iterable[bytes], *, session_id: str | None = None, strict: bool = True
) -> Converted[list[Draft]]:
    """Make conversations of a Claude-shaped transcript.

    What leads to the last message is the conversation; what a compaction has replaced becomes its archives; each
    sidechain becomes a conversation of its own, also if it has a file of its own. Every other line stays in the
    transcript as it is, in a record that no model sees. Calls and results are repaired, see `repair_calls`.

    Args:
        lines: The lines of one file, as a binary file gives them.
        session_id: The session id to give it; `None`: `safe_id` of the one in the file, or one made of that for a
            sidechain.
        strict: Whether a damaged line, other than a torn last one, is an error; else it is left out, with a note.

    Returns:
        The conversations, the one of the file first, and a note for everything that is not as it was.

    Raises:
        ImportDataError: A line is damaged (strict), or there is no line with a message.
    """
    notes: list[Note] = []
    entries = read_entries(lines, notes, strict=strict)
    main = [entry for entry in entries if not entry.aside]
    aside = sidechains([entry for entry in entries if entry.aside])
    if not any(entry.spoken for entry in main):  # the file of a sidechain names the session that it is one of
        main, aside = ([], _with_first(aside, entries)) if aside and session_id is None else (entries, {})
    if not any(entry.spoken or entry.kind == CARRIED for entry in entries):
        raise unusable("the transcript", "has no message")
    original = _original(entries)
    name = safe_id(original) if session_id is None else session_id
    drafts = [_draft(name, main, _state(original, entries), notes)] if main else []
    for number, (agent, lines_aside) in enumerate(aside.items()):
        own = safe_id(f"{name}.sidechain-{agent}")
        where = lines_aside[0].where
        notes.append(Note(where, CHANGED, f"a sidechain of {len(lines_aside)} lines became the session {own}"))
        state: Record = {"sidechain_of": name, "sidechain": agent, "number": number}
        drafts.append(_draft(own, lines_aside, state, notes))
    return Converted(drafts, tuple(notes))


def _with_first(aside: dict[str, list[Entry]], entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Give the first of some sidechains the lines that are of none, in their order."""
    first, *others = aside
    elsewhere = {entry for name in others for entry in aside[name]}
    return aside | {first: [entry for entry in entries if entry not in elsewhere]}


def _original(entries: Sequence[Entry]) -> str:
    """Return the session id that the first line with one names; without one, an id made of the first line."""
    named = (entry.value.get("sessionId") for entry in entries)
    found = next((name for name in named if isinstance(name, str) and name), None)
    return found or str(uuid.uuid5(uuid.NAMESPACE_OID, str(entries[0].uuid)))


def _state(original: str, entries: Sequence[Entry]) -> Record:
    """Return what stands beside the transcript: the id that it had, and its title.

    A title counts only if it names a line of this file: titles of other files are written to wrong ones.
    """
    known = {entry.uuid for entry in entries} - {None}
    titles = [
        entry.value["summary"]
        for entry in entries
        if entry.kind == "summary"
        and isinstance(entry.value.get("summary"), str)
        and isinstance(leaf := entry.value.get("leafUuid"), str)
        and leaf in known
    ]
    return {"claude_session_id": original} | ({"title": titles[-1]} if titles else {})


def _draft(name: str, entries: Sequence[Entry], state: Record, notes: list[Note]) -> Draft:
    found = chain(entries, notes)
    _note_kept(entries, found, notes)
    parts: list[list[Record]] = [[]]
    pieces: dict[str, Record] = {}
    boundary: Entry | None = None
    for entry in entries:
        if entry in found and entry.is_boundary:
            boundary = entry
        elif entry in found and entry.is_summary and parts[-1]:
            parts.append([_summary(name, entry, boundary, parts, notes)])
            boundary, pieces = None, {}
        else:
            parts[-1] += _records(entry, entry in found, pieces, notes)
    if boundary is not None:
        parts[-1].append(_foreign(boundary))
    repaired = [repair_calls(part) for part in parts]
    for number, part in enumerate(repaired):
        place = f"{name}, " + ("" if number == len(parts) - 1 else f"archive {number + 1}, ")
        notes += [Note(place + note.where, note.outcome, note.what) for note in part.notes]
        if number:
            part.value[0] |= {"archived": len(repaired[number - 1].value)}
    *archives, records = (part.value for part in repaired)
    return Draft(name, records, state, archives)


def _note_kept(entries: Sequence[Entry], found: set[Entry], notes: list[Note]) -> None:
    """Note what stays where no model sees it, one note for each kind."""
    kept: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.spoken and entry not in found:
            kept.setdefault("messages that lead to no end of the conversation", []).append(entry)
        elif entry.spoken and _is_failure(entry):
            kept.setdefault("messages that are errors of the API", []).append(entry)
        elif not entry.spoken and not entry.is_boundary and entry.kind != CARRIED:
            kept.setdefault(f"lines of the type {entry.kind!r}", []).append(entry)
    for what, those in kept.items():
        notes.append(Note(those[0].where, KEPT, f"{len(those)} {what} are kept, where no model sees them"))


def _is_failure(entry: Entry) -> bool:
    return entry.value.get("isApiErrorMessage") is True


def _summary(
    name: str, entry: Entry, boundary: Entry | None, parts: Sequence[Sequence[Record]], notes: list[Note]
) -> Record:
    """Return the summary that begins what comes behind a compaction."""
    content = parts_from_blocks(entry.message.get("content"), entry.where, notes)
    made = summary_record(name, len(parts), len(parts[-1]), {"role": "user", "content": content})
    own = _envelope(entry) | ({} if boundary is None else {"boundary": boundary.value})
    carried = entry.value.get(CARRIED)
    given = carried[0] if isinstance(carried, list) and carried and isinstance(carried[0], dict) else {}
    rest = {key: value for key, value in given.items() if key not in ("archive", "archived", "message", "kind")}
    return made | _at(entry) | rest | {OWN: own}


def _records(entry: Entry, belongs: bool, pieces: dict[str, Record], notes: list[Note]) -> list[Record]:
    """Return the records that a line becomes."""
    carried = entry.value.get(CARRIED)
    if entry.kind == CARRIED and isinstance(carried, dict) and not is_own(carried):
        return [carried]
    if not belongs or not entry.spoken or _is_failure(entry):
        return [_foreign(entry)]
    if entry.kind == "user":
        return _carried(entry, _from_user(entry, notes))
    message_id = entry.message_id
    if message_id is not None and message_id in pieces:
        _add_piece(pieces[message_id], entry, notes)
        return []
    (made,) = _carried(entry, [_record(entry, _from_assistant(entry, notes))])
    if message_id is not None:
        pieces[message_id] = made
    return [made]


def _foreign(entry: Entry) -> Record:
    return {"v": RECORD_VERSION, "kind": f"{FOREIGN}{entry.kind}", **_at(entry), OWN: entry.value}


def _from_user(entry: Entry, notes: list[Note]) -> list[Record]:
    """Return the results that a line of the user has, and what else it says behind them."""
    content = entry.message.get("content")
    results: list[Record] = []
    rest: list[Any] = []
    for place, block in enumerate(blocks(content)):
        if isinstance(block, dict) and block.get("type") == RESULT:
            if rest:
                notes.append(
                    Note(f"{entry.where}[{place}]", CHANGED, "a result was put before what else the line says")
                )
            results.append(result_from_block(block, f"{entry.where}[{place}]", notes))
        else:
            rest.append(block)
    said = parts_from_blocks(rest if results else content, entry.where, notes)
    messages = [*results, *([] if results and not rest else [{"role": "user", "content": said}])]
    first, *others = messages
    return [_record(entry, first), *(_record(entry, other, of=entry.uuid) for other in others)]


def _from_assistant(entry: Entry, notes: list[Note]) -> Record:
    content = entry.message.get("content")
    calls = [block for block in blocks(content) if _is_call(block)]
    if not calls:
        return {"role": "assistant", "content": parts_from_blocks(content, entry.where, notes)}
    said = [block for block in blocks(content) if not _is_call(block)]
    if not _is_call(blocks(content)[-1]) or any(_is_call(block) for block in blocks(content)[: len(said)]):
        notes.append(Note(entry.where, CHANGED, "what is said behind a call was put before it"))
    message: Record = {"role": "assistant", "content": parts_from_blocks(said, entry.where, notes) if said else ""}
    return message | {"tool_calls": [call_from_block(call, entry.where, notes) for call in calls]}


def _is_call(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == CALL


def _add_piece(record: Record, entry: Entry, notes: list[Note]) -> None:
    """Add a line to the message of which it is a piece."""
    message, piece = record["message"], _from_assistant(entry, notes)
    said = [*_as_parts(message["content"]), *_as_parts(piece["content"])]
    message["content"] = said or ""
    if piece["content"] and message.get("tool_calls"):
        notes.append(Note(entry.where, CHANGED, "what is said behind a call was put before it"))
    if calls := [*message.get("tool_calls", ()), *piece.get("tool_calls", ())]:
        message["tool_calls"] = calls
    record[OWN].setdefault("pieces", []).append(_without_content(entry.value))


def _as_parts(content: str | list[Record]) -> list[Record]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


def _record(entry: Entry, message: Record, *, of: str | None = None) -> Record:
    """Return the record of a message; `of`: the line has more than one, and this is not the first."""
    own = _envelope(entry) if of is None else {"of": of}
    return {"v": RECORD_VERSION, "kind": "message", **_at(entry), OWN: own, "message": message}


def _envelope(entry: Entry) -> Record:
    return {"line": _without_content(entry.value)}


def _without_content(value: Record) -> Record:
    left = {key: kept for key, kept in value.items() if key not in ("message", CARRIED)}
    return left | {"message": {key: kept for key, kept in value["message"].items() if key != "content"}}


def _at(entry: Entry) -> Record:
    at = entry.value.get("timestamp")
    return {"at": at} if isinstance(at, str) else {}


def _carried(entry: Entry, records: list[Record]) -> list[Record]:
    """Give records back what only ours know, if the line came from them."""
    carried = entry.value.get(CARRIED)
    if not isinstance(carried, list) or len(carried) != len(records):
        return records
    return [_restored(record, given) for record, given in zip(records, carried, strict=True)]


def _restored(record: Record, given: object) -> Record:
    if not isinstance(given, dict):
        return record
    told = given.get("message")
    rest = {key: value for key, value in told.items() if key not in SAID} if isinstance(told, dict) else {}
    restored = {key: value for key, value in given.items() if key not in ("v", "kind", OWN, "message")}
    return record | restored | {"message": record["message"] | rest}
