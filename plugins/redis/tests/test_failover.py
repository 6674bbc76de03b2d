"""Sentinel: a master that dies, and one that takes over."""

import asyncio
from collections.abc import Callable

import pytest
from plugins.redis.tests.servers import Server

from perdure.backend import Append, Key, OutcomeUnknownError, Part, StoreUnavailableError, StoreURL
from perdure_redis.journal import RedisJournal

pytestmark = [pytest.mark.anyio, pytest.mark.soak]


async def test_a_failover_loses_nothing_that_a_replica_had(
    servers: Callable[..., Server], append: Callable[..., Append]
) -> None:
    quick = {"repl-diskless-sync-delay": "0"}
    master = servers(options=quick).start()
    replicas = [servers(options=quick | {"replicaof": f"127.0.0.1 {master.port}"}).start() for _ in range(2)]
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
