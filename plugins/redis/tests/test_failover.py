"""Sentinel: a master that dies, and one that takes over."""

import asyncio
from collections.abc import Callable

import pytest
from plugins.redis.tests.proxy import Proxy
from plugins.redis.tests.servers import Server
from redis.asyncio import Redis

import perdure
from perdure.backend import (
    Append,
    Key,
    OutcomeUnknownError,
    Part,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreURL,
    VersionConflictError,
)
from perdure_redis.acknowledgement import Acknowledgement
from perdure_redis.clients import Clients
from perdure_redis.journal import RedisJournal

pytestmark = pytest.mark.anyio
QUICK = {"repl-diskless-sync-delay": "0"}


async def test_who_takes_over_lacks_the_scripts_and_perhaps_writes(
    servers: Callable[..., Server], append: Callable[..., Append]
) -> None:
    master = servers(options=QUICK).start()
    replica = servers(options={"replicaof": f"127.0.0.1 {master.port}"}).start()
    replica.linked()
    async with Proxy(master.port) as proxy, Redis(port=proxy.port) as client:
        journal = RedisJournal(client, wait=1)
        await journal.open()
        for name in ("kept", "behind"):
            assert await journal.write([append(name, b"1", first=5)]) == (5,)
        replica.ask("REPLICAOF", "NO", "ONE")
        journal._acknowledged = Acknowledgement(0, waitaof=False, timeout=1)
        assert await journal.write([append("behind", b"2")]) == (6,)
        assert await journal.write([append("lost", b"1", first=3)]) == (3,)
        master.kill()
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            await journal.write([append("kept", b"2", expected=5)])
        proxy.target = replica.port
        replica.ask("SCRIPT", "FLUSH")
        proxy.commands.clear()
        assert await journal.write([append("kept", b"2", expected=5)]) == (6,)
        assert [name for name in proxy.commands if name.startswith("EVAL")] == ["EVALSHA", "EVAL"]
        for call in (journal.read(Key(Part.SESSIONS, "behind")), journal.write([append("behind", b"3")])):
            with pytest.raises(StoreCorruptedError, match="from version 6 to 5"):
                await call
        assert await journal.read(Key(Part.SESSIONS, "lost")) is None
        with pytest.raises(VersionConflictError) as caught:
            await journal.write([append("lost", b"2", expected=3)])
        assert caught.value.actual == 0


async def test_sentinels_that_hang_leave_time_for_the_one_that_answers(servers: Callable[..., Server]) -> None:
    master = servers().start()
    sentinels = [
        servers(options={"sentinel": f"monitor mymaster 127.0.0.1 {master.port} 1"}, sentinel=True).start()
        for _ in range(2)
    ]
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    for version, sentinel in enumerate(sentinels):
        sentinel.pause()
        async with perdure.open_store(f"redis+sentinel://{hosts}/mymaster?timeout=4") as store:
            await store.sessions.append("s", [{"n": 1}], expected_version=version, version=None if version else 1)
        sentinel.resume()


async def test_no_connection_stays_with_whoever_was_the_master(servers: Callable[..., Server]) -> None:
    master = servers(options=QUICK).start()
    replica = servers(options=QUICK | {"replicaof": f"127.0.0.1 {master.port}"}).start()
    replica.linked()
    sentinel = servers(options={"sentinel": f"monitor mymaster 127.0.0.1 {master.port} 1"}, sentinel=True).start()

    def written(server: Server) -> int:
        return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])

    async with perdure.open_store(f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster") as store:
        await asyncio.gather(*(store.sessions.append(f"a{number}", [{"n": 0}]) for number in range(5)))
        # The old master is cut off from the Sentinels: it does not know that somebody took over, and keeps its connections.
        replica.ask("REPLICAOF", "NO", "ONE")
        sentinel.ask("SENTINEL", "REMOVE", "mymaster")
        sentinel.ask("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", replica.port, 1)
        await asyncio.gather(*(store.sessions.append(f"b{number}", [{"n": 1}]) for number in range(6)))  # one more
        before = written(master), written(replica)
        await asyncio.gather(*(store.sessions.append(f"c{number}", [{"n": 2}]) for number in range(8)))
        assert (written(master) - before[0], written(replica) - before[1]) == (0, 8)


async def test_a_new_master_that_does_not_answer_yet_leaves_nothing_to_the_old_one(
    servers: Callable[..., Server],
) -> None:
    master = servers(options=QUICK).start()
    replica = servers(options=QUICK | {"replicaof": f"127.0.0.1 {master.port}"}).start()
    replica.linked()
    sentinel = servers(options={"sentinel": f"monitor mymaster 127.0.0.1 {master.port} 1"}, sentinel=True).start()
    journal = RedisJournal.from_url(StoreURL.parse(f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster"))
    await journal.open()

    def answered() -> int:
        return int(master.info("commandstats")["cmdstat_lrange"]["calls"])

    async def read() -> None:
        assert await journal.read(Key(Part.SESSIONS, "s")) is None

    await asyncio.gather(*(read() for _ in range(3)))
    replica.ask("REPLICAOF", "NO", "ONE")
    sentinel.ask("SENTINEL", "REMOVE", "mymaster")
    sentinel.ask("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", replica.port, 1)
    replica.pause()
    reading = [asyncio.create_task(read()) for _ in range(4)]  # one of them has to ask Sentinel
    pool = journal._route.client.connection_pool
    while pool.master_address[1] != replica.port or sum(task.done() for task in reading) < 3:  # noqa: ASYNC110  # reason: progress, not time
        await asyncio.sleep(0)
    before = answered()
    late = asyncio.create_task(read())
    await asyncio.sleep(0)  # it has begun before the other one ends
    replica.resume()
    await asyncio.gather(late, *reading)
    assert answered() == before
    await journal.close()


@pytest.mark.parametrize("own", [True, False])
async def test_an_address_behind_which_somebody_takes_over_is_followed(
    servers: Callable[..., Server], append: Callable[..., Append], own: bool
) -> None:
    master, other = servers(options=QUICK).start(), servers(options=QUICK).start()
    async with Proxy(master.port) as proxy, Redis(port=proxy.port) as client:
        journal = RedisJournal(Clients(client) if own else client)
        await journal.open()
        await asyncio.gather(*(journal.write([append(f"a{number}")]) for number in range(3)))
        # As managed servers do it: new connections reach the new master, old ones stay with the old one.
        master.ask("REPLICAOF", "127.0.0.1", other.port)
        await asyncio.to_thread(master.linked)
        proxy.target = other.port
        with pytest.raises(StoreUnavailableError, match="read only"):
            await journal.write([append("s")])
        assert await journal.write([append("s", first=5)]) == (5,)
        if not own:  # the idle ones of a client stay the client's, until they are refused themselves
            await asyncio.gather(*(journal.write([append("s")]) for _ in range(3)), return_exceptions=True)
        written = await asyncio.gather(*(journal.write([append(f"b{number}", first=5)]) for number in range(3)))
        assert written == [(5,)] * 3
        await journal.close()


@pytest.mark.soak
async def test_a_failover_loses_nothing_that_a_replica_had(
    servers: Callable[..., Server], append: Callable[..., Append]
) -> None:
    master = servers(options=QUICK).start()
    replicas = [servers(options=QUICK | {"replicaof": f"127.0.0.1 {master.port}"}).start() for _ in range(2)]
    for replica in replicas:
        replica.linked()
    monitor = f"monitor mymaster 127.0.0.1 {master.port} 2"
    times = "down-after-milliseconds mymaster 500\nfailover-timeout mymaster 3000\nparallel-syncs mymaster 2"
    lines = "\nsentinel ".join([monitor, *times.split("\n")])
    sentinels = [servers(options={"sentinel": lines.replace("\nsentinel ", "\n")}, sentinel=True) for _ in range(3)]
    for sentinel in sentinels:
        sentinel.start()
    for sentinel in sentinels:
        await known(sentinel, "num-other-sentinels", 2)
        await known(sentinel, "num-slaves", 2)
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    url = StoreURL.parse(f"redis+sentinel://{hosts}/mymaster")
    client = RedisJournal.from_url(url)
    journal = RedisJournal(client._route.client, wait=2, timeout=5)
    await journal.open()
    version: int | None = 0
    acknowledged = 0
    failures = 0
    for number in range(2_000):
        if number == 200:
            master.kill()
        try:
            if version is None:
                found = await journal.read(Key(Part.SESSIONS, "s"))
                assert found is not None
                assert len(found.items) >= acknowledged
                version = found.version
            (version,) = await journal.write([append("s", b"%d" % number, expected=version, first=1)])
            acknowledged += 1
        except OutcomeUnknownError:
            failures, version = failures + 1, None
            # One replica is the master now, so that only one can confirm.
            journal._acknowledged.__init__(1, False, 5)  # type: ignore[misc]  # reason: as a new opening would
        except StoreUnavailableError:
            failures += 1
            await asyncio.sleep(0.02)
        if acknowledged > 400:
            break
    found = await journal.read(Key(Part.SESSIONS, "s"))
    assert found is not None
    assert failures
    assert acknowledged > 400
    numbers = [int(item) for item in found.items]
    assert numbers == sorted(set(numbers))
    assert set(range(200)) <= set(numbers)
    await client._clients.close()  # type: ignore[union-attr]  # reason: it came from a URL


async def known(sentinel: Server, fact: str, wanted: int) -> None:
    """Wait until a Sentinel knows so many others."""
    facts: object = None
    for _ in range(2_000):
        facts = sentinel.ask("SENTINEL", "MASTER", "mymaster")
        if isinstance(facts, dict) and int(facts[fact]) >= wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{fact} stays below {wanted}: {facts}")
