"""Work that is cancelled between its pieces: where a cancellation comes through, and what the code of others may do in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from core.tests.processes import another

from perdure import Agent, AgentStore, Message, Session, ToolCall, TurnResult, open_store, tool
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel
from perdure.ownership.uninterrupted import Work, apart, foreign, uninterrupted
from perdure_conformance.interception import Call, Interception

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
    assert not work.done()
    piece.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await work.outcome()
    assert (piece.tasks, behind) == ([work], ["done"])


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
        await work.outcome()
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
        await work.outcome()


async def test_whoever_waits_for_work_hands_a_cancellation_on() -> None:
    piece = Piece()
    work = Work(uninterrupted(piece.run()))
    waiting = asyncio.create_task(work.outcome())
    await piece.reached.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not work.done()
    piece.may_end.set()
    await asyncio.wait([work])
    assert (piece.ended, work.cancelled()) == (True, True)


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
    assert await work.outcome() == "done"
    assert piece.ended
    assert [task is work for task in piece.tasks] == [False, True]


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


# --- interruptions that the code of others keeps to itself ---


Stop = Callable[[Session, "asyncio.Task[TurnResult]"], Awaitable[object]]


async def _cancel(_: Session, sending: asyncio.Task[TurnResult]) -> None:
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def _abort(session: Session, sending: asyncio.Task[TurnResult]) -> None:
    assert await session.abort() is True
    assert (await sending).finish_reason == "aborted"


class Keeps:
    """Code of others that waits, and keeps to itself that it shall not.

    Attributes:
        reached: Whether it waits.
        times: How often it was called.
    """

    def __init__(self, how: str) -> None:
        self.reached, self.times, self._how = asyncio.Event(), 0, how

    async def wait(self) -> None:
        self.times += 1
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._how == "takes it back":
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
            if self._how == "fails":
                raise LookupError from None


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("how", ["goes on", "takes it back"])
@pytest.mark.parametrize("stop", [_cancel, _abort])
async def test_no_tool_is_called_after_a_model_has_kept_an_interruption_to_itself(
    store: AgentStore, stop: Stop, how: str, calls: int
) -> None:
    keeps, ran, asked = Keeps(how), list[str](), list[int]()

    @tool
    async def pay(to: str) -> str:
        ran.append(to)
        return "paid"

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.append(len(request.messages))
        if len(request.messages) > 1:
            return ModelResponse("done")
        await keeps.wait()
        return ModelResponse("", [ToolCall(f"c{place}", "pay", {"to": f"{place}"}) for place in range(calls)])

    session = Agent(model=FunctionModel(answer), tools=[pay], store=store).session("s")
    sending = asyncio.create_task(session.send("go"))
    await keeps.reached.wait()
    await stop(session, sending)
    assert (ran, asked) == ([], [1])
    result = await session.resume()
    if stop is _abort:
        assert result is None
        assert await session.load() == ()
        return
    assert result is not None
    assert (ran, asked) == ([f"{place}" for place in range(calls)], [1, 2 + calls])  # the response was recorded


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("how", ["goes on", "takes it back", "fails"])
@pytest.mark.parametrize("stop", [_cancel, _abort])
async def test_nothing_is_called_after_a_tool_has_kept_an_interruption_to_itself(
    store: AgentStore, stop: Stop, how: str, calls: int
) -> None:
    keeps = Keeps(how)

    @tool(idempotent=True, retries=3)
    async def look() -> str:
        await keeps.wait()
        return "seen"

    model = ScriptedModel([[ToolCall(f"c{place}", "look") for place in range(calls)], "done"])
    session = Agent(model=model, tools=[look], store=store).session("s")
    sending = asyncio.create_task(session.send("go"))
    await keeps.reached.wait()
    await asyncio.sleep(0)  # both tools have begun
    await stop(session, sending)
    assert (keeps.times, len(model.calls)) == (calls, 1)
    pending = await session.pending()
    assert (pending is None) == (stop is _abort)
    assert pending is None or (pending.owner, pending.last_error) == (None, None)


async def test_an_interruption_that_was_kept_is_not_taken_for_the_end_of_a_time_limit() -> None:
    reached = asyncio.Event()

    async def whole() -> None:
        async with asyncio.timeout(0):
            reached.set()
            await foreign(_for_ever())

    work = Work(whole())
    await reached.wait()
    work.interrupt()  # in the very moment in which the time is over
    with pytest.raises(asyncio.CancelledError):
        await work.outcome()


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_an_interruption_at_the_end_of_a_time_limit_comes_behind_the_next_piece() -> None:
    piece = Piece()
    piece.may_end.set()
    works: list[Work[None]] = []

    async def too_long() -> None:
        try:
            await _for_ever()
        finally:
            asyncio.get_running_loop().call_soon(works[0].interrupt)  # while the cancellation is taken back

    async def whole() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await foreign(too_long())
        await uninterrupted(piece.run())
        raise AssertionError("it is not interrupted")

    works.append(Work(whole()))
    with pytest.raises(asyncio.CancelledError):
        await works[0].outcome()
    assert piece.ended


async def test_whoever_is_interrupted_calls_nobody_else() -> None:
    keeps, called = Keeps("goes on"), list[str]()

    async def call() -> None:
        called.append("called")

    async def whole() -> None:
        await foreign(keeps.wait())
        await foreign(call())

    work = Work(whole())
    await keeps.reached.wait()
    work.interrupt()
    with pytest.raises(asyncio.CancelledError):
        await work.outcome()
    assert called == []


# --- a cancellation that is the code's own ---


async def _and_let_it_out() -> None:
    _cancel_this_task()
    await asyncio.sleep(0)


async def test_a_model_that_cancels_its_task_and_lets_it_out_has_failed(store: AgentStore) -> None:
    asked: list[int] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.append(1)
        if len(asked) == 1:
            await _and_let_it_out()
        return ModelResponse("done")

    session = Agent(model=FunctionModel(answer), store=store).session("s")
    sending = asyncio.create_task(session.send("go"))
    with pytest.raises(ModelError, match="cancelled itself"):
        await sending
    pending = await session.pending()
    assert pending is not None
    assert pending.last_error is not None
    assert "cancelled itself" in pending.last_error
    result = await session.resume()
    assert result is not None
    assert result.text == "done"


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_that_cancels_its_task_and_lets_it_out_has_failed(store: AgentStore, calls: int) -> None:
    @tool
    async def look() -> str:
        await _and_let_it_out()
        return "never"

    model = ScriptedModel([[ToolCall(f"c{place}", "look") for place in range(calls)], "done"])
    result = await Agent(model=model, tools=[look], store=store).session("s").send("go")
    assert [message.text for message in result.messages[2:-1]] == ["the tool cancelled itself"] * calls
    assert result.text == "done"


async def test_a_model_that_is_steered_and_cancels_its_task_too_is_asked_again(store: AgentStore) -> None:
    reached, asked = asyncio.Event(), list[list[str]]()

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.append([message.text for message in request.messages])
        if len(asked) == 1:
            reached.set()
            try:
                await _for_ever()
            finally:
                _cancel_this_task()
        return ModelResponse("done")

    session = Agent(model=FunctionModel(answer), store=store).session("s", turn_policy="steer")
    sending = asyncio.create_task(session.send("go"))
    await reached.wait()
    result = await session.send("left")
    assert await sending == result
    assert asked == [["go"], ["go", "left"]]


@pytest.mark.parametrize("where", ["model", "tool", "tools"])
async def test_a_program_that_cancels_all_of_its_tasks_cancels_the_turn(store: AgentStore, where: str) -> None:
    """It is no failure of whoever waited in the turn's own task, although it hears of it first."""
    reached = asyncio.Event()

    async def wait() -> str:
        reached.set()
        await _for_ever()
        return "never"

    @tool(in_doubt="fail")
    async def look() -> str:
        return await wait()

    async def answer(request: ModelRequest) -> ModelResponse:
        if where == "model":
            await wait()
        return ModelResponse("", [ToolCall(f"c{place}", "look") for place in range(1 + (where == "tools"))])

    session = Agent(model=FunctionModel(answer), tools=[look], store=store).session("s")
    others = asyncio.all_tasks()
    sending = asyncio.create_task(session.send("go"))
    await reached.wait()
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - others:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    pending = await session.pending()
    assert pending is not None
    assert (pending.owner, pending.last_error) == (None, None)


# --- the end of the loop ---


async def _pause(_: Call) -> None:
    await asyncio.sleep(0)


def _turn_is_cut_off(url: str, steps: int, ended: list[str]) -> bool:
    """Begin a turn in a loop that ends after so many of its rounds; return whether the turn had ended before."""

    @tool
    async def pay(to: str) -> str:
        await asyncio.sleep(0)
        ended.append(to)
        return "paid"

    async def begin() -> bool:
        async with contextlib.AsyncExitStack() as stack:
            base = await stack.enter_async_context(open_store(url))
            stack.pop_all()  # the program ends without closing it
            slow = another(base, Interception(before=_pause, after=_pause))
            session = Agent(model=ScriptedModel(script), tools=[pay], store=slow).session("s")
            sending = asyncio.create_task(session.send("go"))
            for _ in range(steps):
                await asyncio.sleep(0)
            return sending.done()

    script: list[Any] = [
        [ToolCall("c1", "pay", {"to": "ann"})],
        [ToolCall("c2", "pay", {"to": "bob"}), ToolCall("c3", "pay", {"to": "cem"})],
        "done",
    ]
    return asyncio.run(begin())


async def _left_over(url: str) -> tuple[list[str], str | None] | None:
    async with open_store(url) as store:
        found = await store.checkpoints.load("s")
        if found is None or found.head.status == "idle":
            return None
        return [entry["kind"] for entry in found.entries], found.head.owner


def test_a_loop_that_ends_tears_no_write_of_a_turn() -> None:
    """Who ends a program lets its writes end: what a tool has done is recorded, and no lease is left behind."""
    for steps in range(100):
        url, ended = f"memory:loop-{steps}-{id(object())}", list[str]()
        whole = _turn_is_cut_off(url, steps, ended)
        left = asyncio.run(_left_over(url))
        if left is not None:
            assert (left[0].count("tool"), left[1]) == (len(ended), None), steps
        if whole:
            break
    else:
        pytest.fail("the turn never ended")


# --- what work is ---


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
        await work.outcome()
    assert piece.ended


async def test_work_is_known_as_such_before_it_begins() -> None:
    """Also where the loop makes tasks that begin at once."""
    asyncio.get_running_loop().set_task_factory(lambda *_, **__: pytest.fail("it is asked for a task"))
    piece = Piece()
    piece.may_end.set()
    work = Work(uninterrupted(piece.run()))
    assert await work.outcome() == "done"
    assert piece.tasks == [work]
    asyncio.get_running_loop().set_task_factory(None)
