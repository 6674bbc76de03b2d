"""The journal against the least model of one, on a real server, on a cluster and on the fake."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from core.tests.journal_model import RIGHT, START, Model, compare_read, compare_scan, compare_write
from fakeredis import FakeAsyncRedis, FakeServer
from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.redis.tests.cluster import Cluster
from plugins.redis.tests.servers import VALKEY, shared
from redis.asyncio import Redis, RedisCluster

from perdure.backend import Append, Delete, Head, Key, Operation, Part, Replace
from perdure_redis import listing
from perdure_redis.journal import RedisJournal
from perdure_redis.keys import Keys
from perdure_redis.seen import LastSeen

FAR = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
Runner = Callable[[Coroutine[Any, Any, None]], None]

names = st.sampled_from(["a", "a.run", "a.turn-1.s0.c0", "a.b"])  # of one conversation: such writes may join
other_names = st.sampled_from(["a-b", "a_", "B", "b", "c", "-", "_", "0", "aa", "Z" * 128])
groups = st.sampled_from([None, "", "g", "G", "gg", "g1:", "\x00", "\x00x", "\udcff", "ä" * 200])
heads = st.builds(Head, groups, groups, st.none() | st.binary(max_size=5))
items = st.lists(st.binary(max_size=9), max_size=4).map(tuple)
times = st.integers(-3, 9).map(lambda n: START + timedelta(microseconds=n)) | st.sampled_from(
    [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), FAR, FAR - timedelta(microseconds=1)]
)
filters: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"group": groups, "status": groups, "before": times | st.none(), "limit": st.integers(1, 3)}
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


@pytest.mark.parametrize("power", [32, 53, 63, 100, 20_000])
def test_a_window_may_be_larger_than_any_list(run: Runner, journal: RedisJournal, power: int) -> None:
    number = 2**power

    async def read() -> None:
        key = Key(Part.SESSIONS, "windows")
        await journal.write([Append(key, (b"1", b"2"), Head(), None, START, 1)])
        for window, left in (
            ({"limit": number}, [b"1", b"2"]),
            ({"last": number}, [b"1", b"2"]),
            ({"after": 1, "limit": number}, [b"2"]),
            ({"after": number, "limit": number}, []),
        ):
            found = await journal.read(key, **window)
            assert found is not None
            assert found.items == left
        await journal.write([Delete(key, None)])

    run(read())


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
        await compare_write(journal, model, drawn)
    for key in sorted({operation.key for drawn in script for operation in drawn}):
        await compare_read(journal, model, key, data)
    for part in Part:
        for order in ("id", "created", "recent"):
            budget = data.draw(st.sampled_from([1, 3, listing.BUDGET]))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(listing, "BUDGET", budget)
                await compare_scan(journal, model, part, order, **data.draw(filters))
