"""Observers: what they hear, and that nothing they do reaches a turn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from perdure import Agent, AgentStore, codec, observers, open_store
from perdure.backend import (
    Approval,
    ApprovalStore,
    CheckpointHead,
    CheckpointReplace,
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionAppend,
    SessionStore,
    StoredTranscript,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
    hookimpl,
)
from perdure.clock import SYSTEM_CLOCK
from perdure.events import RunStarted, StoreCalled
from perdure.listening import Channel
from perdure.models import ScriptedModel
from perdure.observers import Observers, observe
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class Recorder:
    """Keeps what it hears; waits at a gate before it takes note, if there is one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.events: list[Any] = []
        self.entered = threading.Event()
        self.gate = gate

    @hookimpl
    def perdure_event(self, event: object) -> None:
        self.entered.set()
        if self.gate is not None:
            self.gate.wait(60)
        self.events.append(event)

    def calls(self) -> list[tuple[str, str, str]]:
        return [(event.part, event.operation, event.outcome) for event in self.events]


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


# --- what observers hear ---


async def test_every_call_of_each_part_is_told(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    version = await store.sessions.append("s", [{"n": 1}])
    version = await store.sessions.replace("s", [{"n": 2}], expected_version=version)
    await store.sessions.load("s")
    await store.sessions.list()
    head = CheckpointHead(status="idle", session_id="s", agent="a")
    turn = await store.checkpoints.append("s", [{"n": 1}], expected_version=0, head=head)
    turn = await store.checkpoints.replace("s", [], expected_version=turn, head=head)
    await store.checkpoints.load("s")
    await store.checkpoints.list()
    await store.write(SessionAppend("s", [], version), CheckpointReplace("s", [], head, turn))
    await store.approvals.create(request(clock))
    await store.approvals.get("s.s1.c1")
    await store.approvals.decide("s.s1.c1", approved=True)
    await store.approvals.list()
    for part, key in ((store.approvals, "s.s1.c1"), (store.sessions, "s"), (store.checkpoints, "s")):
        await part.delete(key)
    await observers.catch_up()
    assert {outcome for _, _, outcome in recorder.calls()} == {"ok"}
    assert [f"{part} {operation}" for part, operation, _ in recorder.calls()] == [
        *(f"sessions {operation}" for operation in ("append", "replace", "load", "list")),
        *(f"checkpoints {operation}" for operation in ("append", "replace", "load", "list", "write")),
        *(f"approvals {operation}" for operation in ("create", "get", "get", "decide", "list", "delete")),
        "sessions delete",
        "checkpoints delete",
    ]


def request(clock: ManualClock) -> Approval:
    arguments = {"to": "a secret"}
    return Approval("s.s1.c1", "s", "c1", "pay", arguments, clock.now(), session_id="s", agent="a")


async def test_the_size_is_that_of_the_encoded_bytes(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    records, state = [{"text": "ä" * 100}, {}], {"mood": "good"}
    stored = sum(len(codec.encode(value, "")) for value in (*records, state))
    version = await store.sessions.append("s", records, state=state)
    await store.sessions.load("s")
    await store.sessions.load("s", limit=0)
    await store.sessions.load("absent")
    head = CheckpointHead(status="idle", session_id="s", agent="a")
    turn = await store.checkpoints.append("s", [{"n": 1}], expected_version=0, head=head)
    await store.checkpoints.load("s")
    await store.write(SessionAppend("s", records, version), CheckpointReplace("s", [{"n": 1}], head, turn))
    approval = await store.approvals.create(request(clock))
    await store.approvals.list()
    await store.sessions.delete("s")
    await observers.catch_up()
    entry, small = len(b'{"n":1}'), len(codec.encode(state, ""))
    headed = recorder.events[4].size
    assert headed > entry
    assert [event.size for event in recorder.events] == [
        stored,
        stored,
        small,
        0,
        headed,
        headed,
        stored - small + headed,
        len(approval.encode()),
        len(approval.encode()),
        0,
    ]


async def test_neither_ids_nor_content_are_told(store: AgentStore, clock: ManualClock, recorder: Recorder) -> None:
    await store.sessions.append("private-id", [{"text": "a secret"}], state={"text": "a secret"})
    await store.approvals.create(request(clock))
    with pytest.raises(VersionConflictError):
        await store.sessions.append("private-id", [{"text": "a secret"}], expected_version=1)
    await observers.catch_up()
    told = repr(recorder.events)
    assert len(recorder.events) == 3
    assert "secret" not in told
    assert "private-id" not in told


class Odd(SessionStore):
    """A third party's store: it calls no `super().__init__()`, and has names of its own."""

    def __init__(self, behave: Callable[[], Any]) -> None:
        self.behave = behave
        self.sink = self._sink = self.watch = self._watch = "mine"

    async def _load(self, session_id: str, **_: Any) -> StoredTranscript | None:
        return await self.behave()  # type: ignore[no-any-return]  # reason: the test says what

    async def _append(self, session_id: str, records: tuple[bytes, ...], **_: Any) -> int:
        return await self.behave()  # type: ignore[no-any-return]  # reason: the test says what


async def test_duration_and_instant_are_by_the_clock_of_the_bundle(clock: ManualClock, recorder: Recorder) -> None:
    async def slow() -> int:
        clock.advance(timedelta(seconds=7))
        return 1

    store = AgentStore(sessions=Odd(slow), clock=clock)
    await store.sessions.append("s", [])
    await store.close()
    (event,) = recorder.events
    assert (event.duration, event.at) == (timedelta(seconds=7), clock.now())
    assert event == StoreCalled(
        part="sessions", operation="append", duration=event.duration, outcome="ok", size=0, at=event.at
    )


async def test_the_outcome_is_the_error_that_the_caller_gets(recorder: Recorder) -> None:
    async def fail() -> NoReturn:
        raise OSError("no route to host")

    store = AgentStore(sessions=Odd(fail))
    with pytest.raises(StoreUnavailableError):
        await store.sessions.load("s")
    with pytest.raises(OutcomeUnknownError):
        await store.sessions.append("s", [{}])
    await store.close()
    assert recorder.calls() == [
        ("sessions", "load", "StoreUnavailableError"),
        ("sessions", "append", "OutcomeUnknownError"),
    ]
    assert [event.size for event in recorder.events] == [0, 2]


async def test_a_cancelled_call_is_told(recorder: Recorder) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    store = AgentStore(sessions=Odd(hang))
    task = asyncio.create_task(store.sessions.append("s", [{}]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    assert recorder.calls() == [("sessions", "append", "CancelledError")]


async def test_what_a_store_of_a_third_party_answers_is_measured_or_left_alone(recorder: Recorder) -> None:
    class Strange:
        def encode(self) -> NoReturn:
            raise RuntimeError("not like that")

    answers: list[Any] = [None, Strange()]

    async def answer() -> Any:
        return answers.pop(0)

    store = AgentStore(sessions=Odd(answer))
    assert await store.sessions.load("s") is None
    with pytest.raises(AttributeError):
        await store.sessions.load("s")  # what it answers is no transcript, with and without observers
    await store.close()
    assert [event.size for event in recorder.events] == [0, 0]


async def test_refused_arguments_absent_parts_and_stores_without_a_bundle_tell_nothing(recorder: Recorder) -> None:
    async def nothing() -> None:
        return None

    store = AgentStore()
    with pytest.raises(UnsupportedOperationError):
        await store.sessions.load("s")
    assert await Odd(nothing).load("s") is None
    with pytest.raises(InvalidArgumentError):
        await AgentStore(sessions=Odd(nothing)).sessions.load("s", limit=-1)
    await store.close()
    assert recorder.events == []


async def test_a_part_that_is_no_store_of_ours_is_left_alone() -> None:
    class Duck:
        pass

    duck: Any = Duck()
    assert AgentStore(approvals=duck).approvals is duck
    assert vars(duck) == {}
    assert not isinstance(duck, ApprovalStore)


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
    observed = [event for event in recorder.events if event.type != "store.called"]
    assert [event.type for event in streamed][-2:] == ["model.responded", "run.done"]
    assert [*map(id, streamed)] == [*map(id, listened)] == [*map(id, observed)]
    assert [event.seq for event in streamed] == list(range(1, len(streamed) + 1))
    stored = [(event.part, event.operation) for event in recorder.events if event.type == "store.called"]
    assert stored[-1] == ("checkpoints", "write")
    assert recorder.events[-1] is streamed[-1]  # told only after it was saved


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


# --- installed observers, each time in a process of its own ---

GOOD = """
from perdure.backend import hookimpl

@hookimpl
def perdure_event(event):
    print(__name__, event.operation, flush=True)
"""

USE = """
import asyncio, os, sys, threading
from perdure import observers, open_store

async def use(*operations):
    async with open_store(f"memory:{os.getpid()}") as store:
        for name in operations:
            await (store.sessions.append("s", []) if name == "append" else store.sessions.load("s"))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Install modules as observers, each by a distribution of its own, and run code."""

    def run(code: str, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, source in modules.items():
            info = tmp_path / f"{name}_dist-1.0.dist-info"
            info.mkdir()
            info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
            info.joinpath("entry_points.txt").write_text(f"[perdure.observers]\n{name} = {name}\n")
            tmp_path.joinpath(f"{name}.py").write_text(source)
        text = f"import sys\nsys.path.append({str(tmp_path)!r})\n{USE}{textwrap.dedent(code)}"
        command = [sys.executable, "-W", "error", "-c", text]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_an_installed_observer_is_imported_at_the_first_event_and_hears_it(run: Run) -> None:
    done = run(
        """
        asyncio.run(use())
        print("good" in sys.modules, threading.active_count())
        asyncio.run(use("append", "load"))
        print("good" in sys.modules)
        """,
        good=GOOD,
    )
    assert (done.stdout.split("\n"), done.stderr) == (
        ["False 1", "good append", "good load", "True", ""],
        "",
    )


def test_a_process_without_observers_has_no_thread_and_sends_nothing(run: Run) -> None:
    done = run(
        """
        asyncio.run(use("append"))
        thread = next((one for one in threading.enumerate() if one.name == "perdure-observers"), None)
        if thread is not None:
            thread.join(30)
        observers.Observers.put = None  # nobody calls it
        asyncio.run(use("append"))
        print(observers._observers.wanted, threading.active_count())
        """
    )
    assert (done.stdout, done.stderr) == ("False 1\n", "")


def test_observers_that_do_not_load_are_reported_once_and_hinder_nobody(run: Run) -> None:
    done = run(
        'asyncio.run(use("append", "load"))',
        absent="import no_such_module",
        leaving="raise SystemExit(3)",
        odd="def perdure_event(event: pass",
        unmarked="def perdure_event(event): pass",
        zgood=GOOD,
    )
    assert done.stdout.split("\n") == ["zgood append", "zgood load", ""]
    for name in ("absent", "leaving", "odd", "unmarked"):
        assert done.stderr.count(f"observer '{name}' of {name}-dist 1.0 does not load") == 1
    assert done.returncode == 0


def test_a_broken_distribution_and_one_that_is_there_twice(run: Run, tmp_path: Path) -> None:
    nameless = tmp_path / "nameless-1.0.dist-info"
    nameless.mkdir()
    nameless.joinpath("entry_points.txt").write_text("[perdure.observers]\nnameless = nameless\n")
    again = tmp_path / "later" / "good_dist-2.0.dist-info"
    again.mkdir(parents=True)
    again.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: Good.Dist\nVersion: 2.0\n")
    again.joinpath("entry_points.txt").write_text("[perdure.observers]\ngood = stale\n")
    code = f"sys.path.append({str(again.parent)!r})\nasyncio.run(use('append'))"
    done = run(code, good=GOOD)
    assert (done.stdout, done.stderr) == ("good append\n", "")


LEAVING = """
async def leave():
    store = await open_store("memory:left")
    await store.sessions.append("s", [])

asyncio.run(leave())
"""


def test_a_store_that_was_never_closed_ends_with_its_process_and_observers_hear_of_it(run: Run) -> None:
    done = run(LEAVING, good=GOOD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good append\n", "")


def test_an_observer_that_hangs_does_not_keep_the_process(run: Run) -> None:
    hanging = "import threading\n" + GOOD + "    threading.Event().wait()\n"
    done = run(LEAVING, hanging=hanging)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hanging append\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_has_a_thread_of_its_own(run: Run) -> None:
    good = GOOD.replace("print(", "import os; print('child' if os.getpid() != parent else 'parent', ")
    good = good.replace("@hookimpl", "import os\nparent = os.getpid()\n\n@hookimpl")
    done = run(
        """
        import warnings
        warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads
        asyncio.run(use("append"))
        if os.fork() == 0:
            asyncio.run(use("load", "append"))
            os._exit(0)
        print(os.wait()[1], flush=True)
        asyncio.run(use("load"))
        """,
        good=good,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n") == [
        "parent good append",
        "child good load",
        "child good append",
        "0",
        "parent good load",
        "",
    ]
