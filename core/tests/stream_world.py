"""A conversation whose turn tells of everything, and ways to watch a stream of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from perdure import Agent, AgentStore, Session, ToolCall, tool
from perdure.events import RunEvent
from perdure.models import FunctionModel, ModelRequest, ModelResponse, TextDelta
from perdure.runtime.stream import RunStream


class Scene:
    """One conversation whose turn tells of everything: text, two tools, one that is gated, and a last answer."""

    def __init__(self, store: AgentStore, *, gated: bool = False) -> None:
        self.store = store
        self.ran: list[str] = []
        self.gated = gated
        self.before_tool: Callable[[], Awaitable[None]] = at_once
        self.before_model: Callable[[], Awaitable[None]] = at_once
        self.session = self.by(store)

    def by(self, store: AgentStore) -> Session:
        @tool(idempotent=True)
        async def look() -> str:
            self.ran.append("look")
            return "seen"

        @tool(in_doubt="fail")
        async def pay() -> str:
            await self.before_tool()
            self.ran.append("pay")
            return "paid"

        @tool(needs_approval=True, in_doubt="fail")
        async def sign() -> str:
            self.ran.append("sign")
            return "signed"

        self.agent = Agent(model=FunctionModel(self.answer), tools=[look, pay, sign], store=store)
        return self.agent.session("s")

    async def answer(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await self.before_model()
        last = request.messages[-1]
        if last.role == "tool":
            yield TextDelta("do")
            yield TextDelta("ne")
            yield ModelResponse("done")
        elif last.text.startswith("work"):
            yield TextDelta("so")
            calls = [ToolCall("c1", "look"), ToolCall("c2", "pay"), *[ToolCall("c3", "sign")] * self.gated]
            yield ModelResponse("so", calls)
        else:
            yield ModelResponse(f"re: {last.text}")

    async def texts(self) -> list[str]:
        return [message.text for message in await self.by(self.store).load()]

    async def check_no_half_turn(self, store: AgentStore) -> None:
        """Check that the transcript has whole turns only, and takes a new input, with a store that is well."""
        self.store = store
        before = await self.texts()
        assert before in ([], WORK)
        result = await self.by(store).send("next")
        assert result.text == "re: next"
        after = await self.texts()
        assert after in (["next", "re: next"], [*WORK, "next", "re: next"], [*DOUBTED, "next", "re: next"])
        assert await self.by(self.store).pending() is None


async def at_once() -> None:
    """Wait for nothing."""


WORK = ["work", "so", "seen", "paid", "done"]
DOUBT = "whether attempt 1 of this call had an effect is not known, and it was not repeated"
DOUBTED = ["work", "so", "seen", DOUBT, "done"]
TYPES = [
    "run.started",
    "text.delta",
    "model.responded",
    "tool.started",
    "tool.started",
    "tool.finished",
    "tool.finished",
    "text.delta",
    "text.delta",
    "model.responded",
    "run.done",
]


async def shown(run: RunStream) -> list[Any]:
    return [event async for event in run]


async def whole(stream: RunStream) -> list[Any]:
    async with stream as run:
        return await shown(run)


def types(events: list[Any]) -> list[str]:
    return [event.type for event in events]


@contextlib.contextmanager
def ends(error: type[BaseException] | None) -> Iterator[None]:
    if error is None:
        yield
    else:
        with pytest.raises(error):
            yield


class OwnError(Exception):
    """What a user's code raises in the block."""


def paced(scene: Scene, run: RunStream, number: int) -> None:
    """Have a turn go on no further than event `number`, from which on its next wait is for ever."""
    told = 0
    taken = run._take

    def take(event: RunEvent) -> None:
        nonlocal told
        told += 1
        taken(event)

    run._call.sink = take

    async def wait() -> None:
        if told >= number:
            await asyncio.Event().wait()

    scene.before_tool = scene.before_model = wait


WRITES = 9
"""As many as the turn makes when it is saved in steps: session, input, response, start, two results, last, finish, save, close."""


async def all_of(run: RunStream) -> tuple[list[Any], BaseException | None]:
    """Return what a stream shows, and what its block raises."""
    events: list[Any] = []
    try:
        async with run:
            events.extend([event async for event in run])
    except BaseException as error:  # noqa: BLE001  # reason: the caller looks at it
        return events, error
    return events, None
