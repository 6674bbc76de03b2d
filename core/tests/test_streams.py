"""A turn shown as it runs: what a stream tells and when, and what becomes of the turn when its block is left at any point."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from core.tests.processes import another, die_at, elsewhere

from perdure import Agent, AgentStore, Session, ToolCall, TurnResult, tool
from perdure.errors import (
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    StoreUnavailableError,
    StreamError,
)
from perdure.events import RunDone, RunEvent, RunFailed
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel, TextDelta
from perdure.observers.listening import Channels
from perdure.runtime.runner import Runner
from perdure.runtime.stream import RunStream
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio


class Scene:
    """One conversation whose turn tells of everything: text, two tools, one that is gated, and a last answer."""

    def __init__(self, store: AgentStore, *, gated: bool = False) -> None:
        self.store = store
        self.ran: list[str] = []
        self.gated = gated
        self.before_tool: Callable[[], Awaitable[None]] = _at_once
        self.before_model: Callable[[], Awaitable[None]] = _at_once
        self.session = self.by(store)

    def by(self, store: AgentStore) -> Session:
        @tool(idempotent=True)
        async def look() -> str:
            self.ran.append("look")
            return "seen"

        @tool(in_doubt="fail")
        async def pay() -> str:
            await self.before_tool()
            self.ran.append("pay")
            return "paid"

        @tool(needs_approval=True, in_doubt="fail")
        async def sign() -> str:
            self.ran.append("sign")
            return "signed"

        self.agent = Agent(model=FunctionModel(self.answer), tools=[look, pay, sign], store=store)
        return self.agent.session("s")

    async def answer(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await self.before_model()
        last = request.messages[-1]
        if last.role == "tool":
            yield TextDelta("do")
            yield TextDelta("ne")
            yield ModelResponse("done")
        elif last.text.startswith("work"):
            yield TextDelta("so")
            calls = [ToolCall("c1", "look"), ToolCall("c2", "pay"), *[ToolCall("c3", "sign")] * self.gated]
            yield ModelResponse("so", calls)
        else:
            yield ModelResponse(f"re: {last.text}")

    async def texts(self) -> list[str]:
        return [message.text for message in await self.by(self.store).load()]

    async def check_no_half_turn(self, store: AgentStore) -> None:
        """Check that the transcript has whole turns only, and takes a new input, with a store that is well."""
        self.store = store
        before = await self.texts()
        assert before in ([], WORK)
        result = await self.by(store).send("next")
        assert result.text == "re: next"
        after = await self.texts()
        assert after in (["next", "re: next"], [*WORK, "next", "re: next"], [*DOUBTED, "next", "re: next"])
        assert await self.by(self.store).pending() is None


async def _at_once() -> None:
    """Wait for nothing."""


WORK = ["work", "so", "seen", "paid", "done"]
DOUBT = "whether attempt 1 of this call had an effect is not known, and it was not repeated"
DOUBTED = ["work", "so", "seen", DOUBT, "done"]
TYPES = [
    "run.started",
    "text.delta",
    "model.responded",
    "tool.started",
    "tool.started",
    "tool.finished",
    "tool.finished",
    "text.delta",
    "text.delta",
    "model.responded",
    "run.done",
]


async def shown(run: RunStream) -> list[Any]:
    return [event async for event in run]


async def whole(stream: RunStream) -> list[Any]:
    async with stream as run:
        return await shown(run)


def types(events: list[Any]) -> list[str]:
    return [event.type for event in events]


# --- what is told, and when ---


async def test_a_turn_is_told_in_order_without_a_gap(any_store: AgentStore) -> None:
    scene = Scene(any_store)
    async with scene.session.stream("work") as run:
        events = await shown(run)
        assert await shown(run) == []  # it is over: asked again, it says the same
    assert types(events) == TYPES
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {(event.run_id, event.session_id, event.resumed) for event in events} == {(run.result.run_id, "s", False)}
    assert [event.text for event in events if event.type == "text.delta"] == ["so", "do", "ne"]
    assert [event.tool_name for event in events if event.type == "tool.started"] == ["pay", "look"]
    assert events[-1].result == run.result == await scene.session.result(run.result.run_id)


STORED = {
    "model.responded": "model",
    "tool.finished": "tool",
    "approval.requested": "approval-requested",
    "approval.decided": "approval-applied",
    "input.queued": "input-queued",
}


class Watch:
    """Checks at the very moment of each event that what it announces is in the store."""

    def __init__(self, store: AgentStore, *, atomic: bool) -> None:
        self.seen: list[str] = []
        self.stored: list[str] = []
        self.saved = 0
        self.bundle = another(store, Interception(after=self._after), atomic=atomic)
        self.bundle.channels = Channels(self._told)

    async def _after(self, call: Call) -> None:
        for operation in call.operations:
            data = getattr(operation, "items", ())
            records = [json.loads(item) for item in data]
            if operation.key.part == "runs":
                self.stored += [record["kind"] for record in records]
            elif operation.key.part == "sessions":
                self.saved += len(records)

    def _told(self, event: RunEvent) -> None:
        self.seen.append(event.type)
        kind = STORED.get(event.type)
        if kind is not None:
            assert self.seen.count(event.type) <= self.stored.count(kind), f"{event.type} before its entry"
        elif event.type == "run.started":
            assert self.stored.count("input") == 1
        elif event.type == "run.done":
            assert self.saved, "run.done before the transcript"


@pytest.mark.parametrize("atomic", [True, False])
async def test_what_is_stored_is_told_of_only_then(store: AgentStore, atomic: bool) -> None:
    watch = Watch(store, atomic=atomic)
    scene = Scene(watch.bundle, gated=True)
    asked = await whole(scene.session.stream("work"))
    assert types(asked)[-1] == "tool.finished"
    approval = next(event.approval for event in asked if event.type == "approval.requested")
    assert approval == await store.approvals.get(approval.id)
    await scene.agent.approvals.resolve(approval.id, approved=True)
    assert {"approval.requested", "approval.decided", "run.resumed", "run.done"} <= set(watch.seen)


async def test_approvals_pause_a_stream(store: AgentStore) -> None:
    scene = Scene(store, gated=True)
    async with scene.session.stream("work") as run:
        events = await shown(run)
    assert run.result.finish_reason == "awaiting-approval"
    assert "run.done" not in types(events)
    (approval_id,) = run.result.approval_ids
    await store.decide(approval_id, approved=True)
    events = await whole(scene.session.stream("next"))
    again = [event for event in events if event.resumed]
    assert types(again)[:2] == ["run.resumed", "approval.decided"]
    assert {event.run_id for event in again} == {run.result.run_id}
    assert types([event for event in events if not event.resumed]) == ["run.started", "model.responded", "run.done"]
    assert scene.ran.count("sign") == scene.ran.count("pay") == 1


async def test_a_turn_that_is_decided_before_it_waits_goes_on_unmarked(store: AgentStore) -> None:
    """What goes on in the same stream is no earlier turn."""
    interception = Interception()
    scene = Scene(another(store, interception), gated=True)

    async def decide(call: Call) -> None:
        head = getattr(call.operations[0], "head", None)
        if head is not None and head.status == "awaiting-approval":
            (approval,) = (await store.approvals.list(status="pending")).items
            await store.approvals.decide(approval.id, approved=True)

    interception.after = decide
    async with scene.session.stream("work") as run:
        events = await shown(run)
    assert run.result.finish_reason == "stop"
    assert "sign" in scene.ran
    assert [event.type for event in events if event.resumed] == []
    assert types(events)[-1] == "run.done"


async def test_a_stream_waits_for_decisions_that_are_not_made(store: AgentStore) -> None:
    scene = Scene(store, gated=True)
    await scene.session.send("work")
    events, raised = await all_of(scene.session.stream("next"))
    assert isinstance(raised, SessionAwaitingApprovalError)
    assert types(events) == ["error"]
    assert await scene.texts() == []


# --- leaving the block ---


@contextlib.contextmanager
def ends(error: type[BaseException] | None) -> Iterator[None]:
    if error is None:
        yield
    else:
        with pytest.raises(error):
            yield


class OwnError(Exception):
    """What a user's code raises in the block."""


async def leave_by_break(run: RunStream, number: int) -> None:
    async with run:
        seen = 0
        while seen < number:
            await anext(run)
            seen += 1


async def leave_by_return(run: RunStream, number: int) -> int:
    async with run:
        seen = 0
        async for _ in run:
            seen += 1
            if seen == number:
                return seen
    raise AssertionError


def leave_by(error: type[BaseException]) -> Callable[[RunStream, int], Awaitable[object]]:
    async def leave(run: RunStream, number: int) -> None:
        with ends(error):
            async with run:
                for _ in range(number):
                    await anext(run)
                raise error

    return leave


async def leave_by_closing_a_generator(run: RunStream, number: int) -> None:
    async def generator() -> AsyncIterator[RunEvent]:
        async with run:
            async for event in run:
                yield event

    events = generator()
    for _ in range(number):
        await anext(events)
    await events.aclose()  # type: ignore[attr-defined]  # reason: a generator has it


async def leave_by_cancelling(run: RunStream, number: int) -> None:
    reached = asyncio.Event()

    async def client() -> None:
        async with run:
            for _ in range(number):
                await anext(run)
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(client())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


ABORTS: dict[str, Callable[[RunStream, int], Awaitable[object]]] = {
    "break": leave_by_break,
    "return": leave_by_return,
    "own exception": leave_by(OwnError),
}
CRASHES: dict[str, Callable[[RunStream, int], Awaitable[object]]] = {
    "CancelledError": leave_by(asyncio.CancelledError),
    "KeyboardInterrupt": leave_by(KeyboardInterrupt),
    "GeneratorExit": leave_by_closing_a_generator,
    "cancelled task": leave_by_cancelling,
}


def paced(scene: Scene, run: RunStream, number: int) -> None:
    """Have a turn go on no further than event `number`, from which on its next wait is for ever."""
    told = 0
    taken = run._take

    def take(event: RunEvent) -> None:
        nonlocal told
        told += 1
        taken(event)

    run._call.sink = take

    async def wait() -> None:
        if told >= number:
            await asyncio.Event().wait()

    scene.before_tool = scene.before_model = wait


PACES = pytest.mark.parametrize(
    ("pace", "atomic"),
    [
        (True, True),
        (False, False),
        *[pytest.param(*pace, marks=pytest.mark.soak) for pace in [(True, False), (False, True)]],
    ],
    ids=["held", "free", "held-steps", "free-atomic"],
)
"""Whether the turn runs ahead of whoever reads its events."""


@pytest.mark.parametrize("way", ABORTS)
@PACES
async def test_leaving_the_block_early_drops_the_turn(store: AgentStore, way: str, atomic: bool, pace: bool) -> None:
    """B103."""
    for number in range(1, len(TYPES)):
        key = another(store, atomic=atomic)
        scene = Scene(key)
        run = scene.session.stream("work")
        if pace:
            paced(scene, run, number)
        await ABORTS[way](run, number)
        scene.before_tool = scene.before_model = _at_once
        assert await scene.session.pending() is None
        assert run.result.finish_reason == ("aborted" if await scene.texts() == [] else "stop")
        await scene.check_no_half_turn(store)
        await store.delete_session("s")


@pytest.mark.parametrize("way", CRASHES)
@PACES
async def test_leaving_the_block_by_a_cancellation_is_a_crash(
    store: AgentStore, way: str, atomic: bool, pace: bool
) -> None:
    """B103."""
    for number in range(1, len(TYPES)):
        scene = Scene(another(store, atomic=atomic))
        run = scene.session.stream("work")
        if pace:
            paced(scene, run, number)
        await CRASHES[way](run, number)
        scene.before_tool = scene.before_model = _at_once
        pending = await scene.session.pending()
        if pending is None:
            assert await scene.texts() == WORK
        else:
            assert (pending.status, pending.owner) == ("in-progress", None)
            with pytest.raises(StreamError):
                _ = run.result
        await scene.check_no_half_turn(store)
        assert (await scene.texts())[0] == "work"  # it was finished, not dropped
        assert scene.ran.count("pay") <= 1
        await store.delete_session("s")


@pytest.mark.parametrize("way", [*ABORTS, *CRASHES])
async def test_leaving_the_block_after_its_end_changes_nothing(store: AgentStore, way: str) -> None:
    scene = Scene(store)
    run = scene.session.stream("work")
    await (ABORTS | CRASHES)[way](run, len(TYPES))
    assert run.result.finish_reason == "stop"
    assert await scene.texts() == WORK


class Gate:
    """Holds a journal's n-th write until it is opened."""

    def __init__(self, number: int) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self.number = number
        self.interception = Interception(before=self._before)

    async def _before(self, call: Call) -> None:
        if call.number == self.number:
            self.reached.set()
            await self.open.wait()

    async def reached_or(self, run: RunStream) -> None:
        """Wait until it is reached, or the turn has ended without it."""
        assert run._task is not None
        reached = asyncio.create_task(self.reached.wait())
        await asyncio.wait([reached, run._task], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()


WRITES = 9
"""As many as the turn makes when it is saved in steps: session, input, response, start, two results, last, finish, save, close."""


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("error", [None, OwnError, asyncio.CancelledError, KeyboardInterrupt])
async def test_leaving_the_block_while_a_write_is_under_way(
    store: AgentStore, error: type[BaseException] | None, atomic: bool
) -> None:
    """While it opens, while it records, and while it is saved."""
    abort = error is None or issubclass(error, Exception)
    for number in range(1, WRITES + 1):
        gate = Gate(number)
        scene = Scene(another(store, gate.interception, atomic=atomic))
        run = scene.session.stream("work")

        async def open_soon(gate: Gate = gate) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            gate.open.set()

        with ends(error):
            async with run:
                await gate.reached_or(run)
                opener = asyncio.create_task(open_soon())
                if error is not None:
                    raise error
        await opener
        texts = await scene.texts()
        if texts == []:
            pending = await scene.session.pending()
            assert (pending is None) == (abort or number == 1), f"left at write {number}"
        await scene.check_no_half_turn(store)
        await store.delete_session("s")


async def test_leaving_the_block_while_it_waits_in_line(store: AgentStore) -> None:
    held = asyncio.Event()
    scene = Scene(store)
    scene.before_model = held.wait  # type: ignore[assignment]  # reason: what it returns does not matter
    first = asyncio.create_task(scene.session.send("work"))
    for error in (None, OwnError, asyncio.CancelledError):
        with ends(error):
            async with scene.session.stream("never") as run:
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        with pytest.raises(StreamError):
            _ = run.result
    held.set()
    await first
    assert await scene.texts() == WORK


async def test_leaving_the_block_before_the_turn_began(store: AgentStore) -> None:
    """It was entered, and nothing else."""
    scene = Scene(store)
    async with scene.session.stream("never"):
        pass
    assert await scene.session.pending() is None
    assert await scene.texts() == []
    await scene.check_no_half_turn(store)


async def test_a_client_that_goes_away_while_it_enters_the_block(store: AgentStore) -> None:
    """The block is not entered, so nobody will leave it: nothing runs on."""
    scene = Scene(store)
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    scene.before_model = wait
    run = scene.session.stream("never")
    client = asyncio.create_task(run.__aenter__())
    await asyncio.sleep(0)
    client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client
    assert run._task is not None
    assert run._task.done()
    assert not reached.is_set()


async def test_an_abort_from_elsewhere_ends_the_stream(store: AgentStore) -> None:
    scene = Scene(store)
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    scene.before_tool = wait
    async with scene.session.stream("work") as run:
        await reached.wait()
        assert await scene.agent.session("s").abort() is True
        events = await shown(run)
    assert types(events)[-1] == "run.done"
    assert events[-1].result.finish_reason == run.result.finish_reason == "aborted"
    scene.before_tool = _at_once
    await scene.check_no_half_turn(store)


async def test_an_abort_while_somebody_else_opens_a_turn_first(store: AgentStore) -> None:
    """Whoever has left does not wait for the turn of a rival, nor finish it."""
    await Scene(store).session.send("before")
    gate = Gate(1)
    scene, rival = Scene(another(store, gate.interception)), Scene(store)
    async with scene.session.stream("never"):
        await gate.reached.wait()
        await die_at(store, 1, lambda used: rival.by(used).send("work"))

        async def open_soon() -> None:
            await asyncio.sleep(0)
            gate.open.set()

        opener = asyncio.create_task(open_soon())
    await opener
    pending = await scene.session.pending()
    assert pending is not None
    assert pending.attempts == 1
    assert scene.ran == []


async def test_an_abort_while_nobody_knows_whether_the_turn_was_opened(store: AgentStore) -> None:
    """What turns out to be opened is dropped then, not run."""
    asked: list[str] = []
    left = asyncio.Event()
    interception = Interception()
    scene = Scene(another(store, interception))

    async def note() -> None:
        asked.append("asked")

    scene.before_model = note

    async def after(call: Call) -> None:
        if call.number == 2:
            left.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise OutcomeUnknownError("write", "key", "the test says so")

    interception.after = after
    async with scene.session.stream("work", input_id="i"):
        await left.wait()
    assert asked == []
    assert await scene.texts() == []
    assert await scene.session.pending() is None


async def test_a_finished_turn_that_nobody_wants_is_saved(store: AgentStore) -> None:
    """It has happened: what it did must not be lost."""
    await die_at(store, 8, lambda used: Scene(used).session.send("work"), atomic=False)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    scene = Scene(store)
    runner = await Runner.resume(scene.session._turns.dialogue, found)
    runner.refuse()
    assert (await runner.run()).finish_reason == "stop"
    assert await scene.texts() == WORK


# --- detached ---


@pytest.mark.parametrize("error", [None, OwnError, asyncio.CancelledError, KeyboardInterrupt])
async def test_a_detached_turn_goes_on(store: AgentStore, error: type[BaseException] | None) -> None:
    """B103."""
    for number in range(len(TYPES)):
        scene = Scene(store)
        run = scene.session.stream("work")
        with ends(error):
            async with run:
                for _ in range(number):
                    await anext(run)
                run.detach()
                if error is not None:
                    raise error
        result = await scene.session.send("next")  # behind it in line
        assert result.text == "re: next"
        assert run.result.text == "done"
        assert await scene.texts() == [*WORK, "next", "re: next"]
        await store.delete_session("s")


async def test_closing_the_store_ends_a_detached_turn_as_a_crash(store: AgentStore) -> None:
    bundle = another(store)
    scene = Scene(bundle)
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    scene.before_tool = wait
    async with scene.session.stream("work") as run:
        await reached.wait()
        run.detach()
    await bundle.close()
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (found.head.status, found.head.owner) == ("in-progress", None)
    scene.before_tool = _at_once
    await Scene(store).check_no_half_turn(store)
    assert (await scene.texts())[:5] == DOUBTED


async def test_what_a_detached_turn_raises_is_logged(store: AgentStore, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(model=ScriptedModel([ValueError("no")]), store=store)
    async with agent.session("s").stream("work") as run:
        run.detach()
    with pytest.raises(ValueError, match="no"):
        await agent.session("s").send("next")  # behind it in line: it takes the turn up again
    assert "a detached turn failed" in caplog.text


async def test_a_detached_turn_that_fails_in_the_block_raises_there(store: AgentStore) -> None:
    agent = Agent(model=ScriptedModel([ValueError("no")]), store=store)
    run = agent.session("s").stream("work")
    run.detach()
    events, raised = await all_of(run)
    assert types(events)[-1] == "error"
    assert isinstance(raised, ValueError)


# --- turns that were there before ---


@pytest.mark.parametrize("how", ["begun", "submitted", "finished"])
async def test_a_pending_turn_is_shown_first_and_marked(store: AgentStore, how: str) -> None:
    scene = Scene(store)
    if how == "submitted":
        run_id = await scene.session.submit("work")
    else:
        number = 3 if how == "begun" else 8
        await die_at(store, number, lambda used: scene.by(used).send("work"), atomic=False)
        found = await store.checkpoints.load("s")
        assert found is not None
        run_id = found.head.run_id or ""
    async with scene.session.stream("next") as run:
        events = await shown(run)
    earlier = [event for event in events if event.run_id == run_id]
    own = events[len(earlier) :]
    assert all(event.resumed for event in earlier)
    assert earlier[-1].type == "run.done"
    assert types(own) == ["run.started", "model.responded", "run.done"]
    assert {(event.run_id, event.resumed) for event in own} == {(run.result.run_id, False)}
    assert run.result.text == "re: next"


@pytest.mark.parametrize("how", ["begun", "submitted"])
async def test_leaving_the_block_while_a_pending_turn_is_finished_leaves_it_pending(
    store: AgentStore, how: str
) -> None:
    scene = Scene(store)
    if how == "submitted":
        await scene.session.submit("work")
    else:
        await die_at(store, 3, lambda used: scene.by(used).send("work"))
    run = scene.session.stream("never")
    paced(scene, run, 1)
    async with run:
        await anext(run)
    scene.before_tool = scene.before_model = _at_once
    pending = await scene.session.pending()
    assert pending is not None
    await scene.session.resume()
    assert await scene.texts() == WORK


@pytest.mark.parametrize("how", ["begun", "submitted"])
async def test_leaving_the_block_at_the_end_of_the_turn_before_drops_only_the_own_one(
    store: AgentStore, how: str
) -> None:
    scene = Scene(store)
    if how == "submitted":
        await scene.session.submit("work")
    else:
        await die_at(store, 3, lambda used: scene.by(used).send("work"))
    asked: list[str] = []

    async def wait() -> None:
        if await scene.texts():
            asked.append("never")
            await asyncio.Event().wait()

    scene.before_model = wait
    async with asyncio.timeout(5), scene.session.stream("never") as run:
        async for event in run:
            if event.type == "run.done":
                break
    scene.before_model = _at_once
    assert await scene.texts() == WORK
    assert await scene.session.pending() is None


async def test_the_same_input_again_shows_how_its_turn_ended(store: AgentStore) -> None:
    scene = Scene(store)
    result = await scene.session.send("work", input_id="i")
    async with scene.session.stream("work", input_id="i") as run:
        events = await shown(run)
    assert types(events) == ["run.done"]
    assert run.result == events[0].result == result


async def test_the_same_input_again_goes_on_with_its_turn(store: AgentStore) -> None:
    scene = Scene(store)
    await die_at(store, 3, lambda used: scene.by(used).send("work", input_id="i"))
    async with scene.session.stream("work", input_id="i") as run:
        events = await shown(run)
    assert types(events)[0] == "run.resumed"
    assert types(events).count("run.done") == 1
    assert run.result.text == "done"


# --- failures ---


async def all_of(run: RunStream) -> tuple[list[Any], BaseException | None]:
    """Return what a stream shows, and what its block raises."""
    events: list[Any] = []
    try:
        async with run:
            events.extend([event async for event in run])
    except BaseException as error:  # noqa: BLE001  # reason: the caller looks at it
        return events, error
    return events, None


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("outcome", ["unavailable", "lost", "unknown"])
async def test_a_failure_of_the_store_at_each_write(store: AgentStore, outcome: str, atomic: bool) -> None:
    """The stream ends with `error`, and the block raises it; or the write was repeated, and nobody has noticed."""
    failed = 0
    for number in range(1, WRITES + 1):
        scene = Scene(another(store, at(number, outcome), atomic=atomic))
        run = scene.session.stream("work")
        events, raised = await all_of(run)
        if raised is None:
            assert types(events)[-1] == "run.done"
            assert await scene.texts() == WORK
        else:
            failed += 1
            assert isinstance(raised, (StoreUnavailableError, OutcomeUnknownError))
            assert types(events)[-1] == "error"
            assert events[-1].error is raised
            with pytest.raises(type(raised)):
                _ = run.result
        assert types(events).count("run.done") + types(events).count("error") == 1
        texts = await scene.texts()
        assert texts in ([], WORK)
        await scene.check_no_half_turn(store)
        assert scene.ran.count("pay") <= 1
        await store.delete_session("s")
    assert failed >= (1 if outcome == "unknown" else 2)


async def test_a_failed_turn_ends_with_error_and_the_block_raises(store: AgentStore) -> None:
    error = ValueError("no")
    session = Agent(model=ScriptedModel([error]), store=store).session("s")
    run = session.stream("work")
    events, raised = await all_of(run)
    assert types(events) == ["run.started", "error"]
    assert events[-1].error is raised is error
    with pytest.raises(ValueError, match="no"):
        _ = run.result


async def test_a_turn_that_is_busy_elsewhere(store: AgentStore) -> None:
    with pytest.raises(Died):
        await Scene(store).by(another(store, at(2, "die-after"), process=elsewhere())).send("work")
    events, raised = await all_of(Scene(store).session.stream("next"))
    assert isinstance(raised, SessionBusyError)
    assert types(events) == ["error"]


async def test_a_model_that_cancels_itself_is_not_taken_for_the_user(store: AgentStore) -> None:
    """The block raises what `send` would: it does not end as if all were well."""

    async def answer(_: ModelRequest) -> ModelResponse:
        raise asyncio.CancelledError

    session = Agent(model=FunctionModel(answer), store=store).session("s")
    _, raised = await all_of(session.stream("work"))
    assert isinstance(raised, ModelError)
    pending = await session.pending()
    assert pending is not None
    assert pending.owner is None


# --- misuse ---


async def test_a_stream_is_entered_once_and_asked_after_its_end(store: AgentStore) -> None:
    run = Scene(store).session.stream("work")
    with pytest.raises(StreamError, match="not entered"):
        await anext(run)
    with pytest.raises(StreamError, match="no result yet"):
        _ = run.result
    async with run:
        with pytest.raises(StreamError, match="no result yet"):
            _ = run.result
        await shown(run)
    with pytest.raises(StreamError, match="entered before"):
        await run.__aenter__()
    assert run.result.text == "done"


async def test_a_stream_that_is_not_iterated_is_saved_if_it_ends_in_the_block(store: AgentStore) -> None:
    scene = Scene(store)
    async with scene.session.stream("work") as run:
        await scene.session.send("next")  # it is behind it in line
    assert run.result.finish_reason == "stop"
    assert await scene.texts() == [*WORK, "next", "re: next"]


# --- listeners beside a stream ---


async def test_listeners_hear_the_same_objects_and_hold_nothing_up(
    store: AgentStore, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(store)
    heard: list[Any] = []
    loop_free = asyncio.Event()

    def raises(_: RunEvent) -> None:
        raise OwnError("a listener's own fault")

    async def blocks(_: RunEvent) -> None:
        await loop_free.wait()

    async def hears(event: RunEvent) -> None:
        heard.append(event)

    for listener in (raises, blocks, hears):
        scene.session.on(listener)
    async with scene.session.stream("work") as run:
        events = []
        async for event in run:
            events.append(event)
            if isinstance(event, RunDone):
                loop_free.set()
    assert all(one is other for one, other in zip(events, heard, strict=True))
    assert "a listener's own fault" in caplog.text
    assert run.result.text == "done"


async def entry_is_stored(store: AgentStore, kind: str) -> None:
    """Let the loop turn until a turn journal has an entry."""
    for _ in range(1000):
        found = await store.checkpoints.load("s")
        if found is not None and any(entry["kind"] == kind for entry in found.entries):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"there is no {kind}")


async def test_listeners_have_heard_of_the_end_when_the_block_is_left(store: AgentStore) -> None:
    scene = Scene(store)
    heard: list[str] = []

    async def slow(event: RunEvent) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        heard.append(event.type)

    scene.session.on(slow)
    await whole(scene.session.stream("work"))
    assert heard == TYPES


async def test_a_joined_stream_shows_only_the_end(store: AgentStore) -> None:
    for resumed in (False, True):
        scene = Scene(store)
        joining = scene.agent.session("s", turn_policy="queue")
        held, reached = asyncio.Event(), asyncio.Event()

        async def wait(reached: asyncio.Event = reached, held: asyncio.Event = held) -> None:
            reached.set()
            await held.wait()

        if resumed:
            await die_at(store, 2, lambda used, scene=scene: scene.by(used).send("work"))  # type: ignore[misc]  # reason: the scene of this round
        scene.before_tool = wait
        task: asyncio.Task[TurnResult | None]
        session = scene.by(store)
        task = asyncio.create_task(session.resume()) if resumed else asyncio.create_task(session.send("work"))
        await reached.wait()
        async with joining.stream("and more") as run:
            held.set()
            events = await shown(run)
        assert types(events) == ["run.done"], f"resumed: {resumed}"
        assert run.result == await task
        assert isinstance(events[0], RunDone)
        await store.delete_session("s")


async def test_a_joined_stream_of_a_turn_that_fails(store: AgentStore) -> None:
    held, reached = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> ModelResponse:
        reached.set()
        await held.wait()
        raise ValueError("no")

    agent = Agent(model=FunctionModel(answer), store=store)
    task = asyncio.create_task(agent.session("s").send("work"))
    await reached.wait()
    joining = asyncio.create_task(all_of(agent.session("s", turn_policy="queue").stream("more")))
    await entry_is_stored(store, "input-queued")
    held.set()
    events, raised = await joining
    assert isinstance(raised, ValueError)
    assert types(events) == ["error"]
    assert isinstance(events[0], RunFailed)
    with pytest.raises(ValueError, match="no"):
        await task


@pytest.mark.parametrize("error", [None, OwnError, asyncio.CancelledError])
async def test_leaving_the_block_of_a_joined_stream_leaves_the_turn(
    store: AgentStore, error: type[BaseException] | None
) -> None:
    scene = Scene(store)
    held, reached = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await held.wait()

    scene.before_tool = wait
    task = asyncio.create_task(scene.session.send("work"))
    await reached.wait()
    with ends(error):
        async with scene.agent.session("s", turn_policy="queue").stream("and more"):
            await entry_is_stored(store, "input-queued")
            if error is not None:
                raise error
    held.set()
    assert (await task).text == "re: and more"
    assert await scene.texts() == [*WORK[:4], "and more", "re: and more"]
