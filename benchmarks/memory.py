"""How much memory does a loaded transcript take, and how much while it is being loaded?"""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.messages import as_bytes
from benchmarks.sdk_sessions import transcript

from perdure import Agent, Message, open_store
from perdure.models import ScriptedModel

HELD, PEAK = at_most(1.3), at_most(1.7)


async def measure(bench: Bench) -> list[Figure]:
    """Measure a store's `load` on each backend, and a session's."""
    number = bench.size(10_000, 1_000)
    messages = transcript(number)
    records = [{"kind": "message", "message": Message(one["role"], one["content"]).to_record()} for one in messages]
    size = sum(len(as_bytes(record)) for record in records)
    del messages
    found: list[Figure] = []
    for name, url in (
        ("sqlite", f"sqlite:{bench.place('agent.db')}"),
        ("redis", f"{bench.server().url}/0?namespace=memory"),
        ("file", f"file:{bench.place('store')}"),
    ):
        async with open_store(url) as store:
            for at in range(0, number, 100):
                await store.sessions.append("s", records[at : at + 100])
            found += await held_and_peak(f"{number:,} records, {name}", lambda: store.sessions.load("s"), size)
            if name == "sqlite":
                session = Agent(model=ScriptedModel([]), store=store).session("s")
                found += await held_and_peak(f"{number:,} messages of a session, {name}", session.load, size)
    return found


async def held_and_peak(what: str, load: Callable[[], Awaitable[object]], size: int) -> list[Figure]:
    """Load once with Python's allocations counted: what is left when it is loaded, and the most there was."""
    gc.collect()
    tracemalloc.start()
    try:
        loaded = await load()
        await asyncio.sleep(0)  # until then the loop keeps what it woke this task with
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded is not None
    return [
        Figure(f"{title} {what}", "its JSON", "reads", "bytes", memory, size, [memory / size], goal)
        for title, memory, goal in (("holding", held, HELD), ("peak while loading", peak, PEAK))
    ]
