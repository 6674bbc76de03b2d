"""The anchors that are the engines themselves: one insert, one push, one write and fsync, in one hop each."""

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite

SQLITE = "aiosqlite: one INSERT in autocommit, one thread hop"
REDIS = "RPUSH by the same client"
FILE = "append and fsync in one thread hop"


@asynccontextmanager
async def raw_sqlite(path: Path, synchronous: str = "full") -> AsyncIterator[aiosqlite.Connection]:
    """Open a bare table in WAL mode; `insert` writes to it."""
    async with aiosqlite.connect(path, isolation_level=None) as database:
        await database.execute("PRAGMA journal_mode = wal")
        await database.execute(f"PRAGMA synchronous = {synchronous}")
        await database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
        yield database


async def insert(database: aiosqlite.Connection, data: bytes) -> None:
    """Write one row, and wait for its commit."""
    await database.execute("INSERT INTO item (data) VALUES (?)", (data,))


class RawFile:
    """A file that is appended to in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._thread = ThreadPoolExecutor(1)

    async def append(self, data: bytes) -> None:
        """Append, and wait for the disk."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._append, data)

    def _append(self, data: bytes) -> None:
        os.write(self._descriptor, data)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown()
        os.close(self._descriptor)
