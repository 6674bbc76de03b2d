"""What the tests of the file backend share."""

import contextlib
import errno
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import Append, Delete, Head, Key, Part, Replace
from perdure_file.disk import Disk
from perdure_file.journal import FileJournal
from perdure_file.names import to_name

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

# What every script of a child process begins with.
PRELUDE = """
import asyncio, os, sys
from datetime import UTC, datetime
from perdure.backend import *
from perdure_file.journal import FileJournal
AT = datetime(2026, 1, 2, tzinfo=UTC)
DIRECTORY = sys.argv[1]
def key(id):
    return Key(Part.SESSIONS, id)
def append(id, *items, expected=None, first=1):
    return Append(key(id), items, Head(), expected, AT, first)
"""


class Operations:
    """Short ways to write operations on sessions."""

    @staticmethod
    def key(name: str) -> Key:
        return Key(Part.SESSIONS, name)

    @staticmethod
    def paths(root: Path, pattern: str = "*") -> list[Path]:
        return sorted(root.rglob(pattern))

    def files(self, root: Path) -> list[Path]:
        return [path for path in self.paths(root) if path.is_file()]

    @staticmethod
    def descriptors(root: Path) -> list[str]:
        """What this process has open below a directory."""
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(entry.readlink()))
        return [link for link in links if str(root) in link]

    @staticmethod
    async def read(journal: FileJournal, name: str, **window: Any) -> Any:
        return await journal.read(Key(Part.SESSIONS, name), **window)

    def append(
        self, name: str, *items: bytes, expected: int | None = None, first: int = 1, at: datetime = AT, **head: Any
    ) -> Append:
        return Append(self.key(name), items, Head(**head), expected, at, first)

    def replace(self, name: str, keep: int, *items: bytes, expected: int | None = None) -> Replace:
        return Replace(self.key(name), keep, items, Head(), expected, AT)

    def delete(self, name: str, *, expected: int | None = None) -> Delete:
        return Delete(self.key(name), expected)


class FaultyDisk(Disk):
    """A disk that counts its calls and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.faults: dict[str, list[Callable[..., None]]] = {}

    def fail(self, call: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """Let calls of a kind fail with a code, after so many that do not."""

        def fault(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        self.faults[call] = [lambda *_: None] * after + [fault] * times

    def full_after(self, size: int) -> None:
        """Let the next write take so many bytes and then fail, as a disk that fills up."""

        def fault(file: int, offset: int, data: bytes) -> None:
            os.pwrite(file, data[:size], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.faults["write"] = [fault]

    def reset(self) -> None:
        self.calls.clear()
        self.bytes_read = 0


def _counted(name: str) -> Any:
    plain = getattr(Disk, name)

    def call(self: FaultyDisk, *args: Any) -> Any:
        self.calls[name] += 1
        if self.faults.get(name):
            self.faults[name].pop(0)(*args)
        answer = plain(self, *args)
        if name == "read":
            self.bytes_read += len(answer)
        return answer

    return call


for _name in ("open", "close", "status", "status_at", "read", "write", "truncate", "sync", "rename", "unlink"):
    setattr(FaultyDisk, _name, _counted(_name))
for _name in ("make_directory", "names", "lock", "unlock"):
    setattr(FaultyDisk, _name, _counted(_name))


@pytest.fixture
def op() -> Operations:
    return Operations()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
async def journal(root: Path, disk: FaultyDisk) -> AsyncIterator[FileJournal]:
    journal = FileJournal(root, disk=disk)
    await journal.open()
    yield journal
    await journal.close()


@pytest.fixture
def file_of(root: Path) -> Callable[..., Path]:
    """Return the path of a key's file."""

    def path(name: str, part: str = "sessions") -> Path:
        return root / "default" / part / f"{to_name(name)}.jsonl"

    return path


@pytest.fixture
def start(root: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a process that runs a script on the directory."""
    children: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, str(root), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()
