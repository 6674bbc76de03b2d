"""The transcript as a whole: where it may be cut, what it held before it was compacted, and copies of it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from perdure.archives import archive_named_by, archive_of
from perdure.contracts.checkpoints import IDLE
from perdure.contracts.store import draw_version, in_one_life
from perdure.conversations.claims import busy, settle
from perdure.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExistsError,
    StoreCorruptedError,
    StoreUnavailableError,
    VersionConflictError,
)
from perdure.runtime.messages import is_own, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.runtime.messages import Message
    from perdure.runtime.transcript.digest import Digest

_NOT_CARRIED: Final = ("input_id", "spent")
_NOT_CARRIED_OF_A_SUMMARY: Final = ("archive", "archived", "beyond_archive", "kept", "spent", "turns")


def severed_places(records: Sequence[Record]) -> set[int]:
    """Return the places at which a transcript cannot be cut: a call would be before it, and its result behind it."""
    severed: set[int] = set()
    asked: dict[str, int] = {}
    for place, record in enumerate(records):
        if not is_own(record):
            continue
        message = record["message"]
        for call in message.get("tool_calls", ()):
            asked[call["id"]] = place
        begun = asked.pop(message.get("tool_call_id"), None)
        if begun is not None:
            severed.update(range(begun + 1, place + 1))
    return severed


def turn_starts(records: Sequence[Record]) -> list[int]:
    """Return where turns begin."""
    return starts(
        (place, record.get("run_id"), record["message"].get("role"))
        for place, record in enumerate(records)
        if record.get("kind") == "message" and is_own(record)
    )


def starts(said: Iterable[tuple[int, object, object]]) -> list[int]:
    """Return the places of messages at which turns begin; of each message its place, its run and its role are given.

    What has no run id begins a turn with each message of the user, or behind a run.
    """
    found: list[int] = []
    earlier: object = ()
    for place, run_id, role in said:
        if run_id != earlier or (run_id is None and role == "user"):
            found.append(place)
        earlier = run_id
    return found


async def whole_history(store: AgentStore, session_id: str, read: Digest) -> tuple[Message, ...]:
    """Return all messages of a conversation, read through its archives.

    A summary without an archive stands for itself, and so does one that stands for more than its archive holds.
    """
    summary, parts = read.opening, [tuple([message.for_others() for message in read.messages])]
    seen: set[str] = set()
    while (named := archive_named_by([summary])) is not None and named not in seen:
        seen.add(named)
        archive = await store.sessions.load(named, limit=_archived(session_id, summary))
        if archive is None or archive_of(archive) != session_id:
            break
        if not summary.get("beyond_archive"):
            parts[-1] = parts[-1][1:]
        first = next(iter(archive.records), {})
        summary = first if is_own(first) else {}
        parts.append(messages_of(archive.records))
    return tuple(chain.from_iterable(reversed(parts)))


def _archived(session_id: str, summary: Record) -> int:
    count = summary.get("archived", 0)
    if type(count) is not int or count < 0:
        problem = "its summary does not tell how many records of its archive it stands for"
        raise StoreCorruptedError(f"session {session_id}", problem)
    return count


def forked(records: Sequence[Record], at: int | None) -> list[Record]:
    """Return what a copy of the first records of a transcript holds.

    Args:
        records: All of the transcript.
        at: How many of them to copy; `None`: all.

    Raises:
        InvalidArgumentError: There are not so many, or the place is between a call and its result.
    """
    at = len(records) if at is None else at
    if type(at) is not int or not 0 <= at <= len(records):
        raise InvalidArgumentError("at", f"must be a number of records from 0 to {len(records)}, or None for all")
    severed = severed_places(records)
    if at in severed:
        before = next(place for place in range(at, -1, -1) if place not in severed)
        after = next(place for place in range(at, len(records) + 1) if place not in severed)
        raise InvalidArgumentError(
            "at", f"({at}) is between a call and its result; the nearest are {before} and {after}"
        )
    return [_carried(record) for record in records[:at]]


def _carried(record: Record) -> Record:
    if not is_own(record):
        return record
    left = _NOT_CARRIED if record["kind"] == "message" else _NOT_CARRIED_OF_A_SUMMARY
    return {name: value for name, value in record.items() if name not in left}


async def fork(
    store: AgentStore, source: Transcript, records: Sequence[Record], session_id: str, scope: str | None
) -> None:
    """Create a session that holds a copy, by one write.

    Args:
        store: Where both are.
        source: The head of the transcript that is copied; its state is copied too.
        records: What `forked` made of it.
        session_id: The new session.
        scope: Its scope.

    Raises:
        SessionExistsError: The id is taken; nothing was changed.
        SessionBusyError: Somebody is about to delete what was there under the id; nothing was changed.
        StoreUnavailableError: Nothing was written.
        OutcomeUnknownError: The new session may exist, whole.
    """
    await _require_free(store, session_id)
    version = draw_version()  # by which a write of ours is known

    async def write() -> None:
        await store.sessions.append(
            session_id, records, expected_version=0, state=source.state, scope=scope, version=version
        )

    try:
        await write()
    except VersionConflictError as error:
        raise SessionExistsError(session_id) from error
    except OutcomeUnknownError as unknown:
        try:
            await write()  # at most one of the two lands
        except StoreUnavailableError:
            raise unknown from None
        except VersionConflictError as error:
            found = await store.sessions.load(session_id, limit=0)
            if found is None or not in_one_life(version, found.version):
                raise SessionExistsError(session_id) from error


async def _require_free(store: AgentStore, session_id: str) -> None:
    """Refuse an id that is taken; a deletion that was cut short is finished first, or it would take the fork along."""
    found = await settle(store, session_id) if "checkpoints" in store else None
    if found is not None and store.ownership.is_live(found):
        raise busy(found)
    if found is not None and found.head.status != IDLE:
        raise SessionExistsError(session_id)
