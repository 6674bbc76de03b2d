"""Open databases. LMDB allows one for each directory in a process, so all journals of a directory share it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import lmdb


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
            opened.reader_check()  # killed processes leave their places among the readers
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
