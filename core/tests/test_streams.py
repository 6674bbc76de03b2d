"""A turn shown as it runs: what a stream tells and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from core.tests.processes import another, die_at, elsewhere
from core.tests.stream_world import (
    TYPES,
    WORK,
    WRITES,
    OwnError,
    Scene,
    all_of,
    at_once,
    ends,
    paced,
    shown,
    types,
    whole,
)

from perdure import Agent, AgentStore, TurnResult
from perdure.errors import (
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    StoreUnavailableError,
    StreamError,
)
from perdure.events import RunDone, RunEvent, RunFailed
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel
from perdure.observers.listening import Channels
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio


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
    scene.before_tool = scene.before_model = at_once
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
    scene.before_model = at_once
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
