"""Crashes, cancellation, failing statements, and processes that race."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    Append,
    Key,
    OutcomeUnknownError,
    Part,
    StoreCorruptedError,
    StoreUnavailableError,
    VersionConflictError,
)
from perdure_sqlite.journal import SqliteJournal
from perdure_sqlite.worker import Worker

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]


def writable(path: Path) -> None:
    """Write from a connection that waits for nobody: no lock may be left."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[str]]:
    """Make the next statement that begins with a word fail with a result code; answer the list of those that did."""

    def make(word: str, code: int) -> list[str]:
        failed: list[str] = []
        original = Worker.execute

        def execute(worker: Worker, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql.startswith(word) and not failed:
                failed.append(sql)
                error = sqlite3.OperationalError("planted")
                error.sqlite_errorcode = code
                raise error
            return original(worker, sql, parameters)

        monkeypatch.setattr(Worker, "execute", execute)
        return failed

    return make


@pytest.mark.parametrize(
    ("word", "code", "error"),
    [
        ("BEGIN IMMEDIATE", sqlite3.SQLITE_BUSY, StoreUnavailableError),
        ("SAVEPOINT", sqlite3.SQLITE_FULL, StoreUnavailableError),
        ("RELEASE", sqlite3.SQLITE_IOERR_WRITE, StoreUnavailableError),
        ("COMMIT", sqlite3.SQLITE_BUSY, StoreUnavailableError),
        ("COMMIT", sqlite3.SQLITE_FULL, StoreUnavailableError),
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknownError),
    ],
)
async def test_a_group_that_fails_leaves_no_lock(
    path: Path,
    journal: SqliteJournal,
    append: Maker,
    fail: Callable[[str, int], list[str]],
    word: str,
    code: int,
    error: type,
) -> None:
    failed = fail(word, code)
    answers = await asyncio.gather(
        journal.write([append("a", b"1", expected=0)]),
        journal.write([append("b", b"1", expected=0)]),
        journal.write([append("c", b"1", expected=0), append("e", b"1", expected=0)]),
        journal.write([append("d", b"1", expected=5)]),
        return_exceptions=True,
    )
    assert len(failed) == 1
    assert [type(answer) for answer in answers[:3]] == [error] * 3
    assert isinstance(answers[0], Exception)
    assert isinstance(answers[0].__cause__, sqlite3.OperationalError)
    assert (
        type(answers[3]) is StoreUnavailableError
    )  # refused, but by a state that is gone: it wrote nothing in any case
    writable(path)
    assert await journal.read(Key(Part.SESSIONS, "a")) is None
    assert await journal.write([append("a", b"1", expected=0, first=7)]) == (7,)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_BUSY, StoreUnavailableError),
        (sqlite3.SQLITE_FULL, StoreUnavailableError),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknownError),
    ],
)
async def test_a_single_write_that_fails(
    path: Path, journal: SqliteJournal, append: Maker, fail: Callable[[str, int], list[str]], code: int, error: type
) -> None:
    fail("INSERT INTO change", code)
    with pytest.raises(error):
        await journal.write([append("a", b"1")])
    writable(path)
    assert await journal.write([append("a", b"1", first=7)]) == (7,)


async def test_what_could_not_be_taken_back_is_taken_back_by_the_next_hop(
    path: Path, journal: SqliteJournal, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next writes are acknowledged within a transaction that is never committed."""
    assert journal._connection is not None
    original = Worker.execute

    def exhausted(worker: Worker, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "ROLLBACK":
            raise MemoryError
        return original(worker, sql, parameters)

    def work(db: sqlite3.Connection) -> None:
        db.execute("SELECT * FROM journal").fetchall()
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "execute", exhausted)
        with pytest.raises(StoreUnavailableError):
            await journal._connection.read("read", "s", work)
    assert await journal.write([append("s", b"1", first=1)]) == (1,)
    assert await load(path, "s") == [b"1"]


async def test_a_call_of_a_group_that_fails_behind_its_statement_takes_the_group_along(
    path: Path, journal: SqliteJournal, append: Maker
) -> None:
    """Its error says that nothing was written."""
    assert journal._connection is not None

    def work(db: sqlite3.Connection) -> None:
        db.execute("UPDATE journal SET version = 9")
        raise MemoryError

    await journal.write([append("s", b"1", first=1)])
    answers = await asyncio.gather(
        journal._connection.write("write", "s", work, statements=1),
        journal.write([append("t", b"1", first=1)]),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 2
    assert await journal.write([append("s", b"2", expected=1)]) == (2,)
    assert await load(path, "t") == []


async def test_a_statement_that_fails_half_way_is_taken_back(path: Path, journal: SqliteJournal, append: Maker) -> None:
    await journal.write([append("s", b"1", first=1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(
            "CREATE TRIGGER planted BEFORE INSERT ON item BEGIN SELECT RAISE(ABORT, 'planted') WHERE NEW.data = x'32'; END"
        )
        answers = await asyncio.gather(
            journal.write([append("s", b"1", b"2", expected=1)]),
            journal.write([append("t", b"1", first=4)]),
            return_exceptions=True,
        )
        other.execute("DROP TRIGGER planted")
    assert isinstance(answers[0], (StoreUnavailableError, VersionConflictError))
    assert answers[1] == (4,)
    writable(path)
    assert await journal.write([append("s", b"2", expected=1)]) == (2,)


@pytest.mark.parametrize(
    ("name", "expected", "items"),
    [
        ("s", 1, [b"1"]),
        ("s", 1, [b"1", b"2"]),
        ("s", None, [b"1"]),
        ("t", 0, [b"1"]),
        ("t", None, [b"1", b"2"]),
    ],
)
async def test_an_item_that_belongs_to_no_key_is_damage_and_no_conflict(
    path: Path, journal: SqliteJournal, append: Maker, name: str, expected: int | None, items: list[bytes]
) -> None:
    """Whoever is told of a conflict reads the version and tries again, which would never end."""
    await journal.write([append("s", b"0", first=1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO item (place, data) SELECT (id << 32) + 1, x'30' FROM journal")
        other.execute("INSERT INTO item (place, data) SELECT (id + 1) << 32, x'30' FROM journal")
    with pytest.raises(StoreCorruptedError, match=r"item\.place"):
        await journal.write([append(name, *items, expected=expected)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert other.execute("SELECT name, version, count FROM journal").fetchall() == [("s", 1, 1)]
        assert other.execute("SELECT data FROM item").fetchall() == [(b"0",)] * 3
    writable(path)


async def test_a_full_disk_is_reported_and_the_next_write_works(journal: SqliteJournal, append: Maker) -> None:
    assert journal._connection is not None
    connection = journal._connection

    async def pragma(setting: str) -> int:
        return await connection.read("set", setting, lambda db: int(db.execute(f"PRAGMA {setting}").fetchone()[0]))

    await pragma(f"max_page_count = {await pragma('page_count')}")
    large = b"x" * 100_000
    with pytest.raises(StoreUnavailableError, match="full"):
        await journal.write([append("s", large, first=1)])
    answers = await asyncio.gather(
        *(journal.write([append(name, large, first=1)]) for name in "ab"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 2
    await pragma("max_page_count = 1000000")
    assert await journal.write([append("s", large, expected=0, first=1)]) == (1,)


async def test_waiting_for_a_lock_ends_and_does_not_stop_the_loop(path: Path, append: Maker) -> None:
    journal = SqliteJournal(path, busy_timeout=0.2)
    await journal.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(journal.write([append("s", b"1")]))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
        with pytest.raises(StoreUnavailableError, match="locked"):
            await writing
        other.execute("ROLLBACK")
    assert await journal.write([append("s", b"1", first=3)]) == (3,)
    await journal.close()


async def test_what_is_larger_than_sqlite_takes_is_not_to_be_tried_again(
    path: Path, journal: SqliteJournal, append: Maker
) -> None:
    assert journal._connection is not None
    await journal._connection.read("set", "", lambda db: db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000))
    for items in ([b"x" * 200_000], [b"x" * 60_000] * 2):
        with pytest.raises(StoreUnavailableError, match="too big") as caught:
            await journal.write([append("s", *items)])
        assert not caught.value.retryable
    writable(path)


@pytest.mark.parametrize("call", ["open", "append", "several", "read", "scan", "close"])
async def test_a_call_may_be_cancelled_at_every_await(path: Path, append: Maker, call: str) -> None:
    for turns in range(12):
        journal = SqliteJournal(path, namespace=f"n{turns}")
        if call != "open":
            await journal.open()
        task = asyncio.create_task(do(journal, call, append))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if call == "close" or (call == "open" and task.cancelled()):
            await journal.close()
            journal = SqliteJournal(path, namespace=f"n{turns}")
            await journal.open()
        # The next call gets its own answer, and what was cancelled is whole or absent.
        found = await journal.read(Key(Part.SESSIONS, "s"))
        run = await journal.read(Key(Part.RUNS, "s"))
        assert found is None or list(found.items) == [b"1", b"2"]
        assert call != "several" or (found is None) == (run is None)
        assert await journal.write([append("other", b"1", first=turns + 1)]) == (turns + 1,)
        writable(path)
        await journal.close()


async def test_who_was_cancelled_before_its_call_went_over_has_not_written(path: Path, append: Maker) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    cancelled, other = (asyncio.create_task(journal.write([append(key, b"1", first=1)])) for key in ("s", "t"))
    await asyncio.sleep(0)  # both have asked; they go over when everybody has
    cancelled.cancel()
    assert await other == (1,)
    assert cancelled.cancelled()
    assert await journal.read(Key(Part.SESSIONS, "s")) is None
    await journal.close()


async def do(journal: SqliteJournal, call: str, append: Maker) -> object:
    session = append("s", b"1", b"2", expected=0)
    if call == "append":
        return await journal.write([session])
    if call == "several":
        return await journal.write([session, Append(Key(Part.RUNS, "s"), (), session.head, 0, session.at, 1)])
    if call == "read":
        return await journal.read(session.key)
    if call == "scan":
        return await journal.scan(Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=5)
    return await getattr(journal, call)()


def test_eight_processes_lose_no_update(path: Path, together: Callable[..., list[str]]) -> None:
    together(
        """
async def main():
    journal = SqliteJournal(PATH, busy_timeout=30)
    await journal.open()
    ready()
    for number in range(25):
        while True:
            found = await journal.read(Key(Part.SESSIONS, "s"), limit=0)
            version = found.version if found else 0
            try:
                answer = await journal.write([append("s", f"{sys.argv[2]}-{number}".encode(), b"|", expected=version)])
            except VersionConflictError:
                continue
            assert answer == (version + 1 if version else 1,)
            break
    await journal.close()
asyncio.run(main())
"""
    )
    items = asyncio.run(load(path, "s"))
    assert items[1::2] == [b"|"] * 200
    for process in range(8):
        mine = [item for item in items[::2] if item.startswith(b"%d-" % process)]
        assert mine == [b"%d-%d" % (process, number) for number in range(25)]


async def load(path: Path, name: str) -> list[bytes]:
    journal = SqliteJournal(path)
    await journal.open()
    found = await journal.read(Key(Part.SESSIONS, name))
    await journal.close()
    return [] if found is None else list(found.items)


STORM = """
async def writer(journal, name):
    version, number = 0, 0
    while True:
        (version,) = await journal.write([append(name, f"{number}".encode(), b"x" * 3000, expected=version)])
        os.write(1, f"{name} {number}\\n".encode())
        number += 1
async def main():
    journal = SqliteJournal(PATH)
    await journal.open()
    await asyncio.gather(*(writer(journal, f"s{task}") for task in range(4)))
asyncio.run(main())
"""


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_what_was_acknowledged_survives_the_death_of_the_writer(
    path: Path, start: Callable[..., "subprocess.Popen[str]"], kills: int
) -> None:
    for kill in range(kills):
        for file in path.parent.iterdir():
            file.unlink()
        writer = start(STORM)
        assert writer.stdout is not None
        assert writer.stderr is not None
        acknowledged = [writer.stdout.readline() for _ in range(20 + 37 * kill % 200)]
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += writer.stdout.read().splitlines()
        assert writer.stderr.read() == ""
        writer.wait()
        for pipe in (writer.stdin, writer.stdout, writer.stderr):
            assert pipe is not None
            pipe.close()
        for task in range(4):
            numbers = [line.split()[1] for line in acknowledged if line.startswith(f"s{task} ")]
            items = asyncio.run(load(path, f"s{task}"))
            assert [item.decode() for item in items[::2]][: len(numbers)] == numbers
            assert len(items) // 2 - len(numbers) in {0, 1}
            assert items[1::2] == [b"x" * 3000] * (len(items) // 2)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
