"""What does a step (1 KiB of the model, 4 KiB of a tool, an append each) cost against other frameworks, and what a whole turn?"""

from benchmarks.agents import agent_of
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.messages import STEP, as_bytes
from benchmarks.pairs import Work
from benchmarks.raw_engines import SQLITE, insert, raw_sqlite
from benchmarks.sdk_sessions import adding, langgraph_sqlite, openai_redis, openai_sqlite

from perdure import AgentStore, open_store

FULL = "WAL, synchronous=full"
EVERYSEC = "appendonly yes, appendfsync everysec"
TURNS = 100


async def measure(bench: Bench) -> list[Figure]:
    """Measure steps against other frameworks, and turns in inserts."""
    found = [await against_openai_sqlite(bench), await against_openai_redis(bench), await against_langgraph(bench)]
    server = bench.server()
    for name, url, durability in (
        ("sqlite", f"sqlite:{bench.place('agent.db')}", FULL),
        ("redis", f"{server.url}/0?namespace=turns", EVERYSEC),
        ("file", f"file:{bench.place('store')}", "fsync"),
        ("memory", "memory:", "none"),
    ):
        found += [await whole_turn(bench, name, url, durability, calls) for calls in (0, 1)]
    return found


def stepper(store: AgentStore) -> Work:
    """Return the work that appends the messages of a step, a durable append each."""
    version = 0

    async def step() -> None:
        nonlocal version
        for one in STEP:
            version = await store.sessions.append("s", [one], expected_version=version)

    return step


async def against_openai_sqlite(bench: Bench) -> Figure:
    """One call a message on both sides."""
    async with open_store(f"sqlite:{bench.place('a.db')}") as store, openai_sqlite(bench.place("o.db")) as session:
        return await bench.compare(
            "step, sqlite",
            stepper(store),
            adding(session),
            anchor="openai-agents SQLiteSession, one call a message",
            durability=FULL,
            goal=at_most(0.8),
            calls=10,
        )


async def against_openai_redis(bench: Bench) -> Figure:
    """One call a message on both sides."""
    server = bench.server()
    async with open_store(f"{server.url}/0?namespace=step") as store, openai_redis(f"{server.url}/1") as session:
        return await bench.compare(
            "step, redis",
            stepper(store),
            adding(session),
            anchor="openai-agents RedisSession, one call a message",
            durability=EVERYSEC,
            goal=at_most(0.25),
            calls=10,
        )


async def against_langgraph(bench: Bench) -> Figure:
    """Behind as many turns of one step on both sides. Their file grows by the whole conversation each time."""
    turns = bench.size(TURNS, 20)
    async with open_store(f"sqlite:{bench.place('a.db')}") as store, langgraph_sqlite(bench.place("l.db")) as graph:
        step = stepper(store)
        for _ in range(turns):
            await step()
        if graph is not None:
            await graph.turns(turns)
        return await bench.compare(
            f"step in turn {turns}, sqlite",
            step,
            None if graph is None else graph.step,
            anchor="langgraph AsyncSqliteSaver",
            durability=FULL,
            goal=at_most(0.06) if turns == TURNS else None,
            calls=1,
            pairs=40,
        )


async def whole_turn(bench: Bench, name: str, url: str, durability: str, calls: int) -> Figure:
    """Run turns of ten conversations one after the other, and count them in bare inserts of 1 KiB."""
    data, number = as_bytes(STEP[0]), 0
    async with open_store(url) as store, raw_sqlite(bench.place("raw.db")) as raw:
        agent = agent_of(store, calls=calls)
        sessions = [agent.session(f"{calls}-{one}") for one in range(10)]

        async def turn() -> None:
            nonlocal number
            number += 1
            result = await sessions[number % len(sessions)].send("Where is my order?")
            assert result.finish_reason == "stop", result.finish_reason

        return await bench.compare(
            f"a turn {f'with {calls} call of a tool' if calls else 'without a call'}, {name}",
            turn,
            lambda: insert(raw, data),
            anchor=SQLITE,
            durability=f"{durability}; the insert: {FULL}",
            calls=5,
            pairs=30,
        )
