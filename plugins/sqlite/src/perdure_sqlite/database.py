"""The database file: whether it may be used, whose it is, and how its schema comes up to date.

Everything here runs in the connection's thread, before anybody else has the connection.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from perdure.backend import SchemaVersionError, StoreUnavailableError, UnsupportedOperationError
from perdure_sqlite.failures import BUSY, failure, primary_code
from perdure_sqlite.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMORY = ":memory:"
APPLICATION_ID = 0x50455244  # "PERD"
OLDEST_SQLITE = (3, 38, 0)  # STRICT tables, RETURNING and json_each are all there

# File systems whose hosts do not share memory, which is what WAL needs, or whose locks are not to be trusted.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb2",
        "smb3",
        "smbfs",
    ]
)


def _sql(name: str) -> str:
    return files("perdure_sqlite").joinpath(name).read_text("utf-8")


# Each brings the schema from its index to the next version; once released, none ever changes.
MIGRATIONS = (_sql("migrations/0001.sql"),)
WRITE = _sql("write.sql")


def file_system(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that holds a directory, `""` where the system does not tell."""
    try:
        mounts = mountinfo.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    found, depth = "", -1
    for mount in mounts:
        place, _, kind = mount.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), place.split(" ")[4]))
        # Of two mounts on one point the later one counts.
        if len(point.parts) >= depth and directory.is_relative_to(point):
            found, depth = kind.split(" ")[0], len(point.parts)
    return found


def uri(path: str, option: str) -> str:
    """Return a path, of any bytes, as a URI of SQLite."""
    return f"file:{quote(os.fsencode(path))}?{option}"


@dataclass(frozen=True, slots=True)
class Database:
    """Where the data is and how it is to be opened.

    Attributes:
        path: An absolute path, or `:memory:`.
        synchronous: SQLite's setting of that name, `full` or `normal`.
        busy_timeout: How long to wait for a lock, in seconds.
        journal_mode: SQLite's setting of that name, `wal` or `delete`.
        file_system: Tells the type of the file system that holds a directory.
    """

    path: str
    synchronous: Literal["full", "normal"] = "full"
    busy_timeout: float = 5.0
    journal_mode: Literal["wal", "delete"] = "wal"
    file_system: Callable[[Path], str] = file_system

    def connect(self, path: str, **options: Any) -> Worker:
        """Connect; to be given to `sqlite3.connect` as the factory."""
        self._prepare_place()
        try:
            connection = Worker(path, **options)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, ValueError) as error:  # a path with a NUL is a ValueError
            raise failure(error, operation="open", key=path, where=path) from error
        return connection

    def _prepare_place(self) -> None:
        """Make the parent directory, and refuse a place or a file that cannot be used, before anything touches it."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            needed = ".".join(map(str, OLDEST_SQLITE))
            raise UnsupportedOperationError(self.path, f"SQLite {sqlite3.sqlite_version}; {needed} or newer is needed")
        if self.path == MEMORY:
            return
        try:
            place = Path(os.path.realpath(self.path))  # of a link: where the file is, and with it its log
            if place.name.endswith(("-wal", "-shm", "-journal")):
                raise ValueError("SQLite gives such a name to a part of another file, and overwrites what has it")
            _make(place.parent)
            kind = self.file_system(place.parent)
            present = Path(self.path).exists()
            if Path(self.path).is_dir():
                raise IsADirectoryError("it is a directory; name a file in it")
            if present and not os.access(self.path, os.W_OK):
                raise PermissionError("the file is read-only")
        except (OSError, ValueError) as error:
            raise failure(error, operation="open", key=self.path, where=self.path) from error
        if self.journal_mode == "wal" and kind in NETWORK_FILE_SYSTEMS:
            raise _wal_refused(self.path, kind)
        if present:
            self._peek()

    def _peek(self) -> None:
        """Refuse a newer or foreign file by its header alone, so that not even its `-wal` and `-shm` are touched.

        Only SQLite may open the file: closing a descriptor of one's own drops the locks that other connections of this
        process hold on it. `immutable` reads the file as it is and takes no lock; what it cannot read, or reads while
        another process writes, is left to the real opening.
        """
        try:
            with closing(sqlite3.connect(uri(self.path, "immutable=1"), uri=True, isolation_level=None)) as connection:
                found = facts(connection)
        except sqlite3.Error:
            return
        self.check(*found)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make a fresh connection ready for use: settings, schema, and the statements of this release."""
        connection.execute(f"PRAGMA busy_timeout = {round(self.busy_timeout * 1000)}")  # before anything that may wait
        with _transaction(connection, "DEFERRED"):
            self.check(*facts(connection))  # before the first write of any kind
        if self.path != MEMORY:
            self._set_journal_mode(connection)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute("PRAGMA foreign_keys = on")
        connection.execute("PRAGMA temp_store = memory")
        connection.execute("PRAGMA cache_size = -16000")  # KiB: a long transcript has more than the 2 MB that are usual
        connection.execute("PRAGMA secure_delete = fast")
        if connection.execute("PRAGMA user_version").fetchone()[0] < len(MIGRATIONS):
            self._migrate(connection)
        connection.executescript(WRITE)

    def check(self, application_id: int, version: int, schema_changes: int) -> None:
        """Refuse the file of a newer release, and that of another program."""
        if application_id == APPLICATION_ID:
            if version > len(MIGRATIONS):
                raise SchemaVersionError(self.path, version, len(MIGRATIONS))
        elif application_id or version or schema_changes:
            raise _foreign(self.path)

    def _set_journal_mode(self, connection: sqlite3.Connection) -> None:
        """Set the journal mode, waiting for the lock as any statement would: SQLite does not wait when the mode changes."""
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                (mode,) = connection.execute(f"PRAGMA journal_mode = {self.journal_mode}").fetchone()
            except sqlite3.OperationalError as error:
                if primary_code(error) != BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)
                continue
            if mode != self.journal_mode:
                raise StoreUnavailableError("open", self.path, f"SQLite kept the journal mode {mode!r}")
            return

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Apply what is missing, each migration in a transaction of its own; other processes may be doing the same."""
        for version, script in enumerate(MIGRATIONS, start=1):
            with _transaction(connection, "IMMEDIATE"):
                application_id, found, schema_changes = facts(connection)
                self.check(application_id, found, schema_changes)
                if found < version:
                    for statement in _statements(script):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {version}")


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def facts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the application id, the version of the schema, and how often the schema changed."""
    application_id, version, changes = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version", "schema_version")
    )
    return application_id, version, changes


def _make(directory: Path) -> None:
    """Make a directory with its parents, to outlast a power loss: SQLite sees to the names in the last one alone."""
    if directory.is_dir():
        return
    _make(directory.parent)
    directory.mkdir(exist_ok=True)
    try:
        parent = os.open(directory.parent, os.O_RDONLY)
    except PermissionError:  # who may write there may perhaps not read; and Windows opens no directory
        return
    try:
        os.fsync(parent)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a network file system that syncs no directory
            raise
    finally:
        os.close(parent)


def _statements(script: str) -> Iterator[str]:
    """Split a script, since `executescript` would commit the transaction that it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _foreign(path: str) -> StoreUnavailableError:
    error = StoreUnavailableError("open", path, "it is the SQLite database of another program")
    error.retryable, error.hint = False, "Give the store a file of its own."
    return error


def _wal_refused(path: str, kind: str) -> UnsupportedOperationError:
    error = UnsupportedOperationError(
        path, f"journal_mode=wal on a network file system ({kind}); use ?journal_mode=delete"
    )
    error.hint = "Put the file on a local disk, or open it everywhere with ?journal_mode=delete."
    return error
