"""Look at whole files, and recover what is whole in damaged ones.

Nothing is dropped in silence: the damaged file is kept under `DIR/<namespace>/damaged/<part>/`, and every line that did
not make it is reported with its place.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from perdure.backend import Head, InvalidArgumentError, Key, Part
from perdure_file.changes import Changes
from perdure_file.directory import SUFFIX, Directory, Place
from perdure_file.disk import DISK, Disk
from perdure_file.guards import Guards
from perdure_file.lines import (
    COMMIT,
    BadLineError,
    Commit,
    OtherKeyError,
    check_opening,
    is_item,
    is_torn,
    read_commit,
    read_item,
    write_batch,
    write_opening,
)
from perdure_file.names import to_id
from perdure_file.reports import damage, log_torn_write
from perdure_file.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        version: The highest version of its whole commits; `None`: it has none.
        count: How many items have been proven by their commits.
        unproven: How many more are whole lines, of whose content nothing can be said since their commit is damaged.
        torn: How many bytes at the end are left of a write that was not finished. That is no damage.
        problems: What is damaged.
        way_out: What to do where a salvage can do nothing; `""`: it can.
        kept_as: Where the damaged file is kept, after a salvage.
        recovered: How many items the salvaged file has; `None`: nothing was written.
    """

    path: Path
    version: int | None
    count: int
    unproven: int
    torn: int
    problems: Sequence[Problem]
    way_out: str = ""
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
        if self.way_out:
            told.append(f"  Nothing can be recovered here: {self.way_out}.")
        if self.recovered is not None:
            told.append(f"  {self.recovered} items recovered; the damaged file is {self.kept_as}")
        return "\n".join(told)


def verify(path: str | Path, *, busy_timeout: float = 5.0, shared: bool = True, disk: Disk = DISK) -> FileReport:
    """Read a file of the store from its first byte to its last, and report what is damaged. Nothing is written or made.

    What looks damaged is read once more under the key's lock, for a writer may have been there.

    Args:
        path: The file, `DIR/<namespace>/<part>/<name>.jsonl`.
        busy_timeout: How long to wait for a writer of the key, in seconds.
        shared: Whether several processes may write, so that locks must work.
        disk: The system calls.

    Raises:
        InvalidArgumentError: The path is none of a store.
        SchemaVersionError: The file is of a newer format.
        StoreCorruptedError: It is no file, or a link.
        StoreUnavailableError: A writer holds the key for too long.
        OSError: It cannot be read.
    """
    located = _Located.of(path, disk, shared=shared)
    with located.opened(located.directory.enter) as guards:
        report, _ = _examined(located)
        if not report.whole:
            report, _ = guards.read(located.place, busy_timeout, lambda: _examined(located))
        return report


def salvage(path: str | Path, *, busy_timeout: float = 5.0, shared: bool = True, disk: Disk = DISK) -> FileReport:
    """Replace a damaged file by one with all its items that are whole, in their order, and keep the damaged one.

    The new file has the head of the last whole commit and a version that none of its writers has seen, so that whoever
    still works on the old content is refused. A file that is whole stays as it is.

    Args:
        path: The file, `DIR/<namespace>/<part>/<name>.jsonl`.
        busy_timeout: How long to wait for a writer of the key, in seconds.
        shared: Whether several processes may write, so that locks must work.
        disk: The system calls.

    Returns:
        What was found. Items in `unproven` were taken over too. A turn journal or an approval without a whole commit
        cannot be recovered, since what it is stands there; nor a session without a whole item; nor the file of another
        key. It stays where it is, `way_out` says what to do, and `recovered` is `None`.

    Raises:
        As `verify`, and what writing raises.
    """
    located = _Located.of(path, disk, shared=shared)
    with (
        located.opened(located.directory.open) as guards,
        guards.locked(located.place, Patience(busy_timeout), look=False) as guard,
    ):
        report, found = _examined(located)
        if report.whole or report.way_out:
            return report
        kept_as = located.keep()
        opening = write_opening(located.place.part, located.place.key.id)
        items = [*map(read_item, found.lines)]
        batch, _ = write_batch(items, before=0, offset=len(opening), **found.settings())
        Changes(located.directory, log_torn_write).publish(guard, (opening, batch))
        return replace(report, kept_as=kept_as, recovered=len(items))


@dataclass(frozen=True)
class _Located:
    """A file of a store, found by its path."""

    path: Path
    directory: Directory
    place: Place

    @classmethod
    def of(cls, path: str | Path, disk: Disk, *, shared: bool) -> _Located:
        path = Path(path).absolute()
        key_id = to_id(path.name.removesuffix(SUFFIX)) if path.name.endswith(SUFFIX) else None
        namespace = to_id(path.parent.parent.name)
        if key_id is None or namespace is None or path.parent.name not in tuple(Part):
            raise InvalidArgumentError("path", f"is no file of a store: {path}")
        root = path.parent.parent.parent
        directory = Directory(disk, str(root), namespace, f"file:{root}", shared=shared)
        return cls(path, directory, Place(Key(Part(path.parent.name), key_id)))

    @contextmanager
    def opened(self, enter: Callable[[], None]) -> Iterator[Guards]:
        """Open the directory, give its locks, and close both."""
        guards = Guards(self.directory)
        try:
            enter()
            yield guards
        finally:
            guards.close()
            self.directory.close()

    def content(self) -> tuple[bytes, datetime]:
        """Read the file, and when it was written last."""
        folder = self.directory.find(self.place.part)
        if folder is None:
            raise FileNotFoundError(self.path)
        file = self.directory.open_file(self.place.file, os.O_RDONLY, folder, str(self.path))
        try:
            status = self.directory.disk.status(file)
            if not stat.S_ISREG(status.st_mode):
                raise damage(str(self.path), "it is not a regular file")
            return self.directory.disk.read(file, 0, status.st_size), datetime.fromtimestamp(status.st_mtime, UTC)
        finally:
            self.directory.disk.let_go(file)

    def keep(self) -> Path:
        """Give the damaged file a second name, which stays when the first one is taken over."""
        folder, number = self.directory.make(DAMAGED, self.place.part), 1
        while True:
            name = f"{self.path.name.removesuffix(SUFFIX)}.{number}{SUFFIX}"
            try:
                self.directory.disk.link(self.path.name, self.directory.make(self.place.part), name, folder)
            except FileExistsError:
                number += 1
            else:
                self.directory.disk.sync(folder)
                return self.path.parent.parent / DAMAGED / self.place.part / name


@dataclass
class _Found:
    """What has been found in a file so far.

    Attributes:
        written_at: When the file was written last, as the file system says.
        commit: The whole commit of the highest version.
        last: The one that was read last: another one, where pieces are not in their order.
        count: How many items have been proven.
        unproven: How many have not.
        lines: The lines of all of them, in their order.
        problems: What is damaged.
        way_out: What to do where nothing can be recovered.
        pending: The lines since the last commit: number, offset, text.
    """

    written_at: datetime
    commit: Commit | None = None
    last: Commit | None = None
    count: int = 0
    unproven: int = 0
    lines: list[bytes] = field(default_factory=list[bytes])
    problems: list[Problem] = field(default_factory=list[Problem])
    way_out: str = ""
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
        version, before = (None, 0) if self.last is None else (self.last.version + 1, self.last.count)
        if version not in (None, commit.version) or before != commit.count - commit.items:
            self.problems.append(Problem(number, offset, "what was written before this commit is missing"))
        elif not self.problems and commit.offset + commit.size != offset:
            self.problems.append(Problem(number, offset, "the commit stands elsewhere than it was written"))
        self.last = commit
        if self.commit is None or commit.version > self.commit.version:
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

    def settings(self) -> dict[str, Any]:
        """Return what the commit of the salvaged file says."""
        old = self.commit
        if old is None:
            times, head = {"created_at": self.written_at, "updated_at": self.written_at}, Head(data=b"")
        else:
            times, head = {"created_at": old.created_at, "updated_at": old.updated_at}, old.head
        # Commits that are lost may have had later versions, and no version may come twice.
        version = (0 if old is None else old.version) + 1 + secrets.randbelow(2**40)
        return {"version": version, "rewritten": version, "head": head, **times}


def _examined(located: _Located) -> tuple[FileReport, _Found]:
    content, written_at = located.content()
    first, newline, _ = content.partition(b"\n")
    found = _Found(written_at)
    offset, number = 0, 1
    try:
        check_opening(first + newline, located.place.part, located.place.key.id, str(located.path))
        offset, number = len(first) + 1, 2
    except BadLineError as error:
        found.problems.append(Problem(1, 0, str(error)))
        if isinstance(error, OtherKeyError):
            found.way_out = "give the file the name of that key, or remove it"
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
        if found.commit is not None:
            lost = f"the commit after version {found.commit.version} is lost, and with it the state, status and times it set"
        else:
            lost = "no whole commit was found: state, scope, status and times are lost"
            if located.place.part != Part.SESSIONS or not found.lines:  # an empty history is not what was there
                found.way_out = "restore a backup, or remove the file, so that its key is absent"
        found.problems.append(Problem(number, len(content), lost))
    version = None if found.commit is None else found.commit.version
    problems = tuple(sorted(found.problems, key=lambda problem: problem.offset))
    return FileReport(located.path, version, found.count, found.unproven, torn, problems, found.way_out), found
