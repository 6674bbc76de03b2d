"""What the tests of workers share: turns that nobody runs, made as the runtime makes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from core.tests.processes import die_at

from perdure import Agent, AgentStore, ToolCall, ToolContext, tool
from perdure.contracts.checkpoints import Checkpoint
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.messages import stamp
from perdure.runtime.turn.state import entry


async def submit(store: AgentStore, session_id: str, text: str = "go", *, agent: str = "agent") -> str:
    """Record a turn that nobody has run yet; return its run id."""
    return await World().agent(store, name=agent).session(session_id).submit(text)


@dataclass
class World:
    """Agents that count what they do, over all stores and processes of a test."""

    ran: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    errors: dict[str, Exception] = field(default_factory=dict)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    now: set[str] = field(default_factory=set)
    most: int = 0

    def agent(self, store: AgentStore | None, *, name: str = "agent", tools: Any = None) -> Agent:
        """An agent whose model does what the input says, in words behind the name of the conversation."""

        @tool(needs_approval=True)
        async def wire(to: str) -> str:
            self.ran[f"wire {to}"] += 1
            return f"wired {to}"

        @tool
        async def pay(to: str, context: ToolContext) -> str:
            self.ran[f"pay {to}"] += 1
            return f"paid {to}"

        given = [wire, pay] if tools is None else tools
        return Agent(model=FunctionModel(self._answer), tools=given, store=store, name=name)

    async def run(self, number: int) -> None:
        """Wait until that many models are being asked at once."""
        async with asyncio.timeout(20):
            while len(self.now) < number:  # noqa: ASYNC110  # reason: the tasks that are waited for run meanwhile
                await asyncio.sleep(0)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        order = next(message.text for message in reversed(request.messages) if message.role == "user")
        self.asked[order] += 1
        if order in self.errors:
            raise self.errors[order]
        if request.messages[-1].role == "user" and order.startswith(("wire ", "pay ")):
            name, to = order.split()
            return ModelResponse(tool_calls=[ToolCall("c1", name, {"to": to})])
        if order.startswith("wait"):
            self.now.add(order)
            self.most = max(self.most, len(self.now))
            try:
                await self.may_go_on.wait()
            finally:
                self.now.discard(order)
        return ModelResponse(text=f"did {order}")


async def texts(store: AgentStore, session_id: str) -> list[str]:
    """What the transcript of a session says."""
    return [message.text for message in await World().agent(store).session(session_id).load()]


async def journal(store: AgentStore, session_id: str) -> Checkpoint:
    """A turn journal that is there."""
    found = await store.checkpoints.load(session_id)
    assert found is not None
    return found


async def change(store: AgentStore, session_id: str, *entries: Any, **changes: Any) -> None:
    """Append entries to a turn journal and change its head."""
    found = await journal(store, session_id)
    head = replace(found.head, **changes)
    await store.checkpoints.append(session_id, entries, expected_version=found.version, head=head)


async def abandon(world: World, store: AgentStore, session_id: str, text: str = "go", *, write: int = 2) -> None:
    """Let a process start a turn and die right after a write; the second one opens the turn."""
    await die_at(store, write, lambda used: world.agent(used).session(session_id).send(text), atomic=False)


async def settled(store: AgentStore, session_id: str) -> None:
    """Wait until no turn is open in a conversation."""
    async with asyncio.timeout(20):
        while (await journal(store, session_id)).head.status != "idle":  # noqa: ASYNC110  # reason: others write it
            await asyncio.sleep(0.001)


def resumed(store: AgentStore) -> Any:
    """The entry that says that somebody took the turn up."""
    return entry("resumed", stamp(store.clock.now()))
