"""Time to live: a conversation as a whole, and nothing of it left."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from plugins.redis.tests.cluster import Cluster
from redis.asyncio import Redis, RedisCluster

from perdure.backend import Append, Delete, Head, Key, Part, StoreCorruptedError
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


def lists_of(journal: RedisJournal, part: Part, name: str = "s") -> tuple[bytes, bytes]:
    """The index that an id is in, and what is due of it."""
    tag = journal._keys.index_tag(name)
    return journal._keys.index(part, tag), journal._keys.due(part, tag)


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


@pytest.mark.parametrize("kind", ["single", "cluster"])
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
    index, due = lists_of(lasting, Part.RUNS)
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


async def test_what_is_due_and_cannot_be_read_is_taken_off(client: Redis, namespace: str) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=1000)
    await journal.open()
    _, due = lists_of(journal, Part.SESSIONS)
    await client.zadd(due, {"garbage": 1, "1 2 9 -\ncut": 2})
    await journal.write([write(Key(Part.SESSIONS, "s"))])
    assert await client.zcard(due) == 1


async def test_what_a_newer_release_wrote_stays_in_the_index_until_it_has_ended(client: Redis, namespace: str) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=1000)
    await journal.open()
    await journal.write([write(Key(Part.RUNS, "s"))])
    index, due = lists_of(journal, Part.RUNS)
    newer = journal._keys.journal("runs", "s")
    await client.lset(newer, 0, "2 of another release")
    members = set(await client.zrange(index, 0, -1))
    await client.zunionstore(due, {due: 1e-9})  # all of it is due
    await journal.write([write(Key(Part.RUNS, "other"))])
    assert members < set(await client.zrange(index, 0, -1))
    assert await client.zcard(due) == 2
    await client.delete(newer)
    await client.zunionstore(due, {due: 1e-9})
    await journal.write([write(Key(Part.RUNS, "third"))])
    assert not members & set(await client.zrange(index, 0, -1))


async def test_an_index_lasts_as_long_as_what_it_lists(client: Redis, namespace: str) -> None:
    brief = RedisJournal(client, namespace=namespace, ttl=10)
    lasting = RedisJournal(client, namespace=namespace)
    for journal in (brief, lasting):
        await journal.open()
    index = lasting._keys.of(Key(Part.RUNS, "a"))[1]
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


async def test_who_writes_last_says_how_long_a_conversation_is_kept(client: Redis, namespace: str) -> None:
    brief = RedisJournal(client, namespace=namespace, ttl=1000)
    lasting = RedisJournal(client, namespace=namespace)
    for journal in (brief, lasting):
        await journal.open()
    new = Key(Part.APPROVALS, "s.turn-1.s0.c2")
    for last in (*CONVERSATION, new):
        await brief.write([write(key) for key in CONVERSATION])
        ends = {name: await client.pttl(name) for name in await everything(client, namespace)}
        assert all(end > 0 for name, end in ends.items() if ":index:" not in name and ":due:" not in name)
        await lasting.write([write(last)])
        assert {name: await client.pttl(name) for name in await everything(client, namespace)} == dict.fromkeys(
            await everything(client, namespace), -1
        )
    await lasting.write([write(Key(Part.SESSIONS, "other"))])
    await brief.write([write(CONVERSATION[0])])
    for key in (*CONVERSATION, new):
        assert await client.pttl(lasting._keys.journal(*key)) > 0
    assert await client.pttl(lasting._keys.journal("sessions", "other")) == -1


async def test_what_had_no_end_leaves_the_indexes_when_it_gets_one(client: Redis, namespace: str) -> None:
    lasting = RedisJournal(client, namespace=namespace)
    brief = RedisJournal(client, namespace=namespace, ttl=0.001)
    for journal in (brief, lasting):
        await journal.open()
    await lasting.write([write(key) for key in CONVERSATION])
    await brief.write([write(Key(Part.SESSIONS, "s"))])
    for key in CONVERSATION:
        await gone(client, lasting._keys.journal(*key))
    # Whoever creates a key takes some off, also without a time to live; what is in the place of a journal stops nobody.
    await client.set(lasting._keys.journal(*CONVERSATION[-1]), "of another program")
    for part in Part:
        await lasting.write([write(Key(part, "other")), write(Key(part, "other.run"))])
        index, due = lists_of(lasting, part, "other")
        assert await client.zcard(due) == 0
        ids = await client.zrangebylex(index, "[i:", "(i;")
        assert ids == [b"i:other", b"i:other.run"]
        assert await client.zcard(index) == sum(9 if part is Part.APPROVALS else 6 for _ in ids)


async def test_what_is_due_is_known_as_long_as_its_index(client: Redis, namespace: str) -> None:
    lasting = RedisJournal(client, namespace=namespace)
    brief = RedisJournal(client, namespace=namespace, ttl=1000)
    for journal in (brief, lasting):
        await journal.open()
    await brief.write([write(Key(Part.RUNS, "a"))])
    await lasting.write([write(Key(Part.RUNS, "b"))])
    for name in (lasting._keys.journal("runs", "b"), *lists_of(lasting, Part.RUNS, "b")):
        assert await client.pttl(name) == -1
    assert await client.pttl(lasting._keys.journal("runs", "a")) > 0


async def test_a_key_of_another_program_tears_no_write(client: Redis, namespace: str) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=1000)
    await journal.open()
    both = [write(Key(Part.SESSIONS, "s")), write(Key(Part.RUNS, "s"))]
    for place in (
        journal._keys.index("approvals", ""),
        journal._keys.due("runs", ""),
        journal._keys.due("approvals", ""),
        journal._keys.journal("runs", "s.run"),
    ):
        await client.set(place, "x")
        with pytest.raises(StoreCorruptedError):
            await journal.write(both)
        assert await everything(client, namespace) == [place.decode()]
        await client.delete(place)
    assert await journal.write(both) == (1, 1)


async def gone(client: Any, name: bytes) -> None:
    """Wait until a key has expired."""
    deadline = asyncio.get_running_loop().time() + 20
    while await client.exists(name):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0)
