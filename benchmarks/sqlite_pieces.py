"""Where does the time of an append to SQLite go?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import aiosqlite
from benchmarks.append import DATA, appender
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.pairs import Work
from benchmarks.raw_engines import SQLITE, insert, raw_sqlite
from benchmarks.runtime_share import journal_of

from perdure import open_store
from perdure.backend import Append, Head, Journal, Key, Part
from perdure.clock import SYSTEM_CLOCK
from perdure_sqlite.database import WRITE
from perdure_sqlite.journal import SqliteJournal
from perdure_sqlite.statements import CHANGE

NORMAL = "WAL, synchronous=normal"


async def measure(bench: Bench) -> list[Figure]:
    """Measure the statement, the journal and the store, each against a bare insert; with NORMAL, where no disk hides the rest."""
    found = []
    async with open_store(f"sqlite:{bench.place('agent.db')}?synchronous=normal") as store:
        journal = journal_of(store)
        assert isinstance(journal, SqliteJournal)
        async with raw_sqlite(bench.place("raw.db"), "normal") as raw, store_of(journal) as driver:
            for what, work in (
                ("the statement alone, by aiosqlite", statement(driver)),
                ("the journal's write, with the shared commit", write(journal)),
                ("the store's append, with checks and snapshot", appender(store, "store")),
            ):
                figure = await bench.compare(
                    what, work, lambda: insert(raw, DATA), anchor=SQLITE, durability=NORMAL, rate=True
                )
                found.append(figure)
    return found


@asynccontextmanager
async def store_of(journal: SqliteJournal) -> AsyncIterator[aiosqlite.Connection]:
    """Open the file of a journal with aiosqlite, with the view that the statement inserts into."""
    async with aiosqlite.connect(journal._database.path, isolation_level=None) as driver:
        await driver.execute("PRAGMA synchronous = normal")
        await driver.execute("PRAGMA temp_store = memory")
        await driver.executescript(WRITE)
        yield driver


def statement(driver: aiosqlite.Connection) -> Work:
    """Return the work that runs the statement of an append."""
    versions = count()

    async def run() -> None:
        settings = (next(versions), 1, None, None, None, None, 1, 1, None, DATA)
        await driver.execute(CHANGE, ("default", "sessions", "statement", *settings))

    return run


def write(journal: Journal) -> Work:
    """Return the work that writes one append."""
    version = 0

    async def run() -> None:
        nonlocal version
        operation = Append(Key(Part.SESSIONS, "journal"), (DATA,), Head(), version, SYSTEM_CLOCK.now(), 1)
        (version,) = await journal.write((operation,))

    return run
