"""The stores that the laws are tried on."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakeredis import FakeAsyncRedis, FakeServer
from plugins.redis.tests.cluster import Cluster
from plugins.redis.tests.servers import BINARIES, VALKEY, shared

from perdure import AgentStore
from perdure.backend import StoreURL, journal_stores
from perdure.plugins import load
from perdure_conformance.target import Place, Target
from perdure_redis.conformance import damage, newer_schema, started
from perdure_redis.journal import RedisJournal

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure_conformance.parts import Stores


def url_of(place: Place, base: str, options: str = "") -> str:
    """A URL whose namespace no other place has."""
    limit = "" if place.max_record is None else f"&max_record={place.max_record}"
    return f"{base}?namespace={place.name}-{place.namespace}{limit}{options}"


def real(name: str, binary: str = VALKEY, options: str = "") -> Target:
    """A server of this process, started when it is first needed."""

    def url(place: Place) -> str:
        return url_of(place, shared(binary).url, options)

    async def opener(place: Place, clock: Clock) -> Stores:
        import perdure

        return await perdure.open_store(url(place), clock=clock)

    def helper(work: Callable[[StoreURL], Any]) -> Callable[[Place], Any]:
        return lambda place: work(load("redis").check(StoreURL.parse(url(place))))

    return Target(name, opener, url=url, damage=helper(damage), newer_schema=helper(newer_schema))


@cache
def fake_server(name: str) -> FakeServer:
    return FakeServer()


async def open_fake(place: Place, clock: Clock) -> Stores:
    """A store on a server that is a Python object: for speed, and to see what it does otherwise."""
    client = FakeAsyncRedis(server=fake_server(place.name))
    journal = RedisJournal(client, namespace=place.namespace)
    await journal.open()
    stores = journal_stores(journal)
    parts = (stores.sessions, stores.checkpoints, stores.approvals)

    async def close() -> None:
        for part in parts:
            part.seal()
        await journal.close()
        await client.aclose()

    store = AgentStore(sessions=parts[0], checkpoints=parts[1], approvals=parts[2], clock=clock, closing=close)
    for part in parts:
        part.bind(max_record=place.max_record)
    return store


@cache
def shared_cluster() -> Cluster:
    """A cluster of this process, started when it is first needed."""
    directory = tempfile.mkdtemp(prefix="perdure-redis-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    cluster = Cluster(Path(directory))
    atexit.register(cluster.__exit__)
    return cluster.__enter__()


async def open_cluster(place: Place, clock: Clock) -> Stores:
    import perdure

    return await perdure.open_store(url_of(place, shared_cluster().url), clock=clock)


@cache
def killed() -> Target:
    """A server that nothing but laws which kill it use, started when it is first needed."""
    return Target.from_url(started(VALKEY))


async def open_killed(place: Place, clock: Clock) -> Stores:
    return await killed().opener(place, clock)


def kill_server(place: Place) -> None:
    kill = killed().kill_server
    assert kill is not None
    kill(place)


VALKEY_TARGET = real("redis")
KILLED = Target("redis-killed", open_killed, kill_server=kill_server)
REDIS_TARGETS = [real(f"redis-{name}", binary) for name, binary in BINARIES.items() if name != "valkey"]
CLUSTER = Target("redis+cluster", open_cluster, url=lambda place: url_of(place, shared_cluster().url))
FAKE = Target("fakeredis", open_fake)
