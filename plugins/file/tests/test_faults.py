"""Disks that are full or fail, and directories that cannot be written."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    OutcomeUnknownError,
    StoreCorruptedError,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
)
from perdure_file.disk import Disk
from perdure_file.doctor import doctor
from perdure_file.guards import KEPT
from perdure_file.journal import FileJournal

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [0, 1, 60, 200])
async def test_a_full_disk_is_an_error_each_time_and_over_when_there_is_space(
    journal: FileJournal, op: Any, disk: Any, file_of: Callable[..., Path], size: int
) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    content = file_of("s").read_bytes()
    for _ in range(3):
        disk.full_after(size)
        with pytest.raises(StoreUnavailableError, match="No space left"):
            await journal.write([op.append("s", b'{"n":1}', expected=1)])
        assert file_of("s").read_bytes() == content
    for number in range(1, 11):
        assert await journal.write([op.append("s", b'{"n":%d}' % number, expected=number)]) == (number + 1,)
    found = await op.read(journal, "s")
    assert list(found.items) == [b'{"n":%d}' % number for number in range(11)]


async def test_a_full_disk_that_cannot_even_be_cut_back_leaves_a_torn_write(
    journal: FileJournal, op: Any, disk: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    disk.full_after(30)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.append("s", b'{"n":1}')])
    assert file_of("s").read_bytes().endswith(b'{"item":{"n":1}}\n{"commit":{"v')
    assert (await op.read(journal, "s")).version == 1
    assert await journal.write([op.append("s", b'{"n":1}', expected=1)]) == (2,)


async def test_a_full_disk_at_the_first_write_or_a_replace_changes_nothing(
    journal: FileJournal, op: Any, disk: Any, root: Path, file_of: Callable[..., Path]
) -> None:
    disk.full_after(20)
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.append("s", b"{}", expected=0)])
    assert await op.read(journal, "s") is None
    assert op.files(root) == []
    await journal.write([op.append("s", b"{}", expected=0)])
    content = file_of("s").read_bytes()
    disk.full_after(20)
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.replace("s", 0)])
    assert file_of("s").read_bytes() == content
    assert list((root / "default/temporary").iterdir()) == []
    assert await journal.write([op.replace("s", 0, expected=1)]) == (2,)


async def test_a_failed_sync_of_an_append_is_unknown_closes_the_file_and_is_mended(
    journal: FileJournal, op: Any, disk: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    identity = file_of("s").stat().st_ino
    disk.fail("sync", errno.EIO)
    disk.reset()
    with pytest.raises(OutcomeUnknownError) as caught:
        await journal.write([op.append("s", b'{"n":1}', expected=1)])
    assert isinstance(caught.value.__cause__, OSError)
    assert disk.calls["close"] == 1
    # What the cache shows is not on the disk, and the kernel says so only once: the next writer writes it all anew.
    assert await journal.write([op.append("s", b'{"n":2}', expected=2)]) == (3,)
    assert file_of("s").stat().st_ino != identity
    assert list((await op.read(journal, "s")).items) == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    identity = file_of("s").stat().st_ino
    await journal.write([op.append("s", b'{"n":3}', expected=3)])
    assert file_of("s").stat().st_ino == identity


async def test_the_doubt_is_seen_by_another_process(
    journal: FileJournal, op: Any, disk: Any, root: Path, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s")])
    disk.fail("sync", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.append("s", b"{}")])
    identity = file_of("s").stat().st_ino
    other = FileJournal(root)
    await other.open()
    await other.write([op.append("s", b"{}", expected=2)])
    await other.close()
    assert file_of("s").stat().st_ino != identity


async def test_while_the_disk_goes_on_failing_nothing_is_built_on_what_is_in_doubt(
    journal: FileJournal, op: Any, disk: Any
) -> None:
    await journal.write([op.append("s")])
    disk.fail("sync", errno.EIO, times=3)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.append("s", b"{}")])
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="an earlier write"):
            await journal.write([op.append("s", b"{}")])
    assert await journal.write([op.append("s", b"{}", expected=2)]) == (3,)


async def test_a_failed_sync_of_the_new_file_changes_nothing_and_one_of_the_folder_is_unknown(
    journal: FileJournal, op: Any, disk: Any
) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    disk.fail("sync", errno.EIO)
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.replace("s", 0)])
    assert (await op.read(journal, "s")).version == 1
    disk.fail("sync", errno.EIO, after=1)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.replace("s", 0, b"{}")])
    assert (await op.read(journal, "s")).version == 2
    assert await journal.write([op.append("s", b"{}", expected=2)]) == (3,)


async def test_a_failed_rename_is_unknown_and_leaves_the_old_content(
    journal: FileJournal, op: Any, disk: Any, root: Path
) -> None:
    await journal.write([op.append("s", b'{"n":0}')])
    disk.fail("rename", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.replace("s", 0)])
    assert list((await op.read(journal, "s")).items) == [b'{"n":0}']
    assert list((root / "default/temporary").iterdir()) == []
    assert await journal.write([op.append("s", b"{}", expected=1)]) == (2,)


async def test_a_delete_whose_sync_fails_is_unknown_and_saying_absent_waits_for_the_disk(
    journal: FileJournal, op: Any, disk: Any, root: Path
) -> None:
    await journal.write([op.append("s")])
    disk.fail("sync", errno.EIO, times=2)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.delete("s", expected=1)])
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.delete("s")])
    assert await journal.write([op.delete("s")]) == (0,)
    assert op.files(root) == []
    assert await journal.write([op.append("s", expected=0, first=77)]) == (77,)


async def test_a_mark_that_cannot_be_taken_away_fails_no_write_that_is_on_the_disk(
    journal: FileJournal, op: Any, disk: Any, root: Path
) -> None:
    disk.fail("truncate", errno.EIO, after=1)  # a mark is set, and taken away
    assert await journal.write([op.append("s", b'{"n":0}', expected=0)]) == (1,)
    disk.fail("truncate", errno.EIO, after=3)
    assert await journal.write([op.replace("s", 0, b'{"n":1}', expected=1)]) == (2,)
    descriptors = disk.calls["open"] - disk.calls["close"]
    disk.fail("truncate", errno.EIO, after=3)
    assert await journal.write([op.replace("s", 0, b'{"n":2}', expected=2)]) == (3,)
    assert disk.calls["open"] - disk.calls["close"] == descriptors
    disk.fail("truncate", errno.EIO, after=3)
    assert await journal.write([op.delete("s", expected=3)]) == (3,)
    assert await journal.write([op.append("s", expected=0, first=9)]) == (9,)
    assert await journal.write([op.delete("s", expected=9)]) == (9,)
    assert op.files(root) == []


async def test_an_error_of_closing_fails_no_call(op: Any, root: Path) -> None:
    """Each file is on the disk, or has been read, when it is closed."""

    class Unclosable(Disk):
        def close(self, file: int) -> None:
            super().close(file)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = FileJournal(root, disk=Unclosable())
    await journal.open()
    for number in range(KEPT + 2):  # the last ones close the descriptors of the first ones
        assert await journal.write([op.append(f"k{number}", b"{}")]) == (1,)
    assert await journal.write([op.replace("k0", 0, b'{"n":1}', expected=1)]) == (2,)
    assert list((await op.read(journal, "k0")).items) == [b'{"n":1}']
    assert await journal.write([op.delete("k0", expected=2)]) == (2,)
    assert await op.read(journal, "k0") is None
    await journal.close()


async def test_a_doubt_that_cannot_even_be_marked_is_kept_by_its_process(
    journal: FileJournal, op: Any, disk: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s")])
    identity = file_of("s").stat().st_ino
    disk.fail("sync", errno.EIO)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        await journal.write([op.append("s", b"{}")])
    await journal.write([op.append("s", b"{}", expected=2)])
    assert file_of("s").stat().st_ino != identity  # written anew, not built on what only looks written


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
async def test_a_read_only_directory_is_read_and_not_written(root: Path, op: Any, code: int) -> None:
    writer = FileJournal(root)
    await writer.open()
    await writer.write([op.append("s", b"{}")])
    await writer.close()

    class ReadOnly(Disk):
        def open(self, name: str, flags: int, directory: int | None) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(code, os.strerror(code))
            return super().open(name, flags, directory)

        def make_directory(self, name: str, directory: int | None) -> None:
            raise OSError(code, os.strerror(code))

    journal = FileJournal(root, disk=ReadOnly())
    await journal.open()
    assert list((await op.read(journal, "s")).items) == [b"{}"]
    for operation in (op.append("s", b"{}"), op.append("new"), op.replace("s", 0), op.delete("s")):
        with pytest.raises(StoreUnavailableError):
            await journal.write([operation])
    assert (await op.read(journal, "s")).version == 1
    await journal.close()
    with pytest.raises(StoreUnavailableError):
        await FileJournal(root / "new", disk=ReadOnly()).open()
    assert not (root / "new").exists()


async def test_damage_in_a_read_only_directory_is_said(root: Path, op: Any, file_of: Callable[..., Path]) -> None:
    writer = FileJournal(root)
    await writer.open()
    await writer.write([op.append("s", b"{}")])
    await writer.close()
    file_of("s").write_bytes(b"x")

    class ReadOnly(Disk):
        def open(self, name: str, flags: int, directory: int | None) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(errno.EROFS, "read-only")
            return super().open(name, flags, directory)

    journal = FileJournal(root, disk=ReadOnly())
    await journal.open()
    with pytest.raises(Exception, match="damaged"):
        await op.read(journal, "s")
    await journal.close()


class Full(Disk):
    """A disk on which nothing new can be made, as long as it is full."""

    def __init__(self, code: int = errno.ENOSPC) -> None:
        self.code, self.full = code, True

    def open(self, name: str, flags: int, directory: int | None) -> int:
        if flags & os.O_CREAT and directory is not None and self.status_at(name, directory) is None:
            self.make_nothing()
        return super().open(name, flags, directory)

    def make_directory(self, name: str, directory: int | None) -> None:
        self.make_nothing()
        super().make_directory(name, directory)

    def make_nothing(self) -> None:
        if self.full:
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_store_on_a_full_disk_opens_and_what_is_there_is_read_added_to_and_deleted(
    root: Path, op: Any, code: int
) -> None:
    writer = FileJournal(root)
    await writer.open()
    for name in ("s", "old"):
        await writer.write([op.append(name, b"{}")])
    await writer.close()
    disk = Full(code)
    journal = FileJournal(root, disk=disk)
    await journal.open()
    assert list((await op.read(journal, "s")).items) == [b"{}"]
    assert await journal.write([op.append("s", b"{}")]) == (2,)
    assert await journal.write([op.delete("old")]) == (1,)
    for operation in (op.append("new"), op.replace("s", 0)):
        with pytest.raises(StoreUnavailableError):
            await journal.write([operation])
    assert (await op.read(journal, "s")).version == 2
    disk.full = False
    assert await journal.write([op.append("new")]) == (1,)
    await journal.close()


async def test_locks_that_could_not_be_tried_on_a_full_disk_are_tried_before_the_first_key_is_made(
    tmp_path: Path, op: Any
) -> None:
    class LocksNothing(Full):
        def lock(self, file: int) -> bool:
            return True

    disk = LocksNothing()
    journal = FileJournal(tmp_path, disk=disk)
    await journal.open()
    disk.full = False
    with pytest.raises(UnsupportedOperationError, match="shared"):
        await journal.write([op.append("s", b"{}")])
    assert await op.read(journal, "s") is None
    await journal.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], object]]]:
    """Mount a disk of 256 KiB; answer where, and what mounts it again with other options."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield mount, lambda options: subprocess.run(["mount", "-o", f"remount,{options}", mount], check=True)
    subprocess.run(["umount", mount], check=True)


async def test_a_real_disk_that_is_full(small_disk: tuple[Path, Callable[[str], object]], op: Any) -> None:
    mount, remount = small_disk
    journal = FileJournal(mount / "store")
    await journal.open()
    await journal.write([op.append("s", b'{"n":0}', first=1)])
    version, failed = 1, 0
    for _ in range(40):
        try:
            (version,) = await journal.write([op.append("s", b'{"x":"%s"}' % (b"x" * 20_000), expected=version)])
        except StoreUnavailableError:
            failed += 1
    assert failed > 10
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.append("new", b'{"x":"%s"}' % (b"x" * 20_000))])
    assert await op.read(journal, "new") is None
    assert (await op.read(journal, "s")).count == version
    remount("size=10m")
    assert await journal.write([op.append("s", b"{}", expected=version)]) == (version + 1,)
    await journal.close()


async def test_a_real_disk_on_which_no_file_can_be_made(
    small_disk: tuple[Path, Callable[[str], object]], op: Any
) -> None:
    mount, remount = small_disk
    writer = FileJournal(mount / "store")
    await writer.open()
    await writer.write([op.append("s", b"{}")])
    await writer.close()
    remount("nr_inodes=10")
    for number in range(10):
        with contextlib.suppress(OSError):
            (mount / f"filling{number}").touch()
    journal = FileJournal(mount / "store")
    await journal.open()
    with pytest.raises(StoreUnavailableError, match="No space"):
        await journal.write([op.append("new", b"{}")])
    assert await journal.write([op.append("s", b"{}")]) == (2,)
    assert await journal.write([op.delete("s")]) == (2,)
    await journal.close()


async def test_a_real_disk_that_is_read_only(small_disk: tuple[Path, Callable[[str], object]], op: Any) -> None:
    mount, remount = small_disk
    writer = FileJournal(mount / "store")
    await writer.open()
    await writer.write([op.append("s", b"{}", first=1)])
    await writer.write([op.append("bad", b"{}", first=1)])
    await writer.close()
    (mount / "store/default/sessions/bad.jsonl").write_bytes(b"x")
    remount("ro")
    journal = FileJournal(mount / "store")
    await journal.open()
    assert list((await op.read(journal, "s")).items) == [b"{}"]
    with pytest.raises(StoreCorruptedError):
        await op.read(journal, "bad")
    for operation in (op.append("s", b"{}"), op.append("new"), op.replace("s", 0), op.delete("s")):
        with pytest.raises(StoreUnavailableError):
            await journal.write([operation])
    await journal.close()
    bad, whole = doctor(mount / "store")
    assert (bad.whole, whole.whole) == (False, True)
    bad, whole = doctor(mount / "store", repair=True)
    assert (bad.recovered, whole.whole) == (None, True)
    with pytest.raises(StoreUnavailableError):
        await FileJournal(mount / "new").open()


async def test_several_operations_at_once_are_not_offered(journal: FileJournal, op: Any) -> None:
    with pytest.raises(UnsupportedOperationError):
        await journal.write([op.append("s"), op.append("s.x")])
    assert await op.read(journal, "s") is None


async def test_a_refused_write_creates_nothing(journal: FileJournal, op: Any, root: Path) -> None:
    before = op.paths(root, "*.*")
    for operation in (op.append("s", expected=5), op.replace("s", 0), op.delete("s", expected=3)):
        with pytest.raises(VersionConflictError):
            await journal.write([operation])
    assert await journal.write([op.delete("s")]) == (0,)
    assert await op.read(journal, "s") is None
    assert op.paths(root, "*.*") == before
