"""How much memory does a loaded transcript take, and how much while it is being loaded?"""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.messages import as_bytes
from benchmarks.sdk_sessions import transcript

from perdure import Agent, AgentStore, open_store
from perdure.models import ScriptedModel

HELD, PEAK = at_most(1.3), at_most(1.7)


async def measure(bench: Bench) -> list[Figure]:
    """Measure a store's `load` on each backend, and a session's."""
    number = bench.size(10_000, 1_000)
    messages = transcript(number)
    found: list[Figure] = []
    for name, url in (
        ("sqlite", f"sqlite:{bench.place('agent.db')}"),
        ("redis", f"{bench.server().url}/0?namespace=memory"),
        ("file", f"file:{bench.place('store')}"),
    ):
        async with open_store(url) as store:
            size = await put(store, "s", messages)
            found += await held_and_peak(f"{number:,} records, {name}", lambda: store.sessions.load("s"), size)
    async with open_store(f"sqlite:{bench.place('agent.db')}") as store:
        size = await put(store, "s", [{"kind": "message", "message": message} for message in messages])
        session = Agent(model=ScriptedModel([]), store=store).session("s")
        found += await held_and_peak(f"{number:,} messages of a session, sqlite", session.load, size)
    return found


async def put(store: AgentStore, session_id: str, records: list[dict[str, Any]]) -> int:
    """Append records a hundred at a time, and return how many bytes of JSON they are."""
    for at in range(0, len(records), 100):
        await store.sessions.append(session_id, records[at : at + 100])
    return sum(len(as_bytes(record)) for record in records)


async def held_and_peak(what: str, load: Callable[[], Awaitable[object]], size: int) -> list[Figure]:
    """Load once with Python's allocations counted: what is left when it is loaded, and the most there was."""
    gc.collect()
    tracemalloc.start()
    try:
        loaded = await load()
        await asyncio.sleep(0.05)  # until then the loop and the driver's thread keep what they answered last
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded is not None
    return [
        Figure(f"{title} {what}", "its JSON", "reads", "bytes", memory, size, [memory / size], goal)
        for title, memory, goal in (("holding", held, HELD), ("peak while loading", peak, PEAK))
    ]
