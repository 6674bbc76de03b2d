"""Inputs that steer the turn that runs: asked again, not run, or heard behind what must be settled first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from core.tests.joining_world import Gate, Talk, begun, joined, kill, settled
from core.tests.processes import another, dead

from perdure import AgentStore
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


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
