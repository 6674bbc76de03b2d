"""With 100,000 conversations and 1,000 unfinished turns in one store: do listing, pending turns, prune and workers stay fast?"""

import asyncio
from datetime import timedelta

from benchmarks.agents import agent_of, look_up
from benchmarks.bench import Bench
from benchmarks.figures import Figure, Goal, at_most
from benchmarks.filling import fill, name_of
from benchmarks.pairs import Work

from perdure import Agent, AgentStore, Worker, open_store
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel

FEW = 100
UNFINISHED = 10
"""Of few conversations; of many, one in a hundred."""


async def measure(bench: Bench) -> list[Figure]:
    """Measure SQLite and Redis."""
    many = bench.size(100_000, 1_000)
    found = []
    for name, url in (
        ("sqlite", "sqlite:{}?synchronous=normal"),
        ("redis", f"{bench.server().url}/0?namespace=scale{{}}"),
    ):
        places = [bench.place("agent.db") for _ in range(2)]
        urls = [url.format(place if name == "sqlite" else place.parent.name) for place in places]
        async with open_store(urls[0]) as few_store, open_store(urls[1]) as many_store:
            await fill_with_turns(few_store, FEW, UNFINISHED)
            await fill_with_turns(many_store, many, many // 100)
            found += await compared(bench, name, many_store, few_store, many)
    return found


async def fill_with_turns(store: AgentStore, sessions: int, unfinished: int) -> None:
    """Make conversations, and submit a turn to the first of them, which nobody runs."""
    await fill(store, 0, sessions)
    agent = agent_of(store)
    for number in range(unfinished):
        await agent.session(name_of(number)).submit("Where is my order?")


async def compared(bench: Bench, name: str, many: AgentStore, few: AgentStore, number: int) -> list[Figure]:
    """Compare each call in the large store with the same in the small one."""
    anchor = f"the same of {FEW}, with {UNFINISHED} unfinished turns"
    size = f"{number:,} sessions"
    found = []

    async def figure(
        what: str, ours: Work, theirs: Work, goal: Goal | None, *, calls: int = 1, pairs: int = 20
    ) -> None:
        found.append(
            await bench.compare(
                f"{what}, {name}", ours, theirs, anchor=anchor, durability="reads", goal=goal, calls=calls, pairs=pairs
            )
        )

    for order in ("recent", "created", "id"):
        await figure(
            f"list 50 of {size}, by {order}",
            lambda order=order: many.sessions.list(limit=50, order=order),  # type: ignore[misc]
            lambda order=order: few.sessions.list(limit=50, order=order),  # type: ignore[misc]
            at_most(2),
            calls=5,
        )
    await figure(
        f"list 10 unfinished turns of {number // 100:,} among {size}",
        lambda: many.checkpoints.list(status="in-progress", limit=10),
        lambda: few.checkpoints.list(status="in-progress", limit=10),
        at_most(2),
        calls=5,
    )
    agents = agent_of(many), agent_of(few)
    await figure(f"pending: all {number // 100:,} of {size}", agents[0].pending, agents[1].pending, None, pairs=5)
    older = timedelta(days=1)
    await figure(
        f"prune of {size} that finds nothing",
        lambda: many.prune(older_than=older, dry_run=True),
        lambda: few.prune(older_than=older, dry_run=True),
        None,
        pairs=5,
    )
    found += await starting(bench, name, many, few, number)
    return found


async def starting(bench: Bench, name: str, many: AgentStore, few: AgentStore, number: int) -> list[Figure]:
    """How soon a worker that is started asks the model, and what a sweep costs that finds nothing of its agent."""
    anchor = f"the same with {FEW}, and {UNFINISHED} unfinished turns"
    shown = f"among {number:,} sessions with {number // 100:,} unfinished turns, {name}"
    idle = [Worker(Agent(model=ScriptedModel([]), store=store, name="other")) for store in (many, few)]
    return [
        await bench.compare(
            "worker start-up to the first question to the model, and back, " + shown,
            lambda: first_question(many),
            lambda: first_question(few),
            anchor=anchor,
            durability="as the store's default",
            calls=1,
            pairs=10,
        ),
        await bench.compare(
            "slow sweep of a worker with nothing to do " + shown,
            lambda: idle[0].sweep(slow=True),
            lambda: idle[1].sweep(slow=True),
            anchor=anchor,
            durability="reads",
            goal=at_most(2),
            calls=2,
            pairs=20,
        ),
    ]


async def first_question(store: AgentStore) -> None:
    """Start a worker, wait until it asks the model in one of the turns, and stop it, which gives the turn back."""
    asked = asyncio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.set()
        await asyncio.Event().wait()
        return ModelResponse()

    worker = Worker(Agent(model=FunctionModel(answer), tools=[look_up], store=store), concurrency=1)
    running = asyncio.create_task(worker.run())
    await asked.wait()
    worker.stop()
    await running
