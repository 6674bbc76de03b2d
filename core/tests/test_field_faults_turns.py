"""Faults that users of comparable systems met in turns that wait, fail or are recovered, each as its smallest case."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from core.tests.processes import another, dead, die_at

from perdure import Agent, AgentStore, Limits, PendingTurn, ToolCall, TurnResult, tool
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    SessionBusyError,
    StoreUnavailableError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, Interception, at

pytestmark = pytest.mark.anyio


class Counters:
    """An agent with a gated and a free tool, and how often each ran, over all processes of a test."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.asked = 0

    def agent(self, store: AgentStore) -> Agent:
        @tool(needs_approval=True, in_doubt="ask")
        async def pay(to: str) -> str:
            self.ran[f"pay {to}"] += 1
            return f"paid {to}"

        @tool(idempotent=True)
        async def look(what: str) -> str:
            self.ran[f"look {what}"] += 1
            return f"saw {what}"

        return Agent(model=FunctionModel(self._answer), tools=[pay, look], store=store)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        last = request.messages[-1]
        if last.role == "user" and last.text == "pay":
            calls = [ToolCall("c1", "look", {"what": "x"}), ToolCall("c2", "pay", {"to": "ann"})]
            return ModelResponse(tool_calls=calls)
        if last.role == "user" and last.text == "look":
            return ModelResponse(tool_calls=[ToolCall(f"c{n}", "look", {"what": str(n)}) for n in range(3)])
        return ModelResponse(text="done")


async def shape(store: AgentStore) -> list[tuple[str, str | None]]:
    transcript = await Agent(model=ScriptedModel([]), store=store).session("s").load()
    return [(message.role, message.tool_call_id) for message in transcript]


PAID = [("user", None), ("assistant", None), ("tool", "c1"), ("tool", "c2"), ("assistant", None)]


@pytest.mark.parametrize("outcome", ["unavailable", "lost", "unknown"])
async def test_a_store_that_fails_one_write_of_an_approved_turn(store: AgentStore, outcome: str) -> None:
    """B098: wherever it fails, the tool runs once and the transcript has the call with its result, once."""
    number = 0
    while True:
        number += 1
        counters = Counters()
        asked = await counters.agent(store).session("s").send("pay")
        broken = another(store, at(number, outcome))
        failed = False
        try:
            await counters.agent(broken).approvals.resolve(asked.approval_ids[0], approved=True)
        except (StoreUnavailableError, OutcomeUnknownError):
            failed = True
            await store.decide(asked.approval_ids[0], approved=True)
            while (pending := await counters.agent(store).session("s").pending()) is not None:
                # A result that could not be written leaves its call in doubt, which is asked and not repeated.
                for approval_id in pending.approval_ids:
                    await store.decide(approval_id, approved=False)
                await counters.agent(store).session("s").resume()
        assert counters.ran["pay ann"] == 1, f"{outcome} at write {number}"
        assert await shape(store) == PAID, f"{outcome} at write {number}"
        await store.delete_session("s")
        if not failed and number > 12:
            return


@pytest.mark.parametrize("number", range(1, 10))
async def test_parallel_results_never_lack_their_call(store: AgentStore, number: int) -> None:
    """B034: the response is stored before any of its results, and a crash loses none of them."""
    counters = Counters()
    task = die_at(store, number, lambda used: counters.agent(used).session("s").send("look"), atomic=False)
    await task
    found = await store.checkpoints.load("s")
    kinds = [] if found is None else [entry["kind"] for entry in found.entries]
    assert "tool" not in kinds or "model" in kinds[: kinds.index("tool")]
    await counters.agent(store).session("s").send("bye")
    roles = [("user", None), ("assistant", None), *(("tool", f"c{n}") for n in range(3)), ("assistant", None)]
    first = roles if number > 1 else []  # the first write makes the session only
    assert await shape(store) == [*first, ("user", None), ("assistant", None)]


async def test_two_processes_resolve_at_once(any_store: AgentStore) -> None:
    """B089: the tool runs once and the model goes on once, however often the button is pressed."""
    for round_ in range(15):
        counters = Counters()
        asked = await counters.agent(any_store).session("s").send("pay")
        presses = [
            counters.agent(another(any_store)).approvals.resolve(asked.approval_ids[0], approved=True) for _ in range(3)
        ]
        outcomes = await asyncio.gather(*presses, return_exceptions=True)
        reasons = [outcome.finish_reason for outcome in outcomes if isinstance(outcome, TurnResult)]
        assert all(isinstance(outcome, (TurnResult, SessionBusyError)) for outcome in outcomes), outcomes
        assert "stop" in reasons
        assert (counters.ran["pay ann"], counters.asked) == (1, 2), f"round {round_}"
        assert await shape(any_store) == PAID
        await any_store.delete_session("s")


async def test_two_processes_resolve_differently_at_once(any_store: AgentStore) -> None:
    """B089: of a yes and a no at once one is recorded, and the other one learns which."""
    for _ in range(10):
        counters = Counters()
        asked = await counters.agent(any_store).session("s").send("pay")
        outcomes = await asyncio.gather(
            *(
                counters.agent(another(any_store)).approvals.resolve(asked.approval_ids[0], approved=approved)
                for approved in (True, False)
            ),
            return_exceptions=True,
        )
        (refused,) = [outcome for outcome in outcomes if isinstance(outcome, ApprovalAlreadyResolvedError)]
        assert counters.ran["pay ann"] == (1 if refused.approval.status == "approved" else 0)
        await any_store.delete_session("s")


async def test_recovery_of_many_turns_while_the_store_blinks(any_store: AgentStore) -> None:
    """B104: a store that fails for a while drops no turn from recovery; running turns of this process are left alone."""
    counters = Counters()
    names = [f"s{n:02}" for n in range(25)]
    for name in names:
        await die_at(any_store, 2, lambda used, name=name: counters.agent(used).session(name).send("bye"))  # type: ignore[misc]  # reason: a loop variable that is bound now
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: ModelRequest) -> ModelResponse:
        reached.set()
        await may_go_on.wait()
        return ModelResponse(text="mine")

    own = Agent(model=FunctionModel(wait), store=any_store)
    running = asyncio.create_task(own.session("running").send("go"))
    await reached.wait()

    async def before(call: Call) -> None:
        if 10 < call.number < 25:
            raise StoreUnavailableError("write", "s", "it blinks")

    recovering = counters.agent(another(any_store, Interception(before=before)))
    left: list[PendingTurn] = []
    for _ in range(20):
        left = await recovering.pending()
        for turn in left:
            assert turn.session_id is not None
            try:
                await recovering.resume(turn.session_id)
            except (StoreUnavailableError, SessionBusyError):
                continue
    assert [turn.session_id for turn in left] == ["running"]
    assert left[0].owner is not None
    for name in names:
        assert [m.text for m in await recovering.session(name).load()] == ["bye", "done"]
    may_go_on.set()
    assert (await running).text == "mine"


async def test_a_pending_approval_is_seen_in_any_order_of_writes(any_store: AgentStore) -> None:
    """B079, B101: a process that died around the writes of a pause leaves a pause that every reader sees."""
    for number in (4, 5, 6, 7):  # the result of the free call, the approval, its entry, the waiting
        counters = Counters()
        await die_at(any_store, number, lambda used: counters.agent(used).session("s").send("pay"))  # noqa: B023  # reason: awaited at once
        result = await counters.agent(another(any_store)).session("s").resume() if number < 7 else None
        pending = await counters.agent(another(any_store, process=dead())).session("s").pending()
        assert pending is not None
        assert pending.status == "awaiting-approval"
        assert result is None or result.approval_ids == pending.approval_ids
        assert len(pending.approval_ids) == 1
        await any_store.delete_session("s")


@pytest.mark.parametrize("limit", [1000, 1200])
async def test_what_is_journaled_can_be_saved(store: AgentStore, limit: int) -> None:
    """B121: a result that the turn journal could hold and the transcript could not would keep the turn for good."""
    store.sessions.bind(max_record=1000)
    store.checkpoints.bind(max_record=limit)
    answers: set[bool] = set()
    for size in range(400, 1000, 17):

        @tool(idempotent=True)
        def look(size: int = size) -> str:
            return "x" * size

        model = ScriptedModel([[ToolCall("c1", "look")], "done"])
        session = Agent(model=model, tools=[look], store=store, limits=Limits(max_steps=1)).session()
        result = await session.send("go")
        assert result.messages[-1].is_error == result.messages[-1].text.startswith("the tool ran, but what it said")
        assert (await session.pending(), len(await session.load())) == (None, 3)
        answers.add(result.messages[-1].is_error)
    assert answers == {False, True}


@pytest.mark.parametrize("limit", [1000, 1200])
async def test_a_response_that_could_not_be_saved_is_not_journaled(store: AgentStore, limit: int) -> None:
    """B121: its calls would run, and the turn could never be saved."""
    store.sessions.bind(max_record=1000)
    store.checkpoints.bind(max_record=limit)
    ran: list[str] = []
    refused = saved = 0

    @tool
    def look(what: str) -> str:
        ran.append(what)
        return "seen"

    for size in range(100, 1000, 17):
        ran.clear()
        model = ScriptedModel([[ToolCall("c1", "look", {"what": "x" * size})], "done"])
        session = Agent(model=model, tools=[look], store=store).session()
        try:
            await session.send("go")
        except RecordTooLargeError:
            assert await session.discard_pending() is True
            assert not ran
            refused += 1
        else:
            assert (await session.pending(), len(ran)) == (None, 1)
            saved += 1
    assert refused
    assert saved
