"""What does one append of a 1 KiB record cost, with its version check, head and indexes, on each store?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from benchmarks.bench import Bench, anchor
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.messages import as_bytes, message
from benchmarks.pairs import Work
from benchmarks.raw_engines import FILE, REDIS, SQLITE, RawFile, insert, raw_sqlite
from redis.asyncio import Redis

from perdure import AgentStore, open_store

RECORD = message()
DATA = as_bytes(RECORD)


async def measure(bench: Bench) -> list[Figure]:
    """Measure every store."""
    return [
        await sqlite(bench, "full", 0.90),
        await sqlite(bench, "normal", 0.60),
        await redis(bench, "everysec", 0.75),
        await redis(bench, "always", 0.85),
        await file(bench),
        await memory(bench),
    ]


@asynccontextmanager
async def appending(url: str) -> AsyncIterator[Work]:
    """Open a store; the work appends one record to one session and expects the version that the append before has made."""
    async with open_store(url) as store:
        yield appender(store, "s")


def appender(store: AgentStore, session_id: str) -> Work:
    """Return the work that appends one record to a session."""
    version = 0

    async def append() -> None:
        nonlocal version
        version = await store.sessions.append(session_id, [RECORD], expected_version=version)

    return append


async def sqlite(bench: Bench, synchronous: str, goal: float) -> Figure:
    """Against a bare insert."""
    url = f"sqlite:{bench.place('agent.db')}?synchronous={synchronous}"
    async with appending(url) as ours, raw_sqlite(bench.place("raw.db"), synchronous) as raw:
        return await bench.compare(
            f"append, sqlite {synchronous.upper()}",
            ours,
            lambda: insert(raw, DATA),
            anchor=SQLITE,
            durability=f"WAL, synchronous={synchronous}",
            goal=at_least(goal),
            rate=True,
        )


async def redis(bench: Bench, appendfsync: str, goal: float) -> Figure:
    """Against a bare push."""
    server = bench.server(appendfsync)
    async with appending(f"{server.url}/0?namespace=append") as ours, Redis(port=server.port) as raw:
        return await bench.compare(
            f"append, redis, fsync {appendfsync}",
            ours,
            lambda: raw.rpush("raw", DATA),
            anchor=REDIS,
            durability=f"appendonly yes, appendfsync {appendfsync}",
            goal=at_least(goal),
            rate=True,
        )


async def file(bench: Bench) -> Figure:
    """Against a bare write and fsync."""
    raw = RawFile(bench.place("raw.jsonl"))
    async with appending(f"file:{bench.place('store')}") as ours:
        found = await bench.compare(
            "append, file",
            ours,
            lambda: raw.append(DATA),
            anchor=FILE,
            durability="fsync",
            goal=at_least(0.75),
            rate=True,
        )
    raw.close()
    return found


async def memory(bench: Bench) -> Figure:
    """Against the store in memory of claude-agent-sdk, which keeps the objects that it is given."""
    async with appending("memory:") as ours:
        return await bench.compare(
            "append, memory",
            ours,
            claude_append(),
            anchor="claude-agent-sdk InMemorySessionStore.append",
            durability="none: both in memory",
            goal=at_most(2),
            calls=200,
        )


def claude_append() -> Work | None:
    """Return the work that appends the record to a session of claude-agent-sdk; `None`: it is not installed."""
    sdk = anchor("claude_agent_sdk")
    if sdk is None:
        return None
    store, key, numbers = sdk.InMemorySessionStore(), {"project_key": "p", "session_id": "s"}, count()
    entry = {"type": "assistant", "timestamp": "2026-01-02T03:04:05.678Z", "message": RECORD}

    async def append() -> None:
        await store.append(key, [entry | {"uuid": str(next(numbers))}])

    return append
