"""Work that is cancelled between its pieces: where a cancellation comes through, and what the code of others may do in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from perdure import Agent, AgentStore, Message, ToolCall, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure.ownership.uninterrupted import Work, apart, foreign, uninterrupted

pytestmark = pytest.mark.anyio


class Piece:
    """A piece of work that goes on when it is told to.

    Attributes:
        tasks: The tasks that it was run in.
        ended: Whether it came to its end.
    """

    def __init__(self) -> None:
        self.reached, self.may_end = asyncio.Event(), asyncio.Event()
        self.tasks: list[object] = []
        self.ended = False

    async def run(self) -> str:
        self.tasks.append(asyncio.current_task())
        self.reached.set()
        await self.may_end.wait()
        self.ended = True
        return "done"


async def test_an_interruption_comes_through_right_behind_the_piece() -> None:
    piece, behind = Piece(), list[str]()

    async def whole() -> None:
        async def inner() -> None:
            behind.append(await uninterrupted(piece.run()))  # a piece of a piece: the outer one ends first, too

        await uninterrupted(inner())
        behind.append("never")

    work = Work(whole())
    await piece.reached.wait()
    work.interrupt()
    work.interrupt()
    await asyncio.sleep(0)
    assert not work.task.done()
    piece.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await work.result()
    assert (piece.tasks, behind) == ([work.task], ["done"])


async def test_a_piece_that_fails_is_interrupted_all_the_same() -> None:
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        reached.set()
        await may_end.wait()
        raise LookupError

    work = Work(uninterrupted(fail()))
    await reached.wait()
    work.interrupt()
    may_end.set()
    with pytest.raises(asyncio.CancelledError) as raised:
        await work.result()
    assert isinstance(raised.value.__context__, LookupError)


async def test_between_its_pieces_work_is_interrupted_at_once() -> None:
    reached = asyncio.Event()

    async def whole() -> None:
        reached.set()
        await asyncio.Event().wait()

    work = Work(whole())
    await reached.wait()
    work.interrupt()
    with pytest.raises(asyncio.CancelledError):
        await work.result()


async def test_whoever_waits_for_work_hands_a_cancellation_on() -> None:
    piece = Piece()
    work = Work(uninterrupted(piece.run()))
    waiting = asyncio.create_task(work.result())
    await piece.reached.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not work.task.done()
    piece.may_end.set()
    await asyncio.wait([work.task])
    assert (piece.ended, work.task.cancelled()) == (True, True)


async def test_a_timeout_of_foreign_code_tears_no_piece_that_it_calls() -> None:
    """Others cancel the task itself, which knows of no piece: there each piece has a task of its own."""
    piece = Piece()

    async def called() -> None:
        async with asyncio.timeout(0):
            asyncio.get_running_loop().call_soon(piece.may_end.set)
            await uninterrupted(piece.run())

    async def whole() -> str:
        with pytest.raises(TimeoutError):
            await foreign(called())
        return await uninterrupted(piece.run())

    work = Work(whole())
    assert await work.result() == "done"
    assert piece.ended
    assert [task is work.task for task in piece.tasks] == [False, True]


async def test_what_is_set_apart_does_not_last() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")

    async def change(error: Exception | None) -> str:
        before = name.get()
        name.set("somebody")
        await asyncio.sleep(0)
        assert name.get() == "somebody"  # also after a wait
        if error is not None:
            raise error
        return before

    assert await apart(change(None)) == "nobody"
    with pytest.raises(LookupError):
        await apart(change(LookupError()))
    assert name.get() == "nobody"


async def test_what_is_apart_hears_of_a_cancellation() -> None:
    heard: list[str] = []
    reached = asyncio.Event()

    async def wait() -> str:
        try:
            reached.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            heard.append("cancelled")
        return "kept to itself"

    task = asyncio.create_task(apart(wait()))
    await reached.wait()
    task.cancel()
    assert await task == "kept to itself"
    assert heard == ["cancelled"]
    open_end = apart(wait())
    open_end.send(None)
    open_end.close()


# --- the code of others in a turn ---


async def test_neither_a_tool_nor_a_model_leaves_anything_in_the_context_of_the_turn(store: AgentStore) -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen: list[str] = []

    def note(who: str) -> None:
        seen.append(user.get())
        user.set(who)

    @tool(idempotent=True)
    async def look() -> str:
        note("the tool")
        return "seen"

    async def answer(request: ModelRequest) -> ModelResponse:
        note("the model")
        said = sum(message.role == "assistant" for message in request.messages)
        return ModelResponse("", [ToolCall(f"c{said}", "look")]) if said < 2 else ModelResponse("done")

    await Agent(model=FunctionModel(answer), tools=[look], store=store).session("s").send("go")
    assert seen == ["nobody"] * 5


async def _nothing() -> None:
    """Wait for nothing."""


@pytest.mark.parametrize("last", [_nothing, lambda: asyncio.sleep(0)])
async def test_a_tool_that_keeps_a_cancellation_to_itself_is_recorded_and_ends_the_turn(
    store: AgentStore, last: Callable[[], Awaitable[None]]
) -> None:
    reached = asyncio.Event()

    @tool
    async def wait() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await last()
        return "stopped"

    model = ScriptedModel([[ToolCall("c1", "wait")], "done"])
    session = Agent(model=model, tools=[wait], store=store).session("s")
    sending = asyncio.create_task(session.send("go"))
    await reached.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    pending = await session.pending()
    assert pending is not None
    assert (pending.status, pending.owner) == ("in-progress", None)
    result = await session.resume()
    assert result is not None
    assert result.messages[2] == Message("tool", "stopped", tool_call_id="c1")
    assert len(model.calls) == 2


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _at_once() -> None:
    _cancel_this_task()


async def _and_go_on() -> None:
    _cancel_this_task()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)


async def _and_fail() -> None:
    _cancel_this_task()
    raise LookupError


@pytest.mark.parametrize("end_what_takes_too_long", [_at_once, _and_go_on, _and_fail])
async def test_code_of_others_that_cancels_its_task_and_keeps_it_to_itself_cancels_no_turn(
    store: AgentStore, end_what_takes_too_long: Callable[[], Awaitable[None]]
) -> None:
    """As libraries do that have timeouts of their own from before tasks could take a cancellation back."""

    @tool
    async def look() -> str:
        await end_what_takes_too_long()
        return "seen"

    async def answer(request: ModelRequest) -> ModelResponse:
        with contextlib.suppress(LookupError):
            await end_what_takes_too_long()
        said = sum(message.role == "assistant" for message in request.messages)
        return ModelResponse("", [ToolCall(f"c{said}", "look")]) if said < 2 else ModelResponse("done")

    result = await Agent(model=FunctionModel(answer), tools=[look], store=store).session("s").send("go")
    assert result.finish_reason == "stop"
    answers = [message.text for message in result.messages if message.role == "tool"]
    assert answers == [answers[0]] * 2
    assert ("LookupError" in answers[0]) == (end_what_takes_too_long is _and_fail)


async def test_an_interruption_while_a_cancellation_is_forgotten_comes_behind_the_next_piece() -> None:
    piece = Piece()

    async def whole() -> None:
        await foreign(_at_once())  # which waits a moment for the cancellation
        await uninterrupted(piece.run())
        raise AssertionError("it is not interrupted")

    work = Work(whole())
    await asyncio.sleep(0)
    work.interrupt()
    piece.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await work.result()
    assert piece.ended


async def test_work_is_known_as_such_before_it_begins() -> None:
    """Also where the loop makes tasks that begin at once."""
    asyncio.get_running_loop().set_task_factory(lambda *_, **__: pytest.fail("it is asked for a task"))
    piece = Piece()
    piece.may_end.set()
    work = Work(uninterrupted(piece.run()))
    assert await work.result() == "done"
    assert piece.tasks == [work.task]
    asyncio.get_running_loop().set_task_factory(None)
