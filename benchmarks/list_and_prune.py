"""How do listing, pending turns, pruning and deleting grow from 100 to 1,000 conversations, on each store?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from benchmarks.agents import agent_of
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.filling import fill
from benchmarks.new_stores import file, memory, redis, sqlite
from benchmarks.pairs import Work

from perdure import AgentStore, open_store

FEW, MANY = 100, 1_000


async def measure(bench: Bench) -> list[Figure]:
    """Measure each store with many conversations against the same store with few."""
    found = []
    for make in (sqlite, redis, file, memory):
        many, name = bench.size(MANY, 2 * FEW), make.__name__
        async with of_size(make(bench), FEW) as few_store, of_size(make(bench), many) as many_store:
            found += await growth(bench, name, few_store, many_store, f"{many:,}", goals=make in (sqlite, redis))
    return found


@asynccontextmanager
async def of_size(url: str, sessions: int) -> AsyncIterator[AgentStore]:
    """Open a store with so many conversations, each of two messages and a turn that has ended."""
    async with open_store(url) as store:
        await fill(store, 0, sessions)
        yield store


async def growth(
    bench: Bench, name: str, few: AgentStore, many: AgentStore, number: str, *, goals: bool
) -> list[Figure]:
    """Compare what a call costs in the two stores."""
    agents = agent_of(few), agent_of(many)
    durability = "reads"
    anchor = f"the same with {FEW}"
    older = timedelta(days=1)
    found = []
    for what, ours, theirs, goal in (
        (
            f"list 50 of {number}, newest first",
            lambda: many.sessions.list(limit=50, order="recent"),
            lambda: few.sessions.list(limit=50, order="recent"),
            at_most(2) if goals else None,
        ),
        (
            f"list 50 of {number}, by id",
            lambda: many.sessions.list(limit=50),
            lambda: few.sessions.list(limit=50),
            at_most(2) if goals else None,
        ),
        (f"pending turns of {number}, of which there are none", agents[1].pending, agents[0].pending, None),
        (
            f"prune of {number} that finds nothing",
            lambda: many.prune(older_than=older, dry_run=True),
            lambda: few.prune(older_than=older, dry_run=True),
            None,
        ),
    ):
        figure = await bench.compare(
            f"{what}, {name}", ours, theirs, anchor=anchor, durability=durability, goal=goal, calls=2, pairs=20
        )
        found.append(figure)
    found.append(await deleting(bench, name, few, many, number))
    return found


async def deleting(bench: Bench, name: str, few: AgentStore, many: AgentStore, number: str) -> Figure:
    """Delete a conversation and make it anew, in both stores."""

    def again(store: AgentStore) -> Work:
        async def work() -> None:
            await store.delete_session("user-0000000")
            await fill(store, 0, 1)

        return work

    return await bench.compare(
        f"delete one of {number} and make it anew, {name}",
        again(many),
        again(few),
        anchor=f"the same with {FEW}",
        durability="as the store's default",
        calls=2,
        pairs=20,
    )
