"""Real servers that crash, restart, run out of memory, fail over, and say what they keep."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from plugins.redis.tests.servers import BINARIES, Server
from redis.asyncio import Redis

from perdure.backend import (
    Append,
    Delete,
    Head,
    Key,
    OutcomeUnknownError,
    Part,
    Position,
    Replace,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    StoreURL,
    UnsupportedOperationError,
)
from perdure.journal.walking import walk
from perdure_redis.journal import RedisJournal
from perdure_redis.plugin import Options
from perdure_redis.settings import RedisSettingsWarning

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]
Servers = Callable[..., Server]
Opener = Callable[..., Awaitable[RedisJournal]]


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """Open journals of a server's URL with options; they are closed with the test."""
    made: list[RedisJournal] = []

    async def make(server: Server, **options: object) -> RedisJournal:
        url = StoreURL.parse(f"{server.url}?" + "&".join(f"{name}={value}" for name, value in options.items()))
        checked = replace(url, options=Options.model_validate_strings(dict(url.query)))
        journal = RedisJournal.from_url(checked)
        await journal.open()
        made.append(journal)
        return journal

    yield make
    for journal in made:
        await journal.close()


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.soak)])
async def test_no_acknowledged_write_is_lost_when_the_server_is_killed(
    servers: Servers, append: Maker, binary: str, kills: int, opened: Opener
) -> None:
    server = servers(binary=BINARIES[binary], options={"appendfsync": "always"}).start()
    journal = await opened(server, timeout=5)
    acknowledged: dict[str, int] = {f"s{task}": 0 for task in range(4)}
    stop = False

    async def writer(name: str) -> None:
        """Write numbers in turn; after an outcome that is not known, look."""
        version: int | None = 0
        while not stop:
            try:
                if version is None:
                    found = await journal.read(Key(Part.SESSIONS, name), limit=0)
                    version = 0 if found is None else found.version
                    acknowledged[name] = version
                item = b"%d" % acknowledged[name]
                (version,) = await journal.write([append(name, item, b"x" * 3000, expected=version, first=1)])
                acknowledged[name] += 1
            except OutcomeUnknownError:
                version = None
            except StoreUnavailableError:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for name in acknowledged:
            group.create_task(writer(name))
        for kill in range(kills):
            goal = sum(acknowledged.values()) + 40 + 17 * kill
            while sum(acknowledged.values()) < goal:  # noqa: ASYNC110  # reason: progress, not time
                await asyncio.sleep(0.001)
            await asyncio.to_thread(server.restart)
        stop = True
    for name, count in acknowledged.items():
        found = await journal.read(Key(Part.SESSIONS, name))
        assert found is not None
        assert [int(item) for item in found.items[::2]] == list(range(len(found.items) // 2))
        assert len(found.items) // 2 - count in {0, 1}
        assert found.items[1::2] == [b"x" * 3000] * (len(found.items) // 2)
        (listed,) = await journal.scan(
            Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=1
        )
        assert listed.id == "s0"


async def test_one_evalsha_for_each_write(servers: Servers, append: Maker, opened: Opener) -> None:
    server = servers().start()
    journal = await opened(server)
    session, run = append("s", b"1"), Append(Key(Part.RUNS, "s"), (), Head(status="idle"), None, append("s").at, 1)
    await journal.write([session])
    calls = counted(server)
    for _ in range(10):
        await journal.write([session])
        await journal.write([session, run])
        await journal.write([Replace(session.key, 0, (b"x",), Head(group="g"), None, session.at)])
    await journal.write([Delete(session.key, None)])
    inner = {"lindex", "pttl", "zcard", "time", "zrangebyscore", "lset", "ltrim", "rpush", "zadd", "zrem", "del"}
    assert {name: count for name, count in calls().items() if name not in inner} == {"evalsha": 31}
    # What a step costs within its script, whatever is there: an append to a known key.
    await journal.write([append("t", b"1", first=1)])
    calls = counted(server)
    await journal.write([append("t", b"1", expected=1)])
    assert calls() == {"evalsha": 1, "lindex": 1, "pttl": 1, "lset": 1, "rpush": 1}
    calls = counted(server)
    await journal.write([append("t", b"1", expected=2, at=session.at + timedelta(seconds=1))])
    moved = {"evalsha": 1, "lindex": 1, "pttl": 1, "zadd": 1, "lset": 1, "zrem": 1, "rpush": 1}
    assert calls() == moved
    # The same with a group and a status that stay as they are: three members move at once.
    entry = Append(Key(Part.RUNS, "t"), (b"1",), Head("agent", "busy", b"1"), None, session.at, 1)
    await journal.write([entry])
    calls = counted(server)
    await journal.write([replace(entry, expected_version=1, at=session.at + timedelta(seconds=1))])
    assert calls() == moved
    # Reading and listing.
    calls = counted(server)
    await journal.read(session.key)
    assert calls() == {"lrange": 1}
    calls = counted(server)
    await journal.scan(Part.RUNS, group=None, status="idle", before=None, order="recent", after=None, limit=5)
    assert set(calls()) == {"eval", "evalsha", "zlexcount", "zrevrangebylex", "lindex"}


async def test_what_is_old_is_listed_without_a_look_at_what_is_young(
    servers: Servers, append: Maker, opened: Opener
) -> None:
    server = servers().start()
    journal = await opened(server)
    young = append("s").at
    old = [f"s{number:02}" for number in range(0, 30, 10)]
    for number in range(30):
        name = f"s{number:02}"
        await journal.write([append(name, b"1", first=1, at=young - timedelta(days=name in old))])
    for order in ("id", "created", "recent"):
        for before, names in ((young, old), (young - timedelta(days=1), [])):
            calls, found, after = counted(server), [], None
            while page := await journal.scan(
                Part.SESSIONS, group=None, status=None, before=before, order=order, after=after, limit=2
            ):
                found += [info.id for info in page]
                after = Position(None if order == "id" else page[-1].created_at, page[-1].id)
            assert found == (names[::-1] if order == "recent" else names)
            assert calls().get("lindex", 0) == len(names)


def counted(server: Server) -> Callable[[], dict[str, int]]:
    """Count commands from now on, without those that this takes."""
    server.ask("CONFIG", "RESETSTAT")

    def calls() -> dict[str, int]:
        names = {name.removeprefix("cmdstat_"): each["calls"] for name, each in server.info("commandstats").items()}
        return {
            name: count for name, count in names.items() if name.partition("|")[0] not in {"config", "client", "hello"}
        }

    return calls


@pytest.mark.parametrize(
    ("options", "danger"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "allkeys-lru"),
        ({"appendonly": "no", "save": ""}, "neither appendonly nor save"),
    ],
)
async def test_settings_that_may_lose_data_are_told(
    servers: Servers, options: dict[str, str], danger: str, opened: Opener
) -> None:
    server = servers(options=options).start()
    with pytest.warns(RedisSettingsWarning, match=danger):
        journal = await opened(server)
    assert journal.capabilities.durable == ("appendonly" not in options)
    with pytest.raises(UnsupportedOperationError, match=danger):
        await opened(server, strict="true")


async def test_settings_that_lose_nothing_are_not_told(servers: Servers, opened: Opener) -> None:
    server = servers(options={"maxmemory-policy": "volatile-lru"}).start()
    journal = await opened(server, strict="true")
    assert journal.capabilities.durable
    with pytest.raises(UnsupportedOperationError, match="volatile-lru"):
        await opened(server, strict="true", ttl=60)
    server.ask("CONFIG", "SET", "appendonly", "no")
    server.ask("CONFIG", "SET", "save", "3600 1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        journal = await opened(server)
    assert not journal.capabilities.durable  # a snapshot from time to time is not what was acknowledged
    with pytest.raises(UnsupportedOperationError, match="appendonly"):
        await opened(server, waitaof="true")


@pytest.mark.parametrize("options", [{}, {"ttl": 1000}])
async def test_out_of_memory_writes_nothing_and_passes(
    servers: Servers, append: Maker, opened: Opener, options: dict[str, int]
) -> None:
    server = servers(options={"maxmemory": "12mb", "maxmemory-policy": "noeviction"}).start()
    journal = await opened(server, **options)
    item, written = b"x" * 500_000, 0
    await journal.write([append("s", first=1)])
    refusal: StoreUnavailableError | None = None
    while refusal is None and written < 100:
        try:
            await journal.write([append("s", item, item)])
            written += 1
        except StoreUnavailableError as error:
            refusal = error
    assert refusal is not None
    assert refusal.retryable
    assert written > 0
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    head = Append(Key(Part.SESSIONS, "s"), (), Head(status="x"), None, append("s").at, 1)
    replacement = Replace(Key(Part.SESSIONS, "s"), 0, (), Head(), None, append("s").at)
    for operation in (append("new", b"1", expected=0), head, replacement):
        with pytest.raises(StoreUnavailableError):
            await journal.write([operation])
    found = await journal.read(Key(Part.SESSIONS, "s"))
    assert found is not None
    assert (found.version, len(found.items)) == (written + 1, 2 * written)
    assert await journal.read(Key(Part.SESSIONS, "new")) is None
    # Deleting is allowed, and when there is room the next write works.
    assert await journal.write([Delete(Key(Part.SESSIONS, "s"), None)]) == (written + 1,)
    server.ask("CONFIG", "SET", "maxmemory", "12mb")
    assert await journal.write([append("new", item, expected=0, first=9)]) == (9,)


async def test_a_version_that_went_backwards_is_noticed(
    journal: RedisJournal, client: Redis, append: Maker, namespace: str
) -> None:
    key = Key(Part.SESSIONS, "s")
    name = journal._keys.journal(*key)
    await journal.write([append("s", b"1", first=5)])
    old = await client.dump(name)
    await journal.write([append("s", b"2", first=5)])
    assert old is not None
    await client.restore(name, 0, old, replace=True)  # as a failover to a replica that lacked a write
    for _ in range(2):
        with pytest.raises(StoreCorruptedError, match="from version 6 to 5"):
            await journal.read(key)
        with pytest.raises(StoreCorruptedError, match="from version 6 to 5"):
            await journal.write([append("s", b"3")])
        with pytest.raises(StoreCorruptedError):
            await journal.write([append("s", b"3", expected=6)])
    other = RedisJournal(client, namespace=namespace)  # who did not see it goes on from what is there
    await other.open()
    assert (await other.read(key)) is not None
    assert await journal.write([Delete(key, None)]) == (5,)
    # Another journal under the same id is no step back.
    assert await journal.write([append("s", b"1", first=2)]) == (2,)
    assert await other.write([Delete(key, 2)]) == (2,)
    assert await other.write([append("s", b"1", first=1)]) == (1,)
    assert await journal.write([append("s", b"1", expected=1)]) == (2,)


async def test_too_few_replicas_leave_the_outcome_open(servers: Servers, append: Maker, opened: Opener) -> None:
    server = servers(options={"repl-diskless-sync-delay": "0"}).start()
    journal = await opened(server, wait=1, timeout=0.5)
    with pytest.raises(OutcomeUnknownError, match="0 of 1 replicas"):
        await journal.write([append("s", b"1", first=1)])
    replica = servers(options={"replicaof": f"127.0.0.1 {server.port}"}).start()
    replica.linked()
    journal = await opened(server, wait=1)
    assert await journal.write([append("s", b"2")]) == (2,)
    assert replica.ask("EXISTS", journal._keys.journal("sessions", "s").decode()) == 1
    # The replica itself refuses, and says so.
    other = await opened(replica)
    with pytest.raises(StoreUnavailableError, match="read only"):
        await other.write([append("s", b"3")])
    found = await other.read(Key(Part.SESSIONS, "s"))
    assert found is not None
    assert found.version == 2


async def test_the_disk_can_be_waited_for(servers: Servers, append: Maker, opened: Opener) -> None:
    server = servers().start()
    journal = await opened(server, waitaof="true")
    for number in range(5):
        assert await journal.write([append("s", b"1", first=1)]) == (number + 1,)


async def test_large_values(journal: RedisJournal, append: Maker) -> None:
    item = bytes(range(256)) * (1 << 16)
    await journal.write([append("s", item, first=1)])
    found = await journal.read(Key(Part.SESSIONS, "s"))
    assert found is not None
    assert list(found.items) == [item]
    many = [b"%d" % number for number in range(20_001)]
    await journal.write([append("t", *many)])
    found = await journal.read(Key(Part.SESSIONS, "t"))
    assert found is not None
    assert list(found.items) == many


async def test_what_another_program_put_there_is_damage(journal: RedisJournal, client: Redis, append: Maker) -> None:
    key = Key(Part.SESSIONS, "s")
    name = journal._keys.journal(*key)
    for put in (client.set(name, "x"), client.rpush(name, "x"), client.rpush(name, "1 2 3")):
        await put
        for call in (journal.read(key), journal.read(key, last=1), journal.write([append("s", b"1")])):
            with pytest.raises(StoreCorruptedError, match="s"):
                await call
        await client.delete(name)
    index = journal._keys.index("sessions", "")
    await client.set(index, "x")
    with pytest.raises(StoreCorruptedError):
        await journal.write([append("s", b"1")])
    assert await client.exists(name) == 0
    await client.delete(index)
    # An index that was lost is put back, journal by journal, when they are written.
    await journal.write([append("s", b"1", first=1)])
    await client.delete(index)
    later = append("s").at.replace(microsecond=999_999)
    await journal.write([append("s", b"2", at=later)])
    for order in ("id", "created", "recent"):
        found = await journal.scan(
            Part.SESSIONS, group=None, status=None, before=None, order=order, after=None, limit=5
        )
        assert [info.version for info in found] == [2]


@pytest.mark.parametrize("damage", ["another type", "no length", "below zero", "cut in the group", "cut in the status"])
@pytest.mark.parametrize("order", ["id", "created", "recent"])
async def test_a_head_that_is_damaged_is_told_in_its_turn_and_not_touched(
    journal: RedisJournal, client: Redis, append: Maker, order: str, damage: str
) -> None:
    names = [f"s{number}" for number in range(5)]
    for name in names[::-1] if order == "recent" else names:
        at = append("s").at + timedelta(seconds=int(name[1:]) * (-1 if order == "recent" else 1))
        await journal.write([Append(Key(Part.SESSIONS, name), (), Head("group", "idle", b"{}"), None, at, 1)])
    key = Key(Part.SESSIONS, "s4")
    stored = journal._keys.journal(*key)
    text: Any = await client.lindex(stored, 0)
    line, rest = text.split(b"\n")
    texts: dict[str, Any] = {
        "no length": line.replace(b" 5 4", b"  4") + b"\n" + rest,
        "below zero": line.replace(b" 5 4", b" -5 4") + b"\n" + rest,
        "cut in the group": line + b"\n" + rest[:3],
        "cut in the status": line + b"\n" + rest[:7],
    }
    if damage == "another type":
        await client.delete(stored)
        await client.set(stored, "x")
    else:
        await client.lset(stored, 0, texts[damage])
    before = await client.dump(stored)
    for group, status in ((None, None), ("group", None), (None, "idle")):
        page = partial(journal.scan, Part.SESSIONS, group=group, status=status, before=None, order=order, after=None)
        assert [info.id for info in await page(limit=4)] == names[:4]
        with pytest.raises(StoreCorruptedError, match="sessions s4"):
            await page(limit=5)
    damaged: list[StoreCorruptedError] = []
    assert [name async for name in walk(journal, Part.SESSIONS, damaged)] == names[:4]
    assert [error.id for error in damaged] == ["s4"]
    for call in (
        journal.read(key),
        journal.write([append("s4", b"1")]),
        journal.write([Replace(key, 0, (), Head(), None, append("s").at)]),
        journal.write([Delete(key, None)]),
    ):
        with pytest.raises(StoreCorruptedError, match="s4"):
            await call
    assert await client.dump(stored) == before


async def test_a_newer_format_is_not_touched(journal: RedisJournal, client: Redis, append: Maker) -> None:
    key = Key(Part.SESSIONS, "s")
    name = journal._keys.journal(*key)
    await journal.write([append("s", b"1", first=1)])
    for head in ("2 something else", "2 1 2 3 4 5 6 7 - -\n"):
        await client.lset(name, 0, head)
        for call in (
            journal.read(key),
            journal.read(key, last=1),
            journal.write([append("s", b"1")]),
            journal.write([Delete(key, None)]),
            journal.scan(Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=5),
        ):
            with pytest.raises(StoreError) as caught:
                await call
            assert (type(caught.value).__name__, caught.value.args[1:]) == ("SchemaVersionError", (2, 1))
        assert await client.lrange(name, 0, -1) == [head.encode(), b"1"]
