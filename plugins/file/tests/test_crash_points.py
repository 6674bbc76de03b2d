"""A process that dies, or a host that loses power, at every system call of every kind of write."""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import Part
from perdure_file.disk import Disk
from perdure_file.journal import FileJournal
from perdure_file.salvage import salvage
from perdure_file.waiting import Patience

pytestmark = pytest.mark.anyio

CALLS = str.split("open write truncate sync rename link unlink make_directory lock unlock status_at read")


class Unsynced(Disk):
    """For what is looked at, and thrown away."""

    def sync(self, file: int) -> None:
        pass


class DeadError(BaseException):
    """The process is dead, so nothing that it does any more has an effect."""


class Mortal(Disk):
    """A disk whose process dies at a call, in the middle of it if it is a write, and that knows what has been synced.

    It keeps what is removed under another name, so that no number of an inode comes twice.
    """

    def __init__(self, removed: Path, earlier: "Mortal | None" = None) -> None:
        self.left: int | None = None
        self.removed = removed
        removed.mkdir(exist_ok=True)
        self.synced: dict[int, bytes | dict[str, int]] = {} if earlier is None else earlier.synced

    def close(self, file: int) -> None:
        os.close(file)  # by the kernel, if the process is dead

    def unlink(self, name: str, directory: int) -> None:
        self._keep(name, directory)
        super().unlink(name, directory)

    def rename(self, name: str, directory: int, new_name: str, new_directory: int) -> None:
        self._keep(new_name, new_directory)
        super().rename(name, directory, new_name, new_directory)

    def _keep(self, name: str, directory: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.link(name, self.removed / secrets.token_hex(8), src_dir_fd=directory)

    def sync(self, file: int) -> None:
        status = os.fstat(file)
        self.synced[status.st_ino] = names(file) if stat.S_ISDIR(status.st_mode) else os.pread(file, status.st_size, 0)

    def survives(self, root: Path, copy: Path, *, renames: bool) -> None:
        """Copy what is there after a power loss: what was synced, and the names that were not as well if asked for."""
        copy.mkdir()
        known = self.synced.get(root.stat().st_ino, {})
        folder = os.open(root, os.O_RDONLY)
        found = names(folder) if renames else known
        os.close(folder)
        assert isinstance(found, dict)
        for name, inode in found.items():
            path = next((path for path in root.parent.rglob("*") if path.lstat().st_ino == inode), None)
            if path is not None and path.is_dir():
                self.survives(path, copy / name, renames=renames)
            else:
                content = self.synced.get(inode, b"")
                assert isinstance(content, bytes)
                (copy / name).write_bytes(content)


def names(folder: int) -> dict[str, int]:
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # a folder far above is used by others too
            found[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
    return found


def _mortal(name: str) -> Any:
    plain = getattr(Mortal, name)

    def call(self: Mortal, *args: Any) -> Any:
        if self.left is not None:
            if self.left <= 0:
                if self.left == 0 and name == "write":
                    plain(self, args[0], args[1], args[2][: len(args[2]) // 2])
                self.left = -1
                raise DeadError
            self.left -= 1
        return plain(self, *args)

    return call


for _name in CALLS:
    setattr(Mortal, _name, _mortal(_name))


KINDS = ["first of all", "create", "append", "append to a torn file", "replace", "delete", "create again"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_dies_anywhere_is_whole_or_absent_and_what_is_built_on_it_lasts(
    tmp_path: Path, op: Any, kind: str
) -> None:
    died = 0
    for call in range(90):
        base = tmp_path / str(call)
        (base / "machine").mkdir(parents=True)
        root = base / "machine/made/store"
        disk = Mortal(base / "removed")
        journal = FileJournal(root, disk=disk, on_torn_write=lambda _: None)
        old: tuple[int, list[bytes]] = (0, [])
        if kind != "first of all":
            journal._directory.open()
            journal._write(op.append("other", b'{"o":0}', first=1), Patience(9))
        if kind not in ("first of all", "create"):
            journal._write(op.append("s", b'{"n":0}', b'{"n":1}', first=10), Patience(9))
            old = (10, [b'{"n":0}', b'{"n":1}'])
        if kind == "create again":
            journal._write(op.delete("s"), Patience(9))
            old = (0, [])
        if kind == "append to a torn file":
            with (root / "default/sessions/s.jsonl").open("ab") as file:
                file.write(b'{"item":{"torn":1}}\n{"comm')
        operation, new = {
            "replace": (op.replace("s", 1, b'{"n":2}'), (11, [b'{"n":0}', b'{"n":2}'])),
            "delete": (op.delete("s"), (0, [])),
        }.get(kind, (op.append("s", b'{"n":2}', first=20), (old[0] + 1 if old[0] else 20, [*old[1], b'{"n":2}'])))
        disk.left = call
        try:
            if kind == "first of all":
                journal._directory.open()
            journal._write(operation, Patience(9))
        except DeadError:
            died += 1
            allowed = [old, new]
        else:
            allowed = [new]
        journal._guards.close()
        others = kind != "first of all"
        # The host loses power just then: with, or without, the names that were not synced.
        for copy, renames in (("kept", True), ("lost", False)):
            disk.survives(base / "machine", base / copy, renames=renames)
            await continued(base / copy / "made/store", op, allowed, others)
        # Only the process died. The next one builds on what it sees, and then the host loses power.
        heir = Mortal(base / "removed", disk)
        built = await continued(root, op, allowed, others, heir)
        heir.survives(base / "machine", base / "later", renames=False)
        await continued(base / "later/made/store", op, [built], others)
        disk.left = None
        journal._directory.close()
        if allowed == [new]:
            break
    assert died > 3


async def continued(
    root: Path, op: Any, allowed: list[tuple[int, list[bytes]]], others: bool, disk: Disk | None = None
) -> tuple[int, list[bytes]]:
    """See that one of some states is there, and append to it; return the state after that."""
    journal = FileJournal(root, on_torn_write=lambda _: None, disk=disk or Unsynced())
    await journal.open()
    assert list((root / "default/temporary").iterdir()) == []
    found = await op.read(journal, "s")
    state = (0, []) if found is None else (found.version, list(found.items))
    assert state in allowed
    (version,) = await journal.write([op.append("s", b'{"next":1}', expected=state[0], first=30)])
    found = await op.read(journal, "s")
    assert (found.version, list(found.items)) == (version, [*state[1], b'{"next":1}'])
    page = await journal.scan(Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=9)
    assert [info.id for info in page] == (["other", "s"] if others else ["s"])
    await journal.close()
    return version, list(found.items)


async def test_a_salvage_that_dies_anywhere_loses_neither_the_damaged_file_nor_the_recovered_one(
    tmp_path: Path, op: Any
) -> None:
    died = 0
    for call in range(120):
        base = tmp_path / str(call)
        (base / "machine").mkdir(parents=True)
        root, path = base / "machine/store", base / "machine/store/default/sessions/s.jsonl"
        disk = Mortal(base / "removed")
        journal = FileJournal(root, disk=disk)
        journal._directory.open()
        for number in range(3):
            journal._write(op.append("s", b'{"n":%d}' % number, first=10), Patience(9))
        damaged = path.read_bytes().replace(b'{"n":1}', b'{"n":?}')
        with path.open("r+b") as file:
            file.write(damaged)
            file.flush()
            disk.sync(file.fileno())
        journal._guards.close()
        journal._directory.close()
        disk.left = call
        report, over = None, False
        try:
            report = salvage(path, disk=disk)
            over = True
        except DeadError:
            died += 1
        for copy, renames in (("kept", True), ("lost", False)):
            disk.survives(base / "machine", base / copy, renames=renames)
        for store in (root, base / "kept/store", base / "lost/store"):
            if not over:
                report = salvage(store / "default/sessions/s.jsonl", disk=Unsynced())
            assert report is not None
            assert report.whole or report.recovered == 2  # whole: the dead one had done it
            assert any(kept.read_bytes() == damaged for kept in (store / "default/damaged/sessions").iterdir())
            reader = FileJournal(store, disk=Unsynced())
            await reader.open()
            assert list((await op.read(reader, "s")).items) == [b'{"n":0}', b'{"n":2}']
            await reader.close()
        if over:
            break
    assert died > 10
