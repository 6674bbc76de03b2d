"""What an administrator does as root leaves the store to its owner."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure_file.journal import FileJournal
from perdure_file.salvage import salvage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others"),
]

OWNER = (1234, 4321)


def owners(root: Path) -> set[tuple[int, int]]:
    return {(status.st_uid, status.st_gid) for path in [root, *root.rglob("*")] for status in [path.lstat()]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of another user, as the store's directory is to be in."""
    os.chown(tmp_path, *OWNER)
    return tmp_path


@pytest.fixture
async def administrator(home: Path, root: Path) -> AsyncIterator[FileJournal]:
    journal = FileJournal(root)
    await journal.open()
    yield journal
    await journal.close()


async def test_all_that_root_makes_belongs_to_the_owner_of_its_folder(
    administrator: FileJournal, op: Any, root: Path, file_of: Callable[..., Path]
) -> None:
    assert owners(root) == {OWNER}
    for operation in (op.append("s", b"{}"), op.append("s", b"{}"), op.replace("s", 1), op.append("new", b"{}")):
        await administrator.write([operation])
    file_of("new").write_bytes(file_of("new").read_bytes() + b"damage\n")
    assert salvage(file_of("new")).recovered == 1
    assert owners(root) == {OWNER}
    assert len(op.files(root)) == 5  # two keys with their locks, and the damaged file


@pytest.mark.parametrize("put", [os.link, os.rename])
async def test_a_file_that_was_there_keeps_its_owner(
    put: Callable[[Path, Path], None], administrator: FileJournal, op: Any, home: Path, root: Path
) -> None:
    """Or whoever owns the directory could have root give away what is root's."""
    await administrator.write([op.append("a", b"{}")])
    lock = root / "default/locks/sessions/s.lock"
    precious = home / "precious"
    precious.touch()
    put(precious, lock)
    await administrator.write([op.append("s", b"{}")])
    assert lock.stat().st_uid == 0


async def test_a_folder_that_has_been_put_in_the_place_of_a_new_one_keeps_its_owner(
    administrator: FileJournal, op: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def make_and_replace(name: str, mode: int, *, dir_fd: int | None = None) -> None:
        make(name, mode, dir_fd=dir_fd)
        if name == "sessions":
            (root / "default/locks/sessions/precious").touch()

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", make_and_replace)
        await administrator.write([op.append("s", b"{}")])
    assert (root / "default/locks/sessions").stat().st_uid == 0


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let no file be given away; answer the descriptors that were to be."""
    asked: list[int] = []

    def fchown(file: int, *_: int) -> None:
        asked.append(file)
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", fchown)
        yield asked


async def test_where_nothing_can_be_given_away_all_works_as_root(
    refusing: list[int], administrator: FileJournal, op: Any
) -> None:
    assert await administrator.write([op.append("s", b"{}")]) == (1,)
    assert refusing
    assert (await op.read(administrator, "s")).count == 1
