"""Writes that were not finished, and damage: the first is cut off, the second is never taken for the first."""

import errno
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import StoreCorruptedError
from perdure_file.directory import Place
from perdure_file.disk import Disk
from perdure_file.journal import FileJournal
from perdure_file.lines import _sealed
from perdure_file.reports import TornWrite
from perdure_file.salvage import salvage, verify
from perdure_file.waiting import Patience

pytestmark = pytest.mark.anyio

BATCHES = [
    (b'{"n":0}', b'{"n":1,"text":"two\\nlines"}'),
    (),
    (b"\x00\xff not JSON \n at all",),
    ('{"n":3,"text":"日本 \\ud800"}'.encode(), b"{}", b'""'),
]


async def fill(journal: FileJournal, op: Any, name: str = "s") -> None:
    for number, items in enumerate(BATCHES):
        await journal.write([op.append(name, *items, data=b'{"at":%d}' % number, group="g")])


def states(content: bytes) -> dict[int, tuple[int, int]]:
    """Return the version and the number of items by the offset where each commit ends."""
    found, offset = {}, 0
    for line in content.splitlines(keepends=True):
        offset += len(line)
        commit = json.loads(line).get("commit")
        if commit:
            found[offset] = (commit["version"], commit["count"])
    return found


async def test_every_cut_is_read_as_what_was_whole_and_mended_by_the_next_append(
    root: Path, journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await fill(journal, op)
    path = file_of("s")
    content = path.read_bytes()
    ends = states(content)
    items = [item for batch in BATCHES for item in batch]
    told: list[TornWrite] = []
    other = FileJournal(root, on_torn_write=told.append, disk=NoSync())
    await other.open()
    for size in range(len(content)):
        path.unlink()  # a file that is emptied and written again is slow to close
        path.write_bytes(content[:size])
        whole = [end for end in ends if end <= size]
        if not whole:
            for call in (
                lambda: other._read(Place(op.key("s")), 0, None, None),
                lambda: other._write(op.append("s"), Patience(9)),
            ):
                with pytest.raises(StoreCorruptedError, match=r"s\.jsonl, line 1, offset 0"):
                    call()
            assert path.read_bytes() == content[:size]
            continue
        version, count = ends[whole[-1]]
        found = other._read(Place(op.key("s")), 0, None, None)
        assert found is not None
        assert (found.version, list(found.items)) == (version, items[:count])
        told.clear()
        assert other._write(op.append("s", b'{"new":1}', expected=version), Patience(9)) == version + 1
        found = other._read(Place(op.key("s")), 0, None, None)
        assert found is not None
        assert (found.version, list(found.items)) == (version + 1, [*items[:count], b'{"new":1}'])
        rest = size - whole[-1]
        assert [(torn.offset, torn.size, torn.version) for torn in told] == [(whole[-1], rest, version)] * bool(rest)
    await other.close()


async def test_a_torn_replace_leaves_nothing_behind(
    root: Path, journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await fill(journal, op)
    with file_of("s").open("ab") as file:
        file.write(b'{"item":{"half')
    told: list[TornWrite] = []
    other = FileJournal(root, on_torn_write=told.append)
    await other.open()
    assert await other.write([op.replace("s", 2, b'{"new":1}', expected=4)]) == (5,)
    assert [torn.size for torn in told] == [14]
    found = await op.read(other, "s")
    assert (list(found.items), found.rewritten) == ([*BATCHES[0], b'{"new":1}'], 5)
    await other.close()


async def test_an_error_of_whoever_is_told_is_logged_and_fails_no_write(
    root: Path, journal: FileJournal, op: Any, file_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    def told(_: TornWrite) -> None:
        raise OSError(errno.ENOSPC, "the log is full")

    other = FileJournal(root, on_torn_write=told)
    await other.open()
    await journal.write([op.append("s", b"{}")])
    for operation, version in ((op.replace("s", 0), 2), (op.append("s", b"{}"), 3)):
        with file_of("s").open("ab") as file:
            file.write(b'{"item":{"half')
        assert await other.write([operation]) == (version,)
        assert "the log is full" in caplog.text
        caplog.clear()
    await other.close()


class NoSync(Disk):
    """Syncs nothing: these tests are about what is in the file."""

    def sync(self, file: int) -> None:
        pass


def put(path: Path, offset: int, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([byte]))


async def test_a_spoiled_byte_anywhere_is_damage_and_never_a_shorter_history(
    root: Path, op: Any, file_of: Callable[..., Path]
) -> None:
    journal = FileJournal(root, disk=NoSync())
    await journal.open()
    await fill(journal, op)
    path = file_of("s")
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for offset in range(len(content)):
        for byte in {content[offset] ^ 1, (0, ord("\n"), ord(" "))[offset % 3]} - {content[offset]}:
            put(path, offset, byte)
            with pytest.raises(StoreCorruptedError) as caught:
                journal._read(Place(op.key("s")), 0, None, None)  # without the hop to a thread
            assert caught.value.where.startswith(str(path)), caught.value
            if offset >= last:  # a writer reads the last commit, and nothing before it
                with pytest.raises(StoreCorruptedError):
                    journal._write(op.append("s", b"{}"), Patience(9))
                assert len(path.read_bytes()) == len(content)
        put(path, offset, content[offset])
    await journal.close()


@pytest.mark.parametrize("zeros", [1, 4096, 10_000])
async def test_zeros_at_the_end_are_torn_and_zeros_before_a_commit_are_damage(
    journal: FileJournal, op: Any, file_of: Callable[..., Path], zeros: int
) -> None:
    await fill(journal, op)
    path = file_of("s")
    content = path.read_bytes()
    path.write_bytes(content + b'{"item":{"ha' + bytes(zeros))
    assert await journal.write([op.append("s", b"{}", expected=4)]) == (5,)
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(min(zeros, 100)) + content[middle + min(zeros, 100) :])
    with pytest.raises(StoreCorruptedError, match="line"):
        await op.read(journal, "s")


async def test_a_spoiled_line_is_named_with_path_line_and_offset(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    for number in range(10):
        await journal.write([op.append("s", b'{"n":%d}' % number)])
    path = file_of("s")
    lines = path.read_bytes().splitlines(keepends=True)
    offset = sum(map(len, lines[:9]))
    lines[9] = b'{"item":{"role":"us\n'
    path.write_bytes(b"".join(lines))
    for window in ({}, {"limit": 0}):  # the last commit is no longer where it was written
        with pytest.raises(StoreCorruptedError) as caught:
            await op.read(journal, "s", **window)
        assert caught.value.where == f"{path}, line 10, offset {offset} (sessions s)"
        assert "--salvage" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\0" * 5000, b"{}\n", b"this is no journal\n" * 300],
    ids=str.split("empty line zeros object other"),
)
async def test_a_file_that_is_none_of_ours_is_damage_and_stays_as_it_is(
    journal: FileJournal, op: Any, file_of: Callable[..., Path], content: Any
) -> None:
    await journal.write([op.append("s", b"{}")])
    file_of("s").write_bytes(content)
    for call in (
        journal.read(op.key("s"), limit=0),
        journal.write([op.append("s", b"{}")]),
        journal.write([op.delete("s")]),
    ):
        with pytest.raises(StoreCorruptedError):
            await call
    assert file_of("s").read_bytes() == content


async def test_a_file_under_another_name_is_damage(journal: FileJournal, op: Any, file_of: Callable[..., Path]) -> None:
    await journal.write([op.append("one", b"{}")])
    file_of("two").write_bytes(file_of("one").read_bytes())
    with pytest.raises(StoreCorruptedError, match="sessions one"):
        await op.read(journal, "two")


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("count", lambda value: value + 1),
        ("items", lambda value: value + 1),
        ("offset", lambda value: value - 1),
        ("offset", lambda value: value + 1),
        ("size", lambda value: value + 1),
        ("crc32", lambda value: value[::-1]),
        ("count", None),
    ],
)
async def test_a_commit_that_says_what_is_not_so_is_damage_even_if_its_check_is_right(
    journal: FileJournal, op: Any, file_of: Callable[..., Path], number: int, field: str, change: Any
) -> None:
    for at in range(6):
        await journal.write([op.append("s", b'{"n":%d}' % at)])
    path = file_of("s")
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[2 * number]
    said = b'"%s":%s' % (field.encode(), json.dumps(json.loads(line)["commit"][field]).encode())
    other = said.replace(b"co", b"oc")  # without the field
    if change is not None:
        other = b'"%s":%s' % (field.encode(), json.dumps(change(json.loads(line)["commit"][field])).encode())
    lines[2 * number] = _sealed(line.partition(b',"check"')[0].replace(said, other))
    assert len(lines[2 * number]) == len(line)
    path.write_bytes(b"".join(lines))
    assert (await op.read(journal, "s", last=1)).items == [b'{"n":5}']
    for window in ({}, {"after": 0, "limit": 6}, {"last": 6}):
        with pytest.raises(StoreCorruptedError, match=r"line \d+, offset"):
            await op.read(journal, "s", **window)


class Cut(Disk):
    """Gives what a file is no longer, from some read on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def read(self, file: int, offset: int, size: int) -> bytes:
        self.left -= 1
        return super().read(file, offset, size)[: None if self.left >= 0 else 5]


@pytest.mark.parametrize("after", [2, 3])
async def test_a_file_that_is_cut_while_it_is_read_is_damage(root: Path, op: Any, after: int) -> None:
    disk = Cut(10**6)
    journal = FileJournal(root, disk=disk)
    await journal.open()
    for at in range(40):
        await journal.write([op.append("s", b'{"n":%d,"x":"%s"}' % (at, b"x" * 5000))])
    disk.left = after
    with pytest.raises(StoreCorruptedError):
        journal._load(Place(op.key("s")), 0, None, None)
    disk.left = after
    with pytest.raises(StoreCorruptedError):
        journal._load(Place(op.key("s")), 2, 3, None)
    await journal.close()


class Interrupted(Disk):
    """Lets something happen just before a read."""

    def __init__(self) -> None:
        self.before_read: Callable[[], None] | None = None

    def read(self, file: int, offset: int, size: int) -> bytes:
        if self.before_read is not None and offset:
            action, self.before_read = self.before_read, None
            action()
        return super().read(file, offset, size)


async def test_a_reader_beside_a_writer_that_mends_a_torn_write_reads_the_old_or_the_new(
    root: Path, op: Any, file_of: Callable[..., Path]
) -> None:
    disk = Interrupted()
    reader, writer = FileJournal(root, disk=disk), FileJournal(root, on_torn_write=lambda _: None)
    await reader.open()
    await writer.open()
    for number in range(30):
        await writer.write([op.append("s", b'{"n":%d,"text":"%s"}' % (number, b"x" * 500))])
    path = file_of("s")
    for cut in (1, 50, 300, 600):
        version = (await op.read(writer, "s")).version
        await writer.write([op.append("s", b'{"torn":"%s"}' % (b"y" * 500))])
        path.write_bytes(path.read_bytes()[:-cut])

        def mend(version: int = version) -> None:
            writer._write(op.append("s", b'{"mended":"%s"}' % (b"z" * 700), expected=version), Patience(9))

        disk.before_read = mend
        found = await op.read(reader, "s")
        assert found.version in (version, version + 1)
        assert not vars(disk)["before_read"]
        assert (await op.read(reader, "s")).version == version + 1
    await reader.close()
    await writer.close()


async def test_times_of_an_append_never_go_back(journal: FileJournal, op: Any) -> None:
    await journal.write([op.append("s")])
    first = await op.read(journal, "s")
    await journal.write([op.append("s", at=first.created_at - timedelta(days=1))])
    assert (await op.read(journal, "s")).updated_at == first.updated_at


async def test_an_older_piece_at_the_end_is_damage_and_never_an_older_history(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    """Stale blocks of the file, after a power loss, or a piece that was appended twice."""
    for number in range(3):
        await journal.write(
            [op.append("s", b'{"n":%d,"x":"%s"}' % (number, b"x" * 6000 * number), data=b"%d" % number)]
        )
    path = file_of("s")
    content = path.read_bytes()
    *lines, _ = content.split(b"\n")
    for first in range(len(lines)):
        for last in range(first + 1, len(lines) + 1):
            path.write_bytes(content + b"".join(line + b"\n" for line in lines[first:last]))
            torn = not any(line.startswith((b'{"commit', b'{"perdure')) for line in lines[first:last])
            for window in ({}, {"limit": 0}, {"last": 1}):
                if torn:
                    assert (await op.read(journal, "s", **window)).version == 3
                    continue
                with pytest.raises(StoreCorruptedError):
                    await op.read(journal, "s", **window)
            if not torn:
                with pytest.raises(StoreCorruptedError):
                    await journal.write([op.append("s", b"{}")])
                assert not verify(path).whole
    path.write_bytes(content + b"".join(line + b"\n" for line in lines[1:3]))
    report = salvage(path)
    assert (report.version, report.recovered) == (3, 4)  # what is there twice is reported, and comes twice
    assert (await op.read(journal, "s")).head.data == b"2"
