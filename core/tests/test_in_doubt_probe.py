"""Calls in doubt that a probe looks into, with each policy behind it, and calls that are repeated before the model is told."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, dead

from perdure import Agent, AgentStore, Session, ToolCall, ToolContext, TurnResult, tool
from perdure.errors import InvalidArgumentError, PropagatingToolError, ToolOutcomeUnknownError
from perdure.models import ScriptedModel
from perdure.runtime.tools import ToolDidNotRun, ToolRan, make_tool
from perdure_conformance.interception import Died, Interception, at

pytestmark = pytest.mark.anyio

RESULT = "receipt 7"
UNKNOWN = "whether attempt 1 of this call had an effect is not known, and it was not repeated"
POLICIES = (None, "rerun", "fail", "ask")
STARTED = 4
"""The write that says that the tool starts: after the session, the input and the response."""


class Bank:
    """An outside world with a tool that has an effect in it, and a probe that looks there."""

    def __init__(self, store: AgentStore, in_doubt: Any = None, *, gated: bool = False) -> None:
        self.store = store
        self.attempts: list[tuple[int, str]] = []
        self.probed: list[tuple[str, int, str]] = []
        self.finds: Callable[[], Any] = lambda: None
        self._options: dict[str, Any] = {"in_doubt": in_doubt, "needs_approval": gated}

    def session(self, store: AgentStore | None = None) -> Session:
        return self.agent(store).session("s")

    def agent(self, store: AgentStore | None = None) -> Agent:
        async def probe(to: str, context: ToolContext) -> Any:
            self.probed.append((to, context.attempt, context.idempotency_key))
            return self.finds()

        @tool(probe=probe, **self._options)
        async def pay(to: str, context: ToolContext) -> str:
            self.attempts.append((context.attempt, to))
            return RESULT

        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "done"])
        return Agent(model=model, tools=[pay], store=store or self.store)

    async def die_in_doubt(self, *, ran: bool = True, atomic: bool | None = None) -> None:
        """Have a process die when it has said that the tool starts: before or after its effect."""
        interception = Interception()

        async def after(call: Any) -> None:
            items = [item for operation in call.operations for item in getattr(operation, "items", ())]
            if not ran and any(b'"tool-started"' in item for item in items):
                raise Died

        async def before(call: Any) -> None:
            items = [item for operation in call.operations for item in getattr(operation, "items", ())]
            if any(b'"kind":"tool"' in item for item in items):
                raise Died

        interception.before, interception.after = before, after
        session = self.session(another(self.store, interception, process=dead(), atomic=atomic))
        with pytest.raises(Died):
            await session.send("go")
        assert len(self.attempts) == ran

    async def answers(self) -> list[str]:
        return [message.text for message in await self.session().load() if message.role == "tool"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_call_that_ran_is_not_repeated_and_its_result_is_recorded(any_store: AgentStore, policy: Any) -> None:
    bank = Bank(any_store, policy)
    await bank.die_in_doubt()
    bank.finds = lambda: ToolRan(RESULT)
    result = await bank.session().resume()
    assert result is not None
    assert result.text == "done"
    assert await bank.answers() == [RESULT]
    assert bank.attempts == [(1, "ann")]
    assert bank.probed == [("ann", 1, f"{result.run_id}.s0.c0")]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_call_that_did_not_run_runs(any_store: AgentStore, policy: Any) -> None:
    bank = Bank(any_store, policy)
    await bank.die_in_doubt(ran=False)
    bank.finds = ToolDidNotRun
    assert await bank.session().resume() is not None
    assert await bank.answers() == [RESULT]
    assert bank.attempts == [(2, "ann")]
    assert await any_store.checkpoints.load("s") is not None
    assert (await any_store.approvals.list()).items == ()


def fails() -> Any:
    raise ValueError("the bank is closed")


@pytest.mark.parametrize("finds", [lambda: None, fails, lambda: "yes"], ids=["cannot tell", "raises", "nonsense"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_call_of_which_nothing_is_found_out_is_left_to_the_policy(
    store: AgentStore, policy: Any, finds: Callable[[], Any]
) -> None:
    bank = Bank(store, policy)
    await bank.die_in_doubt()
    bank.finds = finds
    if policy is None:
        with pytest.raises(ToolOutcomeUnknownError):
            await bank.session().resume()
        with pytest.raises(ToolOutcomeUnknownError):
            await bank.session().resume()
        assert len(bank.probed) == 2  # each life asks anew: the outside world may know by now
        bank.finds = lambda: ToolRan(RESULT)
        await bank.session().resume()
        assert await bank.answers() == [RESULT]
        return
    result = await bank.session().resume()
    assert result is not None
    if policy == "ask":
        assert result.finish_reason == "awaiting-approval"
        bank.finds = lambda: None
        result = await bank.agent().approvals.resolve(result.approval_ids[0], approved=True)
    assert result.text == "done"
    assert await bank.answers() == [UNKNOWN if policy == "fail" else RESULT]
    assert [attempt for attempt, _ in bank.attempts] == ([1] if policy == "fail" else [1, 2])


async def test_what_a_probe_raises_is_logged(store: AgentStore, caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank(store, "fail")
    await bank.die_in_doubt()
    bank.finds = fails
    await bank.session().resume()
    assert "a probe failed" in caplog.text
    assert "the bank is closed" in caplog.text


@pytest.mark.parametrize("asks_for_it", [True, False])
async def test_a_probe_that_cancels_itself_leaves_the_call_in_doubt(
    store: AgentStore, caplog: pytest.LogCaptureFixture, asks_for_it: bool
) -> None:
    bank = Bank(store, "fail")
    await bank.die_in_doubt()

    def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        if asks_for_it:
            task.cancel()
        raise asyncio.CancelledError

    bank.finds = cancels
    result = await bank.session().resume()
    assert result is not None
    assert result.text == "done"
    assert await bank.answers() == [UNKNOWN]
    assert "a probe failed" in caplog.text


async def test_a_call_that_ran_is_not_repeated_although_its_result_is_no_json(store: AgentStore) -> None:
    """That it ran is known, and the model is told so, as when the tool itself says what cannot be stored."""
    bank = Bank(store, "rerun")
    await bank.die_in_doubt()
    bank.finds = lambda: ToolRan(object())
    result = await bank.session().resume()
    assert result is not None
    (answer,) = await bank.answers()
    assert answer.startswith("the tool ran, but")
    assert result.messages[2].is_error
    assert len(bank.attempts) == 1


@pytest.mark.parametrize("approved", [True, False])
async def test_a_question_that_was_asked_is_settled_by_the_probe_if_it_can_tell(
    store: AgentStore, approved: bool
) -> None:
    """A human was asked; the next life finds out by itself, whatever the human said."""
    bank = Bank(store, "ask")
    await bank.die_in_doubt()
    waiting = await bank.session().resume()
    assert waiting is not None
    bank.finds = lambda: ToolRan(RESULT)
    result = await bank.agent().approvals.resolve(waiting.approval_ids[0], approved=approved)
    assert result.text == "done"
    assert await bank.answers() == [RESULT]
    assert len(bank.attempts) == 1


async def test_a_probe_is_given_the_arguments_that_were_approved(store: AgentStore) -> None:
    bank = Bank(store, "fail", gated=True)
    waiting = await bank.session().send("go")
    await store.decide(waiting.approval_ids[0], approved=True, arguments={"to": "zoe"})

    async def die(call: Any) -> None:
        items = [item for operation in call.operations for item in getattr(operation, "items", ())]
        if any(b'"kind":"tool"' in item for item in items):
            raise Died

    with pytest.raises(Died):
        await bank.session(another(store, Interception(before=die), process=dead())).resume()
    bank.finds = lambda: ToolRan(RESULT)
    await bank.session().resume()
    assert [to for to, _, _ in bank.probed] == ["zoe"]
    assert bank.attempts == [(1, "zoe")]


async def test_a_plain_probe_without_a_context_runs_in_a_thread(store: AgentStore) -> None:
    threads: list[int] = []

    def probe(to: str) -> ToolRan:
        threads.append(threading.get_ident())
        return ToolRan({"to": to})

    @tool(probe=probe)
    async def pay(to: str) -> str:
        raise Died

    def session(used: AgentStore) -> Session:
        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "done"])
        return Agent(model=model, tools=[pay], store=used).session("s")

    with pytest.raises(Died):
        await session(another(store, at(STARTED, "die-after"), process=dead())).send("go")
    result = await session(store).resume()
    assert result is not None
    assert result.messages[2].text == '{"to":"ann"}'
    assert threads != [threading.get_ident()]


async def test_a_call_is_probed_once_in_each_life(store: AgentStore) -> None:
    """Also if other calls of the response go on meanwhile."""
    probed: list[str] = []

    def probe() -> None:
        probed.append("pay")

    @tool(probe=probe, in_doubt="ask")
    async def pay() -> str:
        return RESULT

    @tool(idempotent=True)
    async def look() -> str:
        return "seen"

    def session(used: AgentStore) -> Session:
        model = ScriptedModel([[ToolCall("c1", "pay"), ToolCall("c2", "look")], "done"])
        return Agent(model=model, tools=[pay, look], store=used).session("s")

    with pytest.raises(Died):
        await session(another(store, at(STARTED, "die-after"), process=dead())).send("go")
    waiting = await session(store).resume()
    assert waiting is not None
    assert waiting.finish_reason == "awaiting-approval"
    assert [message.text for message in waiting.messages[2:]] == ["seen"]
    assert probed == ["pay"]


async def test_only_calls_in_doubt_are_probed(store: AgentStore) -> None:
    bank = Bank(store, "fail")
    await bank.session().send("go")
    assert bank.probed == []


async def test_a_probe_that_is_cancelled_leaves_the_turn_pending(store: AgentStore) -> None:
    reached = asyncio.Event()

    async def probe() -> ToolRan:
        reached.set()
        await asyncio.Event().wait()
        return ToolRan(RESULT)

    @tool(probe=probe, in_doubt="rerun")
    async def pay() -> str:
        return RESULT

    def session(used: AgentStore) -> Session:
        model = ScriptedModel([[ToolCall("c1", "pay")], "done"])
        return Agent(model=model, tools=[pay], store=used).session("s")

    with pytest.raises(Died):
        await session(another(store, at(STARTED, "die-after"), process=dead())).send("go")
    task = asyncio.create_task(session(store).resume())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pending = await session(store).pending()
    assert pending is not None
    assert pending.owner is None


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("outcome", ["die-before", "die-after", "unavailable", "lost", "unknown"])
async def test_a_probed_call_runs_once_wherever_the_recovery_fails(
    store: AgentStore, outcome: str, ran: bool, atomic: bool
) -> None:
    """The probe looks into a world that knows: then no policy is needed, and the effect is there exactly once."""
    for number in itertools.count(1):
        bank = Bank(store)
        bank.finds = lambda bank=bank: ToolRan(RESULT) if bank.attempts else ToolDidNotRun()  # type: ignore[misc]  # reason: of this round
        await bank.die_in_doubt(ran=ran, atomic=atomic)
        interception = at(number, outcome)
        recovering = bank.session(another(store, interception, process=dead(), atomic=atomic))
        failed: BaseException | None = None
        try:
            await recovering.resume()
        except BaseException as error:  # noqa: BLE001  # reason: whatever it is, somebody goes on
            failed = error
        result = await bank.session().resume()
        assert (result is None) == (failed is None) or outcome in ("die-after", "unknown", "unavailable", "lost")
        assert await bank.answers() == [RESULT]
        assert len(bank.attempts) == 1, f"{outcome} at {number}"
        await store.delete_session("s")
        if len(interception.calls) < number:
            assert number > 4
            return


# --- calls that are repeated ---


class Flaky:
    """A tool that fails a few times, and says how often it was called."""

    def __init__(self, store: AgentStore, failures: int, error: BaseException | None = None, **options: Any) -> None:
        self.contexts: list[ToolContext] = []
        error = ValueError("not yet") if error is None else error

        @tool(idempotent=True, **options)
        async def look(context: ToolContext) -> str:
            self.contexts.append(context)
            if len(self.contexts) <= failures:
                raise error
            return "seen"

        model = ScriptedModel([[ToolCall("c1", "look")], "done"])
        self.session = Agent(model=model, tools=[look], store=store).session("s")

    async def send(self) -> TurnResult:
        return await self.session.send("go")

    @property
    def attempts(self) -> list[int]:
        assert len({context.idempotency_key for context in self.contexts}) == 1
        return [context.attempt for context in self.contexts]


@pytest.mark.parametrize(("retries", "failures"), [(0, 0), (0, 1), (1, 1), (1, 2), (3, 2), (3, 4)])
async def test_a_call_that_raises_is_repeated_as_often_as_it_may(
    store: AgentStore, retries: int, failures: int
) -> None:
    flaky = Flaky(store, failures, retries=retries)
    result = await flaky.send()
    assert flaky.attempts == list(range(1, min(retries, failures) + 2))
    answer = result.messages[2]
    assert (answer.text, answer.is_error) == (("seen", False) if failures <= retries else ("ValueError: not yet", True))


async def test_a_call_that_times_out_is_repeated(store: AgentStore) -> None:
    calls: list[int] = []

    @tool(idempotent=True, retries=1, timeout=timedelta(0))
    async def look() -> str:
        calls.append(1)
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([[ToolCall("c1", "look")], "done"])
    result = await Agent(model=model, tools=[look], store=store).session("s").send("go")
    assert len(calls) == 2
    assert "did not end in time" in result.messages[2].text


@pytest.mark.parametrize("error", [PropagatingToolError("stop"), asyncio.CancelledError()])
async def test_what_is_no_failure_is_not_repeated(store: AgentStore, error: BaseException) -> None:
    flaky = Flaky(store, 1, error, retries=3)
    if isinstance(error, PropagatingToolError):
        with pytest.raises(PropagatingToolError):
            await flaky.send()
    else:
        assert "cancelled itself" in (await flaky.send()).messages[2].text
    assert flaky.attempts == [1]


async def test_what_cannot_be_stored_is_not_repeated(store: AgentStore) -> None:
    calls: list[int] = []

    @tool(idempotent=True, retries=3)
    async def look() -> object:
        calls.append(1)
        return object()

    model = ScriptedModel([[ToolCall("c1", "look")], "done"])
    result = await Agent(model=model, tools=[look], store=store).session("s").send("go")
    assert len(calls) == 1
    assert "the tool ran" in result.messages[2].text


async def test_arguments_that_a_call_has_changed_are_whole_again(store: AgentStore) -> None:
    given: list[list[str]] = []

    @tool(idempotent=True, retries=1)
    async def look(what: list[str]) -> str:
        given.append(list(what))
        what.clear()
        if len(given) == 1:
            raise ValueError("not yet")
        return "seen"

    model = ScriptedModel([[ToolCall("c1", "look", {"what": ["a"]})], "done"])
    await Agent(model=model, tools=[look], store=store).session("s").send("go")
    assert given == [["a"], ["a"]]


@pytest.mark.parametrize("retries", [-1, True, 1.0, "1"])
def test_a_number_of_retries_that_is_none(retries: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="retries"):
        tool(idempotent=True, retries=retries)(fails)


def test_only_idempotent_tools_are_repeated() -> None:
    with pytest.raises(InvalidArgumentError, match="idempotent"):
        tool(retries=1)(fails)


def test_a_probe_that_is_none() -> None:
    with pytest.raises(InvalidArgumentError, match="probe"):
        make_tool(fails, probe="ask")
