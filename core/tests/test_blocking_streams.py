"""Streams of the blocking API: what becomes of a turn when its block is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core.tests.blocking_world import calling

from perdure import ToolCall, blocking, tool
from perdure.blocking.loop import _Call, loop_thread
from perdure.errors import StreamError
from perdure.models import FunctionModel, ModelRequest, ModelResponse


@pytest.fixture
def store(tmp_path: Path) -> Iterator[blocking.AgentStore]:
    with blocking.open_store(f"sqlite:{tmp_path / 'agent.db'}") as opened:
        yield opened


class Stuck:
    """A turn with a tool whose second answer never comes, until it is freed."""

    def __init__(self, store: blocking.AgentStore, session_id: str | None = None, *, free: bool = False) -> None:
        self.free = free
        agent = blocking.Agent(model=FunctionModel(self._answer), tools=[tool(idempotent=True)(self.look)], store=store)
        self.session = agent.session(session_id)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool" and not self.free:
            await asyncio.Event().wait()
        if request.messages[-1].role == "tool":
            return ModelResponse(text="Done.")
        return ModelResponse(tool_calls=[ToolCall("c1", "look", {})])

    def look(self) -> str:
        """Look."""
        return "seen"


SHOWN = ["run.started", "model.responded", "tool.started", "tool.finished"]


class OwnError(Exception):
    """The caller's own error."""


def by_break(stuck: Stuck, places: int) -> blocking.RunStream:
    with stuck.session.stream("Go") as run:
        for place, event in enumerate(run):
            assert event.type == SHOWN[place]
            if place == places:
                break
    return run


def raise_at(place: int, run: blocking.RunStream, error: type[BaseException]) -> None:
    for _ in range(place + 1):
        next(run)
    raise error


def by_error(stuck: Stuck, places: int) -> blocking.RunStream:
    with pytest.raises(OwnError), stuck.session.stream("Go") as run:
        raise_at(places, run, OwnError)
    return run


def by_return(stuck: Stuck, places: int) -> blocking.RunStream:
    with stuck.session.stream("Go") as run:
        for _ in range(places + 1):
            next(run)
        return run


@pytest.mark.parametrize("place", range(len(SHOWN)))
@pytest.mark.parametrize("leave", [by_break, by_error, by_return])
def test_a_stream_that_is_left_early_aborts_its_turn(
    store: blocking.AgentStore, leave: Callable[[Stuck, int], blocking.RunStream], place: int
) -> None:
    stuck = Stuck(store)
    run = leave(stuck, place)
    assert run.result.finish_reason == "aborted"
    assert stuck.session.pending() is None
    assert stuck.session.load() == ()
    stuck.free = True
    assert stuck.session.send("Go").text == "Done."


def by_interrupt(stuck: Stuck, places: int) -> None:
    with pytest.raises(KeyboardInterrupt), stuck.session.stream("Go") as run:
        raise_at(places, run, KeyboardInterrupt)


def by_closing_a_generator(stuck: Stuck, places: int) -> None:
    def show() -> Iterator[str]:
        with stuck.session.stream("Go") as run:
            for event in run:
                yield event.type

    shown = show()
    for _ in range(places + 1):
        next(shown)
    shown.close()  # type: ignore[attr-defined]  # reason: a generator has it


@pytest.mark.parametrize("place", range(len(SHOWN)))
@pytest.mark.parametrize("leave", [by_interrupt, by_closing_a_generator])
def test_a_stream_that_is_cut_short_leaves_its_turn_pending(
    store: blocking.AgentStore, leave: Callable[[Stuck, int], None], place: int
) -> None:
    stuck = Stuck(store)
    leave(stuck, place)
    pending = stuck.session.pending()
    assert pending is not None
    assert (pending.status, pending.owner) == ("in-progress", None)
    stuck.free = True
    result = stuck.session.resume()
    assert result is not None
    assert (result.text, len(stuck.session.load())) == ("Done.", 4)


def test_a_stream_left_at_its_end_is_not_aborted(store: blocking.AgentStore) -> None:
    stuck = Stuck(store)
    stuck.free = True
    with stuck.session.stream("Go") as run:
        for event in run:
            if event.type == "run.done":
                break
    assert run.result.text == "Done."
    assert len(stuck.session.load()) == 4


def test_a_detached_stream_goes_on(store: blocking.AgentStore) -> None:
    release, done = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        assert release.wait(60)
        return "waited"

    session = blocking.Agent(model=calling("wait"), tools=[wait], store=store).session("s1")
    stop = session.on(lambda event: done.set() if event.type == "run.done" else None)
    with session.stream("Go") as run:
        next(run)
        run.detach()
    with pytest.raises(StreamError):
        _ = run.result
    release.set()
    assert done.wait(60)
    stop()
    assert session.load()[-1].text == "Done."


def test_a_generator_that_is_closed_in_a_loop_does_not_wait(store: blocking.AgentStore) -> None:
    """As the collector may do it, in any thread; the turn stays pending."""
    stuck = Stuck(store)

    def show() -> Iterator[str]:
        with stuck.session.stream("Go") as run:
            for event in run:
                yield event.type

    shown = show()
    next(shown)

    async def close() -> None:
        shown.close()  # type: ignore[attr-defined]  # reason: a generator has it

    asyncio.run(close())
    result = Stuck(store, stuck.session.id, free=True).session.resume()  # served when the turn has been given up
    assert result is not None
    assert result.text == "Done."


def test_an_interrupt_while_a_stream_is_entered_leaves_no_turn_behind(
    store: blocking.AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes right after the turn was started in the loop."""
    stuck, loop = Stuck(store), loop_thread()
    real = loop.wait

    def interrupted(name: str, function: Callable[[], Any]) -> Any:
        answer = real(name, function)
        if name == "RunStream.__enter__":
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(loop, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), stuck.session.stream("Go"):
        raise AssertionError("never reached")
    stuck.free = True
    assert store._target.ownership.running == {}  # type: ignore[attr-defined]  # reason: nothing runs in the background
    assert stuck.session.send("Go").text == "Done."


def test_a_call_that_fails_when_it_is_interrupted_says_so_in_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    started, interrupts = threading.Event(), iter([KeyboardInterrupt()])
    real = _Call._wait

    def wait(call: _Call[Any]) -> None:
        for interrupt in interrupts:
            assert started.wait(60)
            raise interrupt
        real(call)

    async def fail() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("worse")

    monkeypatch.setattr(_Call, "_wait", wait)
    with pytest.raises(KeyboardInterrupt) as caught:
        loop_thread().wait("fail", fail)
    assert caught.value.__notes__ == ["Then the call that was waited for failed: ValueError: worse"]
