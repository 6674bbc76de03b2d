"""The journal against the least model of one."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.backend import (
    Append,
    Delete,
    Head,
    JournalInfo,
    Key,
    Operation,
    Part,
    Position,
    Replace,
    VersionConflictError,
)
from perdure_sqlite.journal import SqliteJournal

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
        old, new = entry.head, operation.head
        entry.head = Head(*(o if n is None else n for o, n in zip(fields(old), fields(new), strict=True)))
        return entry.version


def fields(head: Head) -> tuple[Any, ...]:
    return head.group, head.status, head.data


names = st.sampled_from(["a", "B", "a-b", "a'b", 'a"--', "a%", "a_", "ä", "\U0001f600", "\uffff"])
keys = st.builds(Key, st.sampled_from(Part), names)
groups = st.sampled_from([None, "", "g", "G", "g'", "\x00", "\x00x"])
heads = st.builds(Head, groups, groups, st.none() | st.binary(max_size=5))
items = st.lists(st.binary(max_size=9), max_size=4).map(tuple)
times = st.integers(-3, 9).map(lambda n: START + timedelta(microseconds=n))
expected = st.sampled_from([None, None, 0, RIGHT, RIGHT, 7])
appends = st.builds(Append, keys, items, heads, expected, times, st.integers(1, 2**40))
replaces = st.builds(Replace, keys, st.integers(0, 4), items, heads, expected, times)
deletes = st.builds(Delete, keys, expected)
writes = st.lists(appends | appends | replaces | deletes, min_size=1, max_size=3, unique_by=lambda o: o.key)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Run a coroutine in a loop that all examples share."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def journal(run: Callable[[Coroutine[Any, Any, None]], None]) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(":memory:")
    run(journal.open())
    yield journal
    run(journal.close())


@given(script=st.lists(writes, max_size=12), data=st.data())
def test_the_journal_is_the_model(
    run: Callable[[Coroutine[Any, Any, None]], None],
    journal: SqliteJournal,
    script: list[list[Operation]],
    data: st.DataObject,
) -> None:
    journal.namespace += "a"  # each example has a namespace of its own, of which those before it are prefixes
    run(compare(journal, script, data))


async def compare(journal: SqliteJournal, script: list[list[Operation]], data: st.DataObject) -> None:
    model = Model()
    for drawn in script:
        operations = [rightly(operation, model) for operation in drawn]
        assert await answer_of(journal, operations) == answer_of_model(model, operations)
    await compare_reads(journal, model, data)
    await compare_scans(journal, model, data)


def rightly(operation: Operation, model: Model) -> Operation:
    """Put the version that is there for the one drawn as `RIGHT`."""
    if operation.expected_version != RIGHT:
        return operation
    entry = model.entries.get(operation.key)
    return replace(operation, expected_version=0 if entry is None else entry.version)


async def answer_of(journal: SqliteJournal, operations: list[Operation]) -> object:
    try:
        return await journal.write(operations)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


def answer_of_model(model: Model, operations: list[Operation]) -> object:
    try:
        return model.write(operations)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


async def compare_reads(journal: SqliteJournal, model: Model, data: st.DataObject) -> None:
    small = st.integers(0, 6)
    for part in Part:
        for name in ("a", "B", "ä"):
            key, entry = Key(part, name), model.entries.get(Key(part, name))
            after, limit, last = data.draw(small), data.draw(small | st.none()), data.draw(small | st.none())
            if last is None:
                found = await journal.read(key, after=after, limit=limit)
            else:
                found = await journal.read(key, last=last)
            if entry is None:
                assert found is None
                continue
            count = len(entry.items)
            begin = min(after, count) if last is None else max(0, count - last)
            end = count if last is not None or limit is None else begin + limit
            assert found is not None
            assert (found.start, list(found.items), found.rewritten) == (begin, entry.items[begin:end], entry.rewritten)
            assert (found.head, found.version, found.count) == (entry.head, entry.version, count)


async def compare_scans(journal: SqliteJournal, model: Model, data: st.DataObject) -> None:
    for part in Part:
        for order in ("id", "created", "recent"):
            group, status, before = data.draw(groups), data.draw(groups), data.draw(times | st.none())
            limit = data.draw(st.integers(1, 3))
            wanted = [
                entry.info(key.id)
                for key, entry in model.entries.items()
                if key.part == part
                and group in {None, entry.head.group}
                and status in {None, entry.head.status}
                and (before is None or entry.updated_at < before)
            ]
            wanted.sort(key=lambda info: (position(info, order).at or START, info.id), reverse=order == "recent")
            found: list[JournalInfo] = []
            while page := await journal.scan(
                part,
                group=group,
                status=status,
                before=before,
                order=order,
                after=position(found[-1], order) if found else None,
                limit=limit,
            ):
                assert len(page) <= limit
                found += page
            assert found == wanted


def position(info: JournalInfo, order: str) -> Position:
    return Position({"id": None, "created": info.created_at, "recent": info.updated_at}[order], info.id)
