"""What a turn and a conversation may spend: counted in the write that saves a turn, met at its limits, refused before any write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, die_at, writes_nothing

from perdure import Agent, AgentStore, Limits, Session, ToolCall, TurnResult, Usage, Worker, tool
from perdure.errors import InvalidArgumentError, LimitExceededError, SessionConflictError, StoreCorruptedError
from perdure.events import InputQueued, RunEvent
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.turn.limits import Spent
from perdure_conformance.interception import Call, Interception
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

EACH = Usage(input_tokens=6, output_tokens=4, requests=1, cost_usd=0.25)
ENDLESS = 50


class Spender:
    """An agent that calls two tools in every response, each response of the same cost, and takes a second for each."""

    def __init__(
        self, store: AgentStore, clock: ManualClock, limits: Limits | None = None, steps: int = ENDLESS
    ) -> None:
        self.store, self.clock, self.steps = store, clock, steps
        self.asked = 0
        self.in_model: Callable[[], Any] | None = None
        self.agent = self.by(store, limits)

    def by(self, store: AgentStore, limits: Limits | None = None) -> Agent:
        @tool(idempotent=True)
        async def look() -> str:
            return "seen"

        @tool(needs_approval=True, idempotent=True)
        async def sign() -> str:
            return "signed"

        return Agent(model=FunctionModel(self._answer), tools=[look, sign], store=store, limits=limits)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        if self.in_model is not None:
            await self.in_model()
        self.clock.advance(timedelta(seconds=1))
        begins = max(place for place, message in enumerate(request.messages) if message.role == "user")
        step = sum(message.role == "assistant" for message in request.messages[begins:])
        if step + 1 >= self.steps:
            return ModelResponse("done", usage=EACH)
        name = "sign" if request.messages[begins].text == "sign" else "look"
        return ModelResponse("", [ToolCall("c1", name), ToolCall("c2", "look")], usage=EACH)

    def session(self, limits: Limits | None = None) -> Session:
        return self.agent.session("s", limits=limits)

    async def spent(self) -> dict[str, Any]:
        loaded = await self.store.sessions.load("s")
        assert loaded is not None
        spent: dict[str, Any] = loaded.records[-1]["spent"]
        return spent


def check_answered(result: TurnResult) -> None:
    """Check that every call has its result."""
    calls = [call.id for message in result.messages for call in message.tool_calls]
    assert calls == [message.tool_call_id for message in result.messages if message.role == "tool"]
    assert calls


KINDS = {
    "steps": (Limits(max_steps=3), 3, "max-steps"),
    "tokens": (Limits(max_tokens=25), 3, "limit"),
    "tokens exactly": (Limits(max_tokens=30), 3, "limit"),
    "cost": (Limits(max_cost_usd=0.6), 3, "limit"),
    "seconds": (Limits(max_seconds=2.5), 3, "limit"),
    "the first of several": (Limits(max_steps=9, max_tokens=15, max_cost_usd=9.0), 2, "limit"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_ends_at_its_limit_with_every_call_answered(
    any_store: AgentStore, clock: ManualClock, kind: str
) -> None:
    limits, steps, reason = KINDS[kind]
    spender = Spender(any_store, clock, limits)
    results = [await spender.session().send("go") for _ in range(2)]  # each turn has its own
    for result in results:
        assert result.finish_reason == reason
        assert sum(message.role == "assistant" for message in result.messages) == steps
        check_answered(result)
        assert result.messages[-1].role == "tool"
        assert result.usage == Usage(6 * steps, 4 * steps, steps, 0.25 * steps)
    assert await spender.session().pending() is None
    assert await spender.session().result(results[1].run_id) == results[1]


async def test_a_limit_does_not_end_a_turn_that_ends_anyway(store: AgentStore, clock: ManualClock) -> None:
    result = await Spender(store, clock, Limits(max_steps=2), steps=2).session().send("go")
    assert (result.finish_reason, result.text) == ("stop", "done")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conversation_ends_at_its_limit_and_refuses_the_next_input(
    any_store: AgentStore, clock: ManualClock, kind: str
) -> None:
    limits, steps, reason = KINDS[kind]
    spender = Spender(any_store, clock, steps=2)
    first = await spender.session(limits).send("go")
    assert first.finish_reason == "stop"
    if steps > 2:
        second = await spender.session(limits).send("go on")
        assert second.finish_reason == reason
        assert sum(message.role == "assistant" for message in second.messages) == steps - 2
        check_answered(second)
    asked = spender.asked
    async with writes_nothing(any_store) as silent:
        for given in ("send", "submit", "stream"):
            with pytest.raises(LimitExceededError):
                await use(spender.by(silent).session("s", limits=limits), given)
    assert spender.asked == asked
    assert (await spender.session().send("unlimited")).finish_reason == "stop"


async def use(session: Session, how: str) -> None:
    if how == "stream":
        async with session.stream("more") as run:
            async for _ in run:
                pass
    else:
        await getattr(session, how)("more")


async def test_what_is_spent_adds_up_over_turns(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock, steps=2)
    for turn in range(1, 4):
        await spender.session().send("go")
        assert await spender.spent() == {
            "input_tokens": 12 * turn,
            "output_tokens": 8 * turn,
            "requests": 2 * turn,
            "cost_usd": 0.5 * turn,
            "steps": 2 * turn,
            "seconds": 2.0 * turn,
        }


@pytest.mark.parametrize("atomic", [True, False])
async def test_what_is_spent_is_in_the_write_that_saves_the_turn(
    store: AgentStore, clock: ManualClock, atomic: bool
) -> None:
    interception = Interception()
    spender = Spender(another(store, interception, atomic=atomic), clock, steps=2)
    seen: list[bool] = []

    async def after(_: Call) -> None:
        loaded = await store.sessions.load("s")
        if loaded is not None and loaded.records:
            seen.append("spent" in loaded.records[-1])

    interception.after = after
    await spender.session().send("go")
    assert seen
    assert all(seen)


async def test_a_turn_behind_others_counts_what_they_have_spent(store: AgentStore, clock: ManualClock) -> None:
    """Two processes without turn journals: the turn that was saved first is part of what the other's record tells."""
    meanwhile = [True]

    async def done(_: ModelRequest) -> ModelResponse:
        return ModelResponse("done", usage=EACH)

    async def slow(request: ModelRequest) -> ModelResponse:
        if meanwhile:
            meanwhile.clear()
            await session(done).send("first")
        return await done(request)

    def session(model: Callable[[ModelRequest], Awaitable[ModelResponse]]) -> Session:
        return Agent(model=FunctionModel(model), store=AgentStore(sessions=store.sessions, clock=clock)).session("s")

    here = session(slow)
    with pytest.raises(SessionConflictError):
        await here.send("second")
    assert await here.resume(rebase=True) is not None
    await here.send("third")
    loaded = await store.sessions.load("s")
    assert loaded is not None
    assert [record["spent"]["steps"] for record in loaded.records if "spent" in record] == [1, 2, 3]


async def test_clearing_starts_at_nothing(store: AgentStore, clock: ManualClock) -> None:
    spender, limits = Spender(store, clock, steps=2), Limits(max_steps=2)
    await spender.session(limits).send("go")
    with pytest.raises(LimitExceededError):
        await spender.session(limits).send("go")
    await spender.session(limits).clear()
    assert (await spender.session(limits).send("go")).finish_reason == "stop"


async def test_the_error_says_what_was_spent(store: AgentStore, clock: ManualClock) -> None:
    spender, limits = Spender(store, clock, steps=2), Limits(max_tokens=15)
    await spender.session(limits).send("go")
    with pytest.raises(LimitExceededError, match="max_tokens") as caught:
        await spender.session(limits).send("go")
    assert "20" in str(caught.value)
    assert "15" in str(caught.value)


async def test_a_turn_that_was_begun_goes_on_counting_after_a_crash(store: AgentStore, clock: ManualClock) -> None:
    limits = Limits(max_steps=3)
    spender = Spender(store, clock, limits)
    await die_at(store, 6, lambda used: spender.by(used, limits).session("s").send("go"))
    result = await spender.session().resume()
    assert result is not None
    assert result.finish_reason == "max-steps"
    assert sum(message.role == "assistant" for message in result.messages) == 3
    assert spender.asked == 3


async def by_resume(spender: Spender, store: AgentStore, _: Limits | None) -> None:
    await spender.by(store).session("s").resume()


async def by_agent(spender: Spender, store: AgentStore, _: Limits | None) -> None:
    await spender.by(store).resume("s")


async def by_send(spender: Spender, store: AgentStore, limits: Limits | None) -> None:
    with contextlib.suppress(LimitExceededError):  # of the next input, before it is taken
        await spender.by(store).session("s", limits=limits).send("next")


async def by_worker(spender: Spender, store: AgentStore, limits: Limits | None) -> None:
    report = await Worker(spender.by(store), store=store, limits=limits).sweep(slow=True)
    assert report.failed == []


@pytest.mark.parametrize("goes_on", [by_resume, by_agent, by_send, by_worker])
@pytest.mark.parametrize("given", ["sent", "submitted"])
async def test_a_turn_keeps_the_limits_it_began_with_whoever_finishes_it(
    store: AgentStore, clock: ManualClock, goes_on: Any, given: str
) -> None:
    """Of a process that knows nothing of them, and of one that has others: it is the conversation's own that count."""
    spender, limits = Spender(store, clock), Limits(max_tokens=35)
    if given == "sent":
        await die_at(store, 6, lambda used: spender.by(used).session("s", limits=limits).send("go"))
    else:
        await spender.session(limits).submit("go")
    await goes_on(spender, store, Limits(max_tokens=10))
    loaded = await store.sessions.load("s", limit=1)
    assert loaded is not None
    result = await spender.session().result(loaded.records[0]["run_id"])
    assert result is not None
    assert (result.finish_reason, result.usage.requests) == ("limit", 4)
    assert await spender.session().pending() is None


async def test_a_decided_turn_keeps_the_limits_it_began_with(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock)
    waiting = await spender.session(Limits(max_steps=2)).send("sign")
    resolved = await spender.by(store).approvals.resolve(waiting.approval_ids[0], approved=True)
    assert resolved.finish_reason == "awaiting-approval"
    assert resolved.usage.requests == 2
    ended = await spender.by(store).approvals.resolve(resolved.approval_ids[0], approved=True)
    assert (ended.finish_reason, ended.usage.requests) == ("max-steps", 2)


async def test_no_limit_is_kept_too_and_none_said_leaves_it_to_whoever_finishes(
    store: AgentStore, clock: ManualClock
) -> None:
    for session_id, began, steps, reason in (("free", Limits(), 5, "stop"), ("s", None, 2, "max-steps")):
        spender = Spender(store, clock, steps=5)
        await spender.agent.session(session_id, limits=began).submit("go")
        report = await Worker(spender.agent, limits=Limits(max_steps=2)).sweep()
        assert [turn.finish_reason for turn in report.resumed] == [reason]
        assert spender.asked == steps


async def test_a_turn_that_queued_inputs_open_has_the_limits_of_their_session(
    store: AgentStore, clock: ManualClock
) -> None:
    """The turn that they were to join ends at its own limit before it takes them."""
    spender = Spender(store, clock)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        spender.in_model = None
        asked.set()
        await may_answer.wait()

    spender.in_model = wait
    first = asyncio.create_task(spender.session(Limits(max_steps=1)).send("go"))
    await asked.wait()
    session = spender.agent.session("s", turn_policy="queue", limits=Limits(max_steps=4))
    queued = asyncio.Event()

    async def hear(event: RunEvent) -> None:
        if isinstance(event, InputQueued):
            queued.set()

    session.on(hear)
    second = asyncio.create_task(session.send("more"))
    await queued.wait()
    may_answer.set()
    for turn, steps in ((first, 1), (second, 3)):
        assert ((await turn).finish_reason, (await turn).usage.requests) == ("max-steps", steps)


@pytest.mark.parametrize("stored", [{"max_steps": 0}, {"max_steps": "3"}, 5])
async def test_damaged_limits_are_damage(store: AgentStore, clock: ManualClock, stored: Any) -> None:
    spender = Spender(store, clock)
    await spender.session(Limits(max_steps=3)).submit("go")
    found = await store.checkpoints.load("s")
    assert found is not None
    entries = [found.entries[0] | {"limits": stored}]
    await store.checkpoints.replace("s", entries, expected_version=found.version, head=found.head)
    with pytest.raises(StoreCorruptedError, match="'input'"):
        await spender.session().resume()
    assert spender.asked == 0


async def test_a_limit_that_a_later_release_knows_is_left_alone(store: AgentStore, clock: ManualClock) -> None:
    assert Limits.from_record({"max_steps": 3, "max_wisdom": 1}) == Limits(max_steps=3)
    limits = Limits(max_steps=3, max_cost_usd=0.5)
    assert Limits.from_record(limits.to_record()) == limits


async def test_the_time_of_waiting_is_not_spent(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock, Limits(max_seconds=10), steps=2)
    waiting = await spender.session().send("sign")
    assert waiting.finish_reason == "awaiting-approval"
    clock.advance(timedelta(days=1))
    result = await spender.agent.approvals.resolve(waiting.approval_ids[0], approved=True)
    assert result.finish_reason == "stop"
    assert (await spender.spent())["seconds"] == 2.0


async def test_the_time_in_which_nobody_ran_it_is_not_spent(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock, Limits(max_seconds=10), steps=2)
    await die_at(store, 3, lambda used: spender.by(used).session("s").send("go"))
    clock.advance(timedelta(days=1))
    result = await spender.session().resume()
    assert result is not None
    assert result.finish_reason == "stop"
    assert (await spender.spent())["seconds"] == 2.0


@pytest.mark.parametrize("whose", ["turn", "conversation"])
@pytest.mark.parametrize("atomic", [True, False])
async def test_a_request_that_outlasts_the_limit_is_given_up(
    store: AgentStore, clock: ManualClock, whose: str, atomic: bool
) -> None:
    """Its time counts, although it has brought nothing: a conversation does not begin it again and again."""
    limits = Limits(max_seconds=0.01)
    bundle = another(store, atomic=atomic)
    spender = Spender(bundle, clock, limits if whose == "turn" else None)
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            clock.advance(timedelta(seconds=1))
            ended.append("cancelled")

    spender.in_model = hang
    conversation = limits if whose == "conversation" else None
    result = await spender.session(conversation).send("go")
    assert (result.finish_reason, ended, result.text) == ("limit", ["cancelled"], "")
    assert [message.text for message in await spender.session().load()] == ["go"]
    assert (await spender.spent())["seconds"] == 1.0
    if whose == "conversation":
        with pytest.raises(LimitExceededError):
            await spender.session(conversation).send("go")


async def test_a_model_that_times_out_by_itself_is_an_error(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock, Limits(max_seconds=60))

    async def time_out() -> None:
        raise TimeoutError

    spender.in_model = time_out
    with pytest.raises(TimeoutError):
        await spender.session().send("go")
    assert await spender.session().pending() is not None


async def test_the_clock_of_a_turn_never_runs_back(store: AgentStore, clock: ManualClock) -> None:
    spender = Spender(store, clock, steps=2)

    async def set_back() -> None:
        clock.advance(timedelta(hours=-1))

    spender.in_model = set_back
    await spender.session().send("go")
    assert (await spender.spent())["seconds"] == 0.0


async def test_records_of_others_do_not_matter(store: AgentStore, clock: ManualClock) -> None:
    spender, limits = Spender(store, clock, steps=2), Limits(max_steps=4)
    await spender.session(limits).send("go")
    await store.sessions.append("s", [{"theirs": True}], expected_version=None)
    await spender.session(limits).send("go")
    with pytest.raises(LimitExceededError):
        await spender.session(limits).send("go")


@pytest.mark.parametrize("name", ["max_steps", "max_tokens", "max_cost_usd", "max_seconds"])
@pytest.mark.parametrize("wrong", [0, -1, 0.0, float("nan"), float("inf"), True, "3"])
def test_a_limit_that_is_none(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        Limits(**{name: wrong})


def test_what_is_spent_is_read_as_it_was_written() -> None:
    spent = Spent(EACH, 2, 1.5)
    assert Spent.from_record(spent.to_record()) == spent
    assert Spent.from_record({}) == Spent()
    assert spent + Spent() == spent
