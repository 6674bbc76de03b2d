"""What do records of 1 KiB to 16 MiB cost to append and to load, on each durable store?"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.messages import KIB, as_bytes, message
from benchmarks.raw_engines import FILE, REDIS, SQLITE, RawFile, insert, raw_sqlite
from redis.asyncio import Redis

from perdure import open_store

SIZES = {1: "1 KiB", 64: "64 KiB", KIB: "1 MiB", 16 * KIB: "16 MiB"}


@dataclass(frozen=True)
class Side:
    """A store, and the bare engine beside it."""

    name: str
    url: str
    anchor: str
    durability: str
    raw: Callable[[bytes], Awaitable[Any]]


async def measure(bench: Bench) -> list[Figure]:
    """Measure each size on each store."""
    found = []
    for kib, name in SIZES.items():
        if kib > KIB and bench.quick:
            continue
        async with sides(bench) as all_sides:
            for side in all_sides:
                found += await one_size(bench, side, kib * KIB, name)
    return found


@asynccontextmanager
async def sides(bench: Bench) -> AsyncIterator[list[Side]]:
    """Open the bare engines."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(raw_sqlite(bench.place("raw.db")))
        raw_file, server = RawFile(bench.place("raw.jsonl")), bench.server()
        stack.callback(raw_file.close)
        client = await stack.enter_async_context(Redis(port=server.port))
        await client.flushall()
        yield [
            Side(
                "sqlite", f"sqlite:{bench.place('agent.db')}", SQLITE, "WAL, FULL", lambda data: insert(database, data)
            ),
            Side("file", f"file:{bench.place('store')}", FILE, "fsync", raw_file.append),
            Side(
                "redis",
                f"{server.url}/0?namespace=sizes",
                REDIS,
                "appendonly yes, everysec",
                lambda data: client.rpush("raw", data),
            ),
        ]


async def one_size(bench: Bench, side: Side, size: int, name: str) -> list[Figure]:
    """Append records of a size, each to a session of its own, and load them."""
    record, calls, pairs = message(size), max(1, min(20, 4 * KIB * KIB // size)), 30 if size < KIB * KIB else 8
    data, written, read = as_bytes(record), 0, 0
    async with open_store(side.url) as store:

        async def append() -> None:
            nonlocal written
            await store.sessions.append(f"s{written}", [record], expected_version=0)
            written += 1

        async def load() -> None:
            nonlocal read
            found = await store.sessions.load(f"s{read % written}")
            assert found is not None
            assert len(found.records) == 1
            read += 1

        appended = await bench.compare(
            f"first append of {name}, {side.name}",
            append,
            lambda: side.raw(data),
            anchor=side.anchor,
            durability=side.durability,
            rate=True,
            calls=calls,
            pairs=pairs,
        )
        loaded = await bench.compare(
            f"load {name}, {side.name}, against its first append",
            load,
            append,
            anchor="the first append of it",
            durability=side.durability,
            calls=calls,
            pairs=min(pairs, 8),
        )
    return [appended, loaded]
