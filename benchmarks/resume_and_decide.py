"""What does it cost to resume a turn, to decide an approval, and to go on with the turn that waited for it?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.agents import agent_of
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.messages import as_bytes, message
from benchmarks.pairs import Work
from benchmarks.raw_engines import SQLITE, insert, raw_sqlite

from perdure import AgentStore, open_store

PAIRS, CALLS = 30, 3


async def measure(bench: Bench) -> list[Figure]:
    """Measure each call on SQLite and on Redis, in bare inserts."""
    found = []
    for name, url, durability in (
        ("sqlite", f"sqlite:{bench.place('agent.db')}", "WAL, synchronous=full"),
        ("redis", f"{bench.server().url}/0?namespace=resume", "appendonly yes, appendfsync everysec"),
    ):
        async with counted_in_inserts(bench, name, url, durability) as (store, compare):
            found += [
                await compare("resume a submitted turn without a call", await resuming(bench, store)),
                await compare("decide an approval", await deciding(bench, store)),
                await compare("resume the turn whose approval was decided", await going_on(store)),
            ]
    return found


class Compare:
    """Makes figures of works on one store."""

    def __init__(self, bench: Bench, name: str, insert: Work, durability: str) -> None:
        self._bench, self._name, self._insert, self._durability = bench, name, insert, durability

    async def __call__(self, what: str, work: Work) -> Figure:
        durability = f"{self._durability}; the insert: WAL, synchronous=full"
        return await self._bench.compare(
            f"{what}, {self._name}",
            work,
            self._insert,
            anchor=SQLITE,
            durability=durability,
            calls=CALLS,
            pairs=PAIRS,
        )


@asynccontextmanager
async def counted_in_inserts(
    bench: Bench, name: str, url: str, durability: str
) -> AsyncIterator[tuple[AgentStore, Compare]]:
    """Open a store, and a bare database beside it."""
    data = as_bytes(message())
    async with open_store(url) as store, raw_sqlite(bench.place("raw.db")) as raw:
        yield store, Compare(bench, name, lambda: insert(raw, data), durability)


def number_of_calls(bench: Bench) -> int:
    """How often a work is called: so much must be prepared."""
    return (bench.size(PAIRS, 4) + 1) * bench.size(CALLS, CALLS)


async def resuming(bench: Bench, store: AgentStore) -> Work:
    """Submit turns; the work resumes one."""
    agent = agent_of(store)
    waiting = [agent.session(f"r{number}") for number in range(number_of_calls(bench))]
    for session in waiting:
        await session.submit("Where is my order?")

    async def resume() -> None:
        result = await waiting.pop().resume()
        assert result is not None
        assert result.finish_reason == "stop", result.finish_reason

    return resume


async def deciding(bench: Bench, store: AgentStore) -> Work:
    """Run turns until they wait for an approval; the work decides one."""
    agent = agent_of(store, calls=1, needs_approval=True)
    waiting: list[str] = []
    for number in range(number_of_calls(bench)):
        result = await agent.session(f"d{number}").send("Where is my order?")
        waiting += result.approval_ids

    async def decide() -> None:
        await store.decide(waiting.pop(), approved=True)

    return decide


async def going_on(store: AgentStore) -> Work:
    """The work goes on with a turn that `deciding` has left."""
    agent = agent_of(store, calls=1, needs_approval=True)
    decided = [turn.session_id for turn in await agent.pending() if turn.session_id is not None]

    async def resume() -> None:
        result = await agent.session(decided.pop()).resume()
        assert result is not None
        assert result.finish_reason == "stop", result.finish_reason

    return resume
