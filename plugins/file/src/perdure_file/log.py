"""One open file, read from its end: nothing costs more than what it returns."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from perdure_file.disk import identity
from perdure_file.items import Items, Piece
from perdure_file.known import Checked, Known
from perdure_file.lines import (
    COMMIT,
    LONGEST_OPENING,
    BadLineError,
    Commit,
    check_opening,
    check_writes,
    is_torn,
    read_commit,
    read_step,
)
from perdure_file.reports import damage

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from perdure.backend import StoreCorruptedError
    from perdure_file.disk import Disk

BLOCK: Final = 4096
"""What is read first of a file's end. A commit is some 300 bytes and the head."""

CHUNK: Final = 1 << 18
"""What is read at once where much is read."""

NEAR: Final = 1 << 16
"""Reading so much is cheaper than looking for a nearer place to begin."""

SMALL: Final = 1 << 15
"""A smaller piece is checked each time, so that what is known does not become many small pieces."""

LARGE: Final = 1 << 14
"""Items of more than so many bytes are checked each time: their checksums are nearly all that it costs."""

_MARK: Final = b"\n" + COMMIT


class Tail(NamedTuple):
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
    """An open file of a key. It raises `StoreCorruptedError` with path, line and offset.

    Attributes:
        where: Its path, for messages.
        file: Its descriptor.
        size: How large it was when it was opened.
    """

    def __init__(self, disk: Disk, file: int, part: str, id: str, where: str, known: Known | None = None) -> None:
        """Take an open file, which is closed by `close`, and what has been checked of files."""
        self._disk, self._known = disk, Known() if known is None else known
        self._part, self._id, self.where = part, id, where
        self.file, status = file, disk.status(file)
        self._regular, self._identity, self.size = stat.S_ISREG(status.st_mode), identity(status), status.st_size
        self._last: Tail | None = None
        self._begin: int | None = None

    def check(self) -> None:
        """Look at the first line, so that a newer format is refused untouched; close the file if it is none of ours."""
        try:
            if not self._regular:
                raise damage(f"{self.where} ({self._part} {self._id})", "it is not a regular file")
            self._opening()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._disk.let_go(self.file)

    def still_at(self, status: os.stat_result) -> bool:
        """Whether this is the file of that status, and not one that was there before it."""
        return self._identity == identity(status)

    def tail(self, size: int | None = None) -> Tail:
        """Find the last whole commit, reading backwards from the end, twice as much each time.

        Args:
            size: The size of the file, if it is known.
        """
        block = BLOCK
        if size is None:
            size = self._disk.status(self.file).st_size
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

    def items(self, tail: Tail, start: int, stop: int) -> Items:
        """Read items `start` to `stop`, and little more at either end."""
        pieces: list[Piece] = []
        first = stop
        if start < stop:
            end, first = self._reaching(tail, stop)
            for piece in self._pieces(end, first, start):
                pieces.insert(0, piece)
                first -= piece.items
        return Items(pieces, start - first, stop - start, f"{self.where} ({self._part} {self._id})")

    def damaged(self, offset: int, problem: str) -> StoreCorruptedError:
        """Return the error of a damage at an offset."""
        pieces = (self._disk.read(self.file, start, min(CHUNK, offset - start)) for start in range(0, offset, CHUNK))
        line = 1 + sum(piece.count(b"\n") for piece in pieces)
        return damage(f"{self.where}, line {line}, offset {offset} ({self._part} {self._id})", problem)

    def _pieces(self, end: int, count: int, start: int) -> Iterator[Piece]:
        """Read and check writes, backwards.

        Args:
            end: Where the last of them ends.
            count: How many items there are up to there.
            start: The index of the first item that is needed. 0: all, and so the writes before it that have no items.
        """
        opening = self._opening()
        enough, missing, chunk = start or -1, 0, NEAR
        known = self._known.of(self.where)
        while end > opening and count > enough:
            checked = known.get(end)
            if checked is not None and checked.total == count and count - checked.items >= start:
                data = self._disk.read(self.file, checked.start, end - checked.start)
                if crc32(data) == checked.checksum:
                    yield Piece(data, 0, checked.items)
                    end, count = checked.start, count - checked.items
                    continue
                known.clear()
            first = max((place for place in tuple(known) if place < end), default=opening)
            offset = max(first - 1, end - max(missing, chunk))  # never without a newline before the first write
            data = self._disk.read(self.file, offset, end - offset)
            try:
                if len(data) < end - offset:
                    raise BadLineError("the file was cut while it was read")
                place, left, missing = check_writes(data, offset, count, enough)
                if place == len(data) and offset < opening:
                    raise BadLineError("the first write is not whole")
            except BadLineError as error:
                raise self._first_damage(offset, end, str(error)) from error
            if place < len(data):
                piece = Piece(data, place, count - left)
                yield piece
                chunk = min(2 * chunk, CHUNK)
                if start == 0 and SMALL <= len(data) - place <= LARGE * piece.items:
                    known[end] = Checked(offset + place, crc32(memoryview(data)[place:]), piece.items, count)
            elif offset < first:
                known.clear()  # no write begins where one did: it is another file by now
            end, count = offset + place, left
        if count > start:
            raise self.damaged(opening, "items that are counted are not there")

    def _first_damage(self, offset: int, end: int, problem: str) -> StoreCorruptedError:
        """Return the error of the first damage before `end`, or of the one at an offset if none comes before it."""
        start = place = self._opening()
        checksum = 0
        for line in self._lines(place, end):
            if line.startswith(COMMIT):
                try:
                    step = read_step(line)
                except BadLineError as error:
                    return self.damaged(start, str(error))
                if step.offset != start:
                    return self.damaged(start, f"the write that begins here belongs at offset {step.offset}")
                if (step.size, int(step.crc32, 16)) != (place - start, checksum):
                    return self.damaged(start, "the items are not those that were written")
                start, checksum = place + len(line), 0
            else:
                checksum = crc32(line, checksum)
            place += len(line)
        return self.damaged(start if start < end else offset, problem)

    def _lines(self, start: int, end: int) -> Iterator[bytes]:
        """Read lines one after the other, with their newlines."""
        rest = b""
        for offset in range(start, end, CHUNK):
            rest += self._disk.read(self.file, offset, min(CHUNK, end - offset))
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line + b"\n"
        yield rest

    def _opening(self) -> int:
        """Check the first line, and return where it ends."""
        if self._begin is not None:
            return self._begin
        line, newline, _ = self._disk.read(self.file, 0, LONGEST_OPENING).partition(b"\n")
        try:
            check_opening(line + newline, self._part, self._id, self.where)
        except BadLineError as error:
            raise self.damaged(0, str(error)) from error
        self._begin = len(line) + 1
        return self._begin

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
            problem = f"the commit belongs at offset {commit.offset + commit.size}"
            raise self._first_damage(offset, offset + len(line), problem)
        return commit

    def _reaching(self, tail: Tail, stop: int) -> tuple[int, int]:
        """Return where a commit ends that has counted so many items, or one shortly behind it, and how many it counts.

        A search by halves over the bytes: from wherever it looks, the next commit says how many items there are up to
        it. It starts from the end, in leaps, so that the newest items are found as fast in a long file as in a short one.
        """
        commit, end = tail.commit, tail.end
        low, high, leap, near_end = self._opening(), commit.offset, NEAR, True
        while commit.count - commit.items >= stop and high - low > NEAR:
            middle = max(high - leap, (low + high) // 2) if near_end else (low + high) // 2
            leap *= 4
            found = self._next_commit(middle, high)
            if found is None:
                high = middle
            elif found[0].count < stop:
                low, near_end = found[1], False
            else:
                commit, end = found
                high = commit.offset
        return end, commit.count

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
