"""A database file that is looked at as it is: nothing is made, migrated or recovered."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.backend import StoreUnavailableError
from perdure_sqlite.database import MIGRATIONS, Database, facts, uri
from perdure_sqlite.failures import failure
from perdure_sqlite.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure_sqlite.worker import Call

MAGIC: Final = b"SQLite format 3\0"
WAL: Final = b"\2\2"
"""What the header has for the versions of the formats that are needed to write and to read, where the file is in WAL mode."""


def has_wal(path: str) -> bool:
    """Whether there is a write-ahead log with something in it, which belongs to the file."""
    try:
        return Path(f"{os.path.realpath(path)}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def written_at(path: str) -> int:
    """Return when the file itself was written last; what is only in its log does not count."""
    return Path(path).stat().st_mtime_ns


class Unchanging(Worker):
    """A file that is read without a lock, as one that does not change. If it did, what was read may be none of its states."""

    path: str
    written: int

    def changed(self) -> bool:
        """Whether somebody has written since it was opened, be it only to a log."""
        return has_wal(self.path) or written_at(self.path) != self.written

    def run(self, calls: Sequence[Call]) -> None:
        """Run the calls of one hop, and fail them if the file was written meanwhile."""
        super().run(calls)
        if written_at(self.path) != self.written:
            for call in calls:
                call.fail(StoreUnavailableError(call.operation, call.key, f"{self.path} was written meanwhile"))


def connect(path: str, **options: Any) -> Worker:
    """Open a file for reading, and have no file made beside it.

    A file in WAL mode that nobody has open has no log; SQLite would make one to read it, and cannot on a disk that is
    read-only. Such a file is opened as one that does not change. Whoever reads it otherwise than by calls that are handed
    over asks afterwards whether it has `changed`.

    For processes that have the file open nowhere else: reading its header with a descriptor of one's own drops the locks
    of other connections of the process.
    """
    written = written_at(path)
    with Path(path).open("rb") as file:
        header = file.read(20)  # the format versions are its last two bytes
    if not header.startswith(MAGIC) or header[-2:] != WAL or has_wal(path):
        return Worker(uri(path, "mode=ro"), uri=True, **options)
    unchanging = Unchanging(uri(path, "immutable=1"), uri=True, **options)
    unchanging.path, unchanging.written = path, written
    return unchanging


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
