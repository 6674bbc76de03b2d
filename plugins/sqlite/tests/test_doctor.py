"""`perdure doctor sqlite:PATH`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from core.tests.command_line import Perdure

from perdure import open_store
from perdure.backend import Finding, Journal, Key, Part, StoreUnavailableError, StoreURL
from perdure_sqlite import examination
from perdure_sqlite import read_only as reading
from perdure_sqlite.database import MIGRATIONS
from perdure_sqlite.plugin import read_only

RECORDS = 5


async def _fill(path: Path, journal_mode: str = "wal") -> None:
    async with open_store(f"sqlite:{path}?journal_mode={journal_mode}") as store:
        for name in ("a", "b", "c"):
            await store.sessions.append(name, [{"n": number} for number in range(RECORDS)])
    async with open_store(f"sqlite:{path}?namespace=other&journal_mode={journal_mode}") as other:
        await other.sessions.append("x", [{}])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "a.db"
    asyncio.run(_fill(path))
    return path


@pytest.fixture
def perdure(template: Path, tmp_path: Path) -> Perdure:
    shutil.copy(template, tmp_path)
    return Perdure(tmp_path, "sqlite:a.db")


def spoil(perdure: Perdure, *statements: str) -> None:
    with closing(sqlite3.connect(perdure.directory / "a.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def everything(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_a_whole_file_is_read_and_left_as_it_was(perdure: Perdure) -> None:
    before = everything(perdure.directory)
    found = perdure.json("doctor")
    assert found["counts"] == {"sessions": 3, "records": 3 * RECORDS}
    assert (found["damaged"], found["unread"]) == (False, 0)
    texts = [finding["text"] for finding in found["findings"]]
    assert "schema version 1 of 1" in texts[0]
    assert "there are other namespaces, to be named by ?namespace=: other (1 keys)." in texts[1]
    assert perdure.json("doctor", "sqlite:a.db?namespace=other")["counts"] == {"sessions": 1, "records": 1}
    assert perdure("doctor", code=0).out.endswith("No damage was found.\n")
    assert everything(perdure.directory) == before


FIRST = "(SELECT id << 32 FROM journal WHERE name = 'a')"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"DELETE FROM item WHERE place = {FIRST} + 4", "sessions a: it counts 5 items and has 4, the last one at place 4"),
        (f"DELETE FROM item WHERE place = {FIRST} + 1", "sessions a: it counts 5 items and has 4, the last one at place 5"),
        (f"INSERT INTO item (place, data) VALUES ({FIRST} + 5, x'7b7d')", "sessions a: it counts 5 items and has 6"),
        (f"UPDATE item SET place = place + 9 WHERE place = {FIRST} + 4", "has 5, the last one at place 14"),
        ("INSERT INTO item (place, data) VALUES (99 << 32, x'7b7d')", "1 items belong to no key"),
        (f"UPDATE item SET data = x'7b' WHERE place = {FIRST} + 3", "session a: records[3]: the stored bytes are not JSON"),
        (f"UPDATE item SET data = x'30' WHERE place = {FIRST}", "session a: records[0]: a stored int, where an object is needed"),
        ("UPDATE journal SET data = x'00' WHERE name = 'b'", "session b: state: the stored bytes are not JSON"),
        ("UPDATE journal SET part = 'runs' WHERE name = 'b'", "turn journal b: head"),
        ("UPDATE journal SET part = 'nonsense' WHERE name = 'b'", "b is in a part 'nonsense' that there is not"),
        ("UPDATE journal SET version = -3 WHERE name = 'b'", "sessions b: -3 is no version of it"),
        ("UPDATE journal SET rewritten = version + 1 WHERE name = 'b'", " is no version of it"),
        ("UPDATE journal SET updated_at = 1 << 62 WHERE name = 'b'", "sessions b: its instants are out of range"),
        ("UPDATE journal SET \"group\" = CAST(x'ff' AS TEXT) WHERE name = 'b'", "sessions b: OperationalError: Could not decode"),
        ("DROP TABLE item", "the table item is missing"),
        ("DROP TRIGGER journal_deleted", "the trigger journal_deleted is missing"),
        ("DROP INDEX status_name", "the index status_name is missing"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_found(perdure: Perdure, statement: str, says: str) -> None:
    spoil(perdure, statement)
    found = perdure.json("doctor", code=1)
    assert says in "\n".join(finding["text"] for finding in found["findings"] if finding["damaged"])


def steps(keys: int) -> int:
    """Return how many hundreds of SQLite's own steps it takes to compare what so many keys count with what they have."""
    taken: list[None] = []
    with closing(sqlite3.connect(":memory:")) as database:
        for script in MIGRATIONS:
            database.executescript(script)
        numbers = [(number,) for number in range(1, keys + 1)]
        database.executemany("INSERT INTO journal VALUES (?1, '', '', ?1, 1, 1, 0, NULL, NULL, x'', 0, 0)", numbers)
        database.executemany("INSERT INTO item (place, data) VALUES (?1 << 32, x'')", numbers)
        database.set_progress_handler(lambda: taken.append(None), 100)
        assert database.execute(examination.COUNTS).fetchall() == []
    return len(taken)


def test_ten_times_as_many_keys_take_ten_times_as_long() -> None:
    assert steps(1000) <= 11 * steps(100)


def test_a_foreign_table_is_a_warning(perdure: Perdure) -> None:
    spoil(perdure, "CREATE TABLE mine (x)")
    assert "warning  " in perdure("doctor", code=0).out
    assert "the table mine is not the store's" in perdure("doctor", "--strict", code=1).out


def test_pages_that_are_damaged_are_found(perdure: Perdure) -> None:
    path = perdure.directory / "a.db"
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = os.urandom(4096)
    path.write_bytes(content)
    assert perdure.json("doctor", code=1)["damaged"] is True


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"no database at all" * 100, 1, "file is not a database"),
        (b"", 0, "nothing was ever stored in it"),
    ],
)
def test_what_is_no_database_is_said(perdure: Perdure, content: bytes, code: int, says: str) -> None:
    (perdure.directory / "a.db").write_bytes(content)
    ran = perdure("doctor", code=code)
    assert says in ran.out + ran.err
    assert (perdure.directory / "a.db").read_bytes() == content


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("PRAGMA user_version = 99", "has schema version 99, and this release reads up to 1"),
        ("PRAGMA application_id = 7", "the SQLite database of another program"),
    ],
)
def test_a_newer_or_foreign_file_is_left_alone(perdure: Perdure, statement: str, says: str) -> None:
    spoil(perdure, statement)
    before = everything(perdure.directory)
    assert says in perdure("doctor", code=2).err
    assert everything(perdure.directory) == before


WRITER = """
import asyncio, sys, perdure
async def main():
    async with perdure.open_store(sys.argv[1]) as store:
        await store.sessions.append("logged", [{"n": 1}])
        print("written", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_what_is_only_in_the_log_is_read_while_a_writer_lives_and_when_it_was_killed(perdure: Perdure) -> None:
    path = perdure.directory / "a.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, f"sqlite:{path}"], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    assert perdure.json("doctor")["counts"]["sessions"] == 4
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    log = path.with_name("a.db-wal").read_bytes()
    assert perdure.json("doctor")["counts"]["sessions"] == 4
    assert path.with_name("a.db-wal").read_bytes() == log


def test_a_look_during_which_somebody_began_to_write_is_repeated(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    logged = iter([False, True, True])
    look = examination._examine

    def counted(path: str, namespace: str) -> list[Finding] | None:
        looks.append(path)
        return look(path, namespace)

    monkeypatch.setattr(reading, "has_wal", lambda _: next(logged))
    monkeypatch.setattr(examination, "_examine", counted)
    assert not any(one.damaged for one in examination.examine(str(perdure.directory / "a.db"), "default"))
    assert len(looks) == 2


def test_what_is_only_in_the_log_is_read_through_a_link(perdure: Perdure) -> None:
    """The log was looked for beside the link, and what it held was missing without a word."""
    path = perdure.directory / "a.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("UPDATE journal SET name = 'logged' WHERE name = 'a'")
        writer.commit()
        place = perdure.directory / "links"
        place.mkdir()
        (place / "link.db").symlink_to(path)
        journal = read_only(StoreURL.parse(f"sqlite:{place / 'link.db'}"))
        assert "logged" in asyncio.run(names(journal))
        examination.examine(str(place / "link.db"), "default")
        assert [file.name for file in place.iterdir()] == ["link.db"]


async def names(journal: Journal) -> list[str]:
    await journal.open()
    try:
        return [
            info.id
            for info in await journal.scan(
                Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=9
            )
        ]
    finally:
        await journal.close()


def visit(monkeypatch: pytest.MonkeyPatch, file: Path, visits: list[str]) -> None:
    """Have writers come during the next looks, in these journal modes, and go again."""
    look = examination._findings

    def visited(database: sqlite3.Connection, path: str, namespace: str) -> Iterator[Finding]:
        findings = look(database, path, namespace)
        yield next(findings)
        if visits:
            asyncio.run(_fill(file, visits.pop()))
        yield from findings

    monkeypatch.setattr(examination, "_findings", visited)


def test_a_writer_that_came_and_went_during_the_look_is_no_damage(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is gone again, but the pages that are read with no lock are of two states."""
    file, visits = perdure.directory / "a.db", ["wal"] * 2
    visit(monkeypatch, file, visits)
    assert not any(one.damaged for one in examination.examine(str(file), "default"))
    visits += ["wal"] * 9
    with pytest.raises(StoreUnavailableError, match="meanwhile"):
        examination.examine(str(file), "default")


def test_a_file_that_is_read_with_a_lock_is_looked_at_once(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in journal mode `delete` that was written all the time could not be examined."""
    file, visits = perdure.directory / "a.db", ["delete"] * 9
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = delete")
    visit(monkeypatch, file, visits)
    assert not any(one.damaged for one in examination.examine(str(file), "default"))
    assert len(visits) == 8


def test_what_is_read_while_somebody_writes_the_file_is_not_taken_for_its_content(perdure: Perdure) -> None:
    path = perdure.directory / "a.db"

    async def read() -> None:
        journal = read_only(StoreURL.parse(f"sqlite:{path}"))
        await journal.open()
        try:
            assert await journal.read(Key(Part.SESSIONS, "a")) is not None
            await _fill(path)
            with pytest.raises(StoreUnavailableError, match="meanwhile"):
                await journal.read(Key(Part.SESSIONS, "a"))
        finally:
            await journal.close()

    asyncio.run(read())


def test_salvage_is_left_to_sqlite(perdure: Perdure) -> None:
    assert "sqlite3 a.db .recover | sqlite3 new.db" in perdure("doctor", "--salvage", code=2).err
