"""Observers: who hears, and that nothing they do reaches a turn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from core.tests.recorder import Recorder

from perdure import Agent, AgentStore, observers, open_store
from perdure.backend import InvalidArgumentError, hookimpl
from perdure.clock import SYSTEM_CLOCK
from perdure.events import RunStarted
from perdure.models import ScriptedModel
from perdure.observers import Observers, observe
from perdure.observers.listening import Channel

pytestmark = pytest.mark.anyio


class Raising:
    """Raises whatever it was made with."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @hookimpl
    def perdure_event(self, event: object) -> None:
        raise self.error


@pytest.fixture
def registered() -> Iterator[Callable[[Any], Any]]:
    """Registers observers for the length of a test."""
    added: list[object] = []

    def register(plugin: Any) -> Any:
        added.append(plugin)
        observers.register(plugin)
        return plugin

    yield register
    for plugin in added:
        observers.unregister(plugin)


@pytest.fixture
def recorder(registered: Callable[[Any], Any]) -> Recorder:
    return registered(Recorder())  # type: ignore[no-any-return]  # reason: it is what was handed in


async def test_observers_get_the_very_event_that_listeners_get(recorder: Recorder) -> None:
    streamed: list[Any] = []
    listened: list[Any] = []

    async def listener(event: Any) -> None:
        listened.append(event)

    channel = Channel("s", SYSTEM_CLOCK, observe)
    channel.on(listener)
    sent = channel.emit(RunStarted, "r", streamed.append)
    await channel.catch_up()
    await observers.catch_up()
    assert all(heard == [sent] and heard[0] is sent for heard in (streamed, listened, recorder.events))


async def test_a_session_tells_streams_listeners_and_observers_the_same(store: AgentStore, recorder: Recorder) -> None:
    listened: list[Any] = []

    async def listener(event: Any) -> None:
        listened.append(event)

    session = Agent(model=ScriptedModel(["Hello!"]), store=store).session("s")
    off = session.on(listener)
    async with session.stream("Hi") as run:
        streamed = [event async for event in run]
    off()
    await store.close()
    observed = [event for event in recorder.events if event.type not in ("store.called", "model.called", "run.left")]
    assert [event.type for event in streamed][-2:] == ["model.responded", "run.done"]
    assert [*map(id, streamed)] == [*map(id, listened)] == [*map(id, observed)]
    assert [event.seq for event in streamed] == list(range(1, len(streamed) + 1))
    stored = [(event.part, event.operation) for event in recorder.events if event.type == "store.called"]
    assert stored[-1] == ("checkpoints", "write")
    assert recorder.events[-2] is streamed[-1]  # told only after it was saved
    assert recorder.events[-1].type == "run.left"


# --- what they cannot do ---


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_an_observer_that_raises_is_logged_and_hinders_no_other(
    error: BaseException, registered: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    registered(Raising(error))
    recorder = registered(Recorder())
    for number in range(2):
        observe(number)
    await observers.catch_up()
    assert recorder.events == [0, 1]
    reports = [record for record in caplog.records if record.name == "perdure.observers"]
    assert [record.exc_info is not None and record.exc_info[1] for record in reports] == [error, error]
    assert vars(reports[0])["perdure"] == {"observer": "Raising", "event": "int"}


async def test_a_slow_observer_does_not_hold_up_the_loop_and_closing_waits_for_it(
    store: AgentStore, registered: Callable[[Any], Any]
) -> None:
    gate = threading.Event()
    slow = registered(Recorder(gate))
    for number in range(3):
        await store.sessions.append("s", [{"n": number}])
    assert slow.events == []
    closing = asyncio.create_task(store.close())
    await asyncio.to_thread(slow.entered.wait, 60)
    assert not closing.done()
    gate.set()
    await closing
    assert len(slow.events) == 3


async def test_waiting_for_observers_is_bounded_and_only_the_first_waits_for_one_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = threading.Event()
    hub, hanging, other = Observers(find=list), Recorder(gate), Recorder()
    hub.register(hanging)
    hub.register(other)
    hub.put("event")
    assert await hub.catch_up(0) is False
    assert await hub.catch_up(3600) is False
    assert len(caplog.records) == 1
    gate.set()
    await asyncio.to_thread(other.entered.wait, 60)
    assert await hub.catch_up(60) is True
    assert other.events == ["event"]
    hub.leave()


def test_a_loop_that_ended_while_observers_were_slow_is_not_missed() -> None:
    gate = threading.Event()
    hub = Observers(find=list)
    slow, other = Recorder(gate), Recorder()
    hub.register(slow)
    hub.register(other)
    hub.put(1)
    assert asyncio.run(hub.catch_up(0)) is False
    gate.set()
    assert other.entered.wait(60)
    hub.put(2)
    assert asyncio.run(hub.catch_up(60)) is True
    assert slow.events == [1, 2]
    hub.leave()


async def test_when_too_many_wait_new_ones_are_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    hub, slow = Observers(find=list, backlog=2), Recorder(gate)
    hub.register(slow)
    hub.put(1)
    await asyncio.to_thread(slow.entered.wait, 60)
    for number in (2, 3, 4, 5):
        hub.put(number)
    assert hub.dropped == 2
    gate.set()
    await hub.catch_up(60)
    assert slow.events == [1, 2, 3]
    assert [vars(record)["perdure"] for record in caplog.records] == [{"backlog": 2, "dropped": 1}]
    gate.clear()
    slow.entered.clear()
    hub.put(6)
    await asyncio.to_thread(slow.entered.wait, 60)
    for number in (7, 8, 9):
        hub.put(number)
    gate.set()
    await hub.catch_up(60)
    assert (slow.events, hub.dropped, len(caplog.records)) == ([1, 2, 3, 6, 7, 8], 3, 2)
    hub.leave()


async def test_an_observer_does_not_hear_of_what_it_does_itself(registered: Callable[[Any], Any]) -> None:
    class Keeping:
        def __init__(self) -> None:
            self.heard = self.kept = 0

        @hookimpl
        def perdure_event(self, event: object) -> None:
            self.heard += 1
            asyncio.run(self.keep())

        async def keep(self) -> None:
            async with open_store("memory:") as store:
                await store.sessions.append("log", [{"n": self.heard}])
            self.kept += 1

    keeping = registered(Keeping())
    observe("event")
    await observers.catch_up()
    assert (keeping.heard, keeping.kept) == (1, 1)


async def test_events_of_many_threads_are_each_heard_once_in_their_order(recorder: Recorder) -> None:
    def send(thread: int) -> None:
        for number in range(200):
            observe((thread, number))

    await asyncio.gather(*(asyncio.to_thread(send, thread) for thread in range(4)))
    await observers.catch_up()
    for thread in range(4):
        assert [event for event in recorder.events if event[0] == thread] == [(thread, n) for n in range(200)]


# --- registering ---


def test_what_the_thread_looks_with_is_imported_before_it_starts() -> None:
    """A child that is forked while another thread imports waits for ever for what it imports itself."""
    code = """
import sys, threading
from perdure.observers import Observers
start = threading.Thread.start
def noted(thread):
    print("importlib.metadata" in sys.modules)
    start(thread)
threading.Thread.start = noted
print("importlib.metadata" in sys.modules)
seen = Observers()
seen._start()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "True"]


async def test_registering_twice_is_registering_once_and_it_can_be_taken_back(recorder: Recorder) -> None:
    observers.register(recorder)
    observe(1)
    await observers.catch_up()
    observers.unregister(recorder)
    observers.unregister(recorder)
    observe(2)
    await observers.catch_up()
    assert recorder.events == [1]
    observers.register(recorder)
    observe(3)
    await observers.catch_up()
    assert recorder.events == [1, 3]


async def test_without_observers_the_thread_ends_and_nothing_is_sent() -> None:
    hub = Observers(find=list)
    hub.put(1)
    thread = hub._thread
    assert thread is None or await hub.catch_up(60)
    if thread is not None:
        await asyncio.to_thread(thread.join, 60)
    assert (hub.wanted, hub._thread) == (False, None)
    recorder = Recorder()
    hub.register(recorder)
    hub.put(2)
    await hub.catch_up(60)
    thread = hub._thread
    assert thread is not None
    hub.unregister(recorder)
    await asyncio.to_thread(thread.join, 60)
    assert (recorder.events, hub.wanted, hub._thread) == ([2], False, None)
    hub.put(3)  # by one that had looked at `wanted` just before
    hub.register(recorder)
    hub.put(4)
    await hub.catch_up(60)
    assert recorder.events == [2, 4]
    hub.leave()
    hub.register(recorder)
    assert hub.wanted is False


async def test_what_is_no_observer_is_refused() -> None:
    class Unmarked:
        def perdure_event(self, event: object) -> None: ...

    class Asynchronous:
        @hookimpl
        async def perdure_event(self, event: object) -> None: ...

    class Misspelt:
        @hookimpl
        def perdure_events(self, event: object) -> None: ...

    class Greedy:
        @hookimpl
        def perdure_event(self, event: object, session: object) -> None: ...

    for plugin, problem in (
        (Unmarked(), "marked by @hookimpl"),
        (Asynchronous(), "async perdure_event"),
        (Misspelt(), "unknown hook"),
        (Greedy(), "session"),
        (None, "no function"),
    ):
        with pytest.raises(InvalidArgumentError, match=problem):
            observers.register(plugin)


async def test_without_threads_nothing_is_told_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    hub = Observers(find=list)
    hub.register(Recorder())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        hub.put(1)
    assert hub.wanted is False
    assert "could not be started" in caplog.text
    assert await hub.catch_up(60) is True


async def test_observers_that_cannot_be_listed_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> NoReturn:
        raise OSError("the path is odd")

    hub, recorder = Observers(find=fail), Recorder()
    hub.register(recorder)
    hub.put(1)
    await hub.catch_up(60)
    assert recorder.events == [1]
    assert "could not be listed" in caplog.text
    hub.leave()
