"""The journal on SQLite."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    Head,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
    Replace,
    StoreClosedError,
    StoreCorruptedError,
    VersionConflictError,
)
from perdure_sqlite.connection import Connection
from perdure_sqlite.database import MEMORY, Database, file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.backend import StoreURL

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

CHANGE, CHANGE_ANY, DELETE, LOAD, SCAN = (
    files("perdure_sqlite").joinpath(name).read_text("utf-8")
    for name in ("change.sql", "change_any.sql", "delete.sql", "load.sql", "scan.sql")
)
VERSION = "SELECT version FROM journal WHERE namespace = ? AND part = ? AND name = ?"
REFUSED = ("SQLITE_CONSTRAINT_TRIGGER", "SQLITE_CONSTRAINT_UNIQUE")  # how write.sql says that a key is not as expected
ITEMS = "SELECT data FROM item WHERE id >= ? AND id < ? ORDER BY id"

# For each order: what comes behind a position, the order, and the condition on `updated_at`. Each is the order of an index;
# the `+` keeps SQLite from taking the one of `updated_at` instead and sorting.
ORDERS = {
    "id": (" AND name > :name", "name", " AND +updated_at < :before"),
    "created": (" AND (created_at, name) > (:at, :name)", "created_at, name", " AND +updated_at < :before"),
    "recent": (" AND (updated_at, name) < (:at, :name)", "updated_at DESC, name DESC", " AND updated_at < :before"),
}


class SqliteJournal(Journal):
    """A journal in one SQLite file.

    What was acknowledged survives the death of the process, and with `synchronous="full"` a power loss. Any number of
    processes of one host may share the file, and any number of namespaces live in it. `:memory:` is private to the
    object and gone when it is closed.

    Limits: one writer at a time; 2^31 keys and 2^32 items a key; 1 GB for the items of one write.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        namespace: str = "default",
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 5.0,
        journal_mode: Literal["wal", "delete"] = "wal",
        file_system: Callable[[Path], str] = file_system,
    ) -> None:
        """Take the path and the options of the URL; `file_system` tells the type of the one that holds a directory."""
        durable = str(path) != MEMORY
        # Absolute, so that a later `chdir` is harmless, and so that no name is one of SQLite's own, like `file:…`.
        where = str(Path(path).absolute()) if durable else MEMORY
        self.namespace = namespace
        self.title = f"sqlite:{path}"
        self.capabilities = Capabilities(durable=durable, shared=durable, atomic=True)
        self._database = Database(where, synchronous, busy_timeout, journal_mode, file_system)
        self._connection: Connection | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: StoreURL) -> SqliteJournal:
        """Make the journal that a URL names."""
        return cls(url.path, namespace=url.namespace, **({} if url.options is None else url.options.model_dump()))

    async def open(self) -> None:
        """Connect, and make or migrate the file."""
        if self._closed:
            raise StoreClosedError(self.title)
        if self._connection is None:
            self._connection = await Connection.open(self._database, self.title)

    async def close(self) -> None:
        """Let the calls under way finish, then release the file."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read the head and the items in one transaction."""

        def load(db: sqlite3.Connection) -> JournalSnapshot | None:
            row = db.execute(LOAD, self._names(key)).fetchone()
            if row is None:
                return None
            place, rewritten, *rest = row
            info = _info(rest)
            start = min(after, info.count) if last is None else max(0, info.count - last)
            stop = info.count if limit is None else min(info.count, start + limit)
            items = [data for (data,) in db.execute(ITEMS, (place + start, place + stop))] if start < stop else []
            if len(items) != stop - start:
                raise StoreCorruptedError(
                    f"{self._database.path}: {key.part} {key.id}", "some of its items are missing"
                )
            times = info.created_at, info.updated_at
            return JournalSnapshot(info.id, info.version, info.count, info.head, *times, items, start, rewritten)

        return await self._connected().read("read", key.id, load)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Write in one transaction, which calls that wait at the same time share."""

        def apply(db: sqlite3.Connection) -> tuple[int, ...]:
            return tuple(self._apply(db, operation) for operation in operations)

        ids = ", ".join(operation.key.id for operation in operations)
        return await self._connected().write("write", ids, apply, statements=len(operations))

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """List heads in the order of an index."""
        query = scan_query(
            order,
            group=group is not None,
            status=status is not None,
            before=before is not None,
            after=after is not None,
        )
        at, name = (None, None) if after is None else (_microseconds(after.at), after.id)
        parameters: dict[str, Any] = {
            "namespace": self.namespace,
            "part": part.value,
            "group": group,
            "status": status,
            "limit": limit,
        }
        parameters |= {"before": _microseconds(before), "at": at, "name": name}
        return await self._connected().read(
            "scan", part.value, lambda db: [_info(row) for row in db.execute(query, parameters)]
        )

    def _connected(self) -> Connection:
        if self._connection is None or self._closed:
            raise StoreClosedError(self.title)
        return self._connection

    def _names(self, key: Key) -> tuple[str, str, str]:
        return self.namespace, key.part.value, key.id

    def _apply(self, db: sqlite3.Connection, operation: Operation) -> int:
        """Run one operation as one statement; a second one is needed only to say why nothing happened."""
        names, expected = self._names(operation.key), operation.expected_version
        done = _delete(db, names, expected) if isinstance(operation, Delete) else _change(db, names, operation)
        if done is not None:
            return done
        stored = db.execute(VERSION, names).fetchone()
        actual = 0 if stored is None else int(stored[0])
        if isinstance(operation, Delete) and actual == 0 and not expected:
            return 0
        # An append refused at the very version that is there now: another process deleted the key in between.
        known = not isinstance(operation, Append) or actual != expected
        raise VersionConflictError(operation.key.id, expected, actual if known else None)


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


def _delete(db: sqlite3.Connection, names: tuple[str, str, str], expected: int | None) -> int | None:
    """Delete a key; return the version removed, or nothing if there is no such key at the version."""
    rows = db.execute(
        DELETE, (*names, expected)
    ).fetchall()  # all rows: a statement that is not finished does not commit
    return int(rows[0][0]) if rows else None


def _change(db: sqlite3.Connection, names: tuple[str, str, str], change: Append | Replace) -> int | None:
    """Append or replace; return the new version, or nothing if the key is not as expected."""
    expected, head, items = change.expected_version, change.head, change.items
    first_version, keep = (change.first_version, None) if isinstance(change, Append) else (0, change.keep)
    settings = (head.group, head.status, head.data, _microseconds(change.at))
    content = (len(items), None, items[0]) if len(items) == 1 else (len(items), _pieces(items), b"".join(items))
    row = (*names, expected, first_version, keep, *settings, *content)
    try:
        if expected is None:
            return int(db.execute(CHANGE_ANY, row).fetchall()[0][0])
        db.execute(CHANGE, row)
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorname in REFUSED:
            return None
        raise
    return expected + 1 if expected else first_version


def _pieces(items: Sequence[bytes]) -> str:
    ends = accumulate(map(len, items))
    return f"[{','.join(str((end - len(item)) << 32 | len(item)) for item, end in zip(items, ends, strict=True))}]"


def _info(row: Sequence[Any]) -> JournalInfo:
    name, version, count, group, status, data, created, updated = row
    return JournalInfo(name, version, count, Head(group, status, data), _instant(created), _instant(updated))


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH) // MICROSECOND


def _instant(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND
