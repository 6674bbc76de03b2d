"""What one operation costs on a store, and how much room a conversation takes: the figures of docs/explanation/scaling.md.

    python -m benchmarks.unit_costs sqlite:/tmp/costs/agent.db 1000 10000

fills the store up to each number of conversations in turn and measures it there. It prints JSON: for each operation
two numbers of milliseconds, of the clock (the fastest tenth) and of this process's processor time (the average), and bytes. The store should be empty at first; nothing of it is removed at the end.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from benchmarks.machine import machine

from perdure import Agent, AgentStore, ToolCall, open_store, tool
from perdure.backend import StoreURL
from perdure.models import FunctionModel, ModelRequest, ModelResponse

REPEATS = 50
TEXT = "What an agent and a user say to each other in one message is often about as long as this sentence. " * 2
TRANSCRIPT = [{"role": role, "text": TEXT} for _ in range(10) for role in ("user", "assistant")]


@tool(idempotent=True)
def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order} is on its way"


async def answer(request: ModelRequest) -> ModelResponse:
    """Call the tool once if the user asks for it, then answer."""
    last = request.messages[-1]
    if last.role == "user" and last.content == "look up":
        return ModelResponse(tool_calls=[ToolCall("call", "look_up", {"order": 7})])
    return ModelResponse(text=TEXT)


async def fill(store: AgentStore, start: int, stop: int) -> None:
    """Add conversations of ten turns each, 64 at a time."""
    numbers = iter(range(start, stop))

    async def add() -> None:
        for number in numbers:
            await store.sessions.append(f"user-{number:07}", TRANSCRIPT, expected_version=0)

    await asyncio.gather(*(add() for _ in range(64)))


async def timed(call: Callable[[int], Awaitable[object]], repeats: int = REPEATS) -> list[float]:
    """Return the milliseconds of a call: by the clock, the fastest tenth, and of the processor, on average."""
    times, worked = [], time.process_time()
    for number in range(repeats):
        start = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - start)
    worked = (time.process_time() - worked) / repeats
    return [round(seconds * 1000, 3) for seconds in (sorted(times)[repeats // 10], worked)]


async def rate(store: AgentStore, at_once: int, conversations: int) -> float:
    """Return how many appends a second so many tasks make, each to a session of its own as long as there are so many."""

    async def write(number: int) -> None:
        for _ in range(10):
            await store.sessions.append(f"user-{number % conversations:07}", TRANSCRIPT[:1])

    start = time.perf_counter()
    await asyncio.gather(*(write(number) for number in range(at_once)))
    return round(at_once * 10 / (time.perf_counter() - start))


async def costs(store: AgentStore, conversations: int) -> dict[str, list[float] | float]:
    """Return the milliseconds of each operation in a store with so many conversations."""
    agent = Agent(model=FunctionModel(answer), tools=[look_up], store=store)

    def key(number: int) -> str:
        return f"user-{(number * 7919 + 13) % conversations:07}"

    return {
        "append": await timed(lambda n: store.sessions.append(key(n), TRANSCRIPT[:1])),
        "load 20 records": await timed(lambda n: store.sessions.load(key(n))),
        "load the last 2": await timed(lambda n: store.sessions.load(key(n), last=2)),
        "turn": await timed(lambda n: agent.session(key(n)).send("hello")),
        "turn with a tool": await timed(lambda n: agent.session(key(n)).send("look up")),
        "list 50": await timed(lambda _: store.sessions.list(limit=50), 10),
        "pending of none": await timed(lambda _: agent.pending(), 10),
        "prune that finds none": await timed(lambda _: store.prune(older_than=timedelta(days=1), dry_run=True), 3),
        "delete": await timed(lambda n: store.delete_session(f"user-{n:07}"), 20),
        "appends a second, 1 task": await rate(store, 1, conversations),
        "appends a second, 64 tasks": await rate(store, 64, conversations),
    }


def room(url: StoreURL) -> int | None:
    """Return how many bytes the store takes up: on the disk, or in the memory of the server."""
    if url.scheme == "redis":
        import redis

        return int(redis.Redis.from_url(str(url)).info("memory")["used_memory"])
    if url.scheme == "memory":
        return None
    path = Path(url.path)
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*")
    return sum(file.stat().st_blocks * 512 for file in files)


async def measure(url: str, numbers: list[int]) -> dict[str, object]:
    """Fill the store step by step, and measure it at each."""
    found: dict[str, object] = {}
    there = 0
    async with open_store(url) as store:
        before = room(StoreURL.parse(url))
        for number in numbers:
            await fill(store, there, number)
            there = number
            after = room(StoreURL.parse(url))
            size = {} if after is None or before is None else {"bytes a conversation": round((after - before) / number)}
            found[str(number)] = size | await costs(store, number)
            await fill_again(store)
    return found


async def fill_again(store: AgentStore) -> None:
    """Put the conversations back that were deleted to measure that."""
    for number in range(20):
        await store.sessions.append(f"user-{number:07}", TRANSCRIPT)


if __name__ == "__main__":
    url, *numbers = sys.argv[1:]
    result = asyncio.run(measure(url, sorted(int(number) for number in numbers)))
    print(json.dumps({"machine": machine(), "store": str(StoreURL.parse(url)), "conversations": result}, indent=2))
