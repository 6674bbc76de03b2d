"""Inputs that join a turn that fails, is cancelled, is aborted, waits or meets a limit."""

from __future__ import annotations

import asyncio

import pytest
from core.tests.joining_world import Gate, Talk, at_once, begun, joined, policies, settled
from core.tests.processes import another

from perdure import AgentStore, Limits
from perdure.errors import SessionAwaitingApprovalError
from perdure.runtime.turns import TurnPolicy
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


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
