"""Inputs that are recorded for whoever takes them: once, and not lost."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, dead, die_at, elsewhere, writes_nothing

from perdure import Agent, AgentStore, Limits, Session
from perdure.errors import (
    AgentChangedError,
    LimitExceededError,
    OutcomeUnknownError,
    SessionBusyError,
    StoreUnavailableError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class Desk:
    """An agent that repeats what it is told, and counts."""

    def __init__(self, store: AgentStore, **options: Any) -> None:
        self.store = store
        self.asked: list[str] = []
        self.agent = Agent(model=FunctionModel(self._answer), store=store, **options)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked.append(request.messages[-1].text)
        return ModelResponse(text=f"re: {request.messages[-1].text}")

    def session(self, **options: Any) -> Session:
        return self.agent.session("s", **options)

    async def texts(self) -> list[str]:
        return [message.text for message in await self.session().load()]


async def test_what_is_submitted_is_recorded_and_not_run(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    run_id = await desk.session().submit("hello")
    assert desk.asked == []
    assert await desk.texts() == []
    found = await any_store.checkpoints.load("s")
    assert found is not None
    assert (found.head.status, found.head.run_id, found.head.owner, found.head.attempts) == (
        "in-progress",
        run_id,
        None,
        0,
    )
    assert [entry["kind"] for entry in found.entries] == ["input"]
    result = await Desk(any_store).session().resume()
    assert result is not None
    assert (result.run_id, result.text) == (run_id, "re: hello")
    assert await desk.session().result(run_id) == result
    assert await desk.texts() == ["hello", "re: hello"]


async def test_the_same_submission_again(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    run_id = await desk.session().submit("hello", input_id="i")
    assert await desk.session().submit("hello", input_id="i") == run_id  # while it waits
    await desk.session().resume()
    assert await desk.session().submit("hello", input_id="i") == run_id  # when it has ended
    await desk.session().submit("more")
    assert await desk.session().submit("hello", input_id="i") == run_id  # and while the next one waits
    await desk.session().discard_pending()
    assert (await desk.session().send("hello", input_id="i")).run_id == run_id
    assert desk.asked == ["hello"]


async def test_a_send_of_what_was_submitted_runs_it(store: AgentStore) -> None:
    desk = Desk(store)
    run_id = await desk.session().submit("hello", input_id="i")
    assert (await desk.session().send("hello", input_id="i")).run_id == run_id
    assert desk.asked == ["hello"]


async def test_a_send_behind_what_was_submitted_runs_both(store: AgentStore) -> None:
    desk = Desk(store)
    await desk.session().submit("hello")
    assert (await desk.session().send("more")).text == "re: more"
    assert await desk.texts() == ["hello", "re: hello", "more", "re: more"]


@pytest.mark.parametrize("named", [True, False])
async def test_an_unfinished_turn_refuses_a_submission(store: AgentStore, named: bool) -> None:
    desk = Desk(store)
    await desk.session().submit("hello")
    async with writes_nothing(store) as silent:
        with pytest.raises(SessionBusyError):
            await Desk(silent).session().submit("more", input_id="i" if named else None)
    with pytest.raises(Died):
        await Desk(another(store, at(1, "die-before"), process=elsewhere())).session().resume()
    await desk.session().resume()
    assert await desk.session().submit("more")


async def test_a_turn_that_runs_elsewhere_refuses_a_submission(store: AgentStore) -> None:
    with pytest.raises(Died):
        await Desk(another(store, at(2, "die-after"), process=elsewhere())).session().send("hello")
    with pytest.raises(SessionBusyError):
        await Desk(store).session(busy_timeout=timedelta(hours=1)).submit("more")


async def test_the_same_submission_while_another_host_runs_it(store: AgentStore) -> None:
    """Whoever asks again after a lost answer learns the run, also if a worker elsewhere was quick to take it."""
    desk = Desk(store)
    ended = await desk.session().send("first", input_id="e")
    run_id = await desk.session().submit("hello", input_id="i")
    with pytest.raises(Died):
        await Desk(another(store, at(2, "die-before"), process=elsewhere())).session().resume()
    async with writes_nothing(store) as silent:
        assert await Desk(silent).session().submit("hello", input_id="i") == run_id
        assert await Desk(silent).session().submit("first", input_id="e") == ended.run_id
        with pytest.raises(SessionBusyError):
            await Desk(silent).session().submit("more", input_id="j")
        with pytest.raises(SessionBusyError):
            await Desk(silent).session().submit("more")


async def test_a_turn_that_is_only_to_be_saved_is_saved_first(store: AgentStore) -> None:
    await die_at(store, 4, lambda used: Desk(used).session().send("hello"), atomic=False)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    desk = Desk(store)
    await desk.session().submit("more")
    assert await desk.texts() == ["hello", "re: hello"]
    assert await desk.session().resume() is not None


async def test_a_turn_that_inputs_of_the_saved_one_have_opened_is_left_to_others(store: AgentStore) -> None:
    asked, queued = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.set()
        await queued.wait()
        return ModelResponse(f"re: {request.messages[-1].text}")

    dying = another(store, at(5, "die-after"), process=dead(), atomic=False)
    agent = Agent(model=FunctionModel(answer), store=dying)
    first = asyncio.create_task(agent.session("s").send("one"))
    await asked.wait()
    listening = agent.session("s")

    async def hear(event: Any) -> None:
        if event.type == "input.queued":
            queued.set()

    listening.on(hear)
    second = asyncio.create_task(agent.session("s", turn_policy="queue").send("two"))
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in ended] == [Died, Died]
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    desk = Desk(store)
    with pytest.raises(SessionBusyError):
        await desk.session().submit("three")
    assert (desk.asked, await desk.texts()) == ([], ["one", "re: one"])
    assert await desk.session().resume() is not None
    assert await desk.texts() == ["one", "re: one", "two", "re: two"]


async def test_another_agents_submission(store: AgentStore) -> None:
    run_id = await Desk(store, name="other").session().submit("hello")
    with pytest.raises(AgentChangedError, match=run_id):
        await Desk(store).session().resume()


async def test_a_spent_conversation_takes_no_submission(store: AgentStore) -> None:
    limits = Limits(max_steps=1)
    await Desk(store).session(limits=limits).send("hello")
    async with writes_nothing(store) as silent:
        with pytest.raises(LimitExceededError):
            await Desk(silent).session(limits=limits).submit("more")


async def test_two_submissions_at_once(store: AgentStore) -> None:
    """One is taken, the other is told so; of the same name, both are."""
    desk = Desk(store)
    outcomes = await asyncio.gather(*(desk.session().submit(text) for text in "ab"), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["SessionBusyError", "str"]
    await desk.session().resume()
    same = await asyncio.gather(*(desk.session().submit("c", input_id="c") for _ in range(2)))
    assert same[0] == same[1]


async def test_a_rival_that_is_first(store: AgentStore) -> None:
    await Desk(store).session().send("before")
    interception = Interception()
    desk = Desk(another(store, interception))

    async def before(_: Call) -> None:
        interception.before = None
        await Desk(store).session().submit("rival")

    interception.before = before
    with pytest.raises(SessionBusyError):
        await desk.session().submit("hello")


@pytest.mark.parametrize("outcome", ["die-before", "die-after", "unavailable", "lost", "unknown"])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_fault_at_every_write(store: AgentStore, outcome: str, begun: bool) -> None:
    """What was answered is kept; what is submitted again under its name is run once, whatever had become of it."""
    for number in itertools.count(1):
        if begun:
            await Desk(store).session().send("before")
        interception = at(number, outcome)
        desk, run_id = Desk(another(store, interception, process=dead())), ""
        try:
            run_id = await desk.session().submit("hello", input_id="i")
        except StoreUnavailableError:
            found = await store.checkpoints.load("s")
            assert found is None or found.head.status == "idle", "it says that nothing was written"
        except (Died, OutcomeUnknownError):
            pass
        survivor = Desk(store)
        again = await survivor.session().submit("hello", input_id="i")
        assert run_id in ("", again)
        result = await survivor.session().resume()
        assert result is None or result.run_id == again
        assert (await survivor.texts())[-2:] == ["hello", "re: hello"]
        assert survivor.asked == ["hello"]
        await store.delete_session("s")
        if len(interception.calls) < number:
            assert number == (3 if begun else 4)
            return


@pytest.mark.parametrize("dies", [False, True])
async def test_the_time_that_a_submission_waits_is_not_spent(store: AgentStore, clock: ManualClock, dies: bool) -> None:
    desk = Desk(store, limits=Limits(max_seconds=60))
    await desk.session().submit("hello")
    clock.advance(timedelta(hours=8))
    if dies:
        await die_at(store, 1, lambda used: Desk(used, limits=Limits(max_seconds=60)).session().resume())
        clock.advance(timedelta(hours=8))
    result = await desk.session().resume()
    assert result is not None
    assert (result.finish_reason, result.text) == ("stop", "re: hello")
    loaded = await store.sessions.load("s")
    assert loaded is not None
    assert loaded.records[-1]["spent"]["seconds"] == 0.0
