"""Heads and operations as the scripts have them. The format is part of the stored layout; `head.lua` reads and writes the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from perdure.backend import Append, Delete, Head, JournalInfo, SchemaVersionError, StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.backend import Operation

FORMAT = 1
EPOCH = datetime(1, 1, 1, tzinfo=UTC)  # no instant is before it, so that none needs a sign
MICROSECOND = timedelta(microseconds=1)


class Stored(NamedTuple):
    """A head as it is stored.

    Attributes:
        info: What listings tell.
        rewritten: The version of the last `Replace`.
        birth: What tells the journal from another one of the same id that was deleted: its first version and its creation.
    """

    info: JournalInfo
    rewritten: int
    birth: bytes


def read_head(name: str, text: bytes, where: str) -> Stored:
    """Return what the first element of a journal says.

    Raises:
        SchemaVersionError: A newer release wrote it.
        StoreCorruptedError: It is not a head.
    """
    line, _, rest = text.partition(b"\n")
    fields = line.split(b" ")
    if fields[0].isdigit() and int(fields[0]) > FORMAT:
        raise SchemaVersionError(where, int(fields[0]), FORMAT)
    try:
        _, version, count, rewritten = (int(field) for field in fields[:4])
        first, created, updated, group, status = fields[4:]
        group_end = 0 if group == b"-" else int(group)
        status_end = group_end + (0 if status == b"-" else int(status))
        if not 0 <= group_end <= status_end <= len(rest):
            raise ValueError("it ends too early")
        head = Head(
            None if group == b"-" else rest[:group_end].decode("utf-8", "surrogatepass"),
            None if status == b"-" else rest[group_end:status_end].decode("utf-8", "surrogatepass"),
            rest[status_end:],
        )
        info = JournalInfo(name, version, count, head, instant(created), instant(updated))
        return Stored(info, rewritten, b"%s@%s" % (first, created))
    except (ValueError, OverflowError) as error:
        raise StoreCorruptedError(where, "its first element is not a head", name) from error


def arguments(operation: Operation, seen: bytes) -> Sequence[bytes]:
    """Return the arguments of `write.lua` for one operation; `seen`: as it has them."""
    key, expected = operation.key, operation.expected_version
    name = (key.part.encode(), key.id.encode(), b"" if expected is None else b"%d" % expected)
    if isinstance(operation, Delete):
        return (b"D", *name, b"", b"", b"", b"", b"", seen, b"0")
    kind, number = (b"A", operation.first_version) if isinstance(operation, Append) else (b"R", operation.keep)
    head, items = operation.head, operation.items
    fields = (
        given(head.group),
        given(head.status),
        b"" if head.data is None else b"=" + head.data,
        seen,
        b"%d" % len(items),
    )
    return (kind, *name, b"%d" % number, digits(operation.at), *fields, *items)


def given(text: str | None) -> bytes:
    """Return a text that may be absent, which is another thing than empty."""
    return b"" if text is None else b"=" + text.encode("utf-8", "surrogatepass")


def digits(at: datetime | None) -> bytes:
    """Return an instant as microseconds in 18 digits, whose order as text is that of time; nothing for `None`."""
    return b"" if at is None else b"%018d" % ((at - EPOCH) // MICROSECOND)


def instant(text: bytes) -> datetime:
    """Return the instant that `digits` wrote."""
    return EPOCH + int(text) * MICROSECOND
