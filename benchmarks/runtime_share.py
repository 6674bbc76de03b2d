"""What does the runtime add to what its store does, in a turn of ten steps?"""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from benchmarks.agents import agent_of
from benchmarks.bench import Bench
from benchmarks.figures import Figure, Goal, at_most
from benchmarks.new_stores import file, memory, redis, sqlite

from perdure import AgentStore, open_store
from perdure.backend import Journal, JournalInfo, JournalSnapshot, Key, Operation, Part, Position
from perdure.journal.stores import JournalSessions, journal_stores

STEPS = 10
Replay = Callable[[Journal], Awaitable[Any]]


class Recording(Journal):
    """A journal that keeps what was asked of it, to ask the same of another one."""

    def __init__(self, inner: Journal) -> None:
        self.inner = inner
        self.capabilities, self.namespace, self.title = inner.capabilities, inner.namespace, inner.title
        self.calls: list[Replay] = []

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        found: JournalSnapshot | None = await self._call(
            lambda journal: journal.read(key, after=after, limit=limit, last=last)
        )
        return found

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        versions: tuple[int, ...] = await self._call(lambda journal: journal.write(operations))
        return versions

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        given: dict[str, Any] = {"group": group, "status": status, "before": before}
        found: Sequence[JournalInfo] = await self._call(
            lambda journal: journal.scan(part, **given, order=order, after=after, limit=limit)
        )
        return found

    async def _call(self, call: Replay) -> Any:
        self.calls.append(call)
        return await call(self.inner)


async def measure(bench: Bench) -> list[Figure]:
    """Measure SQLite, where there is a goal, and the others."""
    return [
        await share(bench, "sqlite", sqlite, "WAL, synchronous=full", at_most(0.20)),
        await share(bench, "redis", redis, "appendonly yes, appendfsync everysec", None),
        await share(bench, "file", file, "fsync", None),
        await share(bench, "memory", memory, "none", None),
    ]


def journal_of(store: AgentStore) -> Journal:
    """Return the journal that a bundle keeps its parts in."""
    assert isinstance(store.sessions, JournalSessions)
    return store.sessions.journal


async def share(bench: Bench, name: str, make: Callable[[Bench], str], durability: str, goal: Goal | None) -> Figure:
    """Run a turn on one store, then only the journal calls that it made on another, and so on in turn."""
    turns: list[float] = []
    replays: list[float] = []
    async with open_store(make(bench)) as first, open_store(make(bench)) as second:
        recording, replica = Recording(journal_of(first)), journal_of(second)
        parts = journal_stores(recording)
        store = AgentStore(sessions=parts.sessions, checkpoints=parts.checkpoints, approvals=parts.approvals)
        agent = agent_of(store, calls=STEPS)
        for number in range(bench.size(60, 4) + 1):
            recording.calls.clear()
            begin = time.perf_counter()
            await agent.session(f"s{number}").send("Where are my orders?")
            middle = time.perf_counter()
            for call in recording.calls:
                await call(replica)
            turns.append(middle - begin)
            replays.append(time.perf_counter() - middle)
    added = [(turn - replay) / turn for turn, replay in zip(turns[1:], replays[1:], strict=True)]
    return Figure(
        what=f"share of the runtime in a turn of {STEPS} steps, {name}",
        anchor="the same calls of the journal, made one after the other",
        durability=durability,
        unit="µs",
        ours=sorted(turns[1:])[len(added) // 2] * 1e6,
        theirs=sorted(replays[1:])[len(added) // 2] * 1e6,
        ratios=added,
        goal=goal,
    )
