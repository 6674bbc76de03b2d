"""Inputs that join the turn that runs: accepted means kept, heard in their place, and never twice."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, dead, die_at, elsewhere

from perdure import Agent, AgentStore, Limits, Session, ToolCall, TurnResult, tool
from perdure.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    StoreUnavailableError,
    TurnFailedError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, TextDelta
from perdure.runtime.turns import TurnPolicy
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

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


@pytest.fixture
def talk(store: AgentStore) -> Talk:
    return Talk(store)


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


# --- in its place ---


@policies
async def test_an_input_stands_behind_the_results_of_the_step(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    again = await joined(talk, "again", policy)
    assert await talk.entries() == ["input", "model", "tool-started", "input-queued", "input-queued"]
    gate.opened.set()
    result = await task
    assert await more == await again == result
    assert await talk.texts() == ["work", "", "worked", "more", "again", "re: again"]
    assert talk.asked == [["work"], ["work", "", "worked", "more", "again"]]
    assert [message.text for message in result.messages] == await talk.texts()
    loaded = await talk.store.sessions.load("s")
    assert loaded is not None
    assert sum("input_id" in record for record in loaded.records) == 3
    assert len({record["run_id"] for record in loaded.records}) == 1


@policies
async def test_a_message_of_several_parts_joins_whole(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = asyncio.create_task(
        talk.session(policy).send([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    )
    await settled(more)
    gate.opened.set()
    await task
    assert [message.role for message in (await more).messages] == ["user", "assistant", "tool", "user", "assistant"]


@policies
async def test_inputs_that_come_at_once_are_one_turn(talk: Talk, policy: TurnPolicy) -> None:
    """The first opens the turn; the others find that it is about to run."""
    results = await asyncio.gather(*(talk.session(policy).send(text) for text in ("work", "a", "b")))
    assert len({result.run_id for result in results}) == 1
    assert [text for text in await talk.texts() if text in ("work", "a", "b")] == ["work", "a", "b"]


@policies
async def test_without_a_turn_an_input_opens_one(talk: Talk, policy: TurnPolicy) -> None:
    assert (await talk.session(policy).send("hello")).text == "re: hello"
    assert (await talk.session(policy).send("again")).text == "re: again"
    assert await talk.texts() == ["hello", "re: hello", "again", "re: again"]


async def test_a_policy_that_there_is_not(talk: Talk) -> None:
    with pytest.raises(InvalidArgumentError, match="turn_policy"):
        talk.agent.session("s", turn_policy="hurry")  # type: ignore[arg-type]  # reason: that is what is tested


async def test_a_turn_of_another_agent_is_not_joined(talk: Talk) -> None:
    gate = talk.in_model = Gate()
    task = await begun(gate, talk.session().send("hello"))
    other = Agent(model=FunctionModel(talk._answer), store=talk.store, name="other")
    second = asyncio.create_task(other.session("s", turn_policy="queue").send("for the other"))
    await settled(second)
    gate.opened.set()
    await task
    assert (await second).text == "re: for the other"
    assert await talk.texts() == ["hello", "re: hello", "for the other", "re: for the other"]


# --- the turn ends before it takes the input ---


@policies
@pytest.mark.parametrize("atomic", [True, False])
async def test_an_input_that_comes_too_late_opens_the_next_turn_in_the_closing_write(
    store: AgentStore, policy: TurnPolicy, atomic: bool
) -> None:
    closing: list[Any] = []
    interception = Interception()
    talk = Talk(another(store, interception, atomic=atomic))

    async def after(call: Call) -> None:
        if "Replace runs" in str(call):
            closing.append(await store.checkpoints.load("s"))

    interception.after = after
    gate = talk.after_delta = Gate()
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", policy)
    again = await joined(talk, "again", policy)
    gate.opened.set()
    first, second = await task, await more
    assert (first.text, second.text) == ("re: hello", "re: again")
    assert await again == second
    assert first.run_id != second.run_id
    assert await talk.texts() == ["hello", "re: hello", "more", "again", "re: again"]
    assert talk.asked == [["hello"], ["hello", "re: hello", "more", "again"]]
    assert (closing[0].head.status, closing[0].head.run_id, closing[0].head.owner) == (
        "in-progress",
        second.run_id,
        None,
    )
    assert [entry["kind"] for entry in closing[0].entries] == ["input", "input-queued"]
    assert closing[-1].head.status == "idle"


async def test_an_input_that_came_too_late_and_that_nobody_waits_for_is_pending(talk: Talk) -> None:
    gate = talk.after_delta = Gate()
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", "queue")
    more.cancel()
    gate.opened.set()
    await task
    pending = await talk.session().pending()
    assert pending is not None
    assert pending.attempts == 0
    assert (await talk.session().send("next")).text == "re: next"
    assert await talk.texts() == ["hello", "re: hello", "more", "re: more", "next", "re: next"]


# --- the turn fails, is cancelled, is aborted, waits ---


@policies
async def test_a_turn_that_fails_fails_its_inputs_and_keeps_them(talk: Talk, policy: TurnPolicy) -> None:
    gate = Gate()

    async def fail() -> None:
        await gate()
        raise ValueError("no")

    talk.after_delta = fail
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", policy)
    gate.opened.set()
    with pytest.raises(ValueError, match="no") as first:
        await task
    with pytest.raises(ValueError, match="no") as second:
        await more
    assert first.value is second.value
    assert await talk.entries() == ["input", "input-queued"]
    talk.after_delta = at_once
    assert await talk.finish() == ["hello", "more", "re: more"]


@policies
async def test_inputs_of_a_turn_whose_owner_is_cancelled_take_it_over(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    again = await joined(talk, "again", policy)
    task.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await more
    assert (result.text, result.finish_reason) == ("re: again", "stop")
    assert await again == result
    assert await talk.texts() == ["work", "", "worked", "more", "again", "re: again"]


@policies
async def test_inputs_are_taken_over_one_after_another(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    again = await joined(talk, "again", policy)
    gate.reached.clear()
    task.cancel()
    await gate.reached.wait()  # it runs on behalf of `more` now
    gate.reached.clear()
    more.cancel()
    await gate.reached.wait()
    gate.opened.set()
    assert (await again).text == "re: again"
    assert await talk.texts() == ["work", "", "worked", "more", "again", "re: again"]


@policies
async def test_an_aborted_turn_takes_its_inputs_along(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    assert await talk.session().abort() is True
    assert (await task).finish_reason == (await more).finish_reason == "aborted"
    assert await talk.session().pending() is None
    assert await talk.texts() == []


@policies
async def test_an_input_that_comes_when_the_turn_is_being_aborted_is_not_aborted(
    talk: Talk, policy: TurnPolicy
) -> None:
    reached, cleaning = Gate(), Gate()

    async def cleans_up() -> None:
        try:
            await reached()
        finally:
            await cleaning()

    talk.in_tool = cleans_up
    task = await begun(reached, talk.session().send("work"))
    abort = asyncio.create_task(talk.session().abort())
    await cleaning.reached.wait()
    more = await joined(talk, "more", policy)
    cleaning.opened.set()
    assert await abort is True
    assert (await task).finish_reason == "aborted"
    assert (await more).text == "re: more"
    assert await talk.texts() == ["more", "re: more"]


@policies
async def test_the_same_input_of_a_turn_that_fails_does_not_try_again(talk: Talk, policy: TurnPolicy) -> None:
    gate = Gate()

    async def fail() -> None:
        await gate()
        raise ValueError("no")

    talk.after_delta = fail
    task = await begun(gate, talk.session().send("hello"))
    inputs = [await joined(talk, "more", policy, input_id="m") for _ in range(2)]
    gate.opened.set()
    outcomes = await asyncio.gather(task, *inputs, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
    assert len(talk.asked) == 1


@policies
async def test_a_joined_call_that_is_cancelled_leaves_its_input(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    more.cancel()
    with pytest.raises(asyncio.CancelledError):
        await more
    gate.opened.set()
    assert (await task).text == "re: more"
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


async def test_an_input_of_a_turn_that_waits_gets_its_result(talk: Talk) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("both"))
    more = await joined(talk, "more", "queue")
    gate.opened.set()
    waiting = await task
    assert await more == waiting
    assert waiting.finish_reason == "awaiting-approval"
    with pytest.raises(SessionAwaitingApprovalError):
        await talk.session("queue").send("too late")
    assert (await talk.agent.approvals.resolve(waiting.approval_ids[0], approved=True)).text == "re: more"
    assert await talk.texts() == ["both", "", "worked", "signed", "more", "re: more"]


@policies
async def test_an_input_that_comes_when_the_turn_was_set_to_wait_is_not_taken(
    store: AgentStore, policy: TurnPolicy
) -> None:
    """Whoever ran the turn looks at the approvals once more, and owns it no longer."""
    interception, held = Interception(counted=("read", "write")), Gate()
    talk = Talk(another(store, interception))
    waits = False

    async def before(call: Call) -> None:
        if waits and call.kind == "read" and not held.opened.is_set():
            await held()

    async def after(call: Call) -> None:
        nonlocal waits
        heads = [getattr(operation, "head", None) for operation in call.operations]
        waits = waits or any(head is not None and head.status == "awaiting-approval" for head in heads)

    interception.before, interception.after = before, after
    task = await begun(held, talk.session().send("sign"))
    more = await joined(talk, "more", policy)
    assert await talk.by(store).session("s").pending() is not None
    held.opened.set()
    assert (await task).finish_reason == "awaiting-approval"
    with pytest.raises(SessionAwaitingApprovalError):
        await more
    found = await store.checkpoints.load("s")
    assert found is not None
    assert "input-queued" not in [entry["kind"] for entry in found.entries]


# --- the same input twice ---


@policies
async def test_the_same_input_while_it_is_queued(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work", input_id="w"))
    inputs = [await joined(talk, "more", policy, input_id="m") for _ in range(2)]
    inputs.append(await joined(talk, "work", policy, input_id="w"))
    gate.opened.set()
    assert [await given for given in inputs] == [await task] * 3
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


@policies
async def test_the_same_input_twice_at_once(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    both = [asyncio.create_task(talk.session(policy).send("more", input_id="m")) for _ in range(2)]
    await settled(*both)
    gate.opened.set()
    assert [await given for given in both] == [await task] * 2
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


@policies
async def test_the_same_input_after_it_was_taken_and_after_its_turn(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy, input_id="m")
    last = talk.after_delta = Gate()
    gate.opened.set()
    await last.reached.wait()  # the model has been asked with it
    again = await joined(talk, "more", policy, input_id="m")
    last.opened.set()
    result = await task
    assert await more == await again == result
    assert await talk.session(policy).send("more", input_id="m") == result
    assert await talk.session().send("more", input_id="m") == result
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


@policies
async def test_the_same_input_beside_a_later_turn(talk: Talk, policy: TurnPolicy) -> None:
    first = await talk.session().send("hello", input_id="h")
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    assert await talk.session(policy).send("hello", input_id="h") == first
    gate.opened.set()
    await task
    assert (await talk.texts()).count("hello") == 1


async def test_the_same_input_twice_does_not_break_the_request_that_holds_it(talk: Talk) -> None:
    gate = talk.in_model = Gate()
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", "steer", input_id="m")
    again = await joined(talk, "more", "steer", input_id="m")
    gate.opened.set()
    result = await task
    assert await more == await again == result
    assert await talk.texts() == ["hello", "more", "re: more"]
    assert len(talk.asked) == 2


@pytest.mark.parametrize("landed", [True, False])
async def test_an_input_of_unknown_outcome_that_is_given_again(store: AgentStore, landed: bool) -> None:
    """It is heard once, whether its first write landed or not."""
    interception = Interception()
    talk = Talk(another(store, interception))
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    number = len(interception.calls) + 1

    async def before(call: Call) -> None:
        if call.number == number and not landed:
            raise OutcomeUnknownError("write", "key", "the test lost it")
        if call.number == number + 1:  # the repetition of the write
            raise StoreUnavailableError("write", "key", "the test says so")

    async def after(call: Call) -> None:
        if call.number == number:
            raise OutcomeUnknownError("write", "key", "the test lost the answer")

    interception.before, interception.after = before, after
    more = await joined(talk, "more", "queue", input_id="m")
    with pytest.raises(OutcomeUnknownError):
        await more
    again = await joined(talk, "more", "queue", input_id="m")
    assert (await talk.entries()).count("input-queued") == 1
    gate.opened.set()
    assert await again == await task
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


# --- steering ---


async def test_steering_before_anything_was_said_asks_again(talk: Talk) -> None:
    gate = talk.in_model = Gate()
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", "steer")
    assert len(talk.asked) == 2  # at once, while the gate is closed
    gate.opened.set()
    assert await more == await task
    assert talk.asked == [["hello"], ["hello", "more"]]
    assert await talk.texts() == ["hello", "more", "re: more"]


async def test_steering_a_later_request_before_it_said_anything_asks_again(talk: Talk) -> None:
    """What an earlier request has said does not matter."""
    talk.after_delta = talk.in_tool = lambda: asyncio.sleep(0)
    gate = Gate()

    async def second() -> None:
        if len(talk.asked) > 1:
            await gate()

    talk.in_model = second
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", "steer")
    assert len(talk.asked) == 3
    gate.opened.set()
    assert await more == await task
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


async def test_the_owner_tells_of_inputs_that_join(talk: Talk) -> None:
    gate = talk.in_tool = Gate()
    told: list[tuple[str, str]] = []

    async def own() -> None:
        async with talk.session().stream("work", input_id="w") as run:
            told.extend([(event.type, getattr(event, "input_id", "")) async for event in run])

    task = asyncio.create_task(own())
    await gate.reached.wait()
    more = await joined(talk, "work", "queue", input_id="m")
    gate.opened.set()
    await task
    await more
    step = [("model.responded", ""), ("tool.finished", "")]
    first = [step[0], ("input.queued", "m"), step[1]]
    assert [fact for fact in told if fact[0] in dict(first) or fact[1] == "m"] == [
        *first,
        ("input.applied", "m"),
        *step,
        step[0],
    ]


async def test_queueing_does_not_ask_again(talk: Talk) -> None:
    gate = talk.in_model = Gate()
    task = await begun(gate, talk.session().send("hello"))
    more = await joined(talk, "more", "queue")
    assert len(talk.asked) == 1
    gate.opened.set()
    assert (await task).text == "re: hello"
    assert (await more).text == "re: more"


async def test_steering_after_something_was_said_waits(talk: Talk) -> None:
    gate = talk.after_delta = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", "steer")
    assert len(talk.asked) == 1
    gate.opened.set()
    assert await more == await task
    assert talk.ran == []  # the call had not started
    texts = await talk.texts()
    assert texts == ["work", "", "not run: the user has sent a new message", "more", "re: more"]
    assert (await task).messages[2].is_error


async def test_queueing_lets_calls_run(talk: Talk) -> None:
    gate = talk.after_delta = Gate()
    task = await begun(gate, talk.session().send("work"))
    await joined(talk, "more", "queue")
    gate.opened.set()
    await task
    assert talk.ran == ["work"]


async def test_steering_beside_a_call_that_waits_for_a_decision(talk: Talk) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("both"))
    more = await joined(talk, "more", "steer")
    gate.opened.set()
    assert await more == await task
    not_run = "not run: the user has sent a new message"
    assert await talk.texts() == ["both", "", "worked", not_run, "more", "re: more"]
    (approval,) = (await talk.store.approvals.list()).items
    assert approval.status == "cancelled"
    assert talk.ran == ["work"]


@pytest.mark.parametrize("decided", [False, True])
async def test_steering_while_the_turn_is_being_set_to_wait(store: AgentStore, decided: bool) -> None:
    """The input is journaled before the head says that the turn waits: so the turn does not wait."""
    interception, asking, queueing = Interception(), Gate(), Gate()
    talk = Talk(another(store, interception))

    async def before(call: Call) -> None:
        items = [item for operation in call.operations for item in getattr(operation, "items", ())]
        if any(b'"approval-requested"' in item for item in items):
            await asking()
        if any(b'"input-queued"' in item for item in items):
            await queueing()

    interception.before = before
    task = await begun(asking, talk.session().send("sign"))
    more = await joined(talk, "more", "steer")  # its write stands right behind
    asking.opened.set()
    await queueing.reached.wait()
    await settled(task)
    if decided:
        (approval,) = (await store.approvals.list()).items
        await store.approvals.decide(approval.id, approved=True)
    queueing.opened.set()
    result = await task
    assert await more == result
    assert result.finish_reason == "stop"
    assert talk.ran == []
    assert (await talk.texts())[-2:] == ["more", "re: more"]


async def test_an_owner_that_is_cancelled_while_it_learns_that_it_shall_not_wait(store: AgentStore) -> None:
    """It gives the turn up all the same."""
    interception, held = Interception(), Gate()
    talk = Talk(another(store, interception))
    asking = Gate()

    async def before(call: Call) -> None:
        items = [item for operation in call.operations for item in getattr(operation, "items", ())]
        if any(b'"approval-requested"' in item for item in items):
            await asking()
        if any(b'"input-queued"' in item for item in items):
            await held()

    interception.before = before
    task = await begun(asking, talk.session().send("sign"))
    more = asyncio.create_task(talk.session("steer").send("more"))
    await settled(more)
    asking.opened.set()  # the input is next, and behind it what sets the turn to wait
    await held.reached.wait()
    await settled(task)
    more.cancel()
    task.cancel()
    await settled()
    held.opened.set()
    await asyncio.wait([task, more])
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (found.head.status, found.head.owner) == ("in-progress", None)
    assert [entry["kind"] for entry in found.entries][-1] == "input-queued"
    assert (await talk.finish())[-2:] == ["more", "re: more"]


async def test_steering_right_before_a_call_starts(store: AgentStore) -> None:
    """What is journaled before the call's start keeps it from starting, also if that stands in line already."""
    interception, responding, queueing = Interception(), Gate(), Gate()
    talk = Talk(another(store, interception))

    async def before(call: Call) -> None:
        items = [item for operation in call.operations for item in getattr(operation, "items", ())]
        if any(b'"model"' in item for item in items) and not responding.opened.is_set():
            await responding()
        if any(b'"input-queued"' in item for item in items):
            await queueing()

    interception.before = before
    task = await begun(responding, talk.session().send("work"))
    more = await joined(talk, "more", "steer")
    responding.opened.set()
    await queueing.reached.wait()
    await settled(task)  # it stands behind the input
    queueing.opened.set()
    assert await more == await task
    assert talk.ran == []
    assert "tool-started" not in kinds_written(interception)


def kinds_written(interception: Interception) -> list[str]:
    """Return the kinds of the entries that a process has written."""
    operations = [operation for call in interception.calls for operation in call.operations]
    items = [item for operation in operations for item in getattr(operation, "items", ())]
    return [json.loads(item).get("kind", "") for item in items]


@pytest.mark.parametrize("in_doubt", ["ask", "rerun", "fail"])
async def test_steering_a_turn_with_a_call_in_doubt(store: AgentStore, in_doubt: Any) -> None:
    """A call that may have run is settled first, by its policy, and the input is heard right behind."""
    dying = Talk(another(store, process=dead()), in_doubt=in_doubt)
    gate = dying.in_tool = Gate()
    task = await begun(gate, dying.session().send("both"))
    more = await joined(dying, "more", "steer", input_id="m")
    await kill(dying, task, more)
    talk = Talk(store, in_doubt=in_doubt)
    async with asyncio.timeout(10):
        result = await talk.session().resume()
        assert result is not None
        if in_doubt == "ask":
            assert result.finish_reason == "awaiting-approval"
            (doubt,) = result.approval_ids
            result = await talk.agent.approvals.resolve(doubt, approved=True)
    assert result.text == "re: more"
    texts = await talk.texts()
    assert texts[3:] == ["not run: the user has sent a new message", "more", "re: more"]
    assert talk.ran == ([] if in_doubt == "fail" else ["work"])


async def kill(talk: Talk, *tasks: asyncio.Task[Any]) -> None:
    """End a process where it stands, without a trace in the store."""
    journal = talk.store.checkpoints.journal  # type: ignore[attr-defined]  # reason: the kit's journal is below it
    journal.interception.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# --- crashes ---


class Story:
    """A turn that two inputs join, one while its tool runs and one while its last response is on its way."""

    TEXTS = ("work", "early", "late")

    def __init__(self, store: AgentStore, policy: TurnPolicy) -> None:
        self.store = store
        self.policy: TurnPolicy = policy

    async def live(self, interception: Interception, *, atomic: bool) -> list[BaseException | TurnResult]:
        """Tell it in a process of its own, and return what became of the three calls."""
        talk = Talk(another(self.store, interception, process=dead(), atomic=atomic))
        tool_gate, model_gate = Gate(), Gate()
        talk.in_tool = tool_gate

        async def last() -> None:
            if len(talk.asked) == 2:
                await model_gate()

        talk.after_delta = last
        calls = [asyncio.create_task(talk.session().send("work", input_id="work"))]
        for gate, text in ((tool_gate, "early"), (model_gate, "late")):
            await reached(gate, calls[0])
            calls.append(asyncio.create_task(talk.session(self.policy).send(text, input_id=text)))
            await settled(calls[-1])
            gate.opened.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    async def kept(self) -> list[str]:
        """Return the inputs that are in the journal or in the transcript."""
        found, transcript = await self.store.checkpoints.load("s"), await self.store.sessions.load("s")
        records = [*([] if transcript is None else transcript.records), *([] if found is None else found.entries)]
        return list(dict.fromkeys(record["input_id"] for record in records if "input_id" in record))

    async def check(self, kept: Sequence[str], outcomes: Sequence[object]) -> None:
        """Check what is left in the end: each input that was kept, once, in its place, and nothing open."""
        talk = Talk(self.store)
        texts = await talk.texts()
        assert [text for text in texts if text in self.TEXTS] == list(kept)
        for text, outcome in zip(self.TEXTS, outcomes, strict=True):
            assert text in kept or not isinstance(outcome, TurnResult), f"{text} was answered, and is lost"
        transcript = await self.store.sessions.load("s")
        assert transcript is not None
        roles = [record["message"]["role"] for record in transcript.records]
        for place, role in enumerate(roles):
            if role == "tool":
                assert roles[place - 1] == "assistant"  # nothing has come between a call and its result
        found = await self.store.checkpoints.load("s")
        assert found is None or (found.head.status, found.entries) == ("idle", ())
        assert sum("finish_reason" in record for record in transcript.records) == len(
            {record["run_id"] for record in transcript.records}
        )


async def reached(gate: Gate, task: asyncio.Task[Any]) -> None:
    """Wait until a gate is reached, or the turn has ended without it."""
    waiting = asyncio.create_task(gate.reached.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


DEATHS = ("die-before", "die-after")


@policies
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("outcome", [*DEATHS, "unavailable", "lost", "unknown"])
@pytest.mark.parametrize("odd", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["odd", "even"])
async def test_no_accepted_input_is_lost_whatever_write_fails(
    store: AgentStore, policy: TurnPolicy, atomic: bool, outcome: str, odd: bool
) -> None:
    """The user repeats each call after every second of the faults, and only resumes after the others."""
    for number in itertools.count(1):
        again = (number % 2 == 1) == odd
        story, interception = Story(store, policy), at(number, outcome)
        try:
            outcomes = await story.live(interception, atomic=atomic)
            kept = await story.kept()
            talk = Talk(another(store))
            if again:  # the user of each call repeats it
                kept = [*kept, *[text for text in Story.TEXTS if text not in kept]]
                for text in Story.TEXTS:
                    await talk.session().send(text, input_id=text)
            else:
                await talk.finish()
            if kept:
                await story.check(kept, outcomes)
        except BaseException as error:
            error.add_note(f"{outcome} at write {number} of {[str(call) for call in interception.calls]}")
            raise
        await store.delete_session("s")
        if len(interception.calls) < number:
            assert number > 8
            return


@policies
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("outcome", DEATHS)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_no_accepted_input_is_lost_when_the_recovery_dies_too(
    store: AgentStore, policy: TurnPolicy, atomic: bool, outcome: str, every: int
) -> None:
    runs = 0
    for number in range(4, 16, every):
        for second in itertools.count(1):
            story = Story(store, policy)
            outcomes = await story.live(at(number, outcome), atomic=atomic)
            recovery = at(second, outcome)
            kept = await story.kept()
            try:
                session = Talk(another(store, recovery, process=dead(), atomic=atomic)).session()
                while await session.resume() is not None:
                    pass
            except Died:
                runs += 1
            await Talk(another(store)).finish()
            if kept:
                await story.check(kept, outcomes)
            await store.delete_session("s")
            if len(recovery.calls) < second:
                break
    assert runs > 5


async def test_an_input_that_was_not_taken_is_not_kept(store: AgentStore) -> None:
    interception = Interception()
    talk = Talk(another(store, interception))
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    number = len(interception.calls) + 1

    async def before(call: Call) -> None:
        if call.number == number:
            raise StoreUnavailableError("write", "key", "the test says so")

    interception.before = before
    with pytest.raises(StoreUnavailableError):
        await talk.session("queue").send("more")
    gate.opened.set()
    assert (await task).text == "re: worked"  # the turn goes on
    assert await talk.texts() == ["work", "", "worked", "re: worked"]


@policies
async def test_a_turn_without_a_checkpoint_store_takes_inputs(store: AgentStore, policy: TurnPolicy) -> None:
    talk = Talk(AgentStore(sessions=store.sessions, approvals=store.approvals, clock=store.clock))
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    last = talk.after_delta = Gate()
    gate.opened.set()
    await last.reached.wait()
    late = await joined(talk, "late", policy)
    last.opened.set()
    assert await more == await task
    assert (await late).text == "re: late"


# --- dropped and taken over ---


async def test_a_turn_that_another_host_has_dropped_took_its_inputs_along(
    store: AgentStore, clock: ManualClock
) -> None:
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    more = await joined(sleeper, "more", "queue")
    assert await Talk(store).session().discard_pending(force=True)
    gate.opened.set()
    with pytest.raises(SessionConflictError):
        await task
    with pytest.raises(SessionConflictError):
        await more
    assert await sleeper.texts() == []


async def test_an_input_of_a_turn_that_was_lost_opens_one(store: AgentStore) -> None:
    """The one who runs the turn does not know yet that it was dropped; the input finds out."""
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    assert await Talk(store).session().discard_pending(force=True)
    more = await joined(sleeper, "more", "queue")
    gate.opened.set()
    with pytest.raises(SessionConflictError):
        await task
    assert (await more).text == "re: more"
    assert await sleeper.texts() == ["more", "re: more"]


async def test_an_input_of_a_turn_that_another_host_has_saved(store: AgentStore, clock: ManualClock) -> None:
    sleeper = Talk(another(store, process=elsewhere()))
    gate = sleeper.in_tool = Gate()
    task = await begun(gate, sleeper.session().send("work"))
    more = await joined(sleeper, "more", "queue")
    clock.advance(timedelta(hours=1))
    assert await Talk(store).finish() == ["work", "", "worked", "more", "re: more"]
    gate.opened.set()
    assert await more == await task
    assert (await more).text == "re: more"


# --- limits ---


@policies
async def test_an_input_of_a_turn_that_meets_its_limit_opens_the_next(store: AgentStore, policy: TurnPolicy) -> None:
    talk = Talk(store)
    talk.agent.limits = Limits(max_steps=1)
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work"))
    more = await joined(talk, "more", policy)
    gate.opened.set()
    assert (await task).finish_reason == "max-steps"
    assert (await more).text == "re: more"
    assert await talk.texts() == ["work", "", "worked", "more", "re: more"]


async def test_an_input_of_a_conversation_that_is_spent_meanwhile_is_kept(store: AgentStore) -> None:
    """It was accepted: its turn ends at once, and says why."""
    talk = Talk(store)
    session = talk.session("queue", limits=Limits(max_steps=1))
    gate = talk.in_tool = Gate()
    task = await begun(gate, session.send("work"))
    more = asyncio.create_task(session.send("more"))
    await settled(more)
    gate.opened.set()
    assert (await task).finish_reason == (await more).finish_reason == "max-steps"
    assert await talk.texts() == ["work", "", "worked", "more"]
    assert await talk.session().pending() is None


# --- a tool that calls its own conversation ---


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("how", ["send", "stream", "submit", "resume", "discard", "clear"])
async def test_a_tool_may_not_call_its_own_conversation(store: AgentStore, policy: TurnPolicy, how: str) -> None:
    talk = Talk(store)
    problems: list[Exception] = []

    async def stream(session: Session) -> None:
        async with session.stream("me") as run:
            async for _ in run:
                pass

    acts: dict[str, Callable[[Session], Awaitable[Any]]] = {
        "send": lambda session: session.send("me"),
        "stream": stream,
        "submit": lambda session: session.submit("me"),
        "resume": lambda session: session.resume(),
        "discard": lambda session: session.discard_pending(),
        "clear": lambda session: session.clear(),
    }

    async def call_it() -> None:
        try:
            await acts[how](talk.session(policy))
        except SessionBusyError as error:
            problems.append(error)

    talk.in_tool = call_it
    async with asyncio.timeout(10):
        assert (await talk.session().send("work")).text == "re: worked"
    assert len(problems) == 1
    assert await talk.texts() == ["work", "", "worked", "re: worked"]


async def test_a_tool_may_not_call_its_own_conversation_through_another(store: AgentStore) -> None:
    talk, problems = Talk(store), list[Exception]()

    async def back() -> str:
        try:
            await talk.session("queue").send("me")
        except SessionBusyError as error:
            problems.append(error)
        return "back"

    async def answer(request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        return ModelResponse("ok") if last.role == "tool" else ModelResponse("", [ToolCall("c", "back")])

    other = Agent(model=FunctionModel(answer), tools=[back], store=store, name="other")

    async def call_it() -> None:
        await other.session("t").send("go")

    talk.in_tool = call_it
    async with asyncio.timeout(10):
        await talk.session().send("work")
    assert len(problems) == 1


# --- another process ---


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("named", [True, False])
async def test_a_conversation_that_another_process_runs(store: AgentStore, policy: TurnPolicy, named: bool) -> None:
    with pytest.raises(Died):
        await Talk(another(store, at(2, "die-after"), process=elsewhere())).session().send("hello")
    before = await store.checkpoints.load("s")
    with pytest.raises(SessionBusyError):
        await Talk(store).session(policy).send("more", input_id="m" if named else None)
    assert await store.checkpoints.load("s") == before


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("named", [True, False])
async def test_an_input_waits_for_another_process(
    store: AgentStore, clock: ManualClock, policy: TurnPolicy, named: bool
) -> None:
    there = Talk(another(store, process=elsewhere()))
    gate = there.in_model = Gate()
    running = await begun(gate, there.session().send("hello"))
    here, looked = Talk(store), asyncio.Event()
    session = here.session(policy, busy_timeout=timedelta(seconds=20))
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looked.set()
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: says when it was looked at
    waiting = asyncio.create_task(session.send("more", input_id="m" if named else None))
    await looked.wait()
    gate.opened.set()
    await running
    assert (await waiting).text == "re: more"
    assert await here.texts() == ["hello", "re: hello", "more", "re: more"]


@pytest.mark.parametrize("named", [True, False])
async def test_an_input_waits_no_longer_than_it_may(store: AgentStore, clock: ManualClock, named: bool) -> None:
    there = Talk(another(store, process=elsewhere()))
    gate = there.in_model = Gate()
    running = await begun(gate, there.session().send("hello"))
    here, looks = Talk(store), list[float]()
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=3))
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: each look takes a while
    with pytest.raises(SessionBusyError):
        await here.session(busy_timeout=timedelta(seconds=7)).send("more", input_id="m" if named else None)
    assert looks[:2] == [0.0, 3.0]
    assert looks[-1] <= 9.0
    gate.opened.set()
    await running


async def test_an_input_that_loses_to_another_process_does_not_wait_anew(store: AgentStore, clock: ManualClock) -> None:
    there, interception = Talk(another(store, process=elsewhere())), Interception()
    here, looks = Talk(another(store, interception)), list[float]()
    gate = there.in_model = Gate()
    rivals: list[asyncio.Task[TurnResult]] = []

    async def before(call: Call) -> None:
        if "runs" in str(call) and not rivals:
            clock.advance(timedelta(seconds=5))
            rivals.append(await begun(gate, there.session().send("hello")))

    interception.before = before
    original = here.store.ownership.is_live

    def is_live(found: Any) -> bool:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=3))
        return original(found)

    here.store.ownership.is_live = is_live  # type: ignore[method-assign]  # reason: each look takes a while
    with pytest.raises(SessionBusyError):
        await here.session(busy_timeout=timedelta(seconds=7)).send("more")
    assert looks == [5.0]
    gate.opened.set()
    await rivals[0]


async def test_a_time_to_wait_that_is_none(talk: Talk) -> None:
    for wrong in (timedelta(seconds=-1), 3):
        with pytest.raises(InvalidArgumentError, match="busy_timeout"):
            talk.session(busy_timeout=wrong)


async def test_a_failed_turn_takes_no_new_input(talk: Talk) -> None:
    error = ValueError("no")
    error.retryable = False  # type: ignore[attr-defined]  # reason: that is how an error says it

    async def fail() -> None:
        raise error

    talk.in_model = fail
    with pytest.raises(ValueError, match="no"):
        await talk.session("queue").send("hello")
    talk.in_model = at_once
    with pytest.raises(TurnFailedError):
        await talk.session("queue").send("more")
    assert await talk.finish() == ["hello", "re: hello"]
    await die_at(talk.store, 1, lambda used: talk.session("queue", used).send("after"))
    assert await talk.finish() == ["hello", "re: hello", "after", "re: after"]


# --- several conversations ---


async def queued(store: AgentStore, name: str) -> None:
    """Let the loop turn until a conversation's turn has taken an input."""
    for _ in range(10_000):
        found = await store.checkpoints.load(name)
        if found is not None and found.entries[-1]["kind"] == "input-queued":
            return
        await asyncio.sleep(0)
    raise AssertionError(name)


async def test_inputs_reach_their_own_conversation(any_store: AgentStore) -> None:
    """Three conversations at once, each with inputs that join: nothing lands in another's transcript."""
    gates = {name: Gate() for name in "abc"}
    asked: list[tuple[str, list[str]]] = []

    @tool(idempotent=True)
    async def work(name: str) -> str:
        await gates[name]()
        return f"{name}: worked"

    async def answer(request: ModelRequest) -> ModelResponse:
        name = request.messages[0].text[0]
        asked.append((name, [message.text for message in request.messages if message.text]))
        if request.messages[-1].text.endswith("work"):
            return ModelResponse("", [ToolCall("c", "work", {"name": name})])
        return ModelResponse(f"{name}: done")

    agent = Agent(model=FunctionModel(answer), tools=[work], store=any_store)

    def send(name: str, text: str) -> asyncio.Task[TurnResult]:
        return asyncio.create_task(agent.session(name, turn_policy="queue").send(f"{name}: {text}"))

    first = [send(name, "work") for name in "abc"]
    for name in "abc":
        await gates[name].reached.wait()
    more = [send(name, "more") for name in "cba"]
    for name in "abc":
        await queued(any_store, name)
    for name in "bca":
        gates[name].opened.set()
    await asyncio.gather(*first, *more)
    for name in "abc":
        texts = [message.text for message in await agent.session(name).load() if message.text]
        assert texts == [f"{name}: {text}" for text in ("work", "worked", "more", "done")]
    assert all(text.startswith(name) for name, texts in asked for text in texts)
