"""A conversation in every state that it can be in, and what its tool did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from core.tests.processes import another, die_at, elsewhere

from perdure import Agent, AgentStore, Session, ToolCall, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Died, at


class World:
    """One conversation `s` with one saved turn, and what its tool did."""

    def __init__(self, store: AgentStore) -> None:
        self.store = store
        self.paid: list[str] = []
        self.asked = 0
        self.session = self.by(store)

    def by(self, store: AgentStore) -> Session:
        """The conversation as the process of another bundle has it."""

        @tool(needs_approval=True, idempotent=True)
        def pay(to: str) -> str:
            self.paid.append(to)
            return f"paid {to}"

        return Agent(model=FunctionModel(self._answer), tools=[pay], store=store).session("s")

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("pay "):
            return ModelResponse(tool_calls=[ToolCall("c1", "pay", {"to": last.text[4:]})])
        return ModelResponse(text=f"re: {last.text}")

    async def texts(self) -> list[str]:
        """The transcript, as a fresh reader sees it."""
        return [message.text for message in await self.by(self.store).load()]

    async def status(self) -> str:
        found = await self.store.checkpoints.load("s")
        return "absent" if found is None else found.head.status


FIRST = ["first", "re: first"]

CALLS: dict[str, Callable[[Session], Awaitable[Any]]] = {
    "resume": lambda session: session.resume(),
    "send": lambda session: session.send("next"),
    "discard_pending": lambda session: session.discard_pending(),
    "abort": lambda session: session.abort(),
    "clear": lambda session: session.clear(),
    "delete": lambda session: session.store.delete_session("s"),
}


async def in_progress(world: World) -> None:
    """A process died after its model had answered."""
    await die_at(world.store, 2, lambda store: world.by(store).send("hello"))
    assert await world.status() == "in-progress"


async def awaiting(world: World) -> str:
    result = await world.session.send("pay ann")
    return result.approval_ids[0]


async def ready(world: World) -> None:
    await world.store.decide(await awaiting(world), approved=True)
    assert await world.status() == "ready"


async def finished(world: World) -> None:
    """A process died after `finished`, before the transcript had the turn."""
    await die_at(world.store, 3, lambda store: world.by(store).send("hello"), atomic=False)
    assert await world.status() == "finished"


async def elsewhere_running(world: World) -> None:
    """Another machine is in the middle of the turn, as far as can be known."""
    with pytest.raises(Died):
        await world.by(another(world.store, at(2, "die-after"), process=elsewhere())).send("hello")
    assert await world.status() == "in-progress"
