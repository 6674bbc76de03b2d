"""The journal against the least model of one."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest
from core.tests.journal_model import RIGHT, START, Model, compare_read, compare_scan, compare_write
from hypothesis import given
from hypothesis import strategies as st

from perdure.backend import Append, Delete, Head, Key, Operation, Part, Replace
from perdure_sqlite.journal import SqliteJournal

Runner = Callable[[Coroutine[Any, Any, None]], None]

names = st.sampled_from(["a", "B", "a-b", "a'b", 'a"--', "a%", "a_", "ä", "\U0001f600", "\uffff"])
keys = st.builds(Key, st.sampled_from(Part), names)
groups = st.sampled_from([None, "", "g", "G", "g'", "\x00", "\x00x"])
heads = st.builds(Head, groups, groups, st.none() | st.binary(max_size=5))
items = st.lists(st.binary(max_size=9), max_size=4).map(tuple)
times = st.integers(-3, 9).map(lambda n: START + timedelta(microseconds=n))
filters: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"group": groups, "status": groups, "before": times | st.none(), "limit": st.integers(1, 3)}
)
expected = st.sampled_from([None, None, 0, RIGHT, RIGHT, 7])
appends = st.builds(Append, keys, items, heads, expected, times, st.integers(1, 2**40))
replaces = st.builds(Replace, keys, st.integers(0, 4) | st.just(2**63), items, heads, expected, times)
deletes = st.builds(Delete, keys, expected)
writes = st.lists(appends | appends | replaces | deletes, min_size=1, max_size=3, unique_by=lambda o: o.key)


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    """Run a coroutine in a loop that all examples share."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def journal(run: Runner) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(":memory:")
    run(journal.open())
    yield journal
    run(journal.close())


@given(script=st.lists(writes, max_size=12), data=st.data())
def test_the_journal_is_the_model(
    run: Runner, journal: SqliteJournal, script: list[list[Operation]], data: st.DataObject
) -> None:
    journal.namespace += "a"  # each example has a namespace of its own, of which those before it are prefixes
    run(compare(journal, script, data))


async def compare(journal: SqliteJournal, script: list[list[Operation]], data: st.DataObject) -> None:
    model = Model()
    for drawn in script:
        await compare_write(journal, model, drawn)
    for part in Part:
        for name in ("a", "B", "ä"):
            await compare_read(journal, model, Key(part, name), data)
        for order in ("id", "created", "recent"):
            await compare_scan(journal, model, part, order, **data.draw(filters))
