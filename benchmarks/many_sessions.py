"""What do 1, 8 and 64 sessions of one process do at once, against as many tasks on the bare engine?"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any

from benchmarks.append import DATA, appender
from benchmarks.bench import Bench
from benchmarks.figures import Figure, Goal, at_least
from benchmarks.pairs import Work
from benchmarks.raw_engines import FILE, REDIS, SQLITE, RawFile, insert, raw_sqlite
from redis.asyncio import Redis

from perdure import open_store

EACH = 10
"""How many appends each task makes, one after the other."""


async def measure(bench: Bench) -> list[Figure]:
    """Measure each number of tasks on each durable store."""
    return [await store(bench, tasks) for tasks in (1, 8, 64) for store in (sqlite, redis, file)]


async def sqlite(bench: Bench, tasks: int) -> Figure:
    """Tasks of one process share commits."""
    url, goal = f"sqlite:{bench.place('agent.db')}", at_least(2.0) if tasks == 8 else None
    async with raw_sqlite(bench.place("raw.db")) as raw:
        return await at_once(
            bench, "sqlite", url, tasks, lambda: insert(raw, DATA), SQLITE, "WAL, synchronous=full", goal
        )


async def redis(bench: Bench, tasks: int) -> Figure:
    """Tasks share connections."""
    server = bench.server()
    url, durability = f"{server.url}/0?namespace=many{tasks}", "appendonly yes, appendfsync everysec"
    async with Redis(port=server.port) as raw:
        return await at_once(bench, "redis", url, tasks, lambda: raw.rpush("raw", DATA), REDIS, durability)


async def file(bench: Bench, tasks: int) -> Figure:
    """Each session is a file of its own; the anchor has one."""
    with closing(RawFile(bench.place("raw.jsonl"))) as raw:
        url = f"file:{bench.place('store')}"
        return await at_once(bench, "file", url, tasks, lambda: raw.append(DATA), FILE, "fsync")


async def at_once(
    bench: Bench,
    name: str,
    url: str,
    tasks: int,
    raw: Callable[[], Awaitable[Any]],
    anchor: str,
    durability: str,
    goal: Goal | None = None,
) -> Figure:
    """Time so many tasks that append to sessions of their own."""
    async with open_store(url) as store:
        ours = [appender(store, f"s{task}") for task in range(tasks)]
        return await bench.compare(
            f"{tasks} sessions at once, {EACH} appends each, {name}",
            lambda: together(ours),
            lambda: together([raw] * tasks),
            anchor=f"as many tasks: {anchor}",
            durability=durability,
            goal=goal,
            rate=True,
            calls=1,
            pairs=40 if tasks < 64 else 20,
        )


async def together(works: Sequence[Work]) -> None:
    """Run each work some times, in a task of its own."""
    await asyncio.gather(*(repeated(work) for work in works))


async def repeated(work: Work) -> None:
    """Run a work some times, one after the other."""
    for _ in range(EACH):
        await work()
