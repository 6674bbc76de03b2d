"""The blocking API: the async one, for callers that have no event loop."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import pickle
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from core.tests import blocking_stub, blocking_user
from core.tests.blocking_world import calling, echo, echoing

from perdure import Agent as AsyncAgent
from perdure import Session as AsyncSession
from perdure import ToolCall, blocking, tool
from perdure.blocking import BlockingCallError
from perdure.blocking.facade import HIDDEN, Facade, Items
from perdure.blocking.loop import loop_thread
from perdure.errors import (
    ApprovalNotFoundError,
    InvalidArgumentError,
    PerdureError,
    PropagatingToolError,
    StoreClosedError,
    StreamError,
    UnknownSchemeError,
    VersionConflictError,
    WrongLoopError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors cannot be counted here")
THREADS = 20


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'agent.db'}"


@pytest.fixture
def store(url: str) -> Iterator[blocking.AgentStore]:
    with blocking.open_store(url) as opened:
        yield opened


# --- the types ---


def test_the_stub_is_what_the_async_classes_make_of_it() -> None:
    is_same = blocking_stub.STUB.read_text(encoding="utf-8") == blocking_stub.make()
    assert is_same, f"a public name has changed: write the stub again by `{blocking_stub.COMMAND}`, and commit it"


def test_the_stub_has_what_the_objects_have(store: blocking.AgentStore) -> None:
    agent = echoing(store)
    session = agent.session()
    objects = [store, store.sessions, store.checkpoints, store.approvals, agent, agent.approvals, session]
    objects += [session.stream("Hi"), blocking.Worker(agent)]
    assert {type(one) for one in objects} == set(Facade._kinds.values())
    classes = {
        node.name: {line.name for line in node.body if isinstance(line, ast.FunctionDef)}
        for node in ast.parse(blocking_stub.STUB.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    for one in objects:
        names = {name for name in dir(one) if not name.startswith("_")}
        assert names <= {name for name in classes[type(one).__name__] if not name.startswith("_")}
        assert not names & HIDDEN


@pytest.mark.parametrize(
    ("method", "made"),
    [
        ("async def f(self) -> TurnResult: ...", "def f(self) -> TurnResult:"),
        ("def f(self) -> Coroutine[Any, Any, Session | None]: ...", "def f(self) -> Session | None:"),
        ("def f(self) -> Awaitable[int]: ...", "def f(self) -> int:"),
        ("async def f(self) -> AsyncIterator[Message]: ...", "def f(self) -> Items[Message]:"),
        ("def f(self, *, at: int=-1, why: Sequence[str]=()) -> None: ...", "def f(self, *, at: int=..., why: Sequence[str]=()) -> None:"),
        ("def f(self, a: AgentStore, /) -> AsyncGenerator[int, None]: ...", "def f(self, a: AgentStore, /) -> Items[int]:"),
    ],
)  # fmt: skip
def test_the_stub_says_what_the_wait_gives(method: str, made: str) -> None:
    (function,) = ast.parse(method).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert blocking_stub._signature(function, sys.modules[AsyncSession.__module__], blocking_stub.Names()) == made


def test_every_public_method_of_the_async_classes_is_there() -> None:
    for kind, facade in Facade._kinds.items():
        for name in set(dir(kind)) - HIDDEN:
            if not name.startswith("_") and callable(getattr(kind, name)):
                assert getattr(facade, name).__doc__ == getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


def test_a_typed_script_runs_and_its_types_are_checked_by_make_check(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocking_user.main(url)
    assert capsys.readouterr().out.splitlines() == ["awaiting-approval", "Paid.", "You are welcome.", "6 True"]


# --- the same as the async API ---


def test_a_turn_runs_and_a_stream_shows_one(store: blocking.AgentStore) -> None:
    session = echoing(store).session("s1")
    assert session.send("one").text == "You said one."
    with session.stream("two") as run:
        kinds = [event.type for event in run]
    assert kinds == ["run.started", "model.responded", "run.done"]
    assert run.result.text == "You said two."
    assert [message.text for message in session.messages] == ["one", "You said one.", "two", "You said two."]
    assert list(run) == []


def test_what_belongs_to_an_object_is_the_same_object(store: blocking.AgentStore) -> None:
    agent = echoing(store)
    session = agent.session("s1", store=store)
    assert (session.agent, session.store, agent.store) == (agent, store, store)
    assert len({agent, session.agent, store}) == 2
    assert agent != echoing(store)
    assert session != object()
    assert isinstance(session, blocking.Session)
    assert isinstance(agent.approvals, blocking.AgentApprovals)
    assert "sessions" in store
    assert "ownership" not in store
    assert repr(agent).startswith("<perdure.blocking.Agent of <perdure.runtime.agent.Agent object")


def test_attributes_can_be_read_and_not_set(store: blocking.AgentStore) -> None:
    session = echoing(store).session("s1", scope="acme")
    assert (session.id, session.scope, session.agent.name) == ("s1", "acme", "agent")
    assert {"id", "scope", "send"} <= set(dir(session))
    with pytest.raises(AttributeError):
        session.scope = "other"  # type: ignore[misc]  # reason: it must be refused
    for name in (*HIDDEN, "_view", "no_such"):
        assert name not in dir(store)
        with pytest.raises(AttributeError, match=name):
            getattr(store, name)


def test_names_signatures_and_texts_are_those_of_the_async_api() -> None:
    assert inspect.signature(blocking.Agent) == inspect.signature(AsyncAgent)
    assert inspect.signature(blocking.Agent.run) == inspect.signature(AsyncAgent.run)
    assert blocking.Session.send.__doc__ == AsyncSession.send.__doc__
    assert blocking.Session.send.__doc__
    assert sorted(blocking.__all__) == blocking.__all__
    assert all(hasattr(blocking, name) for name in blocking.__all__)


def test_a_bundle_may_be_made_of_parts_of_others(store: blocking.AgentStore) -> None:
    with blocking.open_store("memory:", sessions=store.sessions) as mixed:
        echoing(mixed).session("s1").send("Hi")
    both = store.sessions.load("s1"), mixed.sessions
    assert both[0] is not None
    assert both[1] == store.sessions
    made = blocking.AgentStore(sessions=store.sessions, checkpoints=store.checkpoints)
    assert "approvals" not in made
    assert echoing(made).session("s1").send("Again").text == "You said Again."


def test_a_run_without_a_session_and_an_approval(store: blocking.AgentStore) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = blocking.Agent(model=calling("pay"), tools=[pay], store=store)
    waiting = agent.run("Pay", run_id="r1")
    assert waiting.finish_reason == "awaiting-approval"
    assert [one.id for one in agent.approvals.list().items] == list(waiting.approval_ids)
    store.decide(waiting.approval_ids[0], approved=True)
    (pending,) = agent.pending()
    assert pending.status == "ready"
    result = agent.resume(pending.run_id or "")
    assert result is not None
    assert (result.text, agent.run("Pay", run_id="r1").text) == ("Done.", "Done.")


def test_a_worker_sweeps_and_runs_until_it_is_stopped(store: blocking.AgentStore) -> None:
    agent = echoing(store)
    worker = blocking.Worker(agent, poll=timedelta(milliseconds=1))
    agent.session("s1").submit("one")
    assert [turn.session_id for turn in worker.sweep().resumed] == ["s1"]
    session, done = agent.session("s2"), threading.Event()
    stop = session.on(lambda event: done.set() if event.type == "run.done" else None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    session.submit("two")
    assert done.wait(60)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    stop()
    assert [message.text for message in session.load()] == ["two", "You said two."]


def test_a_listener_hears_until_it_is_ended(store: blocking.AgentStore) -> None:
    session, heard = echoing(store).session("s1"), list[str]()
    stop = session.on(lambda event: heard.append(event.type))
    session.send("one")
    stop()
    stop()
    session.send("two")
    assert heard == ["run.started", "model.responded", "run.done"]


def test_a_state_is_changed_by_a_plain_and_by_an_async_function(store: blocking.AgentStore) -> None:
    session = echoing(store).session("s1")

    async def later(state: dict[str, Any]) -> dict[str, Any]:
        return state | {"b": 2}

    session.update_state(lambda state: state | {"a": 1})
    assert session.update_state(later) == {"a": 1, "b": 2}


def test_an_async_iterator_is_an_iterator_and_can_be_closed() -> None:
    ended = list[str]()

    async def count() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            ended.append("ended")

    assert list(Items(count(), loop_thread())) == [0, 1, 2]
    items: Items[int] = Items(count(), loop_thread())
    assert next(items) == 0
    items.close()
    assert (list(items), ended) == ([], ["ended", "ended"])


# --- errors ---


class RefusedError(PropagatingToolError):
    """An error of a user's own."""


def test_errors_keep_their_type_their_attributes_and_a_traceback_that_tells_where(store: blocking.AgentStore) -> None:
    raised = ValueError("no model today")
    raised.order = 7  # type: ignore[attr-defined]  # reason: a fact of the test's own

    async def fail(_: ModelRequest) -> ModelResponse:
        raise raised

    agent = blocking.Agent(model=FunctionModel(fail), store=store)
    with pytest.raises(ValueError, match="no model today") as caught:
        agent.session("s1").send("Hi")
    assert caught.value is raised
    assert caught.value.order == 7  # type: ignore[attr-defined]  # reason: as above
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[0] == "test_errors_keep_their_type_their_attributes_and_a_traceback_that_tells_where"
    assert frames[-1] == "fail"
    assert frames.index("send") < 6  # few frames of ours stand between the caller and the method
    with pytest.raises(VersionConflictError) as conflict:
        store.sessions.append("s1", [], expected_version=1)
    assert (conflict.value.expected, conflict.value.key) == (1, "s1")
    with pytest.raises(ApprovalNotFoundError):
        store.decide("s1.turn-1.s1.c1", approved=True)
    with pytest.raises(UnknownSchemeError):
        blocking.open_store("nothing:here")
    with pytest.raises(InvalidArgumentError):
        blocking.Agent(model="gpt", store=store)  # type: ignore[arg-type]  # reason: it must be refused
    with pytest.raises(InvalidArgumentError):
        agent.session("s1", turn_policy="never")  # type: ignore[arg-type]  # reason: the same


def test_what_a_stream_raises_comes_out_of_its_block(store: blocking.AgentStore) -> None:
    @tool
    def pay() -> str:
        raise RefusedError("no")

    session = blocking.Agent(model=calling("pay"), tools=[pay], store=store).session("s1")
    kinds: list[str] = []
    with pytest.raises(RefusedError) as caught, session.stream("Pay") as run:
        kinds += [event.type for event in run]
    assert kinds[-1] == "error"
    with pytest.raises(RefusedError) as again:
        _ = run.result
    assert again.value is caught.value


def test_closed_twice_is_closed_once_and_then_refuses(store: blocking.AgentStore) -> None:
    agent = echoing(store)
    session = agent.session("s1")
    session.send("Hi")
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: session.send("Hi"),
        session.load,
        lambda: agent.run("Hi"),
        agent.pending,
        lambda: store.sessions.load("s1"),
        lambda: store.prune(older_than=timedelta(0)),
        lambda: blocking.Worker(agent).sweep(),
    ]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
    with pytest.raises(StoreClosedError), session.stream("Hi") as run:
        list(run)
    assert len(session.messages) == 2  # what was read stays


def test_an_error_of_the_block_is_not_hidden_by_one_of_closing() -> None:
    async def fail() -> None:
        raise PerdureError("closing failed")

    with pytest.raises(ValueError, match="mine") as caught, blocking.AgentStore(closing=fail):
        raise ValueError("mine")
    assert caught.value.__notes__ == ["then closing failed: closing failed"]
    with pytest.raises(PerdureError, match="closing failed"), blocking.AgentStore(closing=fail):
        pass


def test_streams_say_when_they_are_used_wrongly(store: blocking.AgentStore) -> None:
    run = echoing(store).session("s1").stream("Hi")
    with pytest.raises(StreamError):
        next(run)
    with pytest.raises(StreamError):
        _ = run.result
    with run:
        list(run)
    with pytest.raises(StreamError), run:
        pass


# --- loops ---


def test_in_a_running_loop_every_call_that_waits_is_refused_with_the_way_out(store: blocking.AgentStore) -> None:
    agent = echoing(store)
    session = agent.session("s1")

    async def main() -> None:
        with pytest.raises(BlockingCallError, match=r"Session\.send cannot wait here: an event loop runs") as caught:
            session.send("Hi")
        assert "asyncio.to_thread" in caught.value.__notes__[0]
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        for call in (agent.pending, store.close, lambda: blocking.open_store("memory:"), blocking.Worker(agent).run):
            with pytest.raises(BlockingCallError):
                call()
        with pytest.raises(BlockingCallError), session.stream("Hi"):
            pass
        assert agent.session("s2").messages == ()  # nothing waits for a store here
        assert (await asyncio.to_thread(session.send, "Hi")).text == "You said Hi."

    asyncio.run(main())


def test_an_async_tool_is_refused_and_a_sync_one_may_call(store: blocking.AgentStore) -> None:
    said: list[str] = []

    @tool
    async def inside() -> str:
        said.append(inner.session("other").id)
        inner.session("other").send("Hi")
        return "never"

    @tool
    def beside() -> str:
        return inner.session("other").send("Hi").text

    inner = echoing(store)
    result = blocking.Agent(model=calling("inside", "beside"), tools=[inside, beside], store=store).run("Go")
    answers = [message for message in result.messages if message.role == "tool"]
    assert [answer.is_error for answer in answers] == [True, False]
    assert "own event loop" in answers[0].text
    assert "You said Hi." in answers[1].text
    assert said == ["other"]


def test_a_tool_that_calls_its_own_session_is_refused(store: blocking.AgentStore) -> None:
    @tool
    def again() -> str:
        return session.send("Me, too").text

    session = blocking.Agent(model=calling("again"), tools=[again], store=store).session("s1")
    answer = session.send("Go").messages[2]
    assert answer.is_error
    assert session.messages[-1].text == "Done."


def test_tools_that_wait_for_tools_do_not_starve(store: blocking.AgentStore) -> None:
    """More of them than any pool of the standard library has threads."""
    count = min(32, (os.cpu_count() or 1) + 4) + 4
    barrier = threading.Barrier(count, timeout=60)

    @tool
    def inside() -> str:
        return "seen"

    @tool
    def outside() -> str:
        barrier.wait()
        return inner.run("Go").text

    inner = blocking.Agent(model=calling("inside"), tools=[inside], store=store, name="inner")
    result = blocking.Agent(model=calling(*["outside"] * count), tools=[outside], store=store).run("Go")
    assert [message.text for message in result.messages if message.role == "tool"] == ["Done."] * count


def test_it_goes_on_after_a_loop_of_the_users_own(store: blocking.AgentStore) -> None:
    session = echoing(store).session("s1")
    session.send("one")

    async def own() -> int:
        async with asyncio.timeout(60):
            return len(await asyncio.to_thread(session.load))

    assert asyncio.run(own()) == 2
    session.send("two")
    assert asyncio.run(own()) == 4


def test_a_store_of_the_blocking_api_is_no_store_of_the_async_one(store: blocking.AgentStore) -> None:
    async def main() -> None:
        with pytest.raises(WrongLoopError):
            await store._target.sessions.load("s1")  # type: ignore[attr-defined]  # reason: what stands behind it
        with pytest.raises(InvalidArgumentError, match="must be an open AgentStore"):
            AsyncAgent(model=FunctionModel(echo), store=store)  # type: ignore[arg-type]  # reason: it must be refused

    store.sessions.load("s1")
    asyncio.run(main())


def test_what_ends_a_process_ends_only_its_call(store: blocking.AgentStore) -> None:
    """A tool that calls `sys.exit` must not take the loop along, which all other threads wait for."""

    async def leave(_: ModelRequest) -> ModelResponse:
        sys.exit(3)

    with pytest.raises(SystemExit) as caught:
        blocking.Agent(model=FunctionModel(leave), store=store).session("s1").send("Hi")
    assert caught.value.code == 3
    assert echoing(store).session("s2").send("Hi").text == "You said Hi."


def test_tools_models_and_listeners_see_the_context_of_the_caller(store: blocking.AgentStore) -> None:
    user: ContextVar[str] = ContextVar("user")
    seen: list[str] = []

    @tool
    def plain() -> str:
        seen.append(f"plain {user.get()}")
        return "ok"

    @tool
    async def awaited() -> str:
        seen.append(f"async {user.get()}")
        user.set("nobody")
        return "ok"

    async def answer(request: ModelRequest) -> ModelResponse:
        seen.append(f"model {user.get()}")
        return ModelResponse(tool_calls=[ToolCall("c1", "plain", {}), ToolCall("c2", "awaited", {})])

    async def say(request: ModelRequest) -> ModelResponse:
        return await answer(request) if request.messages[-1].role == "user" else ModelResponse(text="Done.")

    agent = blocking.Agent(model=FunctionModel(say), tools=[plain, awaited], store=store)
    user.set("ann")
    agent.session("s1").send("Hi")
    assert sorted(seen) == ["async ann", "model ann", "plain ann"]
    with agent.session("s1").stream("Hi") as run:
        list(run)
    assert sorted(seen) == sorted(["async ann", "model ann", "plain ann"] * 2)
    assert user.get() == "ann"


# --- threads ---


def test_many_threads_on_one_session_are_served_one_after_another(store: blocking.AgentStore) -> None:
    session = echoing(store).session("s1")
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda number: session.send(f"n{number}"), range(THREADS)))
    assert [result.text for result in results] == [f"You said n{number}." for number in range(THREADS)]
    texts = [message.text for message in session.load()]
    assert len(texts) == 2 * THREADS
    assert all(answer == f"You said {given}." for given, answer in zip(texts[::2], texts[1::2], strict=True))


def test_many_threads_on_many_sessions_run_at_once(url: str) -> None:
    """As a web framework does: one store and one agent for the process, a session for each request."""
    barrier = threading.Barrier(THREADS, timeout=60)

    @tool
    def meet() -> str:
        barrier.wait()  # only if all turns run at once does anybody come through
        return "met"

    def serve(number: int) -> str:
        session = agent.session(f"user-{number}")
        with session.stream("Hi") as run:
            assert [event.type for event in run][-1] == "run.done"
        return f"{run.result.text} {len(session.load())}"

    with blocking.open_store(url) as store, ThreadPoolExecutor(THREADS) as pool:
        agent = blocking.Agent(model=calling("meet"), tools=[meet], store=store)
        assert list(pool.map(serve, range(THREADS))) == ["Done. 4"] * THREADS


def test_threads_may_open_stores_at_once(tmp_path: Path) -> None:
    def use(number: int) -> str:
        with blocking.open_store(f"sqlite:{tmp_path / f'{number % 3}.db'}") as store:
            return echoing(store).session(f"s{number}").send("Hi").text

    with ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(use, range(THREADS))) == {"You said Hi."}


@needs_proc
@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.soak)])
def test_opening_and_closing_leaves_no_thread_and_no_descriptor(tmp_path: Path, rounds: int) -> None:
    def use(times: int) -> tuple[int, int]:
        for number in range(times):
            with blocking.open_store(f"sqlite:{tmp_path / 'agent.db'}") as store:
                store.sessions.append(f"s{number}", [{"text": "kept"}])
            if number % 10 == 0:
                with pytest.raises(PerdureError):
                    blocking.open_store(f"sqlite:{tmp_path}")
        for thread in set(threading.enumerate()) - before:
            if not thread.name.startswith(("perdure-blocking", "perdure-observers")):
                thread.join(60)
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = set(threading.enumerate())
    first = use(3)
    assert use(rounds) == first
