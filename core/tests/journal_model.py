"""The least model of a journal, and comparisons of a journal with it. The tests of a plugin draw what is written."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from perdure.backend import (
    Append,
    Delete,
    Head,
    Journal,
    JournalInfo,
    Key,
    Operation,
    Part,
    Position,
    Replace,
    VersionConflictError,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
RIGHT = -1  # drawn for the version that is there


@dataclass
class Entry:
    version: int
    created_at: datetime
    updated_at: datetime
    items: list[bytes] = field(default_factory=list)
    head: Head = field(default_factory=lambda: Head(data=b""))
    rewritten: int = 0

    def info(self, name: str) -> JournalInfo:
        return JournalInfo(name, self.version, len(self.items), self.head, self.created_at, self.updated_at)


class Model:
    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}

    def check(self, operation: Operation) -> None:
        entry = self.entries.get(operation.key)
        actual = 0 if entry is None else entry.version
        wrong = operation.expected_version not in {None, actual}
        if isinstance(operation, Replace):
            wrong = wrong or entry is None or operation.keep > len(entry.items)
        if wrong:
            raise VersionConflictError(operation.key.id, operation.expected_version, actual)

    def write(self, operations: list[Operation]) -> tuple[int, ...]:
        for operation in operations:
            self.check(operation)
        return tuple(self.apply(operation) for operation in operations)

    def apply(self, operation: Operation) -> int:
        entry = self.entries.get(operation.key)
        if isinstance(operation, Delete):
            return 0 if entry is None else self.entries.pop(operation.key).version
        if entry is None:
            assert isinstance(operation, Append)
            entry = self.entries[operation.key] = Entry(operation.first_version, operation.at, operation.at)
        else:
            entry.version += 1
        if isinstance(operation, Replace):
            del entry.items[operation.keep :]
            entry.rewritten = entry.version
        entry.items += operation.items
        entry.updated_at = max(entry.updated_at, operation.at)
        pairs = zip(_fields(entry.head), _fields(operation.head), strict=True)
        entry.head = Head(*(old if new is None else new for old, new in pairs))
        return entry.version


def _fields(head: Head) -> tuple[Any, ...]:
    return head.group, head.status, head.data


async def compare_write(journal: Journal, model: Model, drawn: list[Operation]) -> None:
    """Write to both; they answer the same, or refuse the same."""
    operations = [_rightly(operation, model) for operation in drawn]
    assert await _answer_of(journal, operations) == _answer_of_model(model, operations)


def _rightly(operation: Operation, model: Model) -> Operation:
    """Put the version that is there for the one drawn as `RIGHT`."""
    if operation.expected_version != RIGHT:
        return operation
    entry = model.entries.get(operation.key)
    return replace(operation, expected_version=0 if entry is None else entry.version)


async def _answer_of(journal: Journal, operations: list[Operation]) -> object:
    try:
        return await journal.write(operations)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


def _answer_of_model(model: Model, operations: list[Operation]) -> object:
    try:
        return model.write(operations)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


async def compare_read(journal: Journal, model: Model, key: Key, data: st.DataObject) -> None:
    """Read a window of one key from both."""
    small, entry = st.integers(0, 6), model.entries.get(key)
    after, limit, last = data.draw(small), data.draw(small | st.none()), data.draw(small | st.none())
    if last is None:
        found = await journal.read(key, after=after, limit=limit)
    else:
        found = await journal.read(key, last=last)
    if entry is None:
        assert found is None
        return
    count = len(entry.items)
    begin = min(after, count) if last is None else max(0, count - last)
    end = count if last is not None or limit is None else begin + limit
    assert found is not None
    assert (found.start, list(found.items), found.rewritten) == (begin, entry.items[begin:end], entry.rewritten)
    info = JournalInfo(found.id, found.version, found.count, found.head, found.created_at, found.updated_at)
    assert info == entry.info(key.id)


async def compare_scan(
    journal: Journal,
    model: Model,
    part: Part,
    order: str,
    *,
    group: str | None,
    status: str | None,
    before: datetime | None,
    limit: int,
) -> None:
    """List all of a part that matches, page by page."""
    wanted = [
        entry.info(key.id)
        for key, entry in model.entries.items()
        if key.part == part
        and group in {None, entry.head.group}
        and status in {None, entry.head.status}
        and (before is None or entry.updated_at < before)
    ]
    wanted.sort(key=lambda info: (_position(info, order).at or START, info.id), reverse=order == "recent")
    found: list[JournalInfo] = []
    while page := await journal.scan(
        part,
        group=group,
        status=status,
        before=before,
        order=order,
        after=_position(found[-1], order) if found else None,
        limit=limit,
    ):
        assert len(page) <= limit
        found += page
    assert found == wanted


def _position(info: JournalInfo, order: str) -> Position:
    return Position({"id": None, "created": info.created_at, "recent": info.updated_at}[order], info.id)
