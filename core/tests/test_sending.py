"""Inputs with an id of their own, calls that come at once, and the user's state beside the transcript."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.processes import another, die_at, elsewhere

from perdure import Agent, AgentStore, Limits, Message, ToolCall, tool
from perdure.errors import (
    AgentChangedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    StoreUnavailableError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, Interception, at

pytestmark = pytest.mark.anyio


class Counting:
    """An agent whose model counts what it is asked."""

    def __init__(self, store: AgentStore, name: str = "agent") -> None:
        self.asked: list[str] = []
        self.agent = Agent(model=FunctionModel(self._answer), store=store, name=name)
        self.session = self.agent.session("s")

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked.append(request.messages[-1].text)
        return ModelResponse(text=f"re: {request.messages[-1].text}")


# --- input ids ---


async def test_the_same_input_id_gives_the_same_turn(any_store: AgentStore) -> None:
    counting = Counting(any_store)
    first = await counting.session.send("pay", input_id="order-7")
    await counting.session.send("other")
    again = await Counting(any_store).agent.session("s").send("pay", input_id="order-7")
    assert again == first
    assert (await counting.session.send("pay", input_id="order-8")).run_id != first.run_id
    assert counting.asked == ["pay", "other", "pay"]


async def test_an_input_id_belongs_to_its_session(store: AgentStore) -> None:
    counting = Counting(store)
    first = await counting.session.send("pay", input_id="order-7")
    other = await counting.agent.session("t").send("pay", input_id="order-7")
    assert other.run_id != first.run_id


async def test_the_input_id_of_a_pending_turn_finishes_it(any_store: AgentStore) -> None:
    await die_at(any_store, 3, lambda store: Counting(store).session.send("pay", input_id="order-7"))
    counting = Counting(any_store)
    result = await counting.session.send("pay", input_id="order-7")
    assert (result.text, counting.asked) == ("re: pay", [])
    assert len(await counting.session.load()) == 2


async def test_the_input_id_of_another_agents_pending_turn(store: AgentStore) -> None:
    await die_at(store, 3, lambda used: Counting(used, "other").session.send("pay", input_id="order-7"))
    with pytest.raises(AgentChangedError):
        await Counting(store).session.send("pay", input_id="order-7")


async def test_the_input_id_of_a_turn_that_waits(store: AgentStore) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = Agent(model=ScriptedModel([[ToolCall("c1", "pay")], "done"]), tools=[pay], store=store)
    waiting = await agent.session("s").send("pay", input_id="order-7")
    again = await agent.session("s").send("pay", input_id="order-7")
    assert (again.finish_reason, again.run_id, again.approval_ids) == (
        "awaiting-approval",
        waiting.run_id,
        waiting.approval_ids,
    )
    with pytest.raises(SessionAwaitingApprovalError):
        await agent.session("s").send("pay", input_id="another")
    await store.decide(waiting.approval_ids[0], approved=True)
    result = await agent.session("s").send("pay", input_id="order-7")
    assert (result.run_id, result.text) == (waiting.run_id, "done")


async def test_an_input_id_is_known_for_a_hundred_turns(store: AgentStore) -> None:
    counting = Counting(store)
    first = await counting.session.send("pay", input_id="order-7")
    for n in range(99):
        await counting.session.send(str(n))
    assert await counting.session.send("pay", input_id="order-7") == first
    await counting.session.send("99")
    assert (await counting.session.send("pay", input_id="order-7")).run_id != first.run_id


async def test_a_dropped_input_may_come_again(store: AgentStore) -> None:
    await die_at(store, 3, lambda used: Counting(used).session.send("pay", input_id="order-7"))
    counting = Counting(store)
    await counting.session.discard_pending()
    await counting.session.send("pay", input_id="order-7")
    assert counting.asked == ["pay"]


async def test_the_same_input_sent_twice_at_once_runs_once(any_store: AgentStore) -> None:
    counting = Counting(any_store)
    sends = [counting.agent.session("s").send("pay", input_id="order-7") for _ in range(5)]
    first, *rest = await asyncio.gather(*sends)
    assert rest == [first] * 4
    assert counting.asked == ["pay"]


# --- calls at once ---


async def test_calls_are_served_in_call_order(any_store: AgentStore) -> None:
    counting = Counting(any_store)
    results = await asyncio.gather(*(counting.agent.session("s").send(str(n)) for n in range(8)))
    assert [result.text for result in results] == [f"re: {n}" for n in range(8)]
    texts = [message.text for message in await counting.session.load()]
    assert texts == [text for n in range(8) for text in (str(n), f"re: {n}")]


async def test_calls_of_several_agents_and_kinds_are_served_in_call_order(store: AgentStore) -> None:
    first, second = Counting(store, "first"), Counting(store, "second")
    await asyncio.gather(
        first.session.send("a"), second.session.clear(), second.session.send("b"), first.session.send("c")
    )
    assert [message.text for message in await first.session.load()] == ["b", "re: b", "c", "re: c"]


async def test_a_failed_call_does_not_hold_up_the_next(store: AgentStore) -> None:
    failing = Agent(model=ScriptedModel([ValueError("no"), "on"]), store=store)
    counting = Counting(store)
    outcomes = await asyncio.gather(failing.session("s").send("a"), counting.session.send("b"), return_exceptions=True)
    assert isinstance(outcomes[0], ValueError)
    assert not isinstance(outcomes[1], BaseException)
    assert outcomes[1].text == "re: b"


async def test_another_process_is_told_who_runs_the_turn(any_store: AgentStore) -> None:
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> ModelResponse:
        reached.set()
        await may_go_on.wait()
        return ModelResponse(text="slow")

    process = elsewhere()
    running = Agent(model=FunctionModel(slow), store=another(any_store, process=process)).session("s")
    task = asyncio.create_task(running.send("a"))
    await reached.wait()
    counting = Counting(any_store)
    with pytest.raises(SessionBusyError) as caught:
        await counting.session.send("b")
    assert caught.value.owner is not None
    assert caught.value.owner.startswith("elsewhere/boot/1/")
    may_go_on.set()
    await task
    assert (await counting.session.send("b")).text == "re: b"
    assert counting.asked == ["b"]


# --- the user's state ---


async def test_update_state(any_store: AgentStore) -> None:
    session = Counting(any_store).session
    assert session.state == {}
    assert await session.update_state(lambda state: {**state, "title": "x"}) == {"title": "x"}
    await session.send("hello")

    async def rename(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "label": 1}

    assert await session.update_state(rename) == {"title": "x", "label": 1}
    await session.load()
    assert session.state == {"title": "x", "label": 1}
    session.state["title"] = "changed outside"
    assert session.state["title"] == "x"
    await session.clear()
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    assert (transcript.state, transcript.count) == ({"title": "x", "label": 1}, 0)


async def test_update_state_loses_no_race(any_store: AgentStore) -> None:
    session = Counting(any_store).session

    def add(name: str) -> Any:
        async def change(state: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(0)  # others come between reading and writing
            return {**state, name: 1}

        return session.update_state(change)

    await asyncio.gather(*(add(str(n)) for n in range(6)), session.send("hello"))
    await session.load()
    assert sorted(session.state) == [str(n) for n in range(6)]
    assert [message.text for message in session.messages] == ["hello", "re: hello"]


async def test_update_state_is_called_again_with_what_came_between(store: AgentStore) -> None:
    seen: list[dict[str, Any]] = []

    async def change(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(state)
        if len(seen) == 1:
            await store.sessions.append("s", [], state={"rival": 1})
        return {**state, "mine": 1}

    assert await Counting(store).session.update_state(change) == {"rival": 1, "mine": 1}
    assert seen == [{}, {"rival": 1}]


async def test_update_state_reports_a_store_that_fails(store: AgentStore) -> None:
    async def before(call: Call) -> None:
        raise StoreUnavailableError("write", "s")

    broken = Counting(another(store, Interception(before=before)))
    with pytest.raises(StoreUnavailableError):
        await broken.session.update_state(lambda state: {"x": 1})
    assert await store.sessions.load("s") is None


# --- a name that was used ---


@pytest.mark.parametrize("ended", [True, False])
async def test_another_input_under_a_used_name_is_refused(any_store: AgentStore, ended: bool) -> None:
    """It would silently get the answer to the first one. What is wrong is the name, and nothing was written."""
    agent = Agent(model=ScriptedModel(["one", "two"]), store=any_store)
    given = [Message("user", "a"), Message("user", "b")]
    run_id = await agent.session("s").submit(given, input_id="i")
    if ended:
        await agent.session("s").resume()
    before = await any_store.checkpoints.load("s")
    others: list[Any] = ["a", "c", [Message("user", "a"), Message("user", "c")], [Message("assistant", "a"), given[1]]]
    for other in others[ended:]:  # of one that has ended it is not known how many messages it had
        for call in (agent.session("s").send, agent.session("s").submit):
            with pytest.raises(InvalidArgumentError, match=r"^input_id 'i' names an input that says something else"):
                await call(other, input_id="i")
    assert await any_store.checkpoints.load("s") == before
    again = [Message("user", "a", metadata={"try": 2}), given[1]]
    assert await agent.session("s").submit(again, input_id="i") == run_id
    assert (await agent.session("s").send(again, input_id="i")).run_id == run_id


@pytest.mark.parametrize("outcome", ["unknown", "lost"])
async def test_a_turn_is_found_whose_opening_was_written_and_nobody_was_told(store: AgentStore, outcome: str) -> None:
    model = ScriptedModel(["one"])
    broken = Agent(model=model, store=another(store, at(2, outcome))).session("s")  # the first write makes the session
    if outcome == "unknown":
        assert (await broken.send("a")).text == "one"
    else:
        with pytest.raises(OutcomeUnknownError):
            await broken.send("a")
    assert [message.text for message in await broken.load()] == (["a", "one"] if outcome == "unknown" else [])
    assert await broken.pending() is None
    assert len(model.calls) == (outcome == "unknown")


async def test_a_used_name_behind_a_summary_is_known_and_what_it_said_is_not(store: AgentStore) -> None:
    agent = Agent(model=ScriptedModel(["one", "two"]), store=store)
    first = await agent.session("s").send("a", input_id="i")
    await agent.session("s").compact(keep=0, summarize=lambda _: "summary")
    assert (await agent.session("s").send("other", input_id="i")).run_id == first.run_id


# --- what is somebody else's ---


async def test_what_others_keep_in_a_transcript_is_taken_for_nothing_of_ours(any_store: AgentStore) -> None:
    """Records without a `kind` of ours have our names by chance."""
    agent = Agent(model=ScriptedModel(["one", "two"]), store=any_store)
    session = agent.session("s", limits=Limits(max_steps=5))
    first = await session.send("a", input_id="i")
    foreign: list[dict[str, Any]] = [
        {"spent": "much", "usage": 5, "input_id": "j", "run_id": first.run_id, "turns": 7},
        {"kind": "note", "spent": {"steps": 99}, "input_id": "j", "run_id": "their-run", "message": "hello"},
        {"kind": "message", "spent": {"steps": 99}, "run_id": first.run_id, "input_id": ["i"]},
        {"kind": "summary", "turns": 7, "archive": 5},
    ]
    await any_store.sessions.append("s", foreign, expected_version=None)
    assert await session.result(first.run_id) == first
    assert await session.result("their-run") is None
    assert (await session.send("a", input_id="i")).run_id == first.run_id
    second = await session.send("b", input_id="j")
    assert second.text == "two"
    assert [message.text for message in await session.history()] == ["a", "one", "b", "two"]
    loaded = await any_store.sessions.load("s")
    assert loaded is not None
    assert loaded.records[-1]["spent"]["steps"] == 2
    assert list(loaded.records[2:6]) == foreign
