"""The anchors that are sessions of other agent frameworks, with the same messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import anchor
from benchmarks.messages import STEP, message
from benchmarks.pairs import Work


@asynccontextmanager
async def openai_sqlite(path: Path) -> AsyncIterator[Any]:
    """Open a session of openai-agents on SQLite, in WAL mode with SQLite's default, synchronous=full; or `None`."""
    agents = anchor("agents")
    if agents is None:
        yield None
        return
    session = agents.SQLiteSession("s", path)
    yield session
    session.close()


@asynccontextmanager
async def openai_redis(url: str) -> AsyncIterator[Any]:
    """Open a session of openai-agents on Redis; or `None`."""
    memory = anchor("agents.extensions.memory")
    if memory is None:
        yield None
        return
    session = memory.RedisSession.from_url("s", url=url)
    yield session
    await session.close()


def adding(session: Any) -> Work | None:
    """Return the work that adds the messages of a step to a session of openai-agents, one call a message."""
    if session is None:
        return None

    async def add() -> None:
        for one in STEP:
            await session.add_items([one])

    return add


class Graph:
    """A conversation that langgraph's `AsyncSqliteSaver` keeps: after each superstep a checkpoint with all messages.

    The calls are those that a compiled graph makes for a state `{"messages": [...]}` with a node that asks the model and a node
    that runs tools: for each of the two, the writes of its task, then the checkpoint.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._base = anchor("langgraph.checkpoint.base")
        self._messages = anchor("langchain_core.messages")
        self._config: dict[str, Any] = {"configurable": {"thread_id": "s", "checkpoint_ns": ""}}
        self.state: list[Any] = []
        self._step = 0

    async def turns(self, number: int) -> None:
        """Add so many turns."""
        for _ in range(number):
            await self.step()

    async def step(self) -> None:
        """Add a message of the model and the result of a tool."""
        assert self._messages is not None
        answer, result = STEP
        self._step += 1
        call = f"call-{self._step}"
        asked = [{"name": "look_up", "args": {"order": 7}, "id": call, "type": "tool_call"}]
        for node, one in (
            ("agent", self._messages.AIMessage(answer["content"], id=f"a{self._step}", tool_calls=asked)),
            ("tools", self._messages.ToolMessage(result["content"], id=f"t{self._step}", tool_call_id=call)),
        ):
            await self._superstep(node, one)

    async def _superstep(self, node: str, new: Any) -> None:
        assert self._base is not None
        if "checkpoint_id" in self._config["configurable"]:
            await self._saver.aput_writes(self._config, [("messages", [new])], task_id=f"{node}-{self._step}")
        self.state.append(new)
        checkpoint = self._base.empty_checkpoint()
        checkpoint["channel_values"] = {"messages": list(self.state)}
        versions = {"messages": f"{len(self.state):032}.0"}
        checkpoint["channel_versions"] = versions
        metadata = {"source": "loop", "step": len(self.state), "parents": {}}
        self._config = await self._saver.aput(self._config, checkpoint, metadata, versions)


@asynccontextmanager
async def langgraph_sqlite(path: Path) -> AsyncIterator[Graph | None]:
    """Open a conversation of langgraph on SQLite, in WAL mode with synchronous=full; or `None`."""
    saver = anchor("langgraph.checkpoint.sqlite.aio")
    if saver is None:
        yield None
        return
    async with saver.AsyncSqliteSaver.from_conn_string(str(path)) as opened:
        yield Graph(opened)


def transcript(messages: int) -> list[dict[str, Any]]:
    """Return so many messages of 1 KiB."""
    return [message(role="assistant" if number % 2 else "user") for number in range(messages)]
