"""How do the time and the bytes of a turn grow with the conversation, and those of a step with its turn?"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agents import TEXT, agent_of, look_up
from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most
from benchmarks.messages import STEP, as_bytes
from benchmarks.pairs import Pairs
from benchmarks.sdk_sessions import adding, langgraph_sqlite, openai_sqlite

from perdure import Agent, AgentStore, Message, ToolCall, open_store
from perdure.bundle import TRANSCRIPT_CACHE
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, InterceptedJournal, Interception

FULL = "WAL, synchronous=full"
SHORT_TURN = 50


async def measure(bench: Bench) -> list[Figure]:
    """Measure time, then bytes."""
    return [
        *[await turn_by_length(bench, way) for way in WAYS],
        await step_by_length(bench),
        *await bytes_of_turns(bench),
        *await stored(bench),
    ]


WAYS = {
    "of a session object that is kept": (True, TRANSCRIPT_CACHE),
    "of a fresh session object": (False, TRANSCRIPT_CACHE),
    "of a fresh session object, nothing kept in memory": (False, 0),
}
"""How the conversation is had: whether by one session object, and how much the store keeps of what others have read."""


async def turn_by_length(bench: Bench, way: str) -> Figure:
    """A turn behind 500 others against a turn behind ten, of one call of a tool each."""
    long, text = bench.size(500, 60), "Where is my order?"
    kept, cache = WAYS[way]
    async with open_store(f"sqlite:{bench.place('agent.db')}", transcript_cache=cache) as store:
        agent = agent_of(store, calls=1)
        sessions = {name: agent.session(name) for name in ("long", "short")}
        for name, turns in (("long", long), ("short", 10)):
            for _ in range(turns):
                await sessions[name].send(text)
        if not kept:
            sessions.clear()  # all objects of a session share what one has read, as long as one of them is there
        return await bench.compare(
            f"turn {long} {way}, sqlite",
            lambda: (sessions["long"] if kept else agent.session("long")).send(text),
            lambda: (sessions["short"] if kept else agent.session("short")).send(text),
            anchor="turn 10 to 40 of another session of the store",
            durability=FULL,
            goal=at_most(1.10) if cache else None,
            calls=1,
            pairs=30,
        )


@dataclass
class LongTurn:
    """A turn of many steps; towards its end, ten of its steps and the steps 10 to 20 of a short turn are timed in turn.

    Attributes:
        store: Where both run.
        steps: How many the long turn has.
        pairs: How many pairs are timed.
    """

    store: AgentStore
    steps: int
    pairs: int
    found: Pairs = field(default_factory=lambda: Pairs([], []))
    _asked: int = 0
    _began: float = 0.0

    async def run(self) -> Pairs:
        """Run it."""
        await Agent(model=FunctionModel(self._answer), tools=[look_up], store=self.store).session("long").send("Go.")
        return self.found

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        first = self.steps - 10 * self.pairs
        if self._asked > first and (self._asked - first) % 10 == 0:
            self.found.ours.append((time.perf_counter() - self._began) / 10)
            self.found.theirs.append(await ShortTurn(self.store).run(f"short-{self._asked}"))
        if self._asked >= first and (self._asked - first) % 10 == 0:
            self._began = time.perf_counter()
        self._asked += 1
        return _response(self._asked, self.steps)


@dataclass
class ShortTurn:
    """A turn of twenty steps, of which the last ten are timed."""

    store: AgentStore
    _asked: int = 0
    _began: float = 0.0
    _ended: float = 0.0

    async def run(self, session_id: str) -> float:
        """Run it, and return how many seconds a step took."""
        agent = Agent(model=FunctionModel(self._answer), tools=[look_up], store=self.store)
        await agent.session(session_id).send("Go.")
        return (self._ended - self._began) / 10

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        if self._asked == 10:
            self._began = time.perf_counter()
        if self._asked == 20:
            self._ended = time.perf_counter()
        self._asked += 1
        return _response(self._asked, 20)


def _response(number: int, steps: int) -> ModelResponse:
    """Call the tool in so many steps, then answer."""
    calls = [ToolCall(f"call-{number}", "look_up", {"order": 7})] if number <= steps else []
    return ModelResponse(text=TEXT, tool_calls=calls)


async def step_by_length(bench: Bench) -> Figure:
    """A step behind 5,000 others of its turn against a step behind ten."""
    steps = bench.size(5_000, 200)
    async with open_store(f"sqlite:{bench.place('agent.db')}") as store:
        found = await LongTurn(store, steps, pairs=bench.size(40, 4)).run()
    return found.figure(
        f"step {steps:,} of a turn, sqlite",
        anchor="steps 10 to 20 of another turn of the store",
        durability=FULL,
        goal=at_most(1.10),
    )


class Weighed(Interception):
    """Adds up the bytes that go to the backend: items and heads."""

    def __init__(self) -> None:
        super().__init__(after=self._weigh)
        self.written = 0

    async def _weigh(self, call: Call) -> None:
        for operation in call.operations:
            head = getattr(operation, "head", None)
            data = getattr(head, "data", None) or b""
            self.written += len(data) + sum(len(item) for item in getattr(operation, "items", ()))
        self.calls.clear()


async def bytes_of_turns(bench: Bench) -> list[Figure]:
    """What a turn gives the backend to write, behind 10, 100 and 500 turns."""
    sizes: dict[int, int] = {}
    async with open_store("memory:") as backend:
        assert isinstance(backend.sessions, JournalSessions)
        weighed = Weighed()
        parts = journal_stores(InterceptedJournal(backend.sessions.journal, weighed))
        store = AgentStore(sessions=parts.sessions, checkpoints=parts.checkpoints, approvals=parts.approvals)
        session = agent_of(store, calls=1).session("s")
        for number in range(1, bench.size(500, 100) + 1):
            before = weighed.written
            await session.send("Where is my order?")
            sizes[number] = weighed.written - before
    counted = [number for number in (100, 500) if number in sizes]
    return [
        Figure(
            f"bytes that turn {number} writes, any backend",
            "bytes that turn 10 writes",
            "any",
            "bytes",
            sizes[number],
            sizes[10],
            [sizes[number] / sizes[10]],
            at_most(1.05),
        )
        for number in counted
    ]


async def stored(bench: Bench) -> list[Figure]:
    """How large files are after 500 turns of a step each, against the JSON of the messages."""
    turns, found = bench.size(500, 50), []
    ours, agents, graph = bench.place("agent.db"), bench.place("openai.db"), bench.place("langgraph.db")
    async with open_store(f"sqlite:{ours}") as store:
        session, messages = agent_of(store, calls=1).session("s"), 0
        for _ in range(turns):
            messages += sum(len(as_bytes(_plain(one))) for one in (await session.send("Where is my order?")).messages)
    found.append(size(f"bytes after {turns} turns, sqlite", ours, messages, goal=1.25))
    json_of_steps = turns * sum(len(as_bytes(one)) for one in STEP)
    async with openai_sqlite(agents) as other:
        add = adding(other)
        for _ in range(turns if add else 0):
            await add()  # type: ignore[misc]  # reason: without it there are no turns
    found.append(size(f"for comparison: bytes after {turns} turns of one step, openai-agents", agents, json_of_steps))
    few = bench.size(100, 20)
    async with langgraph_sqlite(graph) as saver:
        if saver is not None:
            await saver.turns(few)
    found.append(
        size(f"for comparison: bytes after {few} turns of one step, langgraph", graph, few * json_of_steps // turns)
    )
    return [figure for figure in found if figure is not None]


def _plain(message: Message) -> dict[str, Any]:
    """Return what a provider would be sent of a message."""
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": [vars_of(call) for call in message.tool_calls],
    }


def vars_of(call: ToolCall) -> dict[str, Any]:
    """Return a call as JSON."""
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def size(what: str, path: Path, messages: int, goal: float | None = None) -> Figure | None:
    """Return how large a closed database is; `None`: it is not there."""
    if not path.exists():
        return None
    there = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    ratio = there / messages
    return Figure(
        what, "JSON of the messages", "closed file", "bytes", there, messages, [ratio], at_most(goal) if goal else None
    )
