"""What a loss of power would leave of a directory. Nothing but the conformance kit and the tests come here."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from perdure_file.disk import Disk

Tree: TypeAlias = "Mapping[str, Tree | bytes]"


@dataclass(frozen=True, slots=True)
class _Entry:
    """What has a name in a directory."""

    inode: int
    is_directory: bool


class Synced:
    """Notes what is synced below a directory that is empty or not made yet, in this process, one such at a time."""

    def __init__(self, directory: Path) -> None:
        """Begin to note; the directories above are taken for synced.

        Raises:
            FileExistsError: Something is in the directory, and what of it was synced before is not known.
        """
        directory = directory.absolute()
        if directory.exists() and any(directory.iterdir()):
            raise FileExistsError(f"{directory} was in use before it was noted what is synced")
        self._top = next(one for one in (directory, *directory.parents) if one.exists())
        self._own = directory.relative_to(self._top).parts[:1]
        self._names: dict[int, dict[str, _Entry]] = {self._top.stat().st_ino: _names(self._top)}
        self._contents: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        Disk.on_sync = self._note

    def _note(self, file: int) -> None:
        status = os.fstat(file)
        if status.st_ino not in self._held:
            self._held[status.st_ino] = os.dup(file)  # or, when it is removed, the next file would get its number
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _names(file)
        else:
            self._contents[status.st_ino] = os.pread(file, status.st_size, 0)

    def cut(self) -> Callable[[], None]:
        """Cut the power: note nothing more. Return what drops the rest, for when the directory is closed."""
        Disk.on_sync = None
        while self._held:
            os.close(self._held.popitem()[1])
        left = self._below(self._top.stat().st_ino)

        def drop() -> None:
            for path in [self._top / name for name in self._own] or list(self._top.iterdir()):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            for name in self._own or left:
                if name in left:
                    _make(self._top / name, left[name])

        return drop

    def _below(self, directory: int) -> Tree:
        """Return what is left of a directory: the names that it was synced with, and what each was synced with."""
        return {
            name: self._below(entry.inode) if entry.is_directory else self._contents.get(entry.inode, b"")
            for name, entry in self._names.get(directory, {}).items()
        }


def _names(directory: int | Path) -> dict[str, _Entry]:
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a directory far above is used by others too
                found[entry.name] = _Entry(entry.inode(), entry.is_dir(follow_symlinks=False))
    return found


def _make(path: Path, left: Tree | bytes) -> None:
    if isinstance(left, bytes):
        path.write_bytes(left)
        return
    path.mkdir(mode=0o700)
    for name, inner in left.items():
        _make(path / name, inner)
