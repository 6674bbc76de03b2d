"""Looking at a database file for `perdure doctor`: whose it is, whether SQLite finds it whole, and whether its rows fit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from typing import TYPE_CHECKING

from perdure.backend import Finding, Part, StoreUnavailableError, UnsupportedOperationError, describe
from perdure_sqlite.database import MIGRATIONS, Database, facts
from perdure_sqlite.failures import failure
from perdure_sqlite.read_only import Unchanging, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = files("perdure_sqlite").joinpath("counts.sql").read_text("utf-8")
SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
STRAY_ITEMS = "SELECT count(*) FROM item WHERE place >> 32 NOT IN (SELECT id FROM journal)"
STRAY_PARTS = "SELECT namespace, part, name FROM journal WHERE part NOT IN (?, ?, ?)"
STRAY_VERSIONS = (
    "SELECT namespace, part, name, version FROM journal WHERE version < 1 OR rewritten NOT BETWEEN 0 AND version"
)
NAMESPACES = "SELECT namespace, count(*) FROM journal GROUP BY namespace ORDER BY namespace"
MOST = 100
LOOKS = 3


def examine(path: str, namespace: str) -> list[Finding]:
    """Look at a file without changing it.

    Args:
        path: The absolute path of the file.
        namespace: The namespace of the URL; others are named.

    Raises:
        SchemaVersionError: A newer release wrote it.
        StoreUnavailableError: It cannot be read, is another program's, or others write it each time that it is looked at.
        StoreCorruptedError: It is no database.
    """
    try:
        for _ in range(LOOKS):
            found = _examine(path, namespace)
            if found is not None:
                return found
    except (OSError, sqlite3.Error) as error:
        raise failure(error, operation="examine", key=path, where=path) from error
    raise StoreUnavailableError("examine", path, "others open, write and close it meanwhile")


def refuse_salvage(path: str) -> UnsupportedOperationError:
    """Return the error of what SQLite's own tool does."""
    error = UnsupportedOperationError(f"sqlite:{path}", "salvage")
    error.hint = f"Restore a backup, or recover what is whole into a new file: sqlite3 {path} .recover | sqlite3 new.db"
    return error


def _examine(path: str, namespace: str) -> list[Finding] | None:
    """Look once; return nothing if somebody wrote meanwhile, which a look that takes no lock may take for damage."""
    with closing(connect(path)) as database:
        Database(path).check(*facts(database))
        found = list(_findings(database, path, namespace))
        return None if isinstance(database, Unchanging) and database.changed() else found


def _findings(database: sqlite3.Connection, path: str, namespace: str) -> Iterator[Finding]:
    _, version, _ = facts(database)
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    yield Finding(f"{path}: schema version {version} of {len(MIGRATIONS)}, {pages * size} bytes.")
    if version == 0:
        yield Finding(f"{path}: nothing was ever stored in it.")
        return
    for look in (_integrity, _schema, _rows):
        try:
            yield from look(database, path)
        except sqlite3.DatabaseError as error:
            yield Finding(f"{path}: {describe(error)}", damaged=True)
    yield from _namespaces(database, path, namespace)


def _integrity(database: sqlite3.Connection, path: str) -> Iterator[Finding]:
    """Ask SQLite, which looks at every page, row and index."""
    for (problem,) in database.execute(f"PRAGMA integrity_check({MOST})"):
        if problem != "ok":
            yield Finding(f"{path}: {' '.join(problem.split())}", damaged=True)


def _schema(database: sqlite3.Connection, path: str) -> Iterator[Finding]:
    """Compare what is there with what the migrations make."""
    there = {(kind, name): sql for kind, name, sql in database.execute(SCHEMA)}
    with closing(sqlite3.connect(":memory:")) as fresh:
        for script in MIGRATIONS[: facts(database)[1]]:
            fresh.executescript(script)
        wanted = {(kind, name): sql for kind, name, sql in fresh.execute(SCHEMA)}
    for (kind, name), sql in wanted.items():
        if there.get((kind, name)) != sql:
            problem = "is missing" if (kind, name) not in there else "is not what this release makes"
            yield Finding(f"{path}: the {kind} {name} {problem}", damaged=True)
    for kind, name in there.keys() - wanted.keys():
        yield Finding(f"{path}: the {kind} {name} is not the store's", warning=True)


def _rows(database: sqlite3.Connection, path: str) -> Iterator[Finding]:
    (stray,) = database.execute(STRAY_ITEMS).fetchone()
    if stray:
        yield Finding(f"{path}: {stray} items belong to no key", damaged=True)
    for namespace, part, name, count, number, reach in database.execute(COUNTS):
        problem = f"it counts {count} items and has {number}, the last one at place {reach}"
        yield Finding(f"{path}: {part} {name}: {problem} (namespace {namespace})", damaged=True)
    for namespace, part, name in database.execute(STRAY_PARTS, tuple(Part)):
        yield Finding(f"{path}: {name} is in a part {part!r} that there is not (namespace {namespace})", damaged=True)
    for namespace, part, name, version in database.execute(STRAY_VERSIONS):
        problem = f"{version} is no version of it"
        yield Finding(f"{path}: {part} {name}: {problem} (namespace {namespace})", damaged=True)


def _namespaces(database: sqlite3.Connection, path: str, namespace: str) -> Iterator[Finding]:
    try:
        others = [f"{name} ({count} keys)" for name, count in database.execute(NAMESPACES) if name != namespace]
    except sqlite3.DatabaseError:
        return  # it was said before
    if others:
        shown = ", ".join(others[:MOST])
        yield Finding(f"{path}: there are other namespaces, to be named by ?namespace=: {shown}.")
