"""Writes that end in the middle: past a size of its files the kernel takes no more of a write, and ends the process.

That is how a full disk or a dying machine leaves a file: with the first bytes of what one system call was to write. What the
process maps into its memory is not limited, nor are sockets and pipes.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path
from typing import TypeAlias

Extent: TypeAlias = tuple[int, int]
"""Where a write of a file begins, and where it ends."""

DESCRIPTORS = range(3, 256)
"""Which open files are looked at: those that a process has beside its input and output."""


def limit_files(size: int | None) -> None:
    """Let this process write its files up to a size, and end it by SIGXFSZ when it goes on; `None` changes nothing."""
    if size is None:
        return
    import resource  # Windows has none

    sys.dont_write_bytecode = True  # a module that is imported from now on is no write of the store
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nor are complaints, which may go to a file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it


class WrittenFiles:
    """What is written to the files of a directory, and to those that this process has open to write."""

    def __init__(self, directory: Path) -> None:
        """Look at the files as they are."""
        self._directory = directory
        self._before = self._look()

    def written(self) -> list[Extent]:
        """Return what was written since the last look: of a file that grew its end, else the whole of it."""
        before, self._before = self._before, self._look()
        changed = [(before.get(file, (0, 0)), now) for file, now in self._before.items() if before.get(file) != now]
        return sorted((was if was < now else 0, now) for (was, _), (now, _) in changed if now)

    def _look(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return size and time of each file, by device and inode."""
        found = [status for path in self._directory.rglob("*") if (status := _status(path))]
        found += [status for descriptor in DESCRIPTORS if _is_to_write(descriptor) and (status := _status(descriptor))]
        return {(one.st_dev, one.st_ino): (one.st_size, one.st_mtime_ns) for one in found if stat.S_ISREG(one.st_mode)}


def _is_to_write(descriptor: int) -> bool:
    """Whether a descriptor is open to write; other threads may be reading files."""
    import fcntl  # Windows has none

    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:  # it is not open
        return False


def _status(file: Path | int) -> os.stat_result | None:
    try:
        return os.stat(file)  # noqa: PTH116  # reason: it takes a descriptor too
    except OSError:  # there is none, or no longer
        return None
