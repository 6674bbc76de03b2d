"""Turns that fail: what stays, what the next call says, and how a user gets on or out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.processes import another, die_at

from perdure import Agent, AgentStore, Limits, Session, ToolCall, ToolContext, tool
from perdure.errors import (
    AgentChangedError,
    OutcomeUnknownError,
    PerdureError,
    PropagatingToolError,
    SessionAwaitingApprovalError,
    SessionDeletedError,
    StoreCorruptedError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
    TurnFailedError,
    VersionConflictError,
)
from perdure.events import RunFailed, RunStarted
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


class RefusedError(Exception):
    """A provider's error that says itself that no retry mends it."""

    retryable = False


class Provider:
    """A model that raises what it is told to, one after another, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return ModelResponse(text=f"re: {request.messages[-1].text}")


# --- the provider ---


async def test_a_provider_error_leaves_the_turn_pending(any_store: AgentStore) -> None:
    provider = Provider(ConnectionError("no route"), ConnectionError("still none"))
    session = Agent(model=provider.model, store=any_store).session("s")
    with pytest.raises(ConnectionError, match="no route"):
        await session.send("hello")
    pending = await session.pending()
    assert pending is not None
    assert (pending.status, pending.attempts, pending.owner) == ("in-progress", 1, None)
    assert pending.last_error == "ConnectionError: no route"
    with pytest.raises(ConnectionError, match="still none"):
        await session.resume()
    pending = await session.pending()
    assert pending is not None
    assert (pending.attempts, pending.last_error) == (2, "ConnectionError: still none")
    result = await session.resume()
    assert result is not None
    assert result.text == "re: hello"
    assert [message.text for message in await session.load()] == ["hello", "re: hello"]


async def test_a_model_that_cancels_itself_is_an_error(store: AgentStore) -> None:
    """Nobody has cancelled the task that sends: it must not end as if somebody had."""

    async def answer(_: ModelRequest) -> ModelResponse:
        raise asyncio.CancelledError

    agent = Agent(model=FunctionModel(answer), store=store)
    with pytest.raises(ModelError, match="cancelled itself"):
        async with agent.session("t").stream("hello") as run:
            assert [type(event) async for event in run] == [RunStarted, RunFailed]
    session = agent.session("s")
    with pytest.raises(ModelError, match="cancelled itself"):
        await session.send("hello")
    pending = await session.pending()
    assert pending is not None
    assert (pending.attempts, pending.owner) == (1, None)


async def test_the_next_send_finishes_a_turn_that_may_pass(store: AgentStore) -> None:
    provider = Provider(ConnectionError("no route"))
    session = Agent(model=provider.model, store=store).session("s")
    with pytest.raises(ConnectionError):
        await session.send("one")
    await session.send("two")
    assert [message.text for message in await session.load()] == ["one", "re: one", "two", "re: two"]


async def test_a_failure_that_no_retry_mends_does_not_swallow_later_messages(any_store: AgentStore) -> None:
    provider = Provider(RefusedError("the key is wrong"), RefusedError("it still is"))
    session = Agent(model=provider.model, store=any_store).session("s")
    with pytest.raises(RefusedError):
        await session.send("one")
    with pytest.raises(TurnFailedError):
        await session.send("two")
    with pytest.raises(TurnFailedError, match="the key is wrong") as caught:
        await session.send("two")
    assert (caught.value.session_id, caught.value.attempts, provider.asked) == ("s", 1, 1)
    with pytest.raises(RefusedError, match="it still is"):
        await session.resume()
    result = await session.resume()
    assert result is not None
    assert (result.text, (await session.send("two")).text) == ("re: one", "re: two")


async def test_discard_gets_the_user_out(any_store: AgentStore) -> None:
    session = Agent(model=Provider(RefusedError("no")).model, store=any_store).session("s")
    with pytest.raises(RefusedError):
        await session.send("one")
    assert await session.discard_pending() is True
    await session.send("two")
    assert [message.text for message in await session.load()] == ["two", "re: two"]


async def test_a_mended_turn_that_waits_is_not_called_failed(store: AgentStore) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    model = ScriptedModel([RefusedError("no")])
    session = Agent(model=model, tools=[pay], store=store).session("s")
    with pytest.raises(RefusedError):
        await session.send("one")
    model._script[:] = [[ToolCall("c1", "pay")], "done"]
    result = await session.resume()
    assert result is not None
    assert result.finish_reason == "awaiting-approval"
    with pytest.raises(SessionAwaitingApprovalError):
        await session.send("two")


@pytest.mark.parametrize(
    "damage", [{"kind": "tool", "step": 7, "call": 0}, {"kind": "model"}, {"kind": "input", "messages": 1}], ids=repr
)
async def test_a_damaged_turn_says_so_and_can_be_dropped(store: AgentStore, damage: dict[str, Any]) -> None:
    session = Agent(model=Provider(ConnectionError("no route")).model, store=store).session("s")
    with pytest.raises(ConnectionError):
        await session.send("one")
    found = await store.checkpoints.load("s")
    assert found is not None
    await store.checkpoints.append("s", [damage], expected_version=found.version, head=found.head)
    for _ in range(2):  # it is never taken, so that nobody waits for a lease after it
        with pytest.raises(StoreCorruptedError, match=r"s\.turn-"):
            await session.resume()
    assert await session.discard_pending() is True
    assert (await session.send("two")).text == "re: two"


@pytest.mark.parametrize("error", [VersionConflictError("cache", 1, 2), SessionDeletedError("another")], ids=repr)
async def test_a_model_that_raises_our_errors_is_not_run_for_ever(store: AgentStore, error: PerdureError) -> None:
    """What a model meets in stores and sessions of its own is its failure, not a fact about the turn."""
    provider = Provider(*[error for _ in range(3)])
    session = Agent(model=provider.model, store=store).session("s")
    with pytest.raises(type(error)):
        await session.send("one")
    with pytest.raises(type(error)):
        await session.resume()
    assert provider.asked == 2
    with pytest.raises(TurnFailedError):
        await session.send("two")


async def test_a_failed_resume_poisons_nothing(any_store: AgentStore) -> None:
    """B085: the request that carries the decision fails; the decision stays, and `send` goes on from it."""
    paid: list[str] = []

    @tool(needs_approval=True)
    def pay() -> str:
        paid.append("x")
        return "paid"

    model = ScriptedModel([[ToolCall("c1", "pay")], TimeoutError("slow"), "hello back"])
    agent = Agent(model=model, tools=[pay], store=any_store)
    session = agent.session("s")
    (approval_id,) = (await session.send("go")).approval_ids
    with pytest.raises(TimeoutError):
        await agent.approvals.resolve(approval_id, approved=True)
    approval = await any_store.approvals.get(approval_id)
    assert approval is not None
    assert approval.status == "approved"
    model._script[1] = "done"
    assert (await session.send("hello")).text == "hello back"
    assert paid == ["x"]
    roles = [message.role for message in await session.load()]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]


# --- the store ---


async def test_one_full_disk_costs_one_loud_failure(store: AgentStore) -> None:
    """B037: a write that fails is reported, the turn is pending, and saving goes on from there."""
    full = Interception()
    session = Agent(model=Provider().model, store=another(store, full)).session("s")
    await session.send("0")
    where = len(full.calls)

    async def before(call: Call) -> None:
        if call.number == where + 2:
            raise StoreUnavailableError("write", "s", "no space left on device")

    full.before = before
    with pytest.raises(StoreUnavailableError):
        await session.send("1")
    for n in range(2, 12):
        await session.send(str(n))
    texts = [message.text for message in await Agent(model=Provider().model, store=store).session("s").load()]
    assert texts == [text for n in range(12) for text in (str(n), f"re: {n}")]


async def test_a_store_of_unknown_outcomes_does_not_make_a_turn_failed_for_good(store: AgentStore) -> None:
    """B037: also when a driver says no more than that something went wrong."""
    broken = Interception()
    session = Agent(model=Provider().model, store=another(store, broken)).session("s")

    async def before(call: Call) -> None:
        if call.number in (3, 4):
            raise OSError(28, "no space left on device")

    broken.before = before
    with pytest.raises(OutcomeUnknownError):
        await session.send("1")
    await session.send("2")
    assert [message.text for message in await session.load()] == ["1", "re: 1", "2", "re: 2"]


# --- calls in doubt ---


async def doubtful(store: AgentStore, policy: Any, *, idempotent: bool = False) -> tuple[Agent, list[ToolContext]]:
    """A process died in the middle of a payment."""
    paid: list[ToolContext] = []

    @tool(in_doubt=policy, idempotent=idempotent)
    async def pay(to: str, context: ToolContext) -> str:
        paid.append(context)
        return f"paid {to}"

    def agent(used: AgentStore) -> Agent:
        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "done"])
        return Agent(model=model, tools=[pay], store=used)

    # Writes: the session, the input, the response; then the start of the call if it is not idempotent.
    await die_at(store, 3 if idempotent else 4, lambda used: agent(used).session("s").send("go"))
    return agent(store), paid


async def answer(agent: Agent) -> str:
    return next(message.text for message in await agent.session("s").load() if message.role == "tool")


async def test_in_doubt_rerun(any_store: AgentStore) -> None:
    agent, paid = await doubtful(any_store, "rerun")
    await agent.resume("s")
    assert [context.attempt for context in paid] == [2]
    assert await answer(agent) == "paid ann"


async def test_in_doubt_fail(any_store: AgentStore) -> None:
    agent, paid = await doubtful(any_store, "fail")
    await agent.resume("s")
    assert paid == []
    assert "not known" in await answer(agent)


@pytest.mark.parametrize("yes", [True, False])
async def test_in_doubt_ask(any_store: AgentStore, yes: bool) -> None:
    agent, paid = await doubtful(any_store, "ask")
    result = await agent.resume("s")
    assert result is not None
    (approval_id,) = result.approval_ids
    approval = await any_store.approvals.get(approval_id)
    assert approval is not None
    assert (approval.kind, approval_id) == ("in-doubt", f"{result.run_id}.s0.c0.d1")
    await agent.approvals.resolve(approval_id, approved=yes, arguments={"to": "zoe"} if yes else None)
    assert len(paid) == yes
    assert await answer(agent) == (
        "paid zoe" if yes else '{"status": "rejected", "tool": "pay", "outcome": "unknown; the call was not repeated"}'
    )


async def test_in_doubt_without_a_policy_stops(any_store: AgentStore) -> None:
    agent, paid = await doubtful(any_store, None)
    with pytest.raises(ToolOutcomeUnknownError):
        await agent.resume("s")
    with pytest.raises(ToolOutcomeUnknownError) as caught:
        await agent.resume("s")
    assert (caught.value.call_id, caught.value.tool_name, paid) == ("c1", "pay", [])
    with pytest.raises(TurnFailedError):
        await agent.session("s").send("more")
    assert await agent.session("s").discard_pending() is True


async def test_idempotent_runs_again_with_the_same_key(any_store: AgentStore) -> None:
    agent, paid = await doubtful(any_store, None, idempotent=True)
    await agent.resume("s")
    assert [(context.attempt, context.idempotency_key) for context in paid] == [(2, f"{paid[0].run_id}.s0.c0")]


async def test_an_idempotent_call_that_is_first_made_after_a_resume_is_the_first_attempt(store: AgentStore) -> None:
    attempts: list[int] = []

    @tool(idempotent=True)
    def f(context: ToolContext) -> None:
        attempts.append(context.attempt)

    model = ScriptedModel([ConnectionError("no route")])
    session = Agent(model=model, tools=[f], store=store).session("s")
    with pytest.raises(ConnectionError):
        await session.send("go")
    model._script[:] = [[ToolCall("c1", "f")], [ToolCall("c2", "f")], "done"]
    await session.resume()
    assert attempts == [1, 1]


async def test_an_approved_call_that_is_repeated_keeps_its_edits(store: AgentStore) -> None:
    fails, calls = [True], []

    @tool(needs_approval=True, idempotent=True)
    def pay(to: str, context: ToolContext) -> str:
        calls.append((to, context.attempt))
        if fails:
            fails.clear()
            raise PropagatingToolError("the bank is closed")
        return "paid"

    model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "done"])
    session = Agent(model=model, tools=[pay], store=store).session("s")
    (approval_id,) = (await session.send("go")).approval_ids
    await store.decide(approval_id, approved=True, arguments={"to": "bob"})
    with pytest.raises(PropagatingToolError):
        await session.resume()
    assert await session.resume() is not None
    assert calls == [("bob", 1), ("bob", 2)]


async def test_a_store_that_is_away_when_a_tool_ends_leaves_no_doubt(store: AgentStore) -> None:
    """What became of the call goes out with the append that gives the turn up."""
    paid: list[str] = []

    @tool
    def pay() -> str:
        paid.append("ann")
        return "paid"

    async def before(call: Call) -> None:
        if paid and not failed:
            failed.append(call)
            raise StoreUnavailableError("write", "key", "away")

    failed: list[Call] = []
    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay])
    with pytest.raises(StoreUnavailableError):
        await agent.session("s", store=another(store, Interception(before=before))).send("go")
    result = await agent.session("s", store=store).resume()
    assert result is not None
    assert (result.text, paid, len(failed)) == ("done", ["ann"], 1)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("second", [StoreUnavailableError, OutcomeUnknownError])
async def test_a_result_that_nobody_knows_to_be_written_takes_that_of_another_call_along(
    store: AgentStore, landed: bool, second: type[Exception]
) -> None:
    other_may_end, ran = asyncio.Event(), list[str]()
    problems: list[type[Exception]] = []

    async def before(_: Call) -> None:
        if len(problems) == 1:
            other_may_end.set()
        if problems and not (landed and len(problems) == 2):
            raise problems.pop()("append", "s")

    async def after(_: Call) -> None:
        if len(problems) == 2:
            raise problems.pop()("append", "s")

    @tool
    async def one() -> str:
        problems.extend([second, OutcomeUnknownError])
        ran.append("one")
        return "1"

    @tool
    async def other() -> str:
        await other_may_end.wait()
        ran.append("other")
        return "2"

    model = ScriptedModel([[ToolCall("c1", "one", {}), ToolCall("c2", "other", {})], "done"])
    mine = another(store, Interception(before=before, after=after))
    with pytest.raises(OutcomeUnknownError):
        await Agent(model=model, tools=[one, other], store=mine).session("s").send("go")
    found = await store.checkpoints.load("s")
    assert found is not None
    assert ([item["call"] for item in found.entries if item["kind"] == "tool"], found.head.owner) == ([0, 1], None)
    result = await Agent(model=model, tools=[one, other], store=store).session("s").resume()
    assert result is not None
    assert (result.text, ran) == ("done", ["one", "other"])


async def test_each_attempt_in_doubt_is_a_question_of_its_own(store: AgentStore) -> None:
    def session(used: AgentStore) -> Session:
        pay = tool(name="pay", in_doubt="ask")(lambda: "paid")
        return Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=used).session("s")

    await die_at(store, 4, lambda used: session(used).send("go"))
    for attempt in (1, 2):
        asked = await session(store).resume()
        assert asked is not None
        (question,) = asked.approval_ids
        assert question.endswith(f".s0.c0.d{attempt}")
        await store.decide(question, approved=True)
        await die_at(store, 2, lambda used: session(used).resume())


async def test_a_tool_that_is_idempotent_by_now_runs_again_unasked(store: AgentStore) -> None:
    paid: list[int] = []

    def agent(used: AgentStore, *, idempotent: bool) -> Agent:
        @tool(idempotent=idempotent, in_doubt="ask")
        def pay() -> str:
            paid.append(len(paid))
            return "paid"

        return Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=used)

    await die_at(store, 4, lambda used: agent(used, idempotent=False).session("s").send("go"))
    result = await agent(store, idempotent=True).session("s").resume()
    assert result is not None
    assert (result.text, paid) == ("done", [0])


async def test_a_tool_that_says_it_failed_is_not_in_doubt(store: AgentStore) -> None:
    fails, attempts = [True], []

    @tool
    def pay(context: ToolContext) -> str:
        attempts.append(context.attempt)
        if fails:
            fails.clear()
            raise PropagatingToolError("the bank is closed")
        return "paid"

    model = ScriptedModel([[ToolCall("c1", "pay")], "done"])
    session = Agent(model=model, tools=[pay], store=store).session("s")
    with pytest.raises(PropagatingToolError):
        await session.send("go")
    with pytest.raises(TurnFailedError, match="the bank is closed"):
        await session.send("more")
    result = await session.resume()
    assert result is not None
    assert (result.text, attempts) == ("done", [1, 2])


# --- the agent ---


async def test_another_agents_turn_is_left_alone(any_store: AgentStore) -> None:
    first = Agent(model=Provider(ConnectionError("no route")).model, store=any_store, name="first")
    with pytest.raises(ConnectionError):
        await first.session("s").send("one")
    provider = Provider()
    second = Agent(model=provider.model, store=any_store, name="second")
    session = second.session("s")
    before = await any_store.checkpoints.load("s")
    for call in (session.resume, lambda: session.send("two"), session.discard_pending, session.clear, session.abort):
        with pytest.raises(AgentChangedError, match="'first'"):
            await call()
    pending = await session.pending()
    assert pending is not None
    assert (await second.pending(), provider.asked) == ([], 0)
    assert await any_store.checkpoints.load("s") == before
    assert (await first.session("s").send("two")).text == "re: two"
    assert (await session.send("three")).text == "re: three"  # once it is over, anybody may go on


async def test_another_agents_finished_turn_is_not_saved_by_a_clear(store: AgentStore) -> None:
    def session(used: AgentStore, name: str) -> Session:
        return Agent(model=Provider().model, store=used, name=name).session("s")

    await die_at(store, 4, lambda used: session(used, "first").send("one"), atomic=False)
    before = await store.checkpoints.load("s")
    assert before is not None
    assert before.head.status == "finished"
    with pytest.raises(AgentChangedError, match="'first'"):
        await session(store, "second").clear()
    assert await store.checkpoints.load("s") == before


async def test_a_tool_that_is_gone(store: AgentStore) -> None:
    agent, paid = await doubtful(store, "rerun")
    without = Agent(model=agent.model, store=store)
    with pytest.raises(AgentChangedError, match="'pay'"):
        await without.resume("s")
    await agent.resume("s")
    assert len(paid) == 1


async def test_max_steps_ends_the_turn_with_every_call_answered(store: AgentStore) -> None:
    @tool
    def f() -> int:
        return 1

    model = ScriptedModel([[ToolCall(f"c{n}", "f")] for n in range(2)] + ["on"])
    session = Agent(model=model, tools=[f], store=store, limits=Limits(max_steps=2)).session("s")
    result = await session.send("go")
    assert (result.finish_reason, [message.role for message in result.messages]) == (
        "max-steps",
        ["user", "assistant", "tool", "assistant", "tool"],
    )
    assert (await session.send("more")).text == "on"
    ended = await session.result(result.run_id)
    assert ended is not None
    assert ended.finish_reason == "max-steps"


async def test_a_turn_that_got_over_a_failure_has_no_last_error(any_store: AgentStore) -> None:
    asked = asyncio.Event()
    failures = [RuntimeError("the provider is away")]

    async def answer(request: ModelRequest) -> ModelResponse:
        if failures:
            raise failures.pop()
        if request.messages[-1].role == "user":
            return ModelResponse(tool_calls=[ToolCall("c1", "look", {})])
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    @tool
    async def look() -> str:
        return "seen"

    session = Agent(model=FunctionModel(answer), tools=[look], store=any_store).session("s")
    with pytest.raises(RuntimeError, match="the provider is away"):
        await session.send("go")
    going_on = asyncio.create_task(session.resume())
    await asked.wait()
    going_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going_on
    pending = await session.pending()
    assert pending is not None
    assert (pending.status, pending.last_error) == ("in-progress", None)
