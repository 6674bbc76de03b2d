"""Archives: the full transcripts that compactions have kept, each in a session of its own.

The summary that begins a transcript names the newest archive of its conversation; an archive may itself begin with a
summary, which names the one before. Before an archive is written, and before what names it goes, the claim on the
conversation names it: so no crash leaves one that nobody finds. The state of an archive tells whose it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.contracts.ids import is_run, is_session_id, safe_id
from perdure.errors import StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionInfo, Transcript

SUMMARY: Final = "summary"
_OF: Final = "archive_of"
_VERSION: Final = "archive_version"


def archive_id(session_id: str, version: int) -> str:
    """Return the session id of the archive of a conversation at a version."""
    return safe_id(f"{session_id}.archive-{version}")


def archive_state(session_id: str, version: int) -> Record:
    """Return the state by which an archive is told from other sessions."""
    return {_OF: session_id, _VERSION: version}


def archive_of(session: SessionInfo | Transcript) -> str | None:
    """Return the session id of the conversation that a session is an archive of; `None` of any other session."""
    owner, version = session.state.get(_OF), session.state.get(_VERSION)
    if type(owner) is str and type(version) is int and session.session_id == archive_id(owner, version):
        return owner
    return None


def archive_named_by(records: Sequence[Record]) -> str | None:
    """Return the archive that the summary at the start of a transcript names; `None` if there is none."""
    if not records or records[0].get("kind") != SUMMARY:
        return None
    named = records[0].get("archive")
    return named if type(named) is str and is_session_id(named) else None


async def archives_of(store: AgentStore, session_id: str) -> list[str]:
    """Return the archives of a conversation that are there, the newest first.

    Raises:
        StoreCorruptedError: A first record cannot be read.
    """
    found: list[str] = []
    if is_run(session_id) or "sessions" not in store:
        return found
    part = await store.sessions.load(session_id, limit=1)
    while part is not None:
        named = archive_named_by(part.records)
        if named is None or named in found:
            return found
        part = await store.sessions.load(named, limit=1)
        if part is None or archive_of(part) != session_id:
            return found
        found.append(named)
    return found


async def readable_archives_of(store: AgentStore, session_id: str) -> list[str]:
    """Return the archives of a conversation that can be found; damage ends the search, it stops no deletion."""
    try:
        return await archives_of(store, session_id)
    except StoreCorruptedError:
        return []


async def archive_versions(store: AgentStore, session_id: str, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return those of some archives that are there and belong to a conversation, with their versions, the oldest first."""
    found: list[tuple[str, int]] = []
    if "sessions" not in store:
        return found
    for name in reversed(names):
        part = await store.sessions.load(name, limit=0)
        if part is not None and archive_of(part) == session_id:
            found.append((name, part.version))
    return found
