"""The journal on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
    StoreClosedError,
    StoreCorruptedError,
    StoreURLError,
    VersionConflictError,
    describe,
)
from perdure_sqlite.connection import Connection
from perdure_sqlite.database import MEMORY, Database, file_system
from perdure_sqlite.failures import is_damage
from perdure_sqlite.statements import ITEMS, LOAD, VERSION, change, delete, info, microseconds, names_only, scan_query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from perdure.backend import StoreURL


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
        database: type[Database] = Database,
    ) -> None:
        """Take the path and the options of the URL.

        Args:
            path: The file, or `:memory:`.
            namespace: The tenant.
            synchronous: SQLite's setting of that name.
            busy_timeout: How long to wait for a lock, in seconds.
            journal_mode: SQLite's setting of that name.
            file_system: Tells the type of the file system that holds a directory.
            database: How the file is opened.
        """
        durable = str(path) != MEMORY
        # Absolute, so that a later `chdir` is harmless, and so that no name is one of SQLite's own, like `file:…`.
        where = str(Path(path).absolute()) if durable else MEMORY
        self.namespace = namespace
        self.title = f"sqlite:{path}"
        self.capabilities = Capabilities(durable=durable, shared=durable, atomic=True)
        self._database = database(where, synchronous, busy_timeout, journal_mode, file_system)
        self._connection: Connection | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: StoreURL, *, database: type[Database] = Database) -> SqliteJournal:
        """Make the journal that a URL names."""
        if not url.path:
            raise StoreURLError(str(url), "names no file. Write sqlite:agent.db.")
        options = {} if url.options is None else url.options.model_dump()
        return cls(url.path, namespace=url.namespace, database=database, **options)

    async def open(self) -> None:
        """Connect, and make or migrate the file."""
        if self._closed:
            raise StoreClosedError(self.title)
        if self._connection is None:
            self._connection = connection = await Connection.open(self._database, self.title)
            try:
                self._connected()
            except StoreClosedError:  # meanwhile
                await connection.close()
                raise

    async def close(self) -> None:
        """Let the calls under way finish, then release the file."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read the head and the items in one transaction."""

        def damage(problem: str) -> StoreCorruptedError:
            return StoreCorruptedError(f"{self._database.path}: {key.part} {key.id}", problem)

        def load(db: sqlite3.Connection) -> JournalSnapshot | None:
            row = db.execute(LOAD, self._names(key)).fetchone()
            if row is None:
                return None
            place, rewritten, hides, *rest = row
            head = info(rest, self._database.path, key.part)
            if hides:
                raise damage("it has more items than it counts")
            start = min(after, head.count) if last is None else max(0, head.count - last)
            stop = head.count if limit is None else min(head.count, start + limit)
            items = [data for (data,) in db.execute(ITEMS, (place + start, place + stop))] if start < stop else []
            if len(items) != stop - start:
                raise damage("some of its items are missing")
            times = head.created_at, head.updated_at
            return JournalSnapshot(head.id, head.version, head.count, head.head, *times, items, start, rewritten)

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
        at, name = (None, None) if after is None else (microseconds(after.at), after.id)
        parameters: dict[str, Any] = {
            "namespace": self.namespace,
            "part": part.value,
            "group": group,
            "status": status,
            "limit": limit,
        }
        parameters |= {"before": microseconds(before), "at": at, "name": name}
        path = self._database.path

        def listed(db: sqlite3.Connection) -> Sequence[JournalInfo]:
            try:
                return [info(row, path, part) for row in db.execute(query, parameters)]
            except sqlite3.Error as error:
                if limit == 1 and is_damage(error):  # whoever reads head by head is told behind which one to go on
                    for (found,) in db.execute(names_only(query), parameters):
                        raise StoreCorruptedError(f"{path}: {part} {found}", describe(error), found) from error
                raise

        return await self._connected().read("scan", part.value, listed)

    def _connected(self) -> Connection:
        if self._connection is None or self._closed:
            raise StoreClosedError(self.title)
        return self._connection

    def _names(self, key: Key) -> tuple[str, str, str]:
        return self.namespace, key.part.value, key.id

    def _apply(self, db: sqlite3.Connection, operation: Operation) -> int:
        """Run one operation as one statement; a second one is needed only to say why nothing happened."""
        names, expected = self._names(operation.key), operation.expected_version
        done = delete(db, names, expected) if isinstance(operation, Delete) else change(db, names, operation)
        if done is not None:
            return done
        stored = db.execute(VERSION, names).fetchone()
        actual = 0 if stored is None else int(stored[0])
        if isinstance(operation, Delete) and (expected is None or expected == actual == 0):
            return 0  # it was not there
        # An append refused at the very version that is there now: another process deleted the key in between.
        known = not isinstance(operation, Append) or actual != expected
        raise VersionConflictError(operation.key.id, expected, actual if known else None)
