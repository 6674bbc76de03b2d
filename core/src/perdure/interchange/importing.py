"""Reading conversations from a file into a store: whole or not at all, and the same file again changes nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure import codec
from perdure.contracts.ids import safe_id
from perdure.errors import InvalidArgumentError, InvalidIdError
from perdure.interchange.claude_reading import drafts_from_claude
from perdure.interchange.drafts import Draft
from perdure.interchange.lines import read_lines, unusable
from perdure.interchange.notes import Note
from perdure.interchange.openai_chat import records_from_openai
from perdure.interchange.perdure_lines import read_snapshots
from perdure.moving.bringing import bring, bring_alone
from perdure.moving.comparing import first_difference, record_facts
from perdure.moving.reports import CopyReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perdure.bundle import AgentStore
    from perdure.moving.snapshots import Snapshot


@dataclass(slots=True)
class ImportReport(CopyReport):
    """What came of an import.

    Attributes:
        sessions: The session ids of what was brought in or was there, the first 1,000.
        notes: What is not as it was in the file.
    """

    sessions: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


async def import_conversations(
    store: AgentStore, lines: Iterable[bytes], *, progress: Callable[[str], object] | None = None
) -> ImportReport:
    """Read what `export_conversations` wrote, at the versions that it names.

    Of a file that was cut short, what is whole is read. The same file again goes on where it was cut, and changes
    nothing that is there. A conversation that is not sound, for instance has a part of another one, is passed over, with a
    note.

    Args:
        store: Where it goes.
        lines: A binary file, or its lines.
        progress: Called with the key of each conversation that was looked at.

    Raises:
        ImportDataError: It is no export of ours.
        SchemaVersionError: A newer release wrote it.
        StoreUnavailableError, OutcomeUnknownError: The store is away. Run it again.
    """
    report = ImportReport()
    for snapshot in read_snapshots(lines, report.notes):
        try:
            await _bring_snapshot(store, snapshot, report)
        except (InvalidIdError, InvalidArgumentError) as error:  # it is the file's, not the caller's
            report.not_copied[snapshot.key] = str(error)
        if progress is not None:
            progress(snapshot.key)
    return report


async def _bring_snapshot(store: AgentStore, snapshot: Snapshot, report: ImportReport) -> None:
    if snapshot.is_alone:
        await bring_alone(store, snapshot.approvals[0], report)
    else:
        await bring(store, snapshot, report)
        _name(report, snapshot)


async def import_openai(
    store: AgentStore, data: bytes, *, session_id: str | None = None, scope: str | None = None, strict: bool = True
) -> ImportReport:
    """Read chat messages of OpenAI's form.

    Args:
        store: Where they go.
        data: A JSON list of messages; an object with `messages`; or JSON Lines, of messages or of such objects.
        session_id: The session id, needed where the data names none; for several conversations `-1`, `-2`, ... behind it.
        scope: The scope of the sessions.
        strict: Whether a damaged line is an error; else it is left out, with a note.

    Raises:
        ImportDataError: The data is damaged, or names no session id and none is given. Nothing was written.
    """
    report = ImportReport()
    found = list(_openai_conversations(data, report.notes, strict=strict))
    if not found and not report.notes:
        raise unusable("the data", "has no message")
    drafts: list[Draft] = []
    for number, (name, messages) in enumerate(found, 1):
        given = session_id if session_id is None or len(found) == 1 else f"{session_id}-{number}"
        if given is None and name is None:
            raise unusable(f"conversation {number}", "names no session id", "Give one: session_id=ID, or --session ID.")
        chosen = safe_id(name or "") if given is None else given
        made = records_from_openai(messages, f"the messages of {chosen}")
        report.notes += [Note(f"{chosen}, {note.where}", note.outcome, note.what) for note in made.notes]
        drafts.append(Draft(chosen, made.value))
    for draft in drafts:
        await _bring_draft(store, draft, scope, report)
    return report


async def import_claude(
    store: AgentStore,
    lines: Iterable[bytes],
    *,
    session_id: str | None = None,
    scope: str | None = None,
    strict: bool = True,
) -> ImportReport:
    """Read one Claude-shaped transcript. For arguments and errors see `drafts_from_claude`.

    Args:
        store: Where it goes.
        lines: A binary file, or its lines.
        session_id: The session id; `None`: the one in the file.
        scope: The scope of the sessions.
        strict: Whether a damaged line is an error.
    """
    made = drafts_from_claude(lines, session_id=session_id, strict=strict)
    report = ImportReport(notes=[*made.notes])
    for draft in made.value:
        await _bring_draft(store, draft, scope, report)
    return report


async def _bring_draft(store: AgentStore, draft: Draft, scope: str | None, report: ImportReport) -> None:
    snapshot = draft.snapshot(store.clock.now(), scope)
    await bring(store, snapshot, report, compare=_unlike)
    _name(report, snapshot)


def _name(report: ImportReport, snapshot: Snapshot) -> None:
    if snapshot.key not in report.not_copied and len(report.sessions) < 1_000:
        report.sessions.append(snapshot.key)


def _unlike(wanted: Snapshot, found: Snapshot) -> str | None:
    """Return where what is there is not what was imported: its versions are its own, and it may have gone on since."""
    there = {transcript.session_id: transcript for transcript in found.sessions}
    for transcript in wanted.sessions:
        known = there.get(transcript.session_id)
        name = f"session {transcript.session_id}"
        if known is None:
            return f"{name} is missing"
        if transcript.scope not in (None, known.scope):
            return f"{name} has another scope"
        if known.count < transcript.count:
            return f"{name} has {known.count} records, and the file {transcript.count}"
        if problem := first_difference(record_facts(name, transcript.records, known.records)):
            return problem
    return None


def _openai_conversations(data: bytes, notes: list[Note], *, strict: bool) -> Iterator[tuple[str | None, Any]]:
    """Yield the conversations in some data: the id that each names, and its messages."""
    try:
        values = [codec.decode(data)]
    except ValueError:
        values = [line.value for line in read_lines(data.splitlines(keepends=True), notes, strict=strict)]
    if len(values) == 1 and isinstance(values[0], list):
        yield None, values[0]
        return
    for whole, group in itertools.groupby(values, key=lambda value: isinstance(value, dict) and "messages" in value):
        if not whole:
            yield None, list(group)
            continue
        for value in group:
            name = value.get("session_id")
            yield name if isinstance(name, str) else None, value["messages"]
