"""What does it cost to load 10 to 10,000 messages of 1 KiB, and the newest 20 of them?"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.messages import as_bytes
from benchmarks.pairs import Work
from benchmarks.sdk_sessions import openai_redis, openai_sqlite, transcript

from perdure import AgentStore, open_store

COUNTS = (10, 1_000, 10_000)
NEWEST = 20


async def measure(bench: Bench) -> list[Figure]:
    """Measure each store against its anchor, at each length."""
    found = []
    for number in COUNTS[: bench.size(3, 2)]:
        messages = transcript(number)
        for name, url, durability in stores(bench):
            async with filled(url, messages) as store, anchor_of(bench, name, messages) as (anchor, theirs):
                figure = await bench.compare(
                    f"load {number:,} messages, {name}",
                    loading(store, number),
                    theirs,
                    anchor=anchor,
                    durability=durability,
                    goal=None if number == 10 else at_most(0.6 if name == "file" else 0.7),
                    calls=max(1, 1000 // number),
                    pairs=30,
                )
            found.append(figure)
    for name, url, durability in stores(bench):
        found.append(await newest(bench, name, url, durability))
    return found


def stores(bench: Bench) -> list[tuple[str, str, str]]:
    """Return the durable stores, each at a place of its own."""
    place = bench.place("agent.db")
    return [
        ("sqlite", f"sqlite:{place}", "WAL, synchronous=full"),
        ("redis", f"{bench.server().url}/0?namespace=load{place.parent.name}", "appendonly yes, appendfsync everysec"),
        ("file", f"file:{bench.place('store')}", "fsync"),
    ]


@asynccontextmanager
async def filled(url: str, messages: list[dict[str, Any]]) -> AsyncIterator[AgentStore]:
    """Open a store that has a session with the messages, appended two at a time, like turns."""
    async with open_store(url) as store:
        for at in range(0, len(messages), 2):
            await store.sessions.append("s", messages[at : at + 2])
        yield store


def loading(store: AgentStore, number: int) -> Work:
    """Return the work that loads a session and decodes its records."""

    async def load() -> None:
        found = await store.sessions.load("s")
        assert found is not None
        assert len(found.records) == number

    return load


@asynccontextmanager
async def anchor_of(bench: Bench, name: str, messages: list[dict[str, Any]]) -> AsyncIterator[tuple[str, Work | None]]:
    """Open what a store is measured against, with the same messages in it."""
    if name == "file":
        path = bench.place("raw.jsonl")
        path.write_bytes(b"".join(as_bytes(one) + b"\n" for one in messages))
        yield "json.loads of each line of a file, in one thread hop", lambda: asyncio.to_thread(read_lines, path)
        return
    opened = openai_sqlite(bench.place("o.db")) if name == "sqlite" else openai_redis(f"{bench.server().url}/1")
    async with opened as session:
        if session is not None:
            await session.clear_session()
            await session.add_items(messages)
        named = f"openai-agents {'SQLiteSession' if name == 'sqlite' else 'RedisSession'}.get_items"
        yield named, None if session is None else session.get_items


def read_lines(path: Path) -> list[Any]:
    """Read a file of JSON lines as the standard library does it."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


async def newest(bench: Bench, name: str, url: str, durability: str) -> Figure:
    """The newest of many against the newest of few, on one store."""
    many = bench.size(10_000, 1_000)
    async with open_store(url) as store:
        for session_id, number in (("many", many), ("few", 100)):
            messages = transcript(number)
            for at in range(0, number, 50):
                await store.sessions.append(session_id, messages[at : at + 50])

        def tail(session_id: str) -> Work:
            async def load() -> None:
                found = await store.sessions.load(session_id, last=NEWEST)
                assert found is not None
                assert len(found.records) == NEWEST

            return load

        return await bench.compare(
            f"newest {NEWEST} of {many:,}, {name}",
            tail("many"),
            tail("few"),
            anchor=f"newest {NEWEST} of 100",
            durability=durability,
            goal=at_most(1.3),
        )
