"""Compaction before a turn, by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, dead

from perdure import Agent, AgentStore, Compaction, Message, Session, Usage, Worker
from perdure.errors import StoreUnavailableError, UnsupportedOperationError
from perdure.events import CompactionDone, CompactionStarted, RunDone, RunStarted
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.workers.sweeps import SweepReport
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio


class World:
    """A session whose model tells what it has read."""

    def __init__(self) -> None:
        self.summaries = 0
        self.seen: list[list[str]] = []

    async def answer(self, request: ModelRequest) -> ModelResponse:
        self.seen.append([message.text for message in request.messages])
        read = sum(len(message.text) for message in request.messages)
        return ModelResponse(text="re", usage=Usage(input_tokens=read, output_tokens=2, requests=1))

    def summarize(self, messages: Sequence[Message]) -> str:
        self.summaries += 1
        return f"<{len(messages)}>"

    def session(self, store: AgentStore, max_tokens: int = 40, **changes: object) -> Session:
        policy = Compaction(**{"max_tokens": max_tokens, "keep": 1, "summarize": self.summarize} | changes)  # type: ignore[arg-type]  # reason: of the test's choice
        return Agent(model=FunctionModel(self.answer), store=store).session("s", compaction=policy)


@pytest.fixture
def world() -> World:
    return World()


async def fill(session: Session, turns: int = 3) -> None:
    for number in range(turns):
        await session.send(f"{number}" * 10)


async def test_a_transcript_that_is_too_long_is_compacted_before_the_next_turn(
    any_store: AgentStore, world: World
) -> None:
    session = world.session(any_store)
    await fill(session)
    assert world.summaries == 0
    await session.send("next")
    assert world.summaries == 0
    await session.send("more")
    assert world.summaries == 1
    assert world.seen[-1] == ["<6>", "next", "re", "more"]
    assert [message.text for message in await session.load()] == ["<6>", "next", "re", "more", "re"]


async def test_a_stream_shows_it_before_its_own_turn(any_store: AgentStore, world: World) -> None:
    session = world.session(any_store, max_tokens=10)
    await fill(session, 2)
    async with session.stream("next") as run:
        events = [event async for event in run]
    kinds = [type(event) for event in events]
    assert kinds[:3] == [CompactionStarted, CompactionDone, RunStarted]
    assert kinds[-1] is RunDone
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))


async def test_a_summary_that_fails_lets_the_turn_run_without(
    any_store: AgentStore, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Sequence[Message]) -> str:
        raise RuntimeError("no summary today")

    session = world.session(any_store, max_tokens=10, summarize=fail)
    await fill(session, 2)
    with caplog.at_level(logging.WARNING):
        result = await session.send("next")
    assert result.text == "re"
    assert "no summary today" in caplog.text
    assert len(await session.load()) == 6
    found = await any_store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "idle"


async def test_a_store_that_fails_meanwhile_refuses_the_input(any_store: AgentStore, world: World) -> None:
    await fill(world.session(any_store, max_tokens=10), 2)
    away = another(any_store, at(1, "unavailable"))
    with pytest.raises(StoreUnavailableError):
        await world.session(away, max_tokens=10).send("next")
    assert len(await world.session(any_store).load()) == 4


@pytest.mark.parametrize("outcome", ["die-before", "die-after"])
async def test_a_death_at_any_write_loses_nothing(any_store: AgentStore, outcome: str) -> None:
    for number in range(1, 20):
        world = World()
        name = f"s{number}"
        policy = Compaction(max_tokens=10, keep=1, summarize=world.summarize)

        def session(store: AgentStore, world: World = world, policy: Compaction = policy, name: str = name) -> Session:
            return Agent(model=FunctionModel(world.answer), store=store).session(name, compaction=policy)

        await fill(session(any_store), 2)
        calls = at(number, outcome)
        try:
            await session(another(any_store, calls, process=dead())).send("next", input_id="i")
        except Died:
            pass
        else:
            break
        await session(any_store).send("next", input_id="i")
        texts = [message.text for message in await session(any_store).load()]
        assert texts[-2:] == ["next", "re"]
        assert texts.count("next") == 1
        assert texts[:-2] in (["<2>", "1" * 10, "re"], ["0" * 10, "re", "1" * 10, "re"])
    else:
        raise AssertionError("the writes do not end")
    assert number > 5
    print(f"{number - 1} writes, each died at: {outcome}")


async def test_a_policy_that_the_store_cannot_keep_is_refused_at_once(world: World) -> None:
    with pytest.raises(UnsupportedOperationError, match="replace"):
        world.session(AgentStore(sessions=PlainSessions()))


async def worked(world: World, store: AgentStore, text: str, policy: Compaction | None) -> SweepReport:
    """Submit an input, and let a worker take it, which may have a policy."""
    agent = Agent(model=FunctionModel(world.answer), store=store)
    await agent.session("s").submit(text)
    return await Worker(agent, compaction=policy).sweep()


async def test_a_worker_compacts_behind_the_turn_that_made_the_transcript_too_long(
    any_store: AgentStore, world: World
) -> None:
    policy = Compaction(max_tokens=40, keep=1, summarize=world.summarize)
    for number in range(3):
        report = await worked(world, any_store, f"{number}" * 10, policy)
        assert len(report.resumed) == 1
        assert world.summaries == 0
    report = await worked(world, any_store, "next", policy)
    assert (world.summaries, report.failed, len(report.resumed)) == (1, [], 1)
    await worked(world, any_store, "more", None)
    assert world.seen[-1] == ["<6>", "next", "re", "more"]
    assert world.summaries == 1


async def test_a_worker_leaves_a_turn_that_has_begun_meanwhile(store: AgentStore, world: World) -> None:
    """The next input is there before the worker looks: it is not held up, and not dropped."""
    policy = Compaction(max_tokens=1, keep=0, summarize=world.summarize)
    interception = Interception()
    worker_store = another(store, interception)
    agent = Agent(model=FunctionModel(world.answer), store=worker_store)

    async def after(_: Call) -> None:
        found = await store.checkpoints.load("s")
        if found is not None and found.head.status == "idle":
            interception.after = None
            await world.session(store).submit("next")

    await world.session(store).submit("first")
    interception.after = after
    report = await Worker(agent, compaction=policy).sweep()
    assert (report.failed, world.summaries) == ([], 0)
    result = await world.session(store).resume()
    assert result is not None
    assert [message.text for message in result.messages] == ["next", "re"]


@pytest.mark.parametrize("fault", ["unavailable", "no summary"])
async def test_a_worker_that_cannot_compact_has_finished_the_turn(
    store: AgentStore, world: World, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Sequence[Message]) -> str:
        raise ValueError("no summary today")

    policy = Compaction(max_tokens=1, keep=0, summarize=fail if fault == "no summary" else world.summarize)
    await world.session(store).submit("first")
    used = another(store, at(4, fault) if fault == "unavailable" else None, atomic=True)
    agent = Agent(model=FunctionModel(world.answer), store=used)
    with caplog.at_level(logging.WARNING):
        report = await Worker(agent, compaction=policy).sweep()
    assert [turn.finish_reason for turn in report.resumed] == ["stop"]
    assert [type(failure.error) for failure in report.failed] == [StoreUnavailableError] * (fault == "unavailable")
    assert "not compacted" in caplog.text
    assert [message.text for message in await world.session(store).load()] == ["first", "re"]
    assert await world.session(store).pending() is None


async def test_a_worker_refuses_a_policy_that_its_store_cannot_keep(store: AgentStore, world: World) -> None:
    plain = AgentStore(sessions=PlainSessions(), checkpoints=store.checkpoints)
    with pytest.raises(UnsupportedOperationError, match="replace"):
        Worker(Agent(model=FunctionModel(world.answer), store=plain), compaction=Compaction(max_tokens=1))
