"""One open file, read from its end: nothing costs more than what it returns."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perdure_file.lines import (
    COMMIT,
    LONGEST_OPENING,
    BadLineError,
    Commit,
    check_opening,
    is_torn,
    read_batch,
    read_commit,
)
from perdure_file.reports import damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.backend import StoreCorruptedError
    from perdure_file.disk import Disk

BLOCK: Final = 4096
"""What is read first of a file's end. A commit is some 300 bytes and the head."""

CHUNK: Final = 1 << 18
"""What is read at once where much is read."""

NEAR: Final = 1 << 16
"""Reading so much is cheaper than looking for a nearer place to begin."""

_MARK: Final = b"\n" + COMMIT


@dataclass(frozen=True, slots=True)
class Tail:
    """The last whole commit of a file.

    Attributes:
        commit: What it says.
        end: Where it ends.
        torn: How many bytes follow: a write that was not finished.
    """

    commit: Commit
    end: int
    torn: int


class Log:
    """An open file of a key. It raises `StoreCorruptedError` with path, line and offset."""

    def __init__(self, disk: Disk, file: int, part: str, id: str, where: str) -> None:
        """Take an open file, which is closed by `close`."""
        self._disk = disk
        self._part, self._id, self.where = part, id, where
        self.file, self._identity = file, disk.status(file)
        self._last: Tail | None = None

    def check(self) -> None:
        """Look at the first line, so that a newer format is refused untouched; close the file if it is none of ours."""
        try:
            if not stat.S_ISREG(self._identity.st_mode):
                raise damage(f"{self.where} ({self._part} {self._id})", "it is not a regular file")
            self._opening()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self.file)

    def still_at(self, status: os.stat_result) -> bool:
        """Whether this is the file of that status, and not one that was there before it."""
        return os.path.samestat(self._identity, status)

    def tail(self) -> Tail:
        """Find the last whole commit, reading backwards from the end, twice as much each time."""
        size, block = self._disk.status(self.file).st_size, BLOCK
        if self._last is not None and self._last.end == size:
            return self._last  # nobody has written since: a file grows or is replaced
        while True:
            start = max(size - block, 0)
            data = self._disk.read(self.file, start, size - start)
            found = self._last_commit(data, start)
            if found is not None:
                commit, end = found
                rest = data[end - start :]
                if rest and not is_torn(rest):
                    raise self.damaged(end, "what follows the last whole commit is not the beginning of a write")
                return Tail(commit, end, len(rest))
            if start == 0:
                raise self.damaged(0, "it has no whole commit")
            block *= 2

    def grown(self, commit: Commit, end: int) -> None:
        """Take note of what was appended and is on the disk."""
        self._last = Tail(commit, end, 0)

    def items(self, tail: Tail, start: int, stop: int) -> list[bytes]:
        """Read items `start` to `stop`, and with them a batch more at the most."""
        items: list[bytes] = []
        if start >= stop:
            return items
        count = -1
        for commit, batch in self.batches(self._before(tail, start), tail.end):
            before = commit.count - commit.items
            if len(batch) != commit.items or count not in (-1, before) or before < 0:
                raise self.damaged(commit.offset, "the number of its items is not as it was written")
            count = commit.count
            if count > start:
                items += batch[max(start - before, 0) : stop - before]
            if count >= stop:
                break
        if len(items) != stop - start:
            raise self.damaged(tail.commit.offset, "items that its commit counts are not there")
        return items

    def batches(self, offset: int, end: int) -> Iterator[tuple[Commit, list[bytes]]]:
        """Read writes one after the other: each commit, with its items. The memory is that of the largest, twice."""
        place = offset - 1  # the newline before it, so that a commit without items is found like any other
        data, chunk, looked = bytearray(), NEAR, 0
        while offset < end:
            more = self._disk.read(self.file, place + len(data), min(chunk, end - place - len(data)))
            chunk = min(2 * chunk, CHUNK)
            if not more:
                raise self.damaged(offset, "the file was cut while it was read")
            data += more
            position = 1
            while (mark := data.find(_MARK, looked)) >= 0 and (newline := data.find(b"\n", mark + 1)) >= 0:
                try:
                    commit = read_commit(bytes(data[mark + 1 : newline + 1]))
                    items = read_batch(data, position, mark + 1, commit, offset)
                except BadLineError as error:
                    raise self.damaged(offset, str(error)) from error
                yield commit, items
                offset, position, looked = place + newline + 1, newline + 1, newline
            if place + len(data) == end and offset < end:
                raise self.damaged(offset, "a commit is missing")
            looked = (mark if mark >= 0 else max(len(data) - len(_MARK), looked)) - (position - 1)
            del data[: position - 1]
            place = offset - 1

    def damaged(self, offset: int, problem: str) -> StoreCorruptedError:
        """Return the error of a damage at an offset."""
        pieces = (self._disk.read(self.file, start, min(CHUNK, offset - start)) for start in range(0, offset, CHUNK))
        line = 1 + sum(piece.count(b"\n") for piece in pieces)
        return damage(f"{self.where}, line {line}, offset {offset} ({self._part} {self._id})", problem)

    def _opening(self) -> int:
        """Check the first line, and return where it ends."""
        line, newline, _ = self._disk.read(self.file, 0, LONGEST_OPENING).partition(b"\n")
        try:
            check_opening(line + newline, self._part, self._id, self.where)
        except BadLineError as error:
            raise self.damaged(0, str(error)) from error
        return len(line) + 1

    def _last_commit(self, data: bytes, start: int) -> tuple[Commit, int] | None:
        """Return the last whole commit of a block that begins at `start`, and where it ends."""
        mark = data.rfind(_MARK)
        newline = data.find(b"\n", mark + 1)
        if mark >= 0 and newline < 0:  # the line itself is torn
            mark = data.rfind(_MARK, 0, mark + 1)
            newline = data.find(b"\n", mark + 1)
        return None if mark < 0 else (self._commit(data[mark + 1 : newline + 1], start + mark + 1), start + newline + 1)

    def _commit(self, line: bytes, offset: int) -> Commit:
        """Read the commit line at an offset. An older one that stands at the end, where it does not belong, is refused."""
        try:
            commit = read_commit(line)
        except BadLineError as error:
            raise self.damaged(offset, str(error)) from error
        if commit.offset + commit.size != offset:
            for _ in self.batches(self._opening(), offset + len(line)):
                pass  # until the first one that is not where it was written
            raise self.damaged(offset, f"the commit belongs at offset {commit.offset + commit.size}")
        return commit

    def _before(self, tail: Tail, index: int) -> int:
        """Return where a batch begins that has the item, or that comes shortly before the one that has it.

        A search by halves over the bytes: from wherever it looks, the next commit says how many items there are up to
        it. It starts from the end, in leaps, so that the newest items are found as fast in a long file as in a short one.
        """
        if tail.commit.count - tail.commit.items <= index:
            return tail.commit.offset
        low, high, leap = self._opening(), tail.commit.offset, NEAR
        near_end = True
        while high - low > NEAR:
            middle = max(high - leap, (low + high) // 2) if near_end else (low + high) // 2
            leap *= 4
            found = self._next_commit(middle, high)
            if found is None:
                high = middle
                continue
            commit, end = found
            if commit.count <= index:
                low, near_end = end, False
            elif commit.count - commit.items <= index:
                return commit.offset
            else:
                high = commit.offset
        return low

    def _next_commit(self, start: int, stop: int) -> tuple[Commit, int] | None:
        """Return the first commit line that begins between two offsets, and where it ends."""
        data, size = b"", BLOCK
        while True:
            more = self._disk.read(self.file, start - 1 + len(data), size)
            data += more
            mark = data.find(_MARK, 0, stop - start + len(_MARK) - 1)
            newline = data.find(b"\n", mark + 1) if mark >= 0 else -1
            if newline >= 0:
                return self._commit(data[mark + 1 : newline + 1], start + mark), start + newline
            if mark < 0 and len(data) >= stop - start + len(_MARK) - 1:
                return None
            if not more:
                raise self.damaged(start, "the file was cut while it was read")
            size = len(data)
