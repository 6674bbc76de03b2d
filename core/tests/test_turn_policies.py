"""Inputs that join the turn that runs: accepted means kept, heard in their place, and never twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.joining_world import Gate, Talk, begun, joined, policies, settled
from core.tests.processes import Held, another

from perdure import Agent, AgentStore, Message, ToolCall, TurnResult, tool
from perdure.errors import InvalidArgumentError, OutcomeUnknownError, StoreUnavailableError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.turns import TurnPolicy
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


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
async def test_each_call_of_a_turn_has_a_result_of_its_own(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.after_delta = Gate()
    task = await begun(gate, talk.session().send(Message("user", "work", metadata={"seen": []})))
    more = await joined(talk, "a", policy)
    gate.opened.set()
    first, second = await task, await more
    assert first == second
    second.messages[0].metadata["seen"].append(True)
    assert first.messages[0].metadata == {"seen": []}


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
async def test_another_input_under_the_name_of_one_that_is_queued_is_refused(talk: Talk, policy: TurnPolicy) -> None:
    gate = talk.in_tool = Gate()
    task = await begun(gate, talk.session().send("work", input_id="w"))
    more = await joined(talk, "more", policy, input_id="m")
    others = [await joined(talk, "other", policy, input_id=name) for name in ("m", "w")]
    gate.opened.set()
    for other in others:
        with pytest.raises(InvalidArgumentError, match="names an input that says something else"):
            await other
    assert await more == await task
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
async def test_the_same_input_is_answered_when_its_turn_ends_while_it_looks(
    store: AgentStore, policy: TurnPolicy
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> ModelResponse:
        asked.set()
        await go_on.wait()
        return ModelResponse("done")

    slow = Held("before")
    agent = Agent(model=FunctionModel(answer), store=another(store, slow))
    first = asyncio.create_task(agent.session("s", scope="acme").send("work", input_id="w"))
    await asked.wait()
    slow.next = True
    second = asyncio.create_task(agent.session("s", scope="acme", turn_policy=policy).send("work", input_id="w"))
    await slow.held.wait()
    go_on.set()
    result = await first
    slow.go_on.set()
    assert await second == result


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
