"""Open databases. LMDB allows one for each directory in a process, so all journals of a directory share it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import lmdb

from perdure.backend import SchemaVersionError, StoreCorruptedError

SCHEMA = 1
"""The version of how the data lies in the table. A release that changes it adds one, and reads the older ones."""
SCHEMA_KEY = b"schema"


@dataclass
class Environment:
    """An open database.

    Attributes:
        directory: Where it is.
        lmdb: The driver's object.
        process: Who opened it. A forked child must not use it.
        users: How many journals use it; the last one closes it.
    """

    directory: str
    lmdb: lmdb.Environment
    process: int
    users: int = 0


_open: dict[str, Environment] = {}
_lock = threading.Lock()


def enter(directory: str, map_size: int) -> Environment:
    """Return the database of a directory, opened or made if need be, with one user more."""
    with _lock:
        known = _open.get(directory)
        if known is None or known.process != os.getpid():
            Path(directory).mkdir(parents=True, exist_ok=True)
            opened = lmdb.open(directory, map_size=map_size, max_readers=512)
            try:
                opened.reader_check()  # killed processes leave their places among the readers
                _check_schema(opened, directory)
            except BaseException:
                opened.close()
                raise
            known = _open[directory] = Environment(directory, opened, os.getpid())
        known.users += 1
        return known


def leave(environment: Environment) -> None:
    """Give a database up; the last user closes it."""
    with _lock:
        environment.users -= 1
        if environment.users == 0 and environment.process == os.getpid():
            del _open[environment.directory]
            environment.lmdb.close()


def _check_schema(opened: lmdb.Environment, directory: str) -> None:
    """Mark a new database with the version, and refuse one that a newer release wrote."""
    with opened.begin() as transaction:
        found = transaction.get(SCHEMA_KEY)
    if found is None:
        with opened.begin(write=True) as transaction:
            transaction.put(SCHEMA_KEY, b"%d" % SCHEMA, overwrite=False)
    elif not bytes(found).isdigit():
        raise StoreCorruptedError(directory, "its schema version is no number")
    elif int(found) > SCHEMA:
        raise SchemaVersionError(directory, int(found), SCHEMA)
