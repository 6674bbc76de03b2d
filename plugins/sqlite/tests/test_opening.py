"""Which files are opened, which are refused, and that a refused one stays as it was."""

# ruff: noqa: ASYNC240 - the tests look at small files, and nothing else runs meanwhile

import asyncio
import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from perdure.backend import (
    Append,
    Head,
    Key,
    Part,
    SchemaVersionError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from perdure.journal.walking import walk
from perdure_sqlite import database
from perdure_sqlite.journal import SqliteJournal

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


async def refused(path: Path, error: type[StoreError]) -> StoreError:
    """Expect that a file is refused and that nothing in its directory has changed."""
    before = content(path)
    with pytest.raises(error) as caught:
        await SqliteJournal(path, busy_timeout=0.1).open()
    assert content(path) == before
    assert str(path) in str(caught.value)
    return caught.value


def make(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_file_of_a_newer_release_is_not_touched(path: Path, journal: SqliteJournal) -> None:
    await journal.close()
    make(path, "PRAGMA user_version = 7")
    error = await refused(path, SchemaVersionError)
    assert isinstance(error, SchemaVersionError)
    assert (error.found, error.supported) == (7, len(database.MIGRATIONS))


async def test_a_newer_release_at_work_is_noticed(path: Path, journal: SqliteJournal) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA user_version = 7")  # still in the WAL, not in the header of the file
        with pytest.raises(SchemaVersionError):
            await SqliteJournal(path).open()


async def test_a_log_that_a_newer_release_has_left_is_not_touched(path: Path, journal: SqliteJournal) -> None:
    """Closing the last connection would bring what stands in it into the file, and remove it."""
    await journal.close()
    make(path, "PRAGMA user_version = 7")
    left = path.parent / "left"
    left.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as killed:
        killed.execute("CREATE TABLE theirs (x)")
        for file in path.parent.glob("agent.db*"):
            (left / file.name).write_bytes(file.read_bytes())
    assert len(content(left / path.name)) == 3
    await refused(left / path.name, SchemaVersionError)


@pytest.mark.parametrize(("synchronous", "number"), [("full", 2), ("normal", 1)])
async def test_commits_reach_the_disk_as_is_asked_for(
    path: Path, synchronous: Literal["full", "normal"], number: int
) -> None:
    journal = SqliteJournal(path, synchronous=synchronous)
    await journal.open()
    setting = journal._connected().read("read", "s", lambda db: db.execute("PRAGMA synchronous").fetchone())
    assert await setting == (number,)
    await journal.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_the_database_of_another_program_is_not_touched(path: Path, mode: str) -> None:
    make(path, f"PRAGMA journal_mode = {mode}", "CREATE TABLE theirs (x)")
    error = await refused(path, StoreUnavailableError)
    assert not error.retryable


async def test_what_is_no_database_is_not_touched(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)
    await refused(path, StoreCorruptedError)


async def test_an_empty_file_becomes_a_store(path: Path, append: Maker) -> None:
    path.touch()
    journal = SqliteJournal(path)
    await journal.open()
    assert await journal.write([append("s", b"1", first=4)]) == (4,)
    await journal.close()


async def test_a_damaged_page_is_reported_with_the_path(path: Path, journal: SqliteJournal, append: Maker) -> None:
    await journal.write([append("s", *[b"x" * 900] * 200, first=1)])
    await journal.close()
    damaged = bytearray(path.read_bytes())
    for page in range(4096 * 15, len(damaged), 4096):
        damaged[page : page + 64] = b"\xa5" * 64
    path.write_bytes(damaged)
    again = SqliteJournal(path)
    await again.open()
    with pytest.raises(StoreCorruptedError) as caught:
        await again.read(Key(Part.SESSIONS, "s"))
    assert str(path) in str(caught.value)
    await again.close()


async def test_missing_items_are_never_a_shorter_list(path: Path, journal: SqliteJournal, append: Maker) -> None:
    await journal.write([append("s", b"1", b"2", b"3", first=1)])
    make(path, "DELETE FROM item WHERE data = x'32'")
    with pytest.raises(StoreCorruptedError):
        await journal.read(Key(Part.SESSIONS, "s"))


@pytest.mark.parametrize("count", [2, 0, -1, -1 << 62])
async def test_a_count_that_is_damaged_makes_no_shorter_history(
    path: Path, journal: SqliteJournal, append: Maker, count: int
) -> None:
    await journal.write([append("other", b"1", b"2", b"3")])
    await journal.write([append("s", b"1", b"2", b"3")])
    make(path, f"UPDATE journal SET count = {count} WHERE name = 's'")
    windows: list[dict[str, int]] = [{}, {"last": 1}, {"after": 9}, {"limit": 1}]
    for window in windows:
        with pytest.raises(StoreCorruptedError, match="sessions s is damaged: it has more items than it counts"):
            await journal.read(Key(Part.SESSIONS, "s"), **window)
    other = await journal.read(Key(Part.SESSIONS, "other"))
    assert other is not None
    assert list(other.items) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("change", "says"),
    [("\"group\" = CAST(x'ff' AS TEXT)", "UTF-8"), ("updated_at = 1 << 62", "instants"), ("created_at = -1 << 62", "instants")],
)  # fmt: skip
async def test_a_head_that_cannot_be_read_is_damage_and_hides_no_other(
    path: Path, journal: SqliteJournal, append: Maker, change: str, says: str
) -> None:
    await journal.write([append("a", b"1")])
    await journal.write([append("b", b"1")])
    await journal.write([append("c", b"1")])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"UPDATE journal SET {change} WHERE name = 'b'")
    with pytest.raises(StoreCorruptedError, match=says):
        await journal.read(Key(Part.SESSIONS, "b"))
    damaged: list[StoreCorruptedError] = []
    assert [name async for name in walk(journal, Part.SESSIONS, damaged)] == ["a", "c"]
    assert [(error.id, str(path) in error.where) for error in damaged] == [("b", True)]


async def test_a_page_of_heads_that_is_damaged_hides_no_other(
    path: Path, journal: SqliteJournal, append: Maker
) -> None:
    names = [f"s{number:03}" for number in range(100)]
    for name in names:
        operation = append(name)
        operation.head = Head(data=b"state" * 100)
        await journal.write([operation])
    await journal.close()
    content = bytearray(path.read_bytes())
    pages = [
        at for at in range(0, len(content), 4096) if content[at] == 13 and b"state" * 100 in content[at : at + 4096]
    ]
    content[pages[3] : pages[3] + 64] = b"\xa5" * 64
    path.write_bytes(content)
    again = SqliteJournal(path)
    await again.open()
    damaged: list[StoreCorruptedError] = []
    whole = [name async for name in walk(again, Part.SESSIONS, damaged)]
    assert 80 < len(whole) < 100
    assert sorted([*whole, *(str(error.id) for error in damaged)]) == names
    await again.close()


async def test_the_directory_is_made_to_outlast_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    for _ in range(2):
        journal = SqliteJournal(tmp_path / "some" / "where" / "agent.db")
        await journal.open()
        await journal.close()
    assert (tmp_path / "some" / "where" / "agent.db").exists()
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "some").stat().st_ino]


async def test_a_directory_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="it is a directory; name a file in it") as caught:
        await SqliteJournal(tmp_path).open()
    assert (caught.value.retryable, "Name a file" in caught.value.hint) == (False, True)


async def test_a_name_that_sqlite_gives_to_parts_of_another_file_is_refused(path: Path) -> None:
    """What was stored there was overwritten when the other file was opened."""
    for part in ("-wal", "-shm", "-journal"):
        with pytest.raises(StoreUnavailableError, match="overwrites") as caught:
            await SqliteJournal(f"{path}{part}").open()
        assert not caught.value.retryable
    assert list(path.parent.iterdir()) == []


async def test_a_file_system_that_syncs_no_directory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = errno.EINVAL

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    journal = SqliteJournal(tmp_path / "network" / "agent.db")
    await journal.open()
    await journal.close()
    code = errno.EIO
    with pytest.raises(StoreUnavailableError) as caught:
        await SqliteJournal(tmp_path / "failing" / "agent.db").open()
    assert caught.value.retryable


async def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "agent.db", tmp_path / "nul\0", Path("/proc/agent.db")):
        with pytest.raises(StoreUnavailableError) as caught:
            await SqliteJournal(path).open()
        assert str(path) in caught.value.key


@contextlib.contextmanager
def not_as_root() -> Iterator[None]:
    """Be nobody for a while: root may write everywhere, whatever the mode says."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_directory_that_is_read_only_is_named() -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own folder cannot be entered by others
        Path(place).chmod(0o555)
        with not_as_root(), pytest.raises(StoreUnavailableError, match=place):
            await SqliteJournal(Path(place) / "agent.db").open()
        assert list(Path(place).iterdir()) == []


async def test_a_read_only_file_is_refused(path: Path, journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    await journal.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write whatever the mode says
    await refused(path, StoreUnavailableError)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
async def test_wal_is_refused_on_a_network_file_system(
    path: Path, journal: SqliteJournal, append: Maker, kind: str
) -> None:
    await journal.write([append("s", b"1", first=1)])  # so that there is a -wal and a -shm
    before = content(path)
    with pytest.raises(UnsupportedOperationError, match=r"journal_mode=delete") as caught:
        await SqliteJournal(path, file_system=lambda _: kind).open()
    assert kind in str(caught.value)
    assert content(path) == before
    await journal.close()
    other = SqliteJournal(path, journal_mode="delete", file_system=lambda _: kind)
    await other.open()
    assert await other.write([append("s", b"2")]) == (2,)
    assert [name for name in content(path) if name.endswith(("-wal", "-shm"))] == []
    await other.close()


async def test_the_file_system_of_a_link_is_that_of_the_file(path: Path) -> None:
    """The log lies beside the file, not beside the link."""
    place = path.parent / "network"
    place.mkdir()
    path.symlink_to(place / "agent.db")
    with pytest.raises(UnsupportedOperationError, match=r"journal_mode=delete"):
        await SqliteJournal(path, file_system=lambda directory: "nfs4" if directory == place else "ext4").open()
    assert list(place.iterdir()) == []


async def test_a_name_may_be_any_bytes(tmp_path: Path, append: Maker) -> None:
    """It was opened once, and then never again."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a b?%23#\xff.db"))
    for number in range(2):
        journal = SqliteJournal(path)
        await journal.open()
        assert await journal.write([append("s", b"1", first=1)]) == (number + 1,)
        await journal.close()
    assert list(tmp_path.iterdir()) == [path]


async def test_a_journal_that_is_closed_while_it_opens_is_not_open(path: Path, append: Maker) -> None:
    journal = SqliteJournal(path)
    opening = asyncio.create_task(journal.open())
    await asyncio.sleep(0)
    await journal.close()
    with pytest.raises(StoreClosedError):
        await opening
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # the last connection took the log along


def test_the_file_system_of_a_directory_is_that_of_its_mount(tmp_path: Path) -> None:
    assert database.file_system(Path("/proc/self")) == "proc"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:50 / /mnt/a\\040b rw shared:2 master:1 - nfs4 server:/x rw\n"
        "24 22 0:51 / /mnt rw - tmpfs tmpfs rw\n"
        "25 24 0:52 / /mnt rw - fuse.sshfs host: rw\n"
    )
    kinds = {name: database.file_system(Path(name), mounts) for name in ("/", "/mnt/a b/c", "/mnt/a", "/mnt", "/mntx")}
    assert kinds == {"/": "ext4", "/mnt/a b/c": "nfs4", "/mnt/a": "fuse.sshfs", "/mnt": "fuse.sshfs", "/mntx": "ext4"}
    assert database.file_system(Path("/"), tmp_path / "none") == ""


@pytest.mark.parametrize("age", ["new", "old"])
def test_eight_processes_open_one_file_at_once(
    path: Path, together: Callable[..., list[str]], append: Maker, age: str
) -> None:
    rounds = 4
    files = [path.with_name(f"agent.db{number}") for number in range(rounds)]
    if age == "old":
        for file in files:
            asyncio.run(make_old(file, append("old", b"x")))
    outputs = together(
        """
import perdure_sqlite.database as database
database.MIGRATIONS += ("CREATE TABLE extra (x);\\nINSERT INTO extra VALUES (1);",)
async def main(path):
    journal = SqliteJournal(path)
    await journal.open()
    await journal.write([append(sys.argv[2], b"x")])
    assert (await journal.read(Key(Part.SESSIONS, sys.argv[2]))).count == 1
    await journal.close()
for number in range(4):
    ready()
    asyncio.run(main(f"{PATH}{number}"))
""",
        rounds=rounds,
    )
    assert outputs == [""] * 8
    for file in files:
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT * FROM extra").fetchall() == [(1,)]
            assert connection.execute("SELECT count(*) FROM journal").fetchone() == (8 + (age == "old"),)
            assert connection.execute("PRAGMA user_version").fetchone() == (2,)


async def make_old(path: Path, operation: Append) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await journal.write([operation])
    await journal.close()


async def test_a_failed_migration_leaves_the_old_schema(
    path: Path, journal: SqliteJournal, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.write([append("s", b"1", first=1)])
    monkeypatch.setattr(
        database, "MIGRATIONS", (*database.MIGRATIONS, "CREATE TABLE extra (x);\nSELECT * FROM nothing;")
    )
    with pytest.raises(StoreUnavailableError, match="nothing"):
        await SqliteJournal(path).open()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'extra'").fetchone() == (0,)
    assert await journal.write([append("s", b"2")]) == (2,)


async def test_a_closed_journal_stays_closed(journal: SqliteJournal, append: Maker) -> None:
    await journal.close()
    await journal.close()
    with pytest.raises(StoreClosedError):
        await journal.read(Key(Part.SESSIONS, "s"))
    with pytest.raises(StoreClosedError):
        await journal.write([append("s")])
    with pytest.raises(StoreClosedError):
        await journal.open()
