"""The calls on one conversation are served in call order, and none waits for itself, over however many conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_args

import pytest

from perdure import Agent, AgentStore, Limits, Message, Session, ToolCall, TurnResult, tool
from perdure.errors import SessionBusyError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.turns import TurnPolicy

pytestmark = pytest.mark.anyio

Call = Callable[[Session], Awaitable[Any]]


async def answer(request: ModelRequest) -> ModelResponse:
    return ModelResponse(f"re: {request.messages[-1].text}")


async def texts(store: AgentStore, session_id: str = "s") -> list[str]:
    return [
        message.text for message in await Agent(model=FunctionModel(answer), store=store).session(session_id).load()
    ]


# --- order ---


async def summarised(session: Session, gate: asyncio.Event, held: asyncio.Event) -> None:
    """Compact a conversation while a gate is closed."""

    async def summarize(_: Sequence[Message]) -> str:
        held.set()
        await gate.wait()
        return "summary"

    await session.compact(keep=0, summarize=summarize)


@pytest.mark.parametrize("first", ["queue", "steer"])
@pytest.mark.parametrize("how", ["tasks at once", "one after another"])
async def test_an_input_behind_a_compaction_is_overtaken_by_no_later_one(
    store: AgentStore, first: TurnPolicy, how: str
) -> None:
    agent = Agent(model=FunctionModel(answer), store=store)
    await agent.session("s").send("before")
    gate, held = asyncio.Event(), asyncio.Event()
    compaction = asyncio.create_task(summarised(agent.session("s"), gate, held))
    await held.wait()
    calls: list[asyncio.Task[TurnResult]] = []
    policies: list[TurnPolicy] = [first, "wait", "wait"]
    for number, policy in enumerate(policies):
        calls.append(asyncio.create_task(agent.session("s", turn_policy=policy).send(str(number))))
        if how == "one after another":
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    await compaction
    assert [result.text for result in await asyncio.gather(*calls)] == ["re: 0", "re: 1", "re: 2"]
    assert await texts(store) == ["summary", "0", "re: 0", "1", "re: 1", "2", "re: 2"]


@pytest.mark.parametrize("act", ["clear", "compact", "discard_pending"])
async def test_an_input_that_no_step_took_is_not_overtaken_by_what_came_later(store: AgentStore, act: str) -> None:
    """The turn that it joined ends without it. It opens the next one, which runs before the calls behind it do."""
    entered, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> ModelResponse:
        entered.set()
        await may_answer.wait()
        return await answer(request)

    agent = Agent(model=FunctionModel(slow), store=store, limits=Limits(max_steps=1))
    first = asyncio.create_task(agent.session("s").send("first"))
    await entered.wait()
    joined = [asyncio.create_task(agent.session("s", turn_policy="queue").send("a"))]
    await accepted(store, 1)
    options: dict[str, Any] = {"keep": 0, "summarize": lambda _: "summary"} if act == "compact" else {}
    acting = asyncio.create_task(getattr(agent.session("s"), act)(**options))
    await asyncio.sleep(0)
    joined.append(asyncio.create_task(agent.session("s", turn_policy="queue").send("b")))
    await accepted(store, 2)
    may_answer.set()
    assert (await first).text == "re: first"
    # Both are in one journal, so that one turn has them; whoever stands behind gets its result, too.
    results = [await task for task in joined]
    assert [result.text for result in results] == ["re: b", "re: b"]
    assert len({result.run_id for result in results}) == 1
    done = await acting
    left = {"clear": [], "compact": ["summary"]}.get(act, ["first", "re: first", "a", "b", "re: b"])
    assert (await texts(store), done is False) == (left, act == "discard_pending")


async def accepted(store: AgentStore, number: int) -> None:
    """Wait until a turn has accepted so many inputs."""
    async with asyncio.timeout(20):
        while len(store.ownership.running["s"].state.untaken) < number:  # noqa: ASYNC110  # reason: written meanwhile
            await asyncio.sleep(0)


@pytest.mark.parametrize("policy", get_args(TurnPolicy))
async def test_whoever_is_cancelled_in_line_holds_nobody_up(store: AgentStore, policy: TurnPolicy) -> None:
    agent = Agent(model=FunctionModel(answer), store=store)
    await agent.session("s").send("before")
    gate, held = asyncio.Event(), asyncio.Event()
    compaction = asyncio.create_task(summarised(agent.session("s"), gate, held))
    await held.wait()
    calls = [asyncio.create_task(agent.session("s", turn_policy=policy).send(str(number))) for number in range(4)]
    await asyncio.sleep(0)
    for number in (0, 2):
        calls[number].cancel()
    gate.set()
    await compaction
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, TurnResult) for outcome in outcomes] == [False, True, False, True]
    assert (store.ownership.serving, store.ownership.waits, any(store.ownership._lines.values())) == ({}, {}, False)


async def test_an_abort_behind_a_compaction_drops_no_later_turn(store: AgentStore) -> None:
    agent = Agent(model=FunctionModel(answer), store=store)
    await agent.session("s").send("before")
    gate, held = asyncio.Event(), asyncio.Event()
    compaction = asyncio.create_task(summarised(agent.session("s"), gate, held))
    await held.wait()
    abort = asyncio.create_task(agent.session("s").abort())
    await asyncio.sleep(0)
    later = asyncio.create_task(agent.session("s").send("later"))
    await asyncio.sleep(0)
    gate.set()
    await compaction
    assert await abort is False
    assert (await later).text == "re: later"


# --- circles ---


class Circle:
    """Agents whose tool calls the next conversation, and which all begin before one of them calls."""

    def __init__(self, store: AgentStore, size: int, call: Call) -> None:
        self.store, self.size, self.call = store, size, call
        self.inside = 0
        self.all_inside = asyncio.Event()
        self.refused: list[SessionBusyError] = []

    def agent(self, number: int) -> Agent:
        next_one = f"s{(number + 1) % self.size}"

        @tool(idempotent=True)
        async def call_next() -> str:
            self.inside += 1
            if self.inside == self.size:
                self.all_inside.set()
            await self.all_inside.wait()
            try:
                await self.call(self.agent((number + 1) % self.size).session(next_one))
            except SessionBusyError as error:
                self.refused.append(error)
                raise
            return "called"

        async def model(request: ModelRequest) -> ModelResponse:
            last = request.messages[-1]
            if last.text == "go":
                return ModelResponse(tool_calls=[ToolCall("c1", "call_next")])
            return ModelResponse(f"re: {last.text}")

        return Agent(model=FunctionModel(model), tools=[call_next], store=self.store)

    async def go(self) -> list[TurnResult]:
        async with asyncio.timeout(20):
            return await asyncio.gather(
                *(self.agent(number).session(f"s{number}").send("go") for number in range(self.size))
            )


async def stream(session: Session) -> None:
    async with session.stream("hello") as run:
        async for _ in run:
            pass


CALLS: dict[str, Call] = {
    "send": lambda session: session.send("hello"),
    "stream": stream,
    "resume": lambda session: session.resume(),
    "clear": lambda session: session.clear(),
    "compact": lambda session: session.compact(keep=0, summarize=lambda _: "summary"),
    "queue": lambda session: session.agent.session(session.id, turn_policy="queue").send("hello"),
    "steer": lambda session: session.agent.session(session.id, turn_policy="steer").send("hello"),
    "a helper": lambda session: helped(session),
}


async def helped(session: Session) -> None:
    """Call a conversation from the tool of a third one, which the first one calls."""

    @tool(idempotent=True)
    async def ask() -> str:
        return (await session.send("hello")).text

    async def model(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        return ModelResponse(last.text) if last.role == "tool" else ModelResponse(tool_calls=[ToolCall("c1", "ask")])

    result = (
        await Agent(model=FunctionModel(model), tools=[ask], store=session.store)
        .session(f"{session.id}-helper")
        .send("go")
    )
    if "SessionBusyError" in result.text:
        raise SessionBusyError(session.id, "a call that waits for the one that makes this call")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", [2, 3])
async def test_tools_that_call_each_others_conversations_are_told_so(store: AgentStore, call: str, size: int) -> None:
    """The one that would close the circle is refused, its model is told, and the others get what they wait for."""
    circle = Circle(store, size, CALLS[call])
    results = await circle.go()
    assert [result.finish_reason for result in results] == ["stop"] * size
    assert len(circle.refused) == 1
    assert "a call that waits for the one that makes this call" in str(circle.refused[0])
    told = [message.text for result in results for message in result.messages if message.role == "tool"]
    assert sorted("SessionBusyError" in text for text in told) == [False] * (size - 1) + [True]
    assert (store.ownership.serving, store.ownership.waits, any(store.ownership._lines.values())) == ({}, {}, False)


async def test_the_refusal_says_what_to_do(store: AgentStore) -> None:
    circle = Circle(store, 2, CALLS["send"])
    await circle.go()
    assert "in another session" in circle.refused[0].hint
    assert not circle.refused[0].retryable


async def test_a_conversation_that_two_tools_call_serves_both(store: AgentStore) -> None:
    """They wait for one another in line, and in no circle."""
    shared = Agent(model=FunctionModel(answer), store=store)

    @tool(idempotent=True)
    async def ask(what: str) -> str:
        return (await shared.session("shared").send(what)).text

    async def model(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return ModelResponse(last.text)
        calls = [ToolCall(f"c{number}", "ask", {"what": f"{last.text}{number}"}) for number in range(2)]
        return ModelResponse(tool_calls=calls)

    of = Agent(model=FunctionModel(model), tools=[ask], store=store)
    results = await asyncio.gather(of.session("a").send("a"), of.session("b").send("b"))
    assert [result.text for result in results] == ["re: a1", "re: b1"]
    assert len(await texts(store, "shared")) == 8
