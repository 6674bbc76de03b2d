"""What a turn and a step cost, as counts, which no noise moves: commits, hops, syncs, commands, calls, bytes, modules."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.servers import VALKEY, Server, shared

from perdure import Agent, AgentStore, Session, ToolCall, codec, open_store, tool
from perdure.backend import Append, Part, Replace
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, InterceptedJournal, Interception
from perdure_file.disk import Disk
from perdure_sqlite.worker import Worker

anyio = pytest.mark.anyio
WRITES = {0: 3, 1: 5, 3: 9}
"""Of a turn with so many steps that call a tool: the input, response and result of each step, the answer, and the end."""


INNER = ["lindex", "llen", "lset", "ltrim", "rpush", "pttl", "zcard", "time", "zadd", "zrem", "zrangebyscore"]
"""What the script that writes calls, on the server."""

OUTER = ("evalsha", "lrange", "config|resetstat", "client|setinfo", "hello")
"""A turn's own two commands, and those of the client that asks for the counts."""


def steps(number: int) -> FunctionModel:
    """Call a tool in so many steps, then answer."""

    async def answer(request: ModelRequest) -> ModelResponse:
        done = sum(message.role == "tool" for message in request.messages)
        turn = sum(message.role == "user" for message in request.messages)
        if done < turn * number:
            return ModelResponse("I look it up.", [ToolCall(f"call-{done:06}", "look_up", {"order": 7})])
        return ModelResponse(text="It was sent on Monday.")

    return FunctionModel(answer)


@tool(idempotent=True)
async def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}: sent on Monday"


def session_of(store: AgentStore, number: int) -> Session:
    return Agent(model=steps(number), tools=[look_up], store=store).session("s")


@asynccontextmanager
async def intercepted(url: str, interception: Interception) -> AsyncIterator[AgentStore]:
    """Open a store whose journal calls are looked at."""
    async with open_store(url) as backend:
        assert isinstance(backend.sessions, JournalSessions)
        parts = journal_stores(InterceptedJournal(backend.sessions.journal, interception))
        yield AgentStore(sessions=parts.sessions, checkpoints=parts.checkpoints, approvals=parts.approvals)


def commits(database: Path) -> int:
    """Count the frames of the write-ahead log that end a commit: their second word is not zero."""
    log = database.with_name(f"{database.name}-wal").read_bytes()
    frame = 24 + int.from_bytes(log[8:12], "big")
    return sum(log[at + 4 : at + 8] != bytes(4) for at in range(32, len(log), frame))


@anyio
@pytest.mark.parametrize("number", WRITES)
async def test_on_sqlite_each_write_of_a_turn_is_one_commit_in_one_hop(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[int] = []
    original = Worker.run

    def count(worker: Worker, calls: Any) -> None:
        hops.append(sum(call.statements > 0 for call in calls))
        original(worker, calls)

    monkeypatch.setattr(Worker, "run", count)
    async with open_store(f"sqlite:{tmp_path / 'agent.db'}") as store:
        session = session_of(store, number)
        await session.send("Where is my order?")
        before = commits(tmp_path / "agent.db")
        hops.clear()
        await session.send("And the other?")
        assert commits(tmp_path / "agent.db") - before == WRITES[number]
        assert (hops.count(1), hops.count(0), max(hops)) == (WRITES[number], 3, 1)  # it reads three times


@anyio
@pytest.mark.parametrize("number", WRITES)
async def test_on_redis_each_write_of_a_turn_is_one_command(number: int, namespace: str, server: Server) -> None:
    async with open_store(f"{server.url}/0?namespace={namespace}") as store:
        session = session_of(store, number)
        await session.send("Where is my order?")
        server.ask("CONFIG", "RESETSTAT")
        await session.send("And the other?")
        calls = {name: each["calls"] for name, each in server.info("commandstats").items()}
        assert calls["cmdstat_evalsha"] == WRITES[number]
        assert calls["cmdstat_lrange"] == 3
        assert set(calls) <= {f"cmdstat_{name}" for name in (*INNER, *OUTER)}


@pytest.fixture(scope="module")
def server() -> Server:
    return shared(VALKEY)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-64:]


@anyio
@pytest.mark.parametrize("number", WRITES)
async def test_on_files_each_write_of_a_turn_is_one_sync_but_for_its_end(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: Counter[str] = Counter()
    original = Disk.sync

    def count(disk: Disk, *given: Any) -> Any:
        syncs["sync"] += 1
        return original(disk, *given)

    monkeypatch.setattr(Disk, "sync", count)
    async with open_store(f"file:{tmp_path}") as store:
        session = session_of(store, number)
        await session.send("Where is my order?")
        syncs.clear()
        await session.send("And the other?")
    # A file is not atomic over two keys: the turn is marked as finished, saved, and its journal is rewritten.
    assert syncs["sync"] == WRITES[number] - 1 + 4, syncs


@anyio
async def test_a_turn_closes_in_one_atomic_write(tmp_path: Path, server: Server, namespace: str) -> None:
    for url in ("memory:", f"sqlite:{tmp_path / 'agent.db'}", f"{server.url}/0?namespace={namespace}"):
        interception = Interception()
        async with intercepted(url, interception) as store:
            await session_of(store, 1).send("Where is my order?")
        *others, last = interception.calls
        assert [(type(one), one.key.part) for one in last.operations] == [
            (Append, Part.SESSIONS),
            (Replace, Part.RUNS),
        ]
        assert [len(call.operations) for call in others] == [1] * WRITES[1]  # the first turn makes its session as well


class Weighed(Interception):
    """Adds up the bytes of items and heads that go to the backend."""

    def __init__(self) -> None:
        super().__init__(after=self._weigh)
        self.written: list[int] = []

    async def _weigh(self, call: Call) -> None:
        self.written.append(sum(map(size, call.operations)))


def size(operation: Any) -> int:
    return sum(map(len, operation.items)) + len(operation.head.data or b"")


@anyio
async def test_a_turn_writes_as_many_bytes_late_as_early() -> None:
    weighed, sizes = Weighed(), {}
    async with intercepted("memory:", weighed) as store:
        session = session_of(store, 1)
        for number in range(1, 101):
            weighed.written.clear()
            await session.send("Where is my order?")
            sizes[number] = weighed.written.copy()
    assert len(sizes[10]) == len(sizes[100]) == WRITES[1]
    assert sum(sizes[100]) <= 1.01 * sum(sizes[10]), sizes  # numbers have more digits


@anyio
async def test_a_step_writes_two_entries_and_their_heads() -> None:
    """A message is written when it is there and once more when the turn is saved; nothing else repeats it."""
    weighed = Weighed()
    async with intercepted("memory:", weighed) as store:
        await session_of(store, 3).send("Where is my order?")
    response, result = weighed.written[2], weighed.written[3]
    assert [weighed.written[at] for at in (4, 6)] == [response] * 2
    assert [weighed.written[at] for at in (5, 7)] == [result] * 2
    assert response + result < 2_500


@anyio
async def test_a_load_holds_the_bytes_only_while_they_are_decoded(
    tmp_path: Path, server: Server, namespace: str
) -> None:
    records = [{"role": "user", "content": f"{number} " + "x" * 1000} for number in range(2000)]
    for url in (f"file:{tmp_path}", f"sqlite:{tmp_path / 'agent.db'}", f"{server.url}/0?namespace={namespace}"):
        async with open_store(url) as store:
            for start in range(0, 2000, 100):
                await store.sessions.append("s", records[start : start + 100])
            tracemalloc.start()
            try:
                loaded = await store.sessions.load("s")
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert loaded is not None
        assert len(loaded.records) == 2000
        assert peak < 1.7 * sum(len(codec.encode(record)) for record in records), url


IMPORTED = [
    ("import perdure", set[str](), 1),
    ("import perdure.backend", {"msgspec", "orjson", "pluggy"}, 30),
    ("from perdure import Agent, open_store", {"msgspec", "orjson", "pluggy"}, 85),
    ("from perdure import Agent, AgentStore, Worker, open_store, tool", {"msgspec", "orjson", "pluggy"}, 100),
]
"""What is imported, the libraries that it loads, and how many modules of ours at the most."""
LATER = {"email", "http", "importlib.metadata", "multiprocessing", "sqlite3", "unittest", "xml"}
"""What the standard library has that no import of ours waits for."""


@pytest.mark.parametrize(("code", "libraries", "limit"), IMPORTED)
def test_an_import_loads_nothing_that_it_does_not_need(code: str, libraries: set[str], limit: int) -> None:
    listed = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-I", "-c", listed], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    names = {name.partition(".")[0] for name in loaded if not name.startswith("_sysconfigdata")}
    names -= sys.stdlib_module_names | {"perdure"}
    assert names - {"typing_extensions"} == libraries, names  # msgspec takes it where it is installed
    assert not LATER & set(loaded)
    assert not [name for name in loaded if name.startswith(("perdure.at_rest", "perdure.cli", "perdure.moving"))]
    assert len([name for name in loaded if name.partition(".")[0] == "perdure"]) <= limit
