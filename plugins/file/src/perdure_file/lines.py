"""The lines of a file. Each is one JSON object, and its first key says what it is; nothing here touches a disk.

    {"perdure":"file","format":1,"part":"sessions","id":"order-7","check":"…"}     the first line
    {"item":{"role":"user","content":"…"}}                                        one item, as it was given
    {"base64":"…"}                                                                one item that is not one line of JSON
    {"commit":{"version":…,"count":…,"items":1,"offset":…,…},"check":"…"}          the end of one write

A write is its items and then its commit. An item has no raw newline, so a line that begins with `{"commit":` is a
commit, wherever one starts to read. `check` is the CRC-32 of the line before it, `crc32` that of the items' lines.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from perdure.backend import Head, SchemaVersionError, codec

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
ITEM, BASE64, COMMIT = b'{"item":', b'{"base64":"', b'{"commit":'
LONGEST_OPENING = 512

_SEAL = b',"check":"%08x"}\n'
_SEAL_SIZE = len(_SEAL % 0)
_BASE64_LINE = re.compile(rb'\{"base64":"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"\}')
_SEALED = re.compile(rb',"check":"([0-9a-f]{8})"\}')
_NOTHING = msgspec.Raw()
_NOT_AS_WRITTEN = "the line is not as it was written"


class BadLineError(Exception):
    """A line is not what was written."""


class OtherKeyError(BadLineError):
    """The file is that of another key."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a commit line says: the key as it is from this write on.

    Attributes:
        version: The key's version.
        count: How many items it has.
        items: How many of them this write added.
        offset: Where the write begins in the file.
        size: How many bytes the lines of its items have, so that the commit's own place is known.
        rewritten: The version of the last `Replace`, or 0.
        created_at: When the key was made.
        updated_at: When it was written last.
        group, status, data: The head; what is absent is `None`, and `b""` for `data`.
        crc32: The check of the items' lines.
    """

    version: int
    count: int
    items: int
    offset: int
    size: int
    rewritten: int
    created_at: datetime
    updated_at: datetime
    group: msgspec.Raw = _NOTHING
    group_base64: str | None = None
    status: msgspec.Raw = _NOTHING
    status_base64: str | None = None
    data: msgspec.Raw = _NOTHING
    data_base64: str | None = None
    crc32: str

    @property
    def head(self) -> Head:
        """The head of the key."""
        return Head(
            _text(self.group, self.group_base64),
            _text(self.status, self.status_base64),
            _bytes(self.data, self.data_base64),
        )


class Step(msgspec.Struct, frozen=True, gc=False):
    """What a commit line says about the lines before it, which is all that whoever reads items has to know.

    Attributes:
        count, items, offset, size, crc32: As in `Commit`.
    """

    count: int
    items: int
    offset: int
    size: int
    crc32: str


class _CommitLine(msgspec.Struct):
    commit: Commit


class _StepLine(msgspec.Struct, gc=False):
    commit: Step


class _Line(msgspec.Struct, gc=False):
    item: Any = None


class _Opening(msgspec.Struct):
    perdure: str
    format: int
    part: str = ""
    id: str = ""


_encode = msgspec.json.Encoder().encode
_commit_line = msgspec.json.Decoder(_CommitLine)
_step_line = msgspec.json.Decoder(_StepLine)
_line = msgspec.json.Decoder(_Line)
_opening_line = msgspec.json.Decoder(_Opening)
_any_line = msgspec.json.Decoder(msgspec.Raw)


def write_opening(part: str, id: str) -> bytes:
    """Return the first line of a file."""
    return _sealed(b'{"perdure":"file","format":%d,"part":"%s","id":"%s"' % (FORMAT, part.encode(), id.encode()))


def check_opening(line: bytes, part: str, id: str, where: str) -> None:
    """Raise `SchemaVersionError` for a newer format, and `BadLineError` unless the line opens the file of a key."""
    try:
        opening = _opening_line.decode(_checked(line))
    except msgspec.MsgspecError as error:
        raise BadLineError(f"the first line is not perdure's: {error}") from error
    if opening.format > FORMAT:
        raise SchemaVersionError(where, opening.format, FORMAT)
    if (opening.part, opening.id) != (part, id):
        raise OtherKeyError(f"the file is that of {opening.part} {opening.id}")


def write_batch(
    items: Iterable[bytes],
    *,
    version: int,
    before: int,
    offset: int,
    rewritten: int,
    created_at: datetime,
    updated_at: datetime,
    head: Head,
    old: Commit | None = None,
) -> tuple[bytes, Commit]:
    """Return the lines of one write, its items and the commit, and what the commit says.

    Args:
        items: The items.
        version: The key's version from now on.
        before: How many items the key has before these.
        offset: Where the lines will begin in the file.
        rewritten: The version of the last `Replace`, or 0.
        created_at: When the key was made.
        updated_at: When it is written.
        head: The head; what it leaves open is as in `old`.
        old: The commit before.
    """
    lines = [_write_item(item) for item in items]
    batch = b"".join(lines)
    group, group_base64 = _field(_encoded(head.group), None if old is None else (old.group, old.group_base64))
    status, status_base64 = _field(_encoded(head.status), None if old is None else (old.status, old.status_base64))
    data, data_base64 = _field(head.data, None if old is None else (old.data, old.data_base64))
    commit = Commit(
        version=version,
        count=before + len(lines),
        items=len(lines),
        offset=offset,
        size=len(batch),
        rewritten=rewritten,
        created_at=created_at,
        updated_at=updated_at,
        group=group,
        group_base64=group_base64,
        status=status,
        status_base64=status_base64,
        data=data,
        data_base64=data_base64,
        crc32=f"{crc32(batch):08x}",
    )
    return batch + _sealed(COMMIT + _encode(commit)), commit


def read_commit(line: bytes) -> Commit:
    """Read a commit line with its newline, or raise `BadLineError`."""
    try:
        return _commit_line.decode(_checked(line)).commit
    except msgspec.MsgspecError as error:
        raise BadLineError(f"the commit cannot be read: {error}") from error


def read_step(line: bytes) -> Step:
    """Read the part of a commit line that tells of its items, or raise `BadLineError`."""
    try:
        return _step_line.decode(_checked(line)).commit
    except msgspec.MsgspecError as error:
        raise BadLineError(f"the commit cannot be read: {error}") from error


def check_writes(data: bytes, offset: int, count: int, enough: int) -> tuple[int, int, int]:
    """Check the writes at the end of a piece of a file, from the last one back.

    A commit says where its write begins; there the commit before it ends.

    Args:
        data: The piece. It ends with a commit line.
        offset: Where it begins in the file.
        count: How many items there are up to its end.
        enough: Go on while more items than this come before.

    Returns:
        Where the writes begin that have been checked, how many items come before them, and how many bytes the one before
        them needs at least.

    Raises:
        BadLineError: Something is not as it was written.
    """
    view, place, missing = memoryview(data), len(data), 0
    while place and count > enough:
        newline = data.rfind(b"\n", 0, place - 1)
        if newline < 0:
            missing = 2 * place
            break
        line = data[newline + 1 : place]
        if not line.endswith(_SEAL % crc32(line[:-_SEAL_SIZE])):  # as `_checked`, which would be another call
            raise BadLineError(_NOT_AS_WRITTEN)
        try:
            step = _step_line.decode(line).commit
        except msgspec.MsgspecError as error:
            raise BadLineError(f"the commit cannot be read: {error}") from error
        start = step.offset - offset
        if start < 0:
            missing = place - start
            break
        if not start <= newline + 1 == step.offset + step.size - offset:
            raise BadLineError(f"the commit belongs at offset {step.offset + step.size}")
        if crc32(view[start : newline + 1]) != int(step.crc32, 16):
            raise BadLineError("the items are not those that were written")
        if step.count != count or not 0 <= step.items <= count:
            raise BadLineError("the number of its items is not as it was written")
        place, count = start, count - step.items
    return place, count, missing


def decode_items(lines: memoryview, count: int) -> list[Any] | None:
    """Decode the items of some lines, all in one call; `None` if not each of so many is a JSON object as msgspec reads it."""
    try:
        found = [line.item for line in _line.decode_lines(lines) if type(line.item) is dict]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if len(found) == count else None


def read_items(data: bytes, start: int) -> list[bytes]:
    """Return the items of the lines from an offset on, which have been checked. Each is copied once: it may be large."""
    items: list[bytes] = []
    while start < len(data):
        end = data.index(b"\n", start)
        if data.startswith(ITEM, start):
            items.append(data[start + len(ITEM) : end - 1])
        elif data.startswith(BASE64, start):
            items.append(b64decode(data[start + len(BASE64) : end - 2]))
        start = end + 1
    return items


def read_item(line: bytes) -> bytes:
    """Return the item of a line that has been checked, without its newline."""
    return line[len(ITEM) : -1] if line.startswith(ITEM) else b64decode(line[len(BASE64) : -2])


def is_item(line: bytes) -> bool:
    """Whether a line without its newline is whole: an item as it could have been written."""
    if line.startswith(ITEM):
        return line.endswith(b"}") and _is_line_of_json(line) and _is_line_of_json(line[len(ITEM) : -1])
    return _BASE64_LINE.fullmatch(line) is not None


def is_torn(rest: bytes) -> bool:
    """Whether what follows the last whole commit is the beginning of a write that was not finished.

    If it is not, then something was there that is no longer readable, and dropping it would lose what was acknowledged.
    A power loss can leave a file that has its new size and not its new content, so zeros may end it.
    """
    written = rest.rstrip(b"\0")
    *lines, last = written.split(b"\n")
    if b"\0" in written or not all(map(is_item, lines)):
        return False
    if last and not any(last.startswith(kind) or kind.startswith(last) for kind in (ITEM, BASE64, COMMIT)):
        return False
    return not (last.startswith(COMMIT) and _is_whole_and_more(last + rest[len(written) :]))


def _write_item(item: bytes) -> bytes:
    if _is_line_of_json(item):
        return b"%s%s}\n" % (ITEM, item)
    return b'%s%s"}\n' % (BASE64, b64encode(item))


def _is_line_of_json(data: bytes) -> bool:
    if b"\n" in data:
        return False
    try:
        return bytes(_any_line.decode(data)) == data  # spaces around it would not come back
    except msgspec.MsgspecError:
        pass
    try:
        codec.decode(data)  # reads what msgspec refuses, such as lone surrogates
    except (ValueError, RecursionError):
        return False
    return data == data.strip()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else codec.encode(text)


def _field(data: bytes | None, old: tuple[msgspec.Raw, str | None] | None) -> tuple[msgspec.Raw, str | None]:
    """Return a part of the head as a commit has it: JSON as it is, what is none in base64, nothing where nothing is."""
    if data is None and old is not None:
        return old
    if not data:
        return _NOTHING, None
    try:
        plain = b"\n" not in data and bytes(_any_line.decode(data)) == data
    except msgspec.MsgspecError:
        plain = False
    return (msgspec.Raw(data), None) if plain else (_NOTHING, b64encode(data).decode())


def _bytes(raw: msgspec.Raw, encoded: str | None) -> bytes:
    return bytes(raw) if encoded is None else b64decode(encoded)


def _text(raw: msgspec.Raw, encoded: str | None) -> str | None:
    data = _bytes(raw, encoded)
    value: Any = codec.decode(data) if data else None
    return None if value is None else str(value)


def _sealed(text: bytes) -> bytes:
    return text + _SEAL % crc32(text)


def _is_whole_and_more(line: bytes) -> bool:
    """Whether a sealed line has something else in the place of its newline. What a head holds may look like a seal, too."""
    check = place = 0
    for seal in _SEALED.finditer(line):
        check, place = crc32(line[place : seal.start()], check), seal.start()
        if int(seal[1], 16) == check and seal.end() < len(line):
            return True
    return False


def _checked(line: bytes) -> bytes:
    """Return a line as it is, if its check is that of what stands before it."""
    if not line.endswith(_SEAL % crc32(line[:-_SEAL_SIZE])):
        raise BadLineError(_NOT_AS_WRITTEN)
    return line
