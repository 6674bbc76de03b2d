"""The statements: what goes into them and what comes out."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from perdure.backend import Append, Head, JournalInfo, Replace, StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LAST = 2**63 - 1  # the largest number of SQLite

APPEND, CHANGE, CHANGE_ANY, DELETE, LOAD, SCAN = (
    files("perdure_sqlite").joinpath(name).read_text("utf-8")
    for name in ("append.sql", "change.sql", "change_any.sql", "delete.sql", "load.sql", "scan.sql")
)
VERSION = "SELECT version FROM journal WHERE namespace = ? AND part = ? AND name = ?"
# How write.sql says that a key is not as expected. (That the place of an item is taken is no such thing: it is damage.)
REFUSED = ("version conflict", "UNIQUE constraint failed: journal.namespace, journal.part, journal.name")
ITEMS = "SELECT data FROM item WHERE place >= ? AND place < ? ORDER BY place"

# For each order: what comes behind a position, the order, and the condition on `updated_at`. Each is the order of an index;
# the `+` keeps SQLite from taking the one of `updated_at` instead and sorting.
ORDERS = {
    "id": (" AND name > :name", "name", " AND +updated_at < :before"),
    "created": (" AND (created_at, name) > (:at, :name)", "created_at, name", " AND +updated_at < :before"),
    "recent": (" AND (updated_at, name) < (:at, :name)", "updated_at DESC, name DESC", " AND updated_at < :before"),
}


def scan_query(order: str, *, group: bool, status: bool, before: bool, after: bool) -> str:
    """Return the query of a listing with these conditions."""
    behind, ordered, earlier = ORDERS[order]
    conditions = (
        ' AND "group" = :group' if group else "",
        " AND status = :status" if status else "",
        earlier if before else "",
        behind if after else "",
    )
    return f"{SCAN}{''.join(conditions)} ORDER BY {ordered} LIMIT :limit"


def names_only(query: str) -> str:
    """Return a query of a listing for the names alone, which an index has as well."""
    return f"SELECT name {query[query.index('FROM') :]}"


def delete(db: sqlite3.Connection, names: tuple[str, str, str], expected: int | None) -> int | None:
    """Delete a key; return the version removed, or nothing if there is no such key at the version."""
    rows = db.execute(
        DELETE, (*names, expected)
    ).fetchall()  # to the end: a statement that has not ended is not committed
    return int(rows[0][0]) if rows else None


def change(db: sqlite3.Connection, names: tuple[str, str, str], operation: Append | Replace) -> int | None:
    """Append or replace; return the new version, or nothing if the key is not as expected."""
    expected, head, items = operation.expected_version, operation.head, operation.items
    if expected and len(items) == 1 and isinstance(operation, Append) and _append(db, names, operation):
        return expected + 1
    first_version, keep = (
        (operation.first_version, None) if isinstance(operation, Append) else (0, min(operation.keep, LAST))
    )
    settings = (head.group, head.status, head.data, microseconds(operation.at))
    content = (len(items), None, items[0]) if len(items) == 1 else (len(items), _pieces(items), b"".join(items))
    row = (*names, expected, first_version, keep, *settings, *content)
    try:
        if expected is None:
            return int(db.execute(CHANGE_ANY, row).fetchall()[0][0])
        db.execute(CHANGE, row)
    except sqlite3.IntegrityError as error:
        if str(error) in REFUSED:
            return None
        raise
    return expected + 1 if expected else first_version


def _append(db: sqlite3.Connection, names: tuple[str, str, str], operation: Append) -> bool:
    """Append one item the short way, if the key is at the version, and its group and status are to stay what they are."""
    head = operation.head
    settings = (head.group, head.status, head.data, microseconds(operation.at))
    try:
        db.execute(APPEND, (*names, operation.expected_version, *settings, operation.items[0]))
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorname != "SQLITE_CONSTRAINT_TRIGGER":
            raise
        return False
    return True


def _pieces(items: Sequence[bytes]) -> str:
    ends = accumulate(map(len, items))
    return f"[{','.join(str((end - len(item)) << 32 | len(item)) for item, end in zip(items, ends, strict=True))}]"


def info(row: Sequence[Any], path: str, part: str) -> JournalInfo:
    """Return the head that a row of `scan.sql`, or the end of one of `load.sql`, holds; path and part are for messages."""
    name, version, count, group, status, data, created, updated = row
    try:
        times = _instant(created), _instant(updated)
    except OverflowError as error:
        raise StoreCorruptedError(f"{path}: {part} {name}", "its instants are out of range", name) from error
    return JournalInfo(name, version, count, Head(group, status, data), *times)


def microseconds(at: datetime | None) -> int | None:
    """Return an instant as the file has it, exact."""
    return None if at is None else (at - EPOCH) // MICROSECOND


def _instant(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND
