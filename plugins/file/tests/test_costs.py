"""What calls cost, in system calls and bytes: the same in a long file as in a short one."""

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import Head, StoreCorruptedError, VersionConflictError
from perdure_file.journal import FileJournal
from perdure_file.lines import write_batch, write_opening

pytestmark = pytest.mark.anyio

LENGTHS = (10, 1_000, 100_000)


@pytest.fixture(scope="module", params=["small", "large"])
def content(request: pytest.FixtureRequest) -> dict[int, bytes]:
    """Files of so many records, one a write, as appends make them."""
    from datetime import UTC, datetime

    at = datetime(2026, 1, 2, tzinfo=UTC)
    size = 20 if request.param == "small" else 1000
    opening = write_opening("sessions", "s")
    lines, offset, found = [opening], len(opening), {}
    for number in range(LENGTHS[-1] if request.param == "small" else 10_000):
        item = b'{"n":%d,"text":"%s"}' % (number, b"x" * size)
        version, head = number + 1, Head(data=b'{"a":1}')
        about: dict[str, Any] = {"version": version, "rewritten": 0, "created_at": at, "updated_at": at, "head": head}
        batch, _ = write_batch([item], before=number, offset=offset, **about)
        lines.append(batch)
        offset += len(batch)
        if number + 1 in LENGTHS:
            found[number + 1] = b"".join(lines)
    return found


@pytest.fixture
async def files(content: Any, journal: FileJournal, op: Any, file_of: Callable[..., Path]) -> dict[int, str]:
    await journal.write([op.append("s")])
    for length, data in content.items():
        folder = file_of("s").parent.parent.parent / f"n{length}" / "sessions"
        folder.mkdir(parents=True)
        (folder / "s.jsonl").write_bytes(data)
    return {length: f"n{length}" for length in content}


async def costs(root: Path, disk: Any, namespace: str, use: Callable[[FileJournal], Any]) -> tuple[dict[str, int], int]:
    journal = FileJournal(root, namespace=namespace, disk=disk)
    await journal.open()
    disk.reset()
    await use(journal)
    found = dict(disk.calls), disk.bytes_read
    await journal.close()
    return found


async def test_opening_and_appending_cost_the_same_at_any_length(
    files: dict[int, str], root: Path, disk: Any, op: Any
) -> None:
    async def first(journal: FileJournal) -> None:
        await journal.write([op.append("s", b'{"new":1}')])

    async def third(journal: FileJournal) -> None:
        await journal.write([op.append("s", b'{"new":1}')])
        await journal.write([op.append("s", b'{"new":1}')])
        disk.reset()
        await journal.write([op.append("s", b'{"new":1}')])

    async def head(journal: FileJournal) -> None:
        assert (await op.read(journal, "s", limit=0)).items == []

    for use in (first, third, head):
        found = {length: await costs(root, disk, name, use) for length, name in files.items()}
        calls, read = zip(*found.values(), strict=True)
        assert all(one == calls[0] for one in calls), found
        assert max(read) <= 4096 + 512, found


async def test_an_append_is_one_write_one_sync_and_few_calls(journal: FileJournal, disk: Any, op: Any) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    for reads in (1, 0, 0):  # the end of a file is read once
        disk.reset()
        await journal.write([op.append("s", b'{"n":1}', b'{"n":2}')])
        assert disk.calls.total() <= 6 + reads, disk.calls
        assert (disk.calls["write"], disk.calls["sync"], disk.calls["open"], disk.calls["read"]) == (1, 1, 0, reads)


async def test_the_end_is_read_again_when_somebody_else_has_written(root: Path, journal: FileJournal, op: Any) -> None:
    await journal.write([op.append("s", b'{"n":1}', first=5)])
    await journal.write([op.append("s", b'{"n":2}')])
    other = FileJournal(root)
    await other.open()
    await other.write([op.append("s", b'{"n":3}', expected=6)])
    await other.close()
    with pytest.raises(VersionConflictError):
        await journal.write([op.append("s", b'{"n":4}', expected=6)])
    assert await journal.write([op.append("s", b'{"n":4}', expected=7)]) == (8,)
    assert list((await op.read(journal, "s")).items) == [b'{"n":%d}' % number for number in (1, 2, 3, 4)]


async def test_the_first_write_and_a_replace_sync_the_file_and_its_folder(
    journal: FileJournal, disk: Any, op: Any
) -> None:
    await journal.write([op.append("other")])
    for operation in (op.append("s", b"{}"), op.replace("s", 0, b"{}")):
        disk.reset()
        await journal.write([operation])
        assert (disk.calls["write"], disk.calls["sync"], disk.calls["rename"]) == (2, 2, 1)


@pytest.mark.parametrize(
    ("window", "items"), [({"last": 20}, 20), ({"after": 5, "limit": 3}, 3), ({"last": 0}, 0), ({"after": -7}, 7)]
)
async def test_reading_costs_what_it_returns(
    content: Any, files: dict[int, str], root: Path, disk: Any, op: Any, window: dict[str, int], items: Any
) -> None:
    item = len(max(content.values(), key=len)) // max(content)
    for length, name in files.items():

        async def use(journal: FileJournal, length: int = length) -> None:
            changed = {word: length + value if value < 0 else value for word, value in window.items()}
            found = await op.read(journal, "s", **changed)
            assert len(found.items) == min(items, length)
            assert found.items == [
                data
                for data in found.items
                if int(data[5 : data.index(b",")]) in range(found.start, found.start + items)
            ]

        _, read = await costs(root, disk, name, use)
        assert read <= 4 * items * item + 300_000, (length, read)


async def test_a_listing_reads_no_items(root: Path, disk: Any, op: Any) -> None:
    journal = FileJournal(root, disk=disk)
    await journal.open()
    for number in range(5):
        await journal.write([op.append(f"s{number}", *[b'{"text":"%s"}' % (b"x" * 20_000)] * 10)])
    disk.reset()
    for order in ("id", "created", "recent"):
        infos = await journal.scan(
            op.key("").part, group=None, status=None, before=None, order=order, after=None, limit=9
        )
        assert len(infos) == 5
    assert disk.bytes_read <= 3 * 5 * (4096 + 512)
    disk.reset()
    await journal.scan(op.key("").part, group=None, status=None, before=None, order="id", after=None, limit=2)
    assert disk.bytes_read <= 2 * (4096 + 512)
    await journal.close()


@pytest.mark.parametrize(
    "items", [[b"x" * (8 << 20)], [b"x" * 2000] * 4000, [b"x" * 100] * 40_000], ids=str.split("one some many")
)
async def test_loading_one_large_write_takes_the_memory_of_its_items_and_of_the_file(
    journal: FileJournal, op: Any, items: list[bytes]
) -> None:
    written = [b'{"n":%d,"x":"%s"}' % (number, item) for number, item in enumerate(items)]
    await journal.write([op.append("s", *written)])
    tracemalloc.start()
    try:
        found = (await op.read(journal, "s")).items
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(found) == written
    assert peak < 2.2 * sum(map(sys.getsizeof, written)) + (3 << 20)


async def test_saying_where_a_damage_is_does_not_hold_the_file_in_memory(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    for _ in range(5):
        await journal.write([op.append("s", *[b'{"x":"%s"}' % (b"x" * 2000)] * 1000)])
    content = file_of("s").read_bytes()
    file_of("s").write_bytes(content[:-40] + b"?" + content[-39:])
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorruptedError, match="line 5006, "):
            await op.read(journal, "s", limit=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20
