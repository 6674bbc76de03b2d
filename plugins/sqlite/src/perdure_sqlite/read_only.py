"""A database file that is looked at as it is: nothing is made, migrated or recovered."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from perdure_sqlite.database import MIGRATIONS, Database, facts
from perdure_sqlite.failures import failure
from perdure_sqlite.worker import Worker

MAGIC: Final = b"SQLite format 3\0"
WAL: Final = b"\2\2"
"""What the header has for the versions of the formats that are needed to write and to read, where the file is in WAL mode."""


def has_wal(path: str) -> bool:
    """Whether there is a write-ahead log with something in it, which belongs to the file."""
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


def connect(path: str, **options: Any) -> Worker:
    """Open a file for reading, and have no file made beside it.

    A file in WAL mode that nobody has open has no log; SQLite would make one to read it, and cannot on a disk that is
    read-only. Such a file is opened as one that does not change. Whoever reads looks at `has_wal` again afterwards.

    For processes that have the file open nowhere else: reading its header with a descriptor of one's own drops the locks
    of other connections of the process.
    """
    with Path(path).open("rb") as file:
        header = file.read(20)  # the format versions are its last two bytes
    quiet = header.startswith(MAGIC) and header[-2:] == WAL and not has_wal(path)
    return Worker(f"file:{quote(path)}?{'immutable=1' if quiet else 'mode=ro'}", uri=True, **options)


class ReadOnlyDatabase(Database):
    """A database that is opened as `connect` does."""

    def connect(self, path: str, **options: Any) -> Worker:
        """Connect; to be given to `sqlite3.connect` as the factory."""
        try:
            connection = connect(path, **options)
            try:
                connection.execute(f"PRAGMA busy_timeout = {round(self.busy_timeout * 1000)}")
                found = facts(connection)
                self.check(*found)
            except BaseException:
                connection.close()
                raise
            if found[1] == 0:  # nothing was ever stored in it
                connection.close()
                connection = _empty(options)
        except (OSError, sqlite3.Error) as error:
            raise failure(error, operation="open", key=path, where=path) from error
        return connection


def _empty(options: dict[str, Any]) -> Worker:
    """Return what an empty file stands for."""
    connection = Worker(":memory:", **options)
    for script in MIGRATIONS:
        connection.executescript(script)
    return connection
