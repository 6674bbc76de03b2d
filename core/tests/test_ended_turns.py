"""A turn that has ended is told from one that has not: by the run id in the transcript, and by the input in the journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.processes import another, die_at

from perdure import Agent, AgentStore, Message, Session
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.messages import Usage, stamp
from perdure.runtime.turn.state import entry, given_input
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


class Echo:
    """An agent that repeats what it is told, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.entered, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    def session(self, store: AgentStore) -> Session:
        return Agent(model=FunctionModel(self._answer), store=store).session("s")

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked.append(request.messages[-1].text)
        self.entered.set()
        await self.may_answer.wait()
        return ModelResponse(f"re: {request.messages[-1].text}")

    async def texts(self, store: AgentStore) -> list[str]:
        return [message.text for message in await self.session(store).load()]


async def finished(echo: Echo, store: AgentStore, *, write: int) -> str:
    """Have a process die right after a write: the fourth says that the turn has finished, the fifth saves it."""
    await die_at(store, write, lambda used: echo.session(used).send("go"), atomic=False)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    return found.head.run_id or ""


async def test_an_input_that_the_finished_turn_had_not_taken_gets_the_result_of_the_next(any_store: AgentStore) -> None:
    echo = Echo()
    first = await finished(echo, any_store, write=4)
    found = await any_store.checkpoints.load("s")
    assert found is not None
    said = given_input([Message("user", "more").to_record()], "m", None)
    queued = entry("input-queued", stamp(any_store.clock.now()), **said)
    await any_store.checkpoints.append("s", [queued], expected_version=found.version, head=found.head)
    result = await echo.session(any_store).send("more", input_id="m")
    assert (result.text, result.run_id != first) == ("re: more", True)
    assert await echo.texts(any_store) == ["go", "re: go", "more", "re: more"]
    assert echo.asked == ["go", "more"]


async def test_an_input_that_was_aborted_is_not_run_for_whoever_gives_it_again(store: AgentStore) -> None:
    """The one that was stopped ends as aborted, although a rival has opened another turn under the same name."""
    echo, rival = Echo(), Echo()
    interception = Interception()
    session = echo.session(another(store, interception))
    await session.submit("go", input_id="i")
    echo.may_answer.clear()
    sending = asyncio.create_task(session.send("go", input_id="i"))
    await echo.entered.wait()

    async def after(_: Call) -> None:
        found = await store.checkpoints.load("s")
        if found is not None and found.head.status == "idle":
            interception.after = None
            await rival.session(store).submit("go", input_id="i")
            echo.may_answer.set()

    interception.after = after
    assert await session.abort()
    assert (await sending).finish_reason == "aborted"
    assert (echo.asked, rival.asked) == (["go"], [])
    assert (await rival.session(store).send("go", input_id="i")).text == "re: go"


@pytest.mark.parametrize("behind_a_summary", [False, True])
async def test_a_turn_that_is_in_the_transcript_is_only_closed(any_store: AgentStore, behind_a_summary: bool) -> None:
    """Also if somebody has put a summary in its place before its journal was closed: the summary names its run."""
    echo = Echo()
    run_id = await finished(echo, any_store, write=5)
    before = await any_store.sessions.load("s")
    assert before is not None
    assert before.count == 2
    if behind_a_summary:
        turn: dict[str, Any] = {
            "run_id": run_id,
            "input_ids": [],
            "finish_reason": "stop",
            "usage": Usage().to_record(),
        }
        message = Message("user", "summary").to_record()
        summary = {"v": 1, "kind": "summary", "at": stamp(any_store.clock.now()), "turns": [turn], "message": message}
        await any_store.sessions.replace("s", [summary], expected_version=before.version)
    result = await echo.session(any_store).resume()
    assert result is not None
    assert (result.run_id, result.text) == (run_id, "re: go")
    assert await echo.texts(any_store) == (["summary"] if behind_a_summary else ["go", "re: go"])
    assert echo.asked == ["go"]
    assert await echo.session(any_store).pending() is None
