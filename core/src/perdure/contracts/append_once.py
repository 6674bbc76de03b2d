"""Append records that have ids of their own, so that repeating never stores one twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import codec
from perdure.contracts import records as check
from perdure.errors import InvalidArgumentError, OutcomeUnknownError, StoreUnavailableError, VersionConflictError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionStore

ATTEMPTS = 50
"""How often a write is tried while other writers come first."""


def append_once(
    store: SessionStore, session_id: str, records: Sequence[Record], *, key: str = "uuid"
) -> Coroutine[Any, Any, int]:
    """Append those of the records that are not there yet, each known by an id of its own.

    The snapshot of `records` is taken when this is called. It costs a load of the transcript: use it where the writer
    knows no version, and `append` at the expected version everywhere else.

    Args:
        store: The session store.
        session_id: Whose transcript; created if it is absent.
        records: JSON objects, each with a text under `key`. Their order is kept among those that are new.
        key: The field that holds the id.

    Returns:
        The version at which all of them are stored.

    Raises:
        InvalidIdError, NotJsonError, RecordTooLargeError: Nothing was written.
        InvalidArgumentError: A record lacks the id, or its id belongs to a record of other content; not written.
        VersionConflictError: Others came first 50 times; nothing was written.
        StoreUnavailableError: Nothing was written.
        OutcomeUnknownError: They may be written; call it again with the same records.

    Atomic: All that are new, or none.
    Durable: When it returns (stores that declare `durable`).
    Concurrent: Any number of callers may append the same records; each record comes once.
    Retry: Safe.
    Cancelled: Written whole or not at all. Raises `CancelledError`, unless it had ended.

    Laws: append-once-is-safe-to-repeat, append-once-refuses-another-record-of-one-id,
        append-once-stores-each-record-once, append-once-works-at-once, append-once-writes-nothing-that-is-there
    """
    return _append_once(store, session_id, _by_id(records, key, store.max_record), key)


async def _append_once(store: SessionStore, session_id: str, wanted: dict[str, bytes], key: str) -> int:
    unknown: OutcomeUnknownError | None = None
    failure: Exception = AssertionError("never tried")
    for _ in range(ATTEMPTS):
        try:
            return await _append_new(store, session_id, wanted, key)
        except VersionConflictError as error:
            failure = error
        except OutcomeUnknownError as error:
            failure = unknown = error
        except StoreUnavailableError as error:
            # It changed nothing itself; but a write before it may have.
            raise unknown or error from error.__cause__
    raise unknown or failure


async def _append_new(store: SessionStore, session_id: str, wanted: dict[str, bytes], key: str) -> int:
    current = await store.load(session_id)
    if current is None:
        return await store.append(session_id, _decoded(wanted.values()), expected_version=0)
    there = {str(record[key]): record for record in current.records if type(record.get(key)) is str}
    for name in wanted.keys() & there.keys():
        if codec.encode(there[name]) != wanted[name]:
            raise InvalidArgumentError("records", f"has the id {name!r} of a stored record, with other content")
    missing = [data for name, data in wanted.items() if name not in there]
    if not missing:
        return current.version
    return await store.append(session_id, _decoded(missing), expected_version=current.version)


def _decoded(items: Any) -> list[Record]:
    return [codec.decode(data) for data in items]


def _by_id(records: Sequence[Record], key: str, max_record: int) -> dict[str, bytes]:
    """Take the snapshot of records, by their ids in their order."""
    wanted: dict[str, bytes] = {}
    for index, data in enumerate(check.encode_records(records, "records", max_record)):
        name = records[index].get(key)
        if type(name) is not str:
            raise InvalidArgumentError(f"records[{index}]", f"has no text under {key!r}, which append_once needs")
        if wanted.setdefault(name, data) != data:
            raise InvalidArgumentError(f"records[{index}]", f"has the id {name!r} of another one, with other content")
    return wanted
