"""The journal against the least model of one, on a real server, on a cluster and on the fake."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.redis.tests.cluster import Cluster
from plugins.redis.tests.servers import VALKEY, shared
from redis.asyncio import Redis, RedisCluster

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
from perdure_redis import listing
from perdure_redis.journal import RedisJournal
from perdure_redis.keys import Keys
from perdure_redis.seen import LastSeen

START = datetime(2026, 1, 1, tzinfo=UTC)
FAR = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
RIGHT = -1  # drawn for the version that is there
Runner = Callable[[Coroutine[Any, Any, None]], None]


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
        pairs = zip((old.group, old.status, old.data), (new.group, new.status, new.data), strict=True)
        entry.head = Head(*(o if n is None else n for o, n in pairs))  # type: ignore[arg-type]  # reason: of two types
        return entry.version


names = st.sampled_from(["a", "a.run", "a.turn-1.s0.c0", "a.b"])  # of one conversation: such writes may join
other_names = st.sampled_from(["a-b", "a_", "B", "b", "c", "-", "_", "0", "aa", "Z" * 128])
groups = st.sampled_from([None, "", "g", "G", "gg", "g1:", "\x00", "\x00x", "\udcff", "ä" * 200])
heads = st.builds(Head, groups, groups, st.none() | st.binary(max_size=5))
items = st.lists(st.binary(max_size=9), max_size=4).map(tuple)
times = st.integers(-3, 9).map(lambda n: START + timedelta(microseconds=n)) | st.sampled_from(
    [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), FAR, FAR - timedelta(microseconds=1)]
)
expected = st.sampled_from([None, None, 0, RIGHT, RIGHT, 7])
versions = st.integers(1, 2**40) | st.sampled_from(
    [9, 999_999_999, 10**13 - 1, 10**14 - 1, 2**53 - 1, 2**53, 10**18 - 1, 2**62, 10**18 + 999_999_999]
)


def operations(name: st.SearchStrategy[str]) -> st.SearchStrategy[Operation]:
    keys = st.builds(Key, st.sampled_from(Part), name)
    appends = st.builds(Append, keys, items, heads, expected, times, versions)
    return (
        appends
        | appends
        | st.builds(Replace, keys, st.integers(0, 4), items, heads, expected, times)
        | st.builds(Delete, keys, expected)
    )


writes = st.lists(operations(names), min_size=1, max_size=3, unique_by=lambda one: one.key) | st.lists(
    operations(other_names), min_size=1, max_size=1
)


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    """Run a coroutine in a loop that all examples share."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["single", "expiring", "mixed", "cluster", "fake"])
def journal(run: Runner, request: pytest.FixtureRequest) -> Iterator[RedisJournal]:
    client: Any
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        client = RedisCluster(port=cluster.port, host="127.0.0.1")
    elif request.param == "fake":
        client = FakeAsyncRedis(server=FakeServer())
    else:
        client = Redis(port=shared(VALKEY).port)
    journal = RedisJournal(client, namespace="semantics", ttl=1000 if request.param == "expiring" else None)
    journal.title = request.param
    run(journal.open())
    yield journal
    run(client.aclose())


@settings(max_examples=25)
@given(script=st.lists(writes, max_size=12), data=st.data())
def test_the_journal_is_the_model(
    run: Runner, journal: RedisJournal, script: list[list[Operation]], data: st.DataObject
) -> None:
    run(compare(journal, script, data))


examples = 0


async def compare(journal: RedisJournal, script: list[list[Operation]], data: st.DataObject) -> None:
    global examples  # noqa: PLW0603  # reason: each example has a namespace of its own, and those before it stay
    examples += 1
    journal.namespace = f"semantics{examples}"
    journal._keys, journal._seen = Keys(journal.namespace, cluster=journal._route.cluster), LastSeen()
    model = Model()
    for number, drawn in enumerate(script):
        if journal.title == "mixed":  # some write with a time to live, some without
            journal._ttl = number % 2 * 1_000_000
        wanted = [rightly(operation, model) for operation in drawn]
        assert await answer_of(journal, wanted) == answer_of_model(model, wanted)
    for key in sorted({operation.key for drawn in script for operation in drawn}):
        await compare_read(journal, model, key, data)
    for part in Part:
        for order in ("id", "created", "recent"):
            await compare_scan(journal, model, part, order, data)


def rightly(operation: Operation, model: Model) -> Operation:
    """Put the version that is there for the one drawn as `RIGHT`."""
    if operation.expected_version != RIGHT:
        return operation
    entry = model.entries.get(operation.key)
    return replace(operation, expected_version=0 if entry is None else entry.version)


async def answer_of(journal: RedisJournal, wanted: list[Operation]) -> object:
    try:
        return await journal.write(wanted)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


def answer_of_model(model: Model, wanted: list[Operation]) -> object:
    try:
        return model.write(wanted)
    except VersionConflictError as error:
        return error.key, error.expected, error.actual


async def compare_read(journal: RedisJournal, model: Model, key: Key, data: st.DataObject) -> None:
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


async def compare_scan(journal: RedisJournal, model: Model, part: Part, order: str, data: st.DataObject) -> None:
    group, status, before = data.draw(groups), data.draw(groups), data.draw(times | st.none())
    limit, budget = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3, listing.BUDGET]))
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "BUDGET", budget)
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
