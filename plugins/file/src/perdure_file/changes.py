"""What a write does to a locked key. Each step leaves the old content or the new one, wherever the process dies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from perdure.backend import (
    Append,
    Delete,
    Operation,
    OutcomeUnknownError,
    Replace,
    StoreUnavailableError,
    VersionConflictError,
    describe,
)
from perdure_file.directory import TEMPORARY, Directory
from perdure_file.lines import Commit, write_batch, write_opening
from perdure_file.log import CHUNK, Log, Tail
from perdure_file.reports import TornWrite, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perdure_file.guards import Guard


class Changes:
    """Applies operations to keys that the caller has locked."""

    def __init__(self, directory: Directory, on_torn_write: Callable[[TornWrite], None]) -> None:
        """Take the directory, and whom to tell of a write that was not finished."""
        self._directory, self._disk = directory, directory.disk
        self._on_torn_write = on_torn_write

    def apply(self, guard: Guard, operation: Operation) -> int:
        """Apply one operation if the key is as expected, and return the new version, or the one removed."""
        self._settle(guard)
        tail = guard.tail()
        _check(operation, tail)
        if isinstance(operation, Delete):
            return 0 if tail is None else self._delete(guard, tail)
        settings = _settings(operation, None if tail is None else tail.commit)
        if guard.log is None or tail is None:
            self._create(guard, operation.items, settings)
        elif isinstance(operation, Append):
            self._append(guard, guard.log, tail, operation.items, settings)
        else:
            kept = guard.log.items(tail, 0, operation.keep)
            self._create(guard, [*kept, *operation.items], settings)
            self._report(guard, tail)
        return int(settings["version"])

    def _append(self, guard: Guard, log: Log, tail: Tail, items: Iterable[bytes], settings: dict[str, Any]) -> None:
        batch, commit = write_batch(items, before=tail.commit.count, offset=tail.end, **settings)
        if tail.torn:
            self._disk.truncate(log.file, tail.end)
            self._report(guard, tail)
        try:
            self._disk.write(log.file, tail.end, batch)
        except OSError:
            # The disk is full. If cutting fails too, what stays is a torn write, which the next one cuts off.
            with contextlib.suppress(OSError):
                self._disk.truncate(log.file, tail.end)
            raise
        try:
            self._disk.sync(log.file)
        except OSError as error:
            raise _unknown(guard, error) from error
        log.grown(commit, tail.end + len(batch))

    def _create(self, guard: Guard, items: Iterable[bytes], settings: dict[str, Any]) -> None:
        opening = write_opening(guard.place.part, guard.place.key.id)
        batch, _ = write_batch(items, before=0, offset=len(opening), **settings)
        self.publish(guard, (opening, batch))

    def publish(self, guard: Guard, content: Iterable[bytes]) -> None:
        """Put a new file in the place of the old one, or of none: written and synced first, then renamed."""
        place, size = guard.place, 0
        folder = self._directory.make(place.part)
        name, file = self._directory.temporary()
        try:
            log = Log(self._disk, file, place.part, place.key.id, self._directory.where(place))
            for data in content:
                self._disk.write(file, size, data)
                size += len(data)
            self._disk.sync(file)
            guard.mark()
            try:
                self._disk.rename(name, self._directory.make(TEMPORARY), place.file, folder)
                self._disk.sync(folder)
            except OSError as error:
                raise _unknown(guard, error) from error
        except BaseException:
            self._directory.discard(name, file)
            raise
        guard.mark(doubtful=False)
        guard.adopt(log)

    def _delete(self, guard: Guard, tail: Tail) -> int:
        folder = self._directory.make(guard.place.part)
        guard.mark()
        try:
            self._disk.unlink(guard.place.file, folder)
            self._disk.sync(folder)
        except OSError as error:
            raise _unknown(guard, error) from error
        guard.mark(doubtful=False)
        guard.adopt(None)
        return tail.commit.version

    def _settle(self, guard: Guard) -> None:
        """Make sure that what is read now is on the disk, where the last write has left a doubt.

        A failed sync leaves pages that only look written, and a new sync does not write them again. So the file is
        written anew; whoever then builds on it builds on what will be there after a power loss.
        """
        if not guard.marked:
            return
        try:
            if guard.log is None:
                self._disk.sync(self._directory.make(guard.place.part))
                guard.mark(doubtful=False)
            else:
                tail = guard.log.tail()
                self.publish(guard, self._pieces(guard.log, tail.end))
                self._report(guard, tail)
        except (OSError, OutcomeUnknownError) as error:
            problem = f"an earlier write could not be brought to the disk ({describe(error)})"
            raise StoreUnavailableError("write", guard.place.key.id, problem) from error

    def _pieces(self, log: Log, end: int) -> Iterator[bytes]:
        for offset in range(0, end, CHUNK):
            yield self._disk.read(log.file, offset, min(CHUNK, end - offset))

    def _report(self, guard: Guard, tail: Tail) -> None:
        if tail.torn:
            where = self._directory.where(guard.place)
            tell(self._on_torn_write, TornWrite(where, tail.end, tail.torn, tail.commit.version))


def _unknown(guard: Guard, error: OSError) -> OutcomeUnknownError:
    """Return the error of a write that may have happened, and leave a mark, so that the next writer settles it."""
    with contextlib.suppress(OSError):
        guard.mark()
    with contextlib.suppress(OSError):
        guard.adopt(None)
    return OutcomeUnknownError("write", guard.place.key.id, describe(error))


def _check(operation: Operation, tail: Tail | None) -> None:
    actual = 0 if tail is None else tail.commit.version
    unseen = isinstance(operation, Replace) and (tail is None or operation.keep > tail.commit.count)
    if unseen or operation.expected_version not in (None, actual):
        raise VersionConflictError(operation.key.id, operation.expected_version, actual)


def _settings(operation: Append | Replace, old: Commit | None) -> dict[str, Any]:
    """Return what a commit says of the key, but for its items."""
    if old is not None:
        version, rewritten = old.version + 1, old.rewritten
        times = {"created_at": old.created_at, "updated_at": max(old.updated_at, operation.at)}
    else:
        assert isinstance(operation, Append)  # `_check` has refused a replace of an absent key
        version, rewritten = operation.first_version, 0
        times = {"created_at": operation.at, "updated_at": operation.at}
    if isinstance(operation, Replace):
        rewritten = version
    return {"version": version, "rewritten": rewritten, "head": operation.head, "old": old, **times}
