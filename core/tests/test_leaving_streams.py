"""What becomes of a turn when the block of its stream is left at any point, or lets it go on alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from core.tests.processes import another, die_at
from core.tests.stream_world import (
    DOUBTED,
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
)

from perdure import Agent, AgentStore
from perdure.errors import OutcomeUnknownError, StreamError
from perdure.events import RunEvent
from perdure.models import ScriptedModel
from perdure.runtime.stream import RunStream
from perdure.runtime.turn.runner import Runner
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio


# --- leaving the block ---


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
        scene.before_tool = scene.before_model = at_once
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
        scene.before_tool = scene.before_model = at_once
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
    scene.before_tool = at_once
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
    scene.before_tool = at_once
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
