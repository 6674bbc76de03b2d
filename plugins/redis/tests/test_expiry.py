"""Time to live: a conversation as a whole, and nothing of it left."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from plugins.redis.tests.cluster import Cluster
from redis.asyncio import Redis, RedisCluster

from perdure.backend import Append, Delete, Head, Key, Part
from perdure_redis.journal import RedisJournal
from perdure_redis.keys import tag_of

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 2, tzinfo=UTC)
CONVERSATION = [
    Key(Part.SESSIONS, "s"),
    Key(Part.RUNS, "s"),
    Key(Part.RUNS, "s.run"),
    Key(Part.APPROVALS, "s.turn-1.s0.c0"),
    Key(Part.APPROVALS, "s.turn-1.s0.c1"),
]


def write(key: Key, at: datetime = AT) -> Append:
    group = "s" if key.part is Part.APPROVALS else None
    return Append(key, (b"1",), Head(group=group, status="idle"), None, at, 1)


async def everything(client: Any, namespace: str) -> list[str]:
    """All keys of a namespace: what the store itself never asks for."""
    return sorted([key.decode() async for key in client.scan_iter(f"perdure:{namespace}:*", count=1000)])


async def listed(journal: RedisJournal, part: Part) -> list[str]:
    found = await journal.scan(part, group=None, status=None, before=None, order="id", after=None, limit=100)
    return [info.id for info in found]


async def test_every_write_puts_off_the_end_of_all_keys(client: Redis, namespace: str) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=1000)
    await journal.open()
    for key in CONVERSATION:
        await journal.write([write(key)])
    other = Key(Part.SESSIONS, "other")
    await journal.write([write(other)])
    keys = await everything(client, namespace)
    assert len(keys) == 12  # six journals; of each part an index and a list of what is due
    for last in CONVERSATION:
        for name in keys:
            await client.pexpire(name, 500_000)
        await journal.write([write(last)])
        ends = {name: await client.pexpiretime(name) for name in keys}
        soon = ends.pop(journal._keys.journal(*other).decode())
        assert len(set(ends.values())) == 1
        assert soon < ends.popitem()[1] - 400_000


async def test_nothing_is_left_in_the_end(client: Redis, namespace: str) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=0.05)
    await journal.open()
    await journal.write([write(key) for key in CONVERSATION])
    assert await listed(journal, Part.RUNS) in ([], ["s", "s.run"])
    deadline = asyncio.get_running_loop().time() + 20
    while await everything(client, namespace):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert await journal.read(CONVERSATION[0]) is None


# On a cluster it failed once on a loaded machine, for a cause that is not found yet: the soak test looks for it.
@pytest.mark.parametrize("kind", ["single", pytest.param("cluster", marks=pytest.mark.soak)])
async def test_what_has_expired_leaves_the_indexes(
    client: Redis, namespace: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if kind == "cluster":
        with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            async with RedisCluster(host="127.0.0.1", port=cluster.port) as clustered:
                await leave_the_indexes(clustered, namespace)
    else:
        await leave_the_indexes(client, namespace)


async def leave_the_indexes(client: Any, namespace: str) -> None:
    lasting = RedisJournal(client, namespace=namespace)
    brief = RedisJournal(client, namespace=namespace, ttl=0.001)
    for journal in (lasting, brief):
        await journal.open()
    # On a cluster an index is that of a tag, so all are of one.
    stays = next(name for name in (f"x{number}" for number in range(10_000)) if tag_of(name) == tag_of("s"))
    await lasting.write([write(Key(Part.RUNS, stays))])
    for number in range(9):
        await brief.write([write(Key(Part.RUNS, f"s.t{number}"), AT + timedelta(seconds=number))])
    index, due = lasting._keys.of(Key(Part.RUNS, "s"), expiring=True)[1:]
    deadline = asyncio.get_running_loop().time() + 20
    while await listed(lasting, Part.RUNS) != [stays]:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    # The journals are gone and not listed, also before their members leave the index; each write takes some of them off.
    journal = RedisJournal(client, namespace=namespace, ttl=1000)
    await journal.open()
    for number in range(8):
        await journal.write([write(Key(Part.RUNS, "s.last"), AT + timedelta(days=number))])
    assert await listed(lasting, Part.RUNS) == ["s.last", stays]
    assert await client.zcard(index) == 2 * 6
    assert await client.zcard(due) == 1
    await journal.write([Delete(Key(Part.RUNS, "s.last"), None)])
    assert await client.zcard(due) == 0


async def test_an_index_lasts_as_long_as_what_it_lists(client: Redis, namespace: str) -> None:
    brief = RedisJournal(client, namespace=namespace, ttl=10)
    lasting = RedisJournal(client, namespace=namespace)
    for journal in (brief, lasting):
        await journal.open()
    index = lasting._keys.of(Key(Part.RUNS, "a"), expiring=True)[1]
    await brief.write([write(Key(Part.RUNS, "a"))])
    assert 0 < await client.pttl(index) <= 10_000
    longer = RedisJournal(client, namespace=namespace, ttl=100)
    await longer.open()
    await longer.write([write(Key(Part.RUNS, "b"))])
    await brief.write([write(Key(Part.RUNS, "a"))])
    assert await client.pttl(index) > 10_000
    await lasting.write([write(Key(Part.RUNS, "c"))])
    assert await client.pttl(index) == -1
    await brief.write([write(Key(Part.RUNS, "a"))])
    assert await client.pttl(index) == -1
