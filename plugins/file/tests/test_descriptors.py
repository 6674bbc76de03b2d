"""Descriptors: few are kept, none stays behind."""

import asyncio
import contextlib
import errno
import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from perdure.backend import StoreClosedError, StoreUnavailableError, UnsupportedOperationError
from perdure_file.guards import KEPT
from perdure_file.journal import FileJournal
from perdure_file.salvage import salvage
from perdure_file.threads import Threads

pytestmark = pytest.mark.anyio


async def test_few_descriptors_stay_open_and_none_after_close(root: Path, op: Any) -> None:
    journal = FileJournal(root)
    await journal.open()
    for number in range(KEPT * 2):
        await journal.write([op.append(f"s{number}", b"{}")])
    assert len(op.descriptors(root)) <= 2 * KEPT + 6
    await journal.close()
    assert op.descriptors(root) == []
    await journal.close()
    for call in (journal.read(op.key("s")), journal.write([op.append("s")]), journal.open()):
        with pytest.raises(StoreClosedError):
            await call


def test_a_forgotten_journal_leaks_no_descriptor(root: Path, op: Any) -> None:
    async def forget() -> None:
        journal = FileJournal(root)
        await journal.open()
        await journal.write([op.append("s", b"{}")])

    for _ in range(30):
        asyncio.run(forget())
    gc.collect()
    assert op.descriptors(root) == []


@pytest.mark.parametrize("call", ["lock", "status"])
async def test_a_new_file_that_cannot_be_locked_or_looked_at_is_removed_and_closed(
    journal: FileJournal, disk: Any, op: Any, root: Path, call: str
) -> None:
    await journal.write([op.append("t", b"{}")])
    for after in range(1, {"lock": 2, "status": 5}[call]):
        disk.fail(call, errno.ENOLCK, after=after)
        with pytest.raises(StoreUnavailableError):
            await journal.write([op.append("s", b"{}")])
        assert op.paths(root, "*.tmp") == []
        assert [link for link in op.descriptors(root) if ".tmp" in link] == []
    assert await journal.write([op.append("s", b"{}")]) == (1,)


async def test_a_salvage_that_is_refused_leaves_nothing_open(
    journal: FileJournal, disk: Any, op: Any, root: Path, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s", b"{}")])
    file_of("s").write_bytes(b"damaged")
    before = op.descriptors(root)
    disk.fail("lock", errno.ENOLCK)
    with pytest.raises(UnsupportedOperationError):
        salvage(file_of("s"), disk=disk)
    assert op.descriptors(root) == before


@pytest.mark.parametrize("call", ["names", "sync", "open", "lock", "unlink"])
@pytest.mark.parametrize("after", [0, 1, 2, 4, 8, 10])
async def test_an_opening_that_failed_leaves_nothing_open_and_can_be_repeated(
    root: Path, disk: Any, op: Any, call: str, after: int
) -> None:
    journal = FileJournal(root, disk=disk)
    disk.fail(call, errno.EIO, after=after)
    with contextlib.suppress(StoreUnavailableError, UnsupportedOperationError):
        await journal.open()
        await journal.close()
        journal = FileJournal(root, disk=disk)
    assert op.descriptors(root) == []
    disk.faults.clear()
    await journal.open()
    assert await journal.write([op.append("s", b"{}")]) == (1,)
    await journal.close()
    assert op.descriptors(root) == []


async def test_an_opening_and_a_write_for_which_descriptors_run_out_once_are_done(
    root: Path, disk: Any, op: Any
) -> None:
    disk.sync = lambda _: None  # for speed
    for after in itertools.count():
        journal = FileJournal(root / str(after), disk=disk)
        disk.fail("open", errno.EMFILE, after=after)
        await journal.open()
        assert await journal.write([op.append("s", b"{}")]) == (1,)
        await journal.close()
        assert op.descriptors(root) == []
        if disk.faults["open"]:  # there are no more
            break


async def test_openings_that_fail_again_and_again_leave_nothing_behind(
    root: Path, disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: WeakSet[Threads] = WeakSet()

    def make(most: int, name: str) -> Threads:
        made.add(threads := Threads(most, name))
        return threads

    monkeypatch.setattr("perdure_file.journal.Threads", make)
    journal = FileJournal(root, disk=disk)
    disk.fail("open", errno.EIO, times=5)
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            await journal.open()
    gc.collect()
    assert list(made) == []


FEW_DESCRIPTORS = """
import resource
async def main():
    journal = FileJournal(DIRECTORY)
    await journal.open()
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for number in range(40):
        await journal.write([append(f"s{number}", b"{}")])
        assert (await journal.read(key(f"s{number // 2}"))).version == 1
    window = dict(group=None, status=None, before=None, after=None, limit=1000)
    print(len(await journal.scan(Part.SESSIONS, order="recent", **window)))
    await journal.close()
asyncio.run(main())
"""


def test_what_is_only_kept_is_let_go_of_where_descriptors_run_out(start: Callable[..., Any]) -> None:
    assert start(FEW_DESCRIPTORS).communicate() == ("40\n", "")
