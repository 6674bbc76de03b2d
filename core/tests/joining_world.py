"""A conversation with gates in its model and its tool, and inputs that join its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from core.tests.processes import another

from perdure import Agent, AgentStore, Session, ToolCall, TurnResult, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse, TextDelta
from perdure.runtime.turns import TurnPolicy

JOINING: tuple[TurnPolicy, ...] = ("queue", "steer")
EVERY: tuple[TurnPolicy, ...] = ("wait", *JOINING)
policies = pytest.mark.parametrize("policy", JOINING)


class Gate:
    """Says when it is reached, and holds until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def at_once() -> None:
    """Hold nothing."""


class Talk:
    """One conversation, with a gate in its model and in its tool.

    An input `work` has its tool called once, `sign` one that is gated too; the last response repeats what it was asked.
    """

    def __init__(self, store: AgentStore, *, in_doubt: Any = "rerun") -> None:
        self.store = store
        self.asked: list[list[str]] = []
        self.ran: list[str] = []
        self.in_tool: Callable[[], Awaitable[None]] = at_once
        self.in_model: Callable[[], Awaitable[None]] = at_once
        self.after_delta: Callable[[], Awaitable[None]] = at_once
        self._in_doubt = in_doubt
        self.agent = self.by(store)

    def by(self, store: AgentStore) -> Agent:
        @tool(in_doubt=self._in_doubt)
        async def work() -> str:
            await self.in_tool()
            self.ran.append("work")
            return "worked"

        @tool(needs_approval=True, idempotent=True)
        async def sign() -> str:
            self.ran.append("sign")
            return "signed"

        tools = [work, sign] if "checkpoints" in store else [work]
        return Agent(model=FunctionModel(self._answer), tools=tools, store=store)

    async def _answer(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        texts = [message.text for message in request.messages]
        self.asked.append(texts)
        await self.in_model()
        if self.after_delta is not at_once:
            yield TextDelta("re")
            await self.after_delta()
        calls = {"work": ["work"], "sign": ["sign"], "both": ["work", "sign"]}.get(texts[-1], [])
        if calls:
            yield ModelResponse("", [ToolCall(f"c-{name}", name) for name in calls])
        else:
            yield ModelResponse(f"re: {texts[-1]}")

    def session(self, policy: TurnPolicy = "wait", store: AgentStore | None = None, **options: Any) -> Session:
        agent = self.agent if store is None else self.by(store)
        return agent.session("s", turn_policy=policy, **options)

    async def texts(self) -> list[str]:
        return [message.text for message in await self.by(self.store).session("s").load()]

    async def entries(self) -> list[str]:
        found = await self.store.checkpoints.load("s")
        return [] if found is None else [entry["kind"] for entry in found.entries]

    async def finish(self) -> list[str]:
        """Finish whatever is pending, as a fresh process, and return the transcript."""
        session = self.by(another(self.store)).session("s")
        while await session.resume() is not None:
            pass
        return await self.texts()


async def begun(gate: Gate, work: Awaitable[TurnResult]) -> asyncio.Task[TurnResult]:
    task = asyncio.ensure_future(work)
    await gate.reached.wait()
    return task


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Let the loop turn until nothing moves without a gate."""
    for _ in range(200):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0)


async def joined(talk: Talk, text: str, policy: TurnPolicy, *, input_id: str | None = None) -> asyncio.Task[TurnResult]:
    """Give an input to the turn that runs, and wait until it is taken."""
    task = asyncio.create_task(talk.session(policy).send(text, input_id=input_id))
    await settled(task)
    return task


async def kill(talk: Talk, *tasks: asyncio.Task[Any]) -> None:
    """End a process where it stands, without a trace in the store."""
    journal = talk.store.checkpoints.journal  # type: ignore[attr-defined]  # reason: the kit's journal is below it
    journal.interception.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
