"""What the tests of the Redis backend share."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.proxy import Proxy
from plugins.redis.tests.servers import VALKEY, Server, shared
from redis.asyncio import Redis

from perdure.backend import Append, Head, Key, Part
from perdure_redis.journal import RedisJournal

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.fixture(scope="session")
def server() -> Server:
    """A server that other tests use too: it is neither stopped nor configured."""
    return shared(VALKEY)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Make servers of this test's own, which end with it."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(tmp_path / f"server{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A namespace that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-64:]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Redis]:
    async with Redis(port=server.port) as client:
        yield client


@pytest.fixture
async def journal(client: Redis, namespace: str) -> RedisJournal:
    journal = RedisJournal(client, namespace=namespace)
    await journal.open()
    return journal


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def through(proxy: Proxy, namespace: str) -> AsyncIterator[RedisJournal]:
    """A journal behind the proxy."""
    async with Redis(port=proxy.port) as client:
        journal = RedisJournal(client, namespace=namespace)
        await journal.open()
        yield journal


@pytest.fixture
def append() -> Callable[..., Append]:
    """Make an append to a session."""

    def make(name: str, *items: bytes, expected: int | None = None, first: int = 1, at: datetime = AT) -> Append:
        return Append(Key(Part.SESSIONS, name), items, Head(), expected, at, first)

    return make
