"""What a write costs, as counts: statements, hops to the thread, commits, and what a read touches."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    Append,
    Delete,
    Head,
    Key,
    Part,
    Position,
    Replace,
    StoreUnavailableError,
    VersionConflictError,
)
from perdure_sqlite.journal import SqliteJournal
from perdure_sqlite.statements import scan_query
from perdure_sqlite.worker import Call, Worker

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls went over in each hop."""
    counted: list[int] = []
    original = Worker.run

    def count(worker: Worker, calls: Sequence[Call]) -> None:
        counted.append(len(calls))
        original(worker, calls)

    monkeypatch.setattr(Worker, "run", count)
    return counted


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that ran. (SQLite's own trace reports each statement of a trigger as well.)"""
    ran: list[str] = []
    original = Worker.execute

    def execute(worker: Worker, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        ran.append(sql)
        return original(worker, sql, parameters)

    monkeypatch.setattr(Worker, "execute", execute)
    return ran


async def test_a_guarded_append_is_one_statement_in_one_hop(
    journal: SqliteJournal, append: Maker, hops: list[int], statements: list[str]
) -> None:
    await journal.write([append("s", b"1", expected=0, first=5)])
    await journal.write([append("s", b"2", b"3", expected=5)])
    await journal.write([append("s", b"4")])
    assert [sql.split()[:3] for sql in statements] == [["INSERT", "INTO", "change"]] * 3
    assert hops == [1, 1, 1]


async def test_an_append_of_one_item_beside_the_same_status_goes_the_short_way(
    journal: SqliteJournal, append: Maker, statements: list[str]
) -> None:
    key, at = Key(Part.RUNS, "s"), append("s").at

    def write(expected: int, head: Head) -> Append:
        return Append(key, (b"%d" % expected,), head, expected, at, 5)

    await journal.write([write(0, Head("agent", "running", b"a"))])
    await journal.write([write(5, Head("agent", "running", b"b"))])
    await journal.write([write(6, Head())])
    await journal.write([write(7, Head(status="done"))])
    short, general = ["INSERT", "INTO", "single_append"], ["INSERT", "INTO", "change"]
    assert [sql.split()[:3] for sql in statements] == [general, short, short, short, general]
    found = await journal.read(key)
    assert found is not None
    assert (found.version, found.head) == (8, Head("agent", "done", b"b"))
    assert list(found.items) == [b"0", b"5", b"6", b"7"]


async def test_a_guarded_append_waits_for_the_disk_once(path: Path, append: Maker, tmp_path: Path) -> None:
    """One commit is one header with a commit mark in the WAL: frames whose second word is not zero."""
    journal = SqliteJournal(path)
    await journal.open()
    await journal.write([append("s", b"1", expected=0, first=5)])
    before = commits(path)
    await journal.write([append("s", b"2" * 5000, b"3", expected=5)])
    assert commits(path) == before + 1
    await journal.close()


def commits(path: Path) -> int:
    return sum(pages(path))


def pages(path: Path) -> list[bool]:
    """Return for each page in the WAL, which is as long as it ever was, whether a commit ends with it."""
    wal = path.with_name(path.name + "-wal").read_bytes()
    frame = 24 + int.from_bytes(wal[8:12], "big")
    return [wal[at + 4 : at + 8] != bytes(4) for at in range(32, len(wal), frame)]


@pytest.mark.parametrize(("sharing", "most"), [(1, 5), (8, 14)])
async def test_appends_that_share_a_commit_share_its_pages(
    path: Path, journal: SqliteJournal, append: Maker, sharing: int, most: int
) -> None:
    """Of a hundred keys with items of 1 KiB some append one more: wherever in the file these keys are."""
    for number in range(100):
        await journal.write([append(f"s{number:02}", *[b"x" * 1024] * 2, first=1)])
    before = len(pages(path))
    for _ in range(10):
        keys = [f"s{number:02}" for number in range(0, 100, 100 // sharing)][:sharing]
        await asyncio.gather(*(journal.write([append(name, b"y" * 1024)]) for name in keys))
    assert (len(pages(path)) - before) / 10 <= most


async def test_tasks_that_write_at_once_share_a_commit(
    path: Path, journal: SqliteJournal, append: Maker, hops: list[int]
) -> None:
    async def ten(name: str) -> None:
        version = 0
        for number in range(10):
            (version,) = await journal.write([append(name, b"%d" % number, expected=version)])

    before = commits(path)
    await asyncio.gather(*(ten(f"s{task}") for task in range(8)))
    assert sum(hops) == 80
    assert commits(path) - before == len(hops) <= 12
    for task in range(8):
        found = await journal.read(Key(Part.SESSIONS, f"s{task}"))
        assert found is not None
        assert list(found.items) == [b"%d" % number for number in range(10)]


async def test_a_refused_member_of_a_group_changes_nothing_for_the_others(
    journal: SqliteJournal, append: Maker, hops: list[int]
) -> None:
    await journal.write([append("b", b"0", expected=0, first=9)])
    both = [append("c", b"1", expected=0), append("b", b"1", expected=8)]
    answers = await asyncio.gather(
        journal.write([append("a", b"1", expected=0, first=3)]),
        journal.write([append("b", b"1", expected=8)]),
        journal.write(both),
        journal.write([append("b", b"1", expected=9)]),
        return_exceptions=True,
    )
    assert hops == [1, 4]
    assert answers[0] == (3,)
    assert isinstance(answers[1], VersionConflictError)
    assert isinstance(answers[2], VersionConflictError)
    assert answers[3] == (10,)
    assert (answers[1].key, answers[1].expected, answers[1].actual) == ("b", 8, 9)
    assert await journal.read(Key(Part.SESSIONS, "c")) is None


async def test_several_operations_are_one_hop_and_all_or_none(
    journal: SqliteJournal, append: Maker, hops: list[int]
) -> None:
    run = Key(Part.RUNS, "s")
    await journal.write([append("s", b"1", first=1), Append(run, (b"x", b"y"), Head(), 0, append("s").at, 50)])
    answers = await journal.write([append("s", b"2", expected=1), Replace(run, 0, (), Head(), 50, append("s").at)])
    assert answers == (2, 51)
    assert hops == [1, 1]
    with pytest.raises(VersionConflictError):
        await journal.write([Delete(run, 51), append("s", b"3", expected=1)])
    assert await journal.read(run) is not None


async def test_reads_do_not_wait_for_the_writes_of_their_hop(
    path: Path, journal: SqliteJournal, append: Maker, hops: list[int]
) -> None:
    await journal.write([append("s", b"1", first=1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = await journal.read(Key(Part.SESSIONS, "s"))
        assert found is not None
        other.execute("ROLLBACK")
    assert hops == [1, 1]


async def test_calls_that_wait_together_wait_once(path: Path, append: Maker) -> None:
    """Each read of a hop waited for as long as a call may, one after the other."""
    journal = SqliteJournal(path, journal_mode="delete", busy_timeout=0)
    await journal.open()
    assert journal._connection is not None
    waited: list[None] = []

    def work(db: sqlite3.Connection) -> object:
        waited.append(None)
        return db.execute("SELECT count(*) FROM journal").fetchone()

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        answers = await asyncio.gather(
            *(journal._connection.read("read", "s", work) for _ in range(3)),
            journal.write([append("s", b"1", first=1)]),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 4
    assert len(waited) == 1
    assert await journal.write([append("s", b"1", expected=0, first=3)]) == (3,)
    await journal.close()


async def steps(journal: SqliteJournal, work: Callable[[], Any]) -> int:
    """Count the virtual machine's steps of a call, in tens."""
    ticks: list[None] = []
    assert journal._connection is not None
    connection = journal._connection
    await connection.read("count", "", lambda db: db.set_progress_handler(lambda: ticks.append(None), 10))
    await work()
    await connection.read("count", "", lambda db: db.set_progress_handler(None, 0))
    return len(ticks)


async def test_a_call_costs_what_it_returns_and_not_what_is_there(journal: SqliteJournal, append: Maker) -> None:
    small, large = Key(Part.SESSIONS, "small"), Key(Part.SESSIONS, "large")
    await journal.write([append("small", *[b"x"] * 100, first=1)])
    await journal.write([append("large", *[b"x"] * 10_000, first=1)])

    async def cost(key: Key, **what: int) -> int:
        return await steps(journal, lambda: journal.read(key, **what))

    assert await cost(large, last=20) <= await cost(small, last=20) + 2
    assert await cost(large, after=5000, limit=10) <= await cost(small, after=50, limit=10) + 2
    assert await cost(large, limit=0) <= await cost(small, limit=0) + 2

    small_append = await steps(journal, lambda: journal.write([append("small", b"y")]))
    large_append = await steps(journal, lambda: journal.write([append("large", b"y")]))
    assert large_append <= small_append + 2


@pytest.mark.parametrize("order", ["id", "created", "recent"])
@pytest.mark.parametrize("filtered", ["", "group", "status", "group status", "before", "group before"])
@pytest.mark.parametrize("behind", [False, True])
async def test_every_listing_follows_an_index(
    path: Path, journal: SqliteJournal, order: str, filtered: str, behind: bool
) -> None:
    plan = explain(path, order, filtered, behind)
    assert len(plan) == 1, plan
    assert plan[0].startswith("SEARCH journal USING INDEX"), plan
    if order == "recent" or not filtered:
        return
    assert "updated" not in plan[0]


def explain(path: Path, order: str, filtered: str, behind: bool) -> list[str]:
    query = scan_query(
        order, group="group" in filtered, status="status" in filtered, before="before" in filtered, after=behind
    )
    parameters = dict.fromkeys(("namespace", "part", "group", "status", "before", "at", "name"), "x") | {"limit": 5}
    with closing(sqlite3.connect(path)) as connection:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]


async def test_paging_gives_every_key_once_while_others_come_and_go(journal: SqliteJournal, append: Maker) -> None:
    steady = [f"k{number:03}" for number in range(0, 60, 2)]
    for number, name in enumerate(steady):
        await journal.write([replace(append(name, b"x"), at=append("x").at.replace(microsecond=number))])
    for order in ("id", "created"):
        found, after, round_ = [], None, 0
        while page := await journal.scan(
            Part.SESSIONS, group=None, status=None, before=None, order=order, after=after, limit=7
        ):
            found += [info.id for info in page]
            after = Position(None if order == "id" else page[-1].created_at, page[-1].id)
            for number in range(1, 60, 2):
                operation = (
                    append(f"k{number:03}") if round_ % 2 == 0 else Delete(Key(Part.SESSIONS, f"k{number:03}"), None)
                )
                await journal.write([operation])
            await journal.write([append(name, b"y") for name in steady])
            round_ += 1
        assert [name for name in found if name in steady] == steady
        assert len(found) == len(set(found))
