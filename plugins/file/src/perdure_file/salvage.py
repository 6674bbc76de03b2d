"""Look at whole files, and recover what is whole in damaged ones.

Nothing is dropped in silence: the damaged file is kept under `DIR/<namespace>/damaged/<part>/`, and every line that did
not make it is reported with its place.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from perdure.backend import Head, InvalidArgumentError, Key, Part, StoreCorruptedError
from perdure_file.changes import Changes
from perdure_file.directory import SUFFIX, Directory, Place
from perdure_file.disk import DISK, Disk
from perdure_file.guards import Guards, Patience
from perdure_file.lines import (
    COMMIT,
    BadLineError,
    Commit,
    check_opening,
    is_item,
    is_torn,
    read_commit,
    read_item,
    write_batch,
    write_opening,
)
from perdure_file.names import to_id
from perdure_file.reports import log_torn_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DAMAGED: Final = "damaged"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written.

    Attributes:
        line: The number of the line, from 1.
        offset: Where it begins in the file.
        what: What is wrong.
    """

    line: int
    offset: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}, offset {self.offset}: {self.what}"


@dataclass(frozen=True, slots=True)
class FileReport:
    """What is in one file.

    Attributes:
        path: The file.
        version: The version of its last whole commit; `None`: it has none.
        count: How many items have been proven by their commits.
        unproven: How many more are whole lines, of whose content nothing can be said since their commit is damaged.
        torn: How many bytes at the end are left of a write that was not finished. That is no damage.
        problems: What is damaged.
        kept_as: Where the damaged file is kept, after a salvage.
        recovered: How many items the salvaged file has; `None`: nothing was written.
    """

    path: Path
    version: int | None
    count: int
    unproven: int
    torn: int
    problems: Sequence[Problem]
    kept_as: Path | None = None
    recovered: int | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems

    def __str__(self) -> str:
        told = [f"{self.path}: {self.count} items proven, {self.unproven} unproven"]
        if self.torn:
            told.append(f"  {self.torn} bytes of an unfinished write at the end, which the next write cuts off")
        told += [f"  {problem}" for problem in self.problems]
        if self.recovered is not None:
            told.append(f"  {self.recovered} items recovered; the damaged file is {self.kept_as}")
        return "\n".join(told)


def verify(path: str | Path, *, disk: Disk = DISK) -> FileReport:
    """Read a file of the store from its first byte to its last, and report what is damaged. Nothing is written.

    Raises:
        InvalidArgumentError: The path is none of a store.
        SchemaVersionError: The file is of a newer format.
        OSError: It cannot be read.
    """
    return _examined(_Located.of(path, disk))[0]


def verify_all(directory: str | Path, *, disk: Disk = DISK) -> Iterator[FileReport]:
    """Verify every file of a store's directory, of all namespaces."""
    for path in sorted(Path(directory).glob(f"*/*/*{SUFFIX}")):
        if path.parent.name in tuple(Part):
            yield verify(path, disk=disk)


def salvage(path: str | Path, *, busy_timeout: float = 5.0, disk: Disk = DISK) -> FileReport:
    """Replace a damaged file by one with all its items that are whole, in their order, and keep the damaged one.

    The new file has the head of the last whole commit and a version that none of its writers has seen, so that whoever
    still works on the old content is refused. A file that is whole stays as it is.

    Args:
        path: The file, `DIR/<namespace>/<part>/<name>.jsonl`.
        busy_timeout: How long to wait for a writer of the key, in seconds.
        disk: The system calls.

    Returns:
        What was found. Items in `unproven` were taken over too. A turn journal or an approval without a whole commit
        cannot be recovered, since what it is stands there; it stays where it is, and `recovered` is `None`.

    Raises:
        As `verify`, and what writing raises.
    """
    located = _Located.of(path, disk)
    located.directory.open()
    guards = Guards(located.directory)
    try:
        with guards.locked(located.place, Patience(busy_timeout), look=False) as guard:
            report, found = _examined(located)
            if report.whole or (found.commit is None and located.place.part != Part.SESSIONS):
                return report
            kept_as = located.keep()
            opening = write_opening(located.place.part, located.place.key.id)
            items = [*map(read_item, found.lines)]
            batch = write_batch(items, before=0, offset=len(opening), **found.settings(located))
            Changes(located.directory, log_torn_write).publish(guard, (opening, batch))
            about = (report.path, report.version, report.count, report.unproven, report.torn, report.problems)
            return FileReport(*about, kept_as, len(items))
    finally:
        guards.close()
        located.directory.close()


@dataclass(frozen=True)
class _Located:
    """A file of a store, found by its path."""

    path: Path
    directory: Directory
    place: Place
    disk: Disk

    @classmethod
    def of(cls, path: str | Path, disk: Disk) -> _Located:
        path = Path(path).absolute()
        key_id = to_id(path.name.removesuffix(SUFFIX)) if path.name.endswith(SUFFIX) else None
        namespace = to_id(path.parent.parent.name)
        if key_id is None or namespace is None or path.parent.name not in tuple(Part):
            raise InvalidArgumentError("path", f"is no file of a store: {path}")
        root = path.parent.parent.parent
        directory = Directory(disk, str(root), namespace, f"file:{root}", shared=True)
        return cls(path, directory, Place(Key(Part(path.parent.name), key_id)), disk)

    def content(self) -> bytes:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            file = self.directory.open_file(self.path.name, os.O_RDONLY, folder, str(self.path))
        finally:
            os.close(folder)
        try:
            return self.disk.read(file, 0, self.disk.status(file).st_size)
        finally:
            self.disk.close(file)

    def keep(self) -> Path:
        """Give the damaged file a second name, which stays when the first one is taken over."""
        folder, number = self.directory.make(DAMAGED, self.place.part), 1
        while True:
            name = f"{self.path.name.removesuffix(SUFFIX)}.{number}{SUFFIX}"
            try:
                self.disk.link(self.path.name, self.directory.make(self.place.part), name, folder)
            except FileExistsError:
                number += 1
            else:
                self.disk.sync(folder)
                return self.path.parent.parent / DAMAGED / self.place.part / name


@dataclass
class _Found:
    """What has been found in a file so far.

    Attributes:
        commit: The last whole commit.
        count: How many items have been proven.
        unproven: How many have not.
        lines: The lines of all of them, in their order.
        problems: What is damaged.
        pending: The lines since the last commit: number, offset, text.
    """

    commit: Commit | None = None
    count: int = 0
    unproven: int = 0
    lines: list[bytes] = field(default_factory=list[bytes])
    problems: list[Problem] = field(default_factory=list[Problem])
    pending: list[tuple[int, int, bytes]] = field(default_factory=list[tuple[int, int, bytes]])

    def take(self, number: int, offset: int, commit: Commit) -> None:
        """Take the lines that a whole commit proves; those before them have lost theirs."""
        proven = self.pending[len(self.pending) - commit.items :] if commit.items <= len(self.pending) else []
        batch = b"".join(line + b"\n" for _, _, line in proven)
        if len(proven) != commit.items or crc32(batch) != int(commit.crc32, 16):
            self.problems.append(
                Problem(number, offset, "the items before this commit are not those that were written")
            )
            proven = []
        del self.pending[len(self.pending) - len(proven) :]
        self.take_unproven()
        self.lines += [line for _, _, line in proven]
        self.count += len(proven)
        version, before = (None, 0) if self.commit is None else (self.commit.version + 1, self.commit.count)
        if version not in (None, commit.version) or before != commit.count - commit.items:
            self.problems.append(Problem(number, offset, "what was written before this commit is missing"))
        self.commit = commit

    def take_unproven(self) -> None:
        """Take the whole ones among the lines whose commit is damaged."""
        for number, offset, line in self.pending:
            if is_item(line):
                self.problems.append(Problem(number, offset, "the item is whole, but nothing proves its content"))
                self.lines.append(line)
                self.unproven += 1
            else:
                self.problems.append(Problem(number, offset, f"the line is lost: {line[:60]!r}"))
        self.pending.clear()

    def settings(self, located: _Located) -> dict[str, Any]:
        """Return what the commit of the salvaged file says."""
        old = self.commit
        if old is None:
            at = datetime.fromtimestamp(located.path.stat().st_mtime, UTC)
            times, head = {"created_at": at, "updated_at": at}, Head(data=b"")
        else:
            times, head = {"created_at": old.created_at, "updated_at": old.updated_at}, old.head
        # Commits that are lost may have had later versions, and no version may come twice.
        version = (0 if old is None else old.version) + 1 + secrets.randbelow(2**40)
        return {"version": version, "rewritten": version, "head": head, **times}


def _examined(located: _Located) -> tuple[FileReport, _Found]:
    content = located.content()
    first, newline, _ = content.partition(b"\n")
    found = _Found()
    offset, number = 0, 1
    try:
        check_opening(first + newline, located.place.part, located.place.key.id, str(located.path))
        offset, number = len(first) + 1, 2
    except BadLineError as error:
        found.problems.append(Problem(1, 0, str(error)))
        if not first.lstrip(b"\0").startswith((COMMIT, b'{"item":', b'{"base64":')):
            offset, number = min(len(first) + 1, len(content)), 2
    last = offset
    while (end := content.find(b"\n", offset)) >= 0:
        line = content[offset:end].lstrip(b"\0")
        if len(line) < end - offset:
            found.problems.append(Problem(number, offset, "a block of zeros"))
        if line.startswith(COMMIT):
            try:
                commit = read_commit(line + b"\n")
            except BadLineError as error:
                found.problems.append(Problem(number, offset, str(error)))
            else:
                found.take(number, offset, commit)
                last = end + 1
        else:
            found.pending.append((number, offset, line))
        offset, number = end + 1, number + 1
    rest = content[last:]
    torn = len(rest) if found.commit is not None and is_torn(rest) else 0
    if torn:
        found.pending.clear()
    elif rest or found.commit is None:
        if offset < len(content):
            found.pending.append((number, offset, content[offset:]))
        found.take_unproven()
        if found.commit is None:
            found.problems.append(Problem(number, len(content), "no whole commit was found"))
    version = None if found.commit is None else found.commit.version
    report = FileReport(located.path, version, found.count, found.unproven, torn, tuple(found.problems))
    return report, found


def doctor(directory: str | Path, *, namespace: str | None = None, repair: bool = False) -> Iterator[FileReport]:
    """Verify a store's files and, if asked for, salvage those that are damaged. A whole file without a torn end is left out.

    Args:
        directory: The store's directory.
        namespace: Only this one; `None`: all.
        repair: Whether to salvage.
    """
    root = Path(directory)
    if not root.is_dir():
        raise StoreCorruptedError(str(root), "there is no such directory")
    for report in verify_all(root):
        if namespace is not None and to_id(report.path.parent.parent.name) != namespace:
            continue
        if not report.whole:
            yield salvage(report.path) if repair else report
        elif report.torn:
            yield report
