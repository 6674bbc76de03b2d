"""Runs without a session: once whatever happens, kept until pruned."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from core.tests.processes import another, dead, die_at, elsewhere

from perdure import Agent, AgentStore, ToolCall, ToolContext, TurnResult, open_store, tool
from perdure.contracts.checkpoints import FINISHED
from perdure.errors import (
    AgentChangedError,
    ApprovalAlreadyResolvedError,
    ApprovalOrphanedError,
    InvalidIdError,
    OutcomeUnknownError,
    SessionBusyError,
    UnsupportedOperationError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class World:
    """What the tools of the agent did, and how often its model was asked."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.asked = 0

    def agent(self, store: AgentStore, name: str = "agent", *, gated: bool = False) -> Agent:
        """The agent as the process of a bundle has it."""

        @tool(needs_approval=gated, in_doubt="rerun")
        async def pay(to: str, context: ToolContext) -> str:
            assert context.session_id is None
            self.paid.append(context.idempotency_key)
            return f"paid {to}"

        return Agent(model=FunctionModel(self._answer), tools=[pay], store=store, name=name)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        if request.messages[-1].role == "user":
            return ModelResponse(tool_calls=[ToolCall("c1", "pay", {"to": "ann"})])
        return ModelResponse(text=f"done: {request.messages[-1].text}")


@pytest.fixture
def world() -> World:
    return World()


async def test_a_run_is_kept_and_its_name_gives_its_result_again(any_store: AgentStore, world: World) -> None:
    agent = world.agent(any_store)
    result = await agent.run("go", run_id="job")
    assert (result.text, result.finish_reason) == ("done: paid ann", "stop")
    assert result.run_id.startswith("job.run-")
    assert await world.agent(any_store).run("something else", run_id="job") == result
    assert await agent.resume(result.run_id) == result
    assert (len(world.paid), world.asked) == (1, 2)
    assert await agent.pending() == []
    assert (await any_store.sessions.list()).items == ()


async def test_without_a_name_each_run_is_its_own(any_store: AgentStore, world: World) -> None:
    agent = world.agent(any_store)
    first, second = await agent.run("go"), await agent.run("go")
    assert first.run_id != second.run_id
    assert len(set(world.paid)) == 2


async def test_prune_removes_a_finished_run_and_its_name_is_free(world: World, clock: ManualClock) -> None:
    async with open_store("memory:", clock=clock) as store:
        agent = world.agent(store)
        first = await agent.run("go", run_id="job")
        clock.advance(timedelta(days=2))
        assert (await store.prune(older_than=timedelta(days=3))).runs == ()
        assert (await store.prune(older_than=timedelta(days=1))).runs == ("job.run",)
        assert (await agent.run("go", run_id="job")).run_id != first.run_id


@pytest.mark.parametrize("outcome", ["die-before", "die-after"])
async def test_a_run_that_dies_at_any_write_is_finished_by_its_name(
    any_store: AgentStore, world: World, outcome: str
) -> None:
    calls = Interception()
    expected = await world.agent(another(any_store, calls)).run("go", run_id="whole")
    for number in range(1, len(calls.calls) + 1):
        name = f"job{number}"
        dying = world.agent(another(any_store, at(number, outcome), process=dead()))
        with pytest.raises(Died):
            await dying.run("go", run_id=name)
        before = world.asked
        result = await world.agent(any_store).run("go", run_id=name)
        assert (result.text, len(result.messages)) == (expected.text, 4)
        found = await any_store.checkpoints.load(f"{name}.run")
        assert found is not None
        assert (found.head.status, found.head.owner) == (FINISHED, None)
        assert world.asked - before <= 2
        assert {key for key in world.paid if key.startswith(f"{name}.")} == {f"{result.run_id}.s0.c0"}
    print(f"{len(calls.calls)} writes, each died at: {outcome}")


@pytest.mark.parametrize("outcome", ["lost", "unknown"])
async def test_a_write_of_unknown_outcome_runs_nothing_twice(any_store: AgentStore, world: World, outcome: str) -> None:
    calls = Interception()
    await world.agent(another(any_store, calls)).run("go", run_id="whole")
    for number in range(1, len(calls.calls) + 1):
        world.paid.clear()
        name = f"job{number}"
        doubtful = world.agent(another(any_store, at(number, outcome)))
        try:
            result = await doubtful.run("go", run_id=name)
        except OutcomeUnknownError:
            result = await world.agent(any_store).run("go", run_id=name)
        assert result.text == "done: paid ann"
        assert len(world.paid) == 1


async def test_two_that_run_one_name_at_once_run_it_once(any_store: AgentStore, world: World) -> None:
    agent = world.agent(any_store)
    results = await asyncio.gather(*(agent.run("go", run_id="job") for _ in range(5)))
    assert len({result.run_id for result in results}) == 1
    assert len(world.paid) == 1


async def test_a_run_of_another_process_is_busy(any_store: AgentStore, world: World) -> None:
    held: asyncio.Event = asyncio.Event()
    begun: asyncio.Event = asyncio.Event()

    async def hold(_: ModelRequest) -> ModelResponse:
        begun.set()
        await held.wait()
        return ModelResponse(text="late")

    there = Agent(model=FunctionModel(hold), store=another(any_store, process=elsewhere()))
    task = asyncio.create_task(there.run("go", run_id="job"))
    await begun.wait()
    with pytest.raises(SessionBusyError):
        await Agent(model=FunctionModel(hold), store=another(any_store)).run("go", run_id="job")
    held.set()
    assert (await task).text == "late"


async def resolved(world: World, store: AgentStore, asked: TurnResult, *, approved: bool) -> TurnResult:
    return await world.agent(store, gated=True).approvals.resolve(asked.approval_ids[0], approved=approved)


async def test_an_approval_of_a_run_is_resolved_after_a_restart(any_store: AgentStore, world: World) -> None:
    asked = await world.agent(any_store, gated=True).run("go", run_id="job")
    assert asked.finish_reason == "awaiting-approval"
    assert await world.agent(any_store, gated=True).run("go", run_id="job") == asked
    assert world.paid == []
    result = await resolved(world, another(any_store), asked, approved=True)
    assert result.text == "done: paid ann"
    assert await resolved(world, another(any_store), asked, approved=True) == result
    assert len(world.paid) == 1
    with pytest.raises(ApprovalAlreadyResolvedError):
        await resolved(world, any_store, asked, approved=False)


async def test_pending_tells_of_a_run_and_of_what_it_waits_for(any_store: AgentStore, world: World) -> None:
    agent = world.agent(any_store, gated=True)
    asked = await agent.run("go", run_id="job")
    (turn,) = await agent.pending()
    assert (turn.session_id, turn.run_id, turn.status) == (None, asked.run_id, "awaiting-approval")
    assert tuple(turn.approval_ids) == tuple(asked.approval_ids)
    await any_store.approvals.decide(asked.approval_ids[0], approved=False)
    (turn,) = await agent.pending()
    assert (turn.status, tuple(turn.approval_ids)) == ("ready", ())
    assert turn.run_id is not None
    result = await agent.resume(turn.run_id)
    assert result is not None
    assert "rejected" in result.text


async def test_a_failed_run_is_pending_and_runs_again(any_store: AgentStore, world: World) -> None:
    failures = [RuntimeError("the provider is away")]

    async def answer(_: ModelRequest) -> ModelResponse:
        if failures:
            raise failures.pop()
        return ModelResponse(text="back")

    agent = Agent(model=FunctionModel(answer), store=any_store)
    with pytest.raises(RuntimeError, match="away"):
        await agent.run("go", run_id="job")
    (turn,) = await agent.pending()
    assert (turn.status, turn.owner) == ("in-progress", None)
    assert (await agent.run("go", run_id="job")).text == "back"


async def test_wrong_names_stores_and_agents_are_refused(any_store: AgentStore, world: World) -> None:
    agent = world.agent(any_store)
    with pytest.raises(InvalidIdError):
        await agent.run("go", run_id="a.b")
    plain = Agent(model=FunctionModel(world._answer), store=AgentStore(sessions=any_store.sessions))
    with pytest.raises(UnsupportedOperationError, match="checkpoints"):
        await plain.run("go")
    await agent.run("go", run_id="job")
    with pytest.raises(AgentChangedError):
        await world.agent(any_store, "other").run("go", run_id="job")


async def test_a_run_that_was_taken_over_and_finished_elsewhere_gives_its_result(
    any_store: AgentStore, world: World
) -> None:
    await die_at(any_store, 2, lambda store: world.agent(store).run("go", run_id="job"))
    here = await world.agent(any_store).run("go", run_id="job")
    assert await world.agent(another(any_store)).run("go", run_id="job") == here


async def test_a_run_that_is_resolved_twice_at_once_ends_once(any_store: AgentStore) -> None:
    """Whoever stood in line reads the result that is kept, and takes nothing up again."""
    reached, may_pay = asyncio.Event(), asyncio.Event()

    @tool(needs_approval=True)
    async def pay() -> str:
        reached.set()
        await may_pay.wait()
        return "paid"

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=any_store)
    (approval_id,) = (await agent.run("go", run_id="job")).approval_ids
    first = asyncio.create_task(agent.approvals.resolve(approval_id, approved=True))
    await reached.wait()
    second = asyncio.create_task(agent.approvals.resolve(approval_id, approved=True))
    found = await any_store.checkpoints.load("job.run")
    assert found is not None
    may_pay.set()
    assert await first == await second
    kept = await any_store.checkpoints.load("job.run")
    assert kept is not None
    assert (kept.head.attempts, kept.entries[-1]["kind"]) == (found.head.attempts, "finished")


async def test_a_run_is_dropped_with_what_it_asked_for_and_its_name_is_free(
    any_store: AgentStore, world: World
) -> None:
    agent = world.agent(any_store, gated=True)
    asked = await agent.run("go", run_id="job")
    assert await agent.discard(asked.run_id)
    assert not await agent.discard(asked.run_id)
    approval = await any_store.approvals.get(asked.approval_ids[0])
    assert approval is not None
    assert approval.status == "cancelled"
    assert await agent.pending() == []
    with pytest.raises(ApprovalOrphanedError):
        await resolved(world, any_store, asked, approved=True)
    again = await world.agent(any_store).run("go", run_id="job")
    assert again.run_id != asked.run_id
    assert not await agent.discard(again.run_id)
    assert await world.agent(any_store).run("go", run_id="job") == again


async def test_a_discarded_run_that_dies_at_any_write_is_dropped_by_the_next(
    any_store: AgentStore, world: World
) -> None:
    for number in (1, 2, 3):
        asked = await world.agent(any_store, gated=True).run("go", run_id=f"job{number}")
        dying = world.agent(another(any_store, at(number, "die-after"), process=dead()), gated=True)
        with pytest.raises(Died):
            await dying.discard(asked.run_id)
        await world.agent(any_store, gated=True).discard(asked.run_id)
        assert await world.agent(any_store, gated=True).pending() == []
    with pytest.raises(SessionBusyError):
        await _busy_run(any_store)


async def _busy_run(store: AgentStore) -> None:
    begun = asyncio.Event()

    async def hold(_: ModelRequest) -> ModelResponse:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    agent = Agent(model=FunctionModel(hold), store=another(store, process=elsewhere()))
    task = asyncio.create_task(agent.run("go", run_id="busy"))
    await begun.wait()
    try:
        (turn,) = await agent.pending()
        assert turn.run_id is not None
        await Agent(model=FunctionModel(hold), store=another(store)).discard(turn.run_id)
    finally:
        task.cancel()
        await asyncio.wait([task])
