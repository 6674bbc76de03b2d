"""Writing conversations to a file: all that a store holds in our own format, or transcripts in another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from perdure import codec
from perdure.contracts.checkpoints import IDLE
from perdure.conversations.claims import journal_of, settle
from perdure.errors import (
    InvalidArgumentError,
    NotJsonError,
    SessionBusyError,
    SessionHalfCopiedError,
    StoreCorruptedError,
)
from perdure.interchange.claude_writing import claude_from_transcripts
from perdure.interchange.notes import LEFT_OUT, Converted, Note
from perdure.interchange.openai_chat import openai_from_records
from perdure.interchange.perdure_lines import footer, header, lines_of
from perdure.moving.snapshots import Snapshot, read_unclaimed
from perdure.moving.walking import approvals, is_alone, keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record


@dataclass(slots=True)
class ExportReport:
    """What came of an export.

    Attributes:
        conversations: How many were written.
        records: How many records of transcripts they have.
        approvals: How many approvals.
        not_exported: Which were not written, and why.
        notes: What the format has no place for, by conversation.
    """

    conversations: int = 0
    records: int = 0
    approvals: int = 0
    not_exported: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[Note]] = field(default_factory=dict)


async def export_conversations(
    store: AgentStore,
    file: IO[bytes],
    *,
    session_ids: Sequence[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> ExportReport:
    """Write conversations with all that belongs to them as JSON Lines, from which `import_conversations` makes them again.

    Nothing is claimed, and nothing changes but claims whose owner is gone, which are settled. Each conversation is as
    of one instant; a turn that somebody runs is in it as after a crash at that instant.

    Args:
        store: Where they are.
        file: A binary file, which is neither closed nor synced here.
        session_ids: Which conversations (or `<name>.run`); `None`: all, and approvals of which no conversation knows.
        progress: Called with the key of each conversation that was written.

    Returns:
        What was written, and what was not, and why.
    """
    report = ExportReport()
    file.write(header(store.clock.now()))
    async for snapshot in _snapshots(store, session_ids, report):
        file.writelines(lines_of(snapshot))
        _count(report, snapshot)
        if progress is not None:
            progress(snapshot.key)
    if session_ids is None and "approvals" in store:
        async for name, approval in approvals(store):
            if isinstance(approval, StoreCorruptedError):
                if str(approval) not in report.not_exported.values():  # else its conversation says so
                    report.not_exported[name] = str(approval)
            elif journal_of(approval) not in report.not_exported and await is_alone(store, approval):
                file.writelines(lines_of(Snapshot(name, approvals=(approval,))))
                report.approvals += 1
    file.write(footer(report.conversations))
    return report


async def export_openai(
    store: AgentStore, file: IO[bytes], *, session_ids: Sequence[str] | None = None
) -> ExportReport:
    """Write transcripts as chat messages of OpenAI's form, a conversation a line: `{"session_id": ..., "messages": [...]}`."""

    def lines(snapshot: Snapshot) -> Converted[list[Record]]:
        made = openai_from_records(snapshot.sessions[-1].records)
        return Converted([{"session_id": snapshot.key, "messages": made.value}], made.notes)

    return await _export(store, file, session_ids, lines)


async def export_claude(store: AgentStore, file: IO[bytes], *, session_id: str) -> ExportReport:
    """Write one conversation as a Claude-shaped transcript, with what its archives hold before its compactions."""

    def lines(snapshot: Snapshot) -> Converted[list[Record]]:
        at = snapshot.sessions[-1].created_at.isoformat()
        return claude_from_transcripts(session_id, list(_parts(snapshot)), at=at)

    return await _export(store, file, [session_id], lines)


async def _export(
    store: AgentStore,
    file: IO[bytes],
    session_ids: Sequence[str] | None,
    convert: Callable[[Snapshot], Converted[list[Record]]],
) -> ExportReport:
    """Write the transcripts of conversations in another format; what cannot be converted keeps no other from it."""
    report = ExportReport()
    async for snapshot in _snapshots(store, session_ids, report):
        try:
            made: Converted[list[Record]] = convert(snapshot) if snapshot.sessions else Converted([])
            lines = [codec.encode(line, "line") + b"\n" for line in made.value]
        except (StoreCorruptedError, NotJsonError) as error:
            report.not_exported[snapshot.key] = str(error)
            continue
        file.writelines(lines)
        _note(report, snapshot, made.notes)
        if snapshot.sessions:
            _count(report, snapshot)
        elif session_ids is not None:
            report.not_exported[snapshot.key] = "it has no transcript, and this format has nothing else"
    return report


def _parts(snapshot: Snapshot) -> Iterator[Sequence[Record]]:
    """Yield the records of each archive as far as the summary behind it stands for it, and those of the transcript."""
    for transcript, behind in zip(snapshot.sessions, snapshot.sessions[1:], strict=False):
        archived = behind.records[0].get("archived", 0)
        if type(archived) is not int or archived < 0:
            problem = "its summary does not tell how many records of its archive it stands for"
            raise StoreCorruptedError(f"session {behind.session_id}", problem)
        yield transcript.records[:archived]
    yield snapshot.sessions[-1].records


async def _snapshots(
    store: AgentStore, session_ids: Sequence[str] | None, report: ExportReport
) -> AsyncIterator[Snapshot]:
    if isinstance(session_ids, str):
        raise InvalidArgumentError("session_ids", "must be a list of ids; give [id] for one")
    async for key in keys(store) if session_ids is None else _each(session_ids):
        try:
            if "checkpoints" in store:
                await settle(store, key)
            snapshot = await read_unclaimed(store, key)
        except (SessionBusyError, SessionHalfCopiedError, StoreCorruptedError) as error:
            report.not_exported[key] = str(error)
        else:
            if not snapshot.empty:
                yield snapshot
            elif session_ids is not None:
                report.not_exported[key] = "there is no such conversation"


async def _each(session_ids: Sequence[str]) -> AsyncIterator[str]:
    for session_id in session_ids:
        yield session_id


def _count(report: ExportReport, snapshot: Snapshot) -> None:
    report.conversations += 1
    report.records += sum(transcript.count for transcript in snapshot.sessions)
    report.approvals += len(snapshot.approvals)


def _note(report: ExportReport, snapshot: Snapshot, notes: Sequence[Note]) -> None:
    found = [*notes]
    if snapshot.turn is not None and snapshot.turn.head.status != IDLE:
        found.append(
            Note("the turn", LEFT_OUT, f"a turn has not ended ({snapshot.turn.head.status}); it is not exported")
        )
    if snapshot.approvals:
        found.append(Note("approvals", LEFT_OUT, f"{len(snapshot.approvals)} approvals are not exported"))
    if found:
        report.notes[snapshot.key] = found
