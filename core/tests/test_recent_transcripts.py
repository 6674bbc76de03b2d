"""What session objects have read is kept for those to come: they read what is new, and nobody sees what others changed."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import Held, another

from perdure import Agent, AgentStore, Message, Session, ToolCall, open_store, tool
from perdure.errors import InvalidArgumentError, OutcomeUnknownError, SessionConflictError, WrongLoopError
from perdure.events import ApprovalRequested, RunDone, ToolStarted
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure.recent import Recent
from perdure.runtime.transcript.digest import Digest
from perdure.runtime.transcript.reading import TranscriptView
from perdure_conformance.interception import Call, Interception
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


def agent(store: AgentStore) -> Agent:
    async def echo(request: ModelRequest) -> ModelResponse:
        return ModelResponse(f"re: {request.messages[-1].text}")

    return Agent(model=FunctionModel(echo), store=store)


async def texts(session: Session) -> list[str]:
    return [message.text for message in await session.load()]


class Thing:
    """Something that can be kept."""


def large(letter: str) -> dict[str, Any]:
    return {"kind": "message", "message": {"role": "user", "content": letter * 100_000}}


class Reads:
    """How many records each load of a transcript gave."""

    def __init__(self, store: AgentStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self._load = store.sessions.load
        monkeypatch.setattr(store.sessions, "load", self.load)

    async def load(self, session_id: str, **options: Any) -> Any:
        found = await self._load(session_id, **options)
        if options.get("limit") != 0:
            self.counts.append(0 if found is None else len(found.records))
        return found

    def new(self) -> list[int]:
        """Return the counts since the last time."""
        counts, self.counts = self.counts, []
        return counts


# --- what is read ---


async def test_a_fresh_session_object_reads_what_is_new(any_store: AgentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await agent(any_store).session("s").send(str(number))
    reads = Reads(any_store, monkeypatch)
    for number in range(5, 8):
        await agent(any_store).session("s").send(str(number))
    assert max(reads.new()) == 3  # the last one that was known, and a turn
    await agent(another(any_store)).session("s").send("elsewhere")
    found = await texts(agent(any_store).session("s"))
    assert reads.new() == [5]
    assert found == await texts(agent(another(any_store)).session("s"))
    assert len(found) == 18


async def test_a_bundle_without_such_memory_reads_all(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store("memory:", clock=clock, transcript_cache=0) as store:
        session = agent(store).session("s")
        for number in range(3):
            await session.send(str(number))
        reads = Reads(store, monkeypatch)
        await session.load()
        assert reads.new() == [3]  # the object that is held knows the rest
        del session
        await agent(store).session("s").load()
        assert reads.new() == [6]


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "32 MB", None])
async def test_a_limit_that_is_none_is_refused_before_anything_is_opened(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="transcript_cache"):
        AgentStore(transcript_cache=wrong)
    with pytest.raises(InvalidArgumentError, match="transcript_cache"):
        await open_store("no-such-scheme:", transcript_cache=wrong)


async def test_a_fresh_object_shows_nothing_that_it_has_not_read(store: AgentStore) -> None:
    first = agent(store).session("s")
    await first.send("hello")
    await first.update_state(lambda _: {"a": [1]})
    await first.load()
    fresh = agent(store).session("s")
    assert (fresh.messages, fresh.state) == ((), {})
    assert [message.text for message in await fresh.load()] == ["hello", "re: hello"]
    assert fresh.state == {"a": [1]}


async def test_several_objects_that_read_at_once_take_the_news_in_once(store: AgentStore) -> None:
    await agent(another(store)).session("s").send("one")
    sessions = [agent(store).session("s") for _ in range(5)]
    found = await asyncio.gather(*map(texts, sessions))
    assert found == [["one", "re: one"]] * 5
    await agent(another(store)).session("s").send("two")
    assert await asyncio.gather(*map(texts, sessions)) == [["one", "re: one", "two", "re: two"]] * 5


async def test_a_load_beside_a_turn_does_not_change_what_its_model_sees(store: AgentStore) -> None:
    seen: list[list[str]] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        await store.sessions.append("s", [{"kind": "message", "message": {"role": "user", "content": "between"}}])
        await agent(store).session("s").load()
        seen.append([message.text for message in request.messages])
        return ModelResponse("yes")

    await agent(store).session("s").send("one")
    with pytest.raises(SessionConflictError):
        await Agent(model=FunctionModel(answer), store=store).session("s").send("two")
    assert seen == [["one", "re: one", "two"]]


async def _deleted(store: AgentStore) -> None:
    await store.delete_session("s")


async def _pruned(store: AgentStore) -> None:
    await store.sessions.append("newest", [])
    await store.prune(older_than=timedelta(0))


async def _closed(store: AgentStore) -> None:
    await store.close()


@pytest.mark.parametrize("end", [_deleted, _pruned, _closed])
async def test_what_is_gone_is_not_kept_in_memory(store: AgentStore, clock: ManualClock, end: Any) -> None:
    await agent(store).session("s").send("one")
    await agent(store).session("s").load()
    clock.advance(timedelta(days=1))
    assert isinstance(store.transcripts.of("s", Thing), TranscriptView)
    await end(store)
    gc.collect()
    assert isinstance(store.transcripts.of("s", Thing), Thing)


async def test_a_conversation_that_another_process_made_anew_is_read_whole(store: AgentStore) -> None:
    await agent(store).session("s").send("one")
    assert len(await texts(agent(store).session("s"))) == 2
    other = another(store)
    await other.delete_session("s")
    assert await texts(agent(store).session("s")) == []
    await agent(other).session("s").send("two")
    assert await texts(agent(store).session("s")) == ["two", "re: two"]
    await agent(other).session("s").clear()
    await agent(other).session("s").send("three")
    assert await texts(agent(store).session("s")) == ["three", "re: three"]


async def test_a_copy_of_an_earlier_state_that_came_to_the_same_version_is_read_whole(store: AgentStore) -> None:
    """A backup was put back, or a server that took over lost what was acknowledged: version and creation are as before."""
    session = agent(store).session("s")
    await session.send("base")
    await session.load()
    before = await store.sessions.load("s")
    assert before is not None
    await session.send("lost")
    await session.load()
    other = another(store)
    await other.delete_session("s")
    await other.sessions.append("s", before.records, expected_version=0, version=before.version, at=before.created_at)
    await agent(other).session("s").send("right")
    after = await other.sessions.load("s")
    assert after is not None
    assert after.version == before.version + 1
    assert await texts(session) == await texts(agent(store).session("s")) == ["base", "re: base", "right", "re: right"]


async def test_the_same_version_written_at_another_time_is_read_whole(store: AgentStore, clock: ManualClock) -> None:
    """Also where the last record is too large to be compared."""
    version = await store.sessions.append("s", [large("a")])
    begun = clock.now()
    session = agent(store).session("s")
    assert [text[:1] for text in await texts(session)] == ["a"]
    other = another(store)
    await other.delete_session("s")
    await other.sessions.append("s", [], expected_version=0, version=version - 1, at=begun)
    clock.advance(timedelta(seconds=1))
    assert await other.sessions.append("s", [large("b")]) == version
    assert [text[:1] for text in await texts(session)] == ["b"]


async def test_a_read_that_hangs_holds_nobody_else_up(store: AgentStore) -> None:
    hang = Held("before")
    mine = another(store, hang)
    await agent(mine).session("s").send("one")
    hang.next = True
    hanging = asyncio.create_task(agent(mine).session("s").load())
    await hang.held.wait()
    await agent(mine).session("s").send("two")
    assert await texts(agent(mine).session("s")) == ["one", "re: one", "two", "re: two"]
    hang.go_on.set()
    assert [message.text for message in await hanging] == ["one", "re: one", "two", "re: two"]


async def test_a_turn_that_was_saved_is_shown_though_an_older_reading_ends_behind_it(store: AgentStore) -> None:
    slow = Held("after")
    mine = another(store, slow)
    session = agent(mine).session("s")
    await session.send("one")
    slow.next = True
    reading = asyncio.create_task(agent(mine).session("s").load())
    await slow.held.wait()
    await session.send("two")
    slow.go_on.set()
    shown = ["one", "re: one", "two", "re: two"]
    assert [message.text for message in session.messages] == shown
    assert [message.text for message in await reading] == shown
    assert [message.text for message in session.messages] == shown


async def test_another_loop_is_refused_while_one_reads(store: AgentStore) -> None:
    hang = Held("before")
    mine = another(store, hang)
    hang.next = True
    hanging = asyncio.create_task(agent(mine).session("s").load())
    await hang.held.wait()
    with pytest.raises(WrongLoopError):
        await asyncio.to_thread(lambda: asyncio.run(texts(agent(mine).session("s"))))
    hang.go_on.set()
    assert len(await hanging) == 0
    await asyncio.gather(agent(mine).session("s").send("one"), agent(mine).session("s").load())


async def test_what_a_failed_prune_removed_is_not_kept(store: AgentStore, clock: ManualClock) -> None:
    broken = Interception(before=_fails_at(4))
    mine = another(store, broken)
    for name in "abc":
        await agent(store).session(name).send("one")
        await agent(mine).session(name).load()
    clock.advance(timedelta(days=1))
    await store.sessions.append("newest", [])
    broken.calls.clear()
    with pytest.raises(OutcomeUnknownError):
        await mine.prune(older_than=timedelta(0))
    assert (await store.sessions.load("a"), "a" in mine.transcripts) == (None, False)


def _fails_at(number: int) -> Callable[[Call], Awaitable[None]]:
    async def before(call: Call) -> None:
        if call.number == number:
            raise ConnectionError

    return before


async def test_a_reading_that_began_before_a_deletion_is_not_kept(store: AgentStore) -> None:
    slow = Held("after")
    mine = another(store, slow)
    await agent(mine).session("s").send("one")
    slow.next = True
    reading = asyncio.create_task(agent(mine).session("s").load())
    await slow.held.wait()
    await mine.delete_session("s")
    slow.go_on.set()
    await reading
    assert "s" not in mine.transcripts
    assert await texts(agent(mine).session("s")) == []


async def test_many_that_read_at_once_read_once_each(store: AgentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading that ends is news to the others, who do not begin anew for what they have read themselves."""
    await agent(store).session("s").send("one")
    await agent(another(store)).session("s").send("two")
    reads = Reads(store, monkeypatch)
    found = await asyncio.gather(*(texts(agent(store).session("s")) for _ in range(50)))
    assert found == [["one", "re: one", "two", "re: two"]] * 50
    assert len(reads.new()) == 50


async def test_a_large_last_record_is_not_read_again(store: AgentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await agent(store).session("s").send("x" * 100_000)
    await agent(store).session("s").load()
    reads = Reads(store, monkeypatch)
    await agent(store).session("s").load()
    assert reads.new() == [0]


async def test_what_was_read_goes_with_its_bundle(store: AgentStore) -> None:
    """At once: what is kept does not hold what keeps it."""
    bundle = another(store)
    await agent(bundle).session("s").send("one")
    view = weakref.ref(bundle.transcripts.of("s", Thing))
    gc.collect()
    gc.disable()
    try:
        del bundle
        assert view() is None
    finally:
        gc.enable()


# --- nobody sees what others changed ---


def _change(message: Message) -> None:
    if isinstance(message.content, list):
        message.content[0]["cache_control"] = {"type": "ephemeral"}
        message.content.append({"type": "text", "text": "more"})
    for call in message.tool_calls:
        call.arguments["order"] = 8
    for said in message.metadata.values():
        said.append(2)


@tool(idempotent=True)
def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


def changing(store: AgentStore, change: Callable[[Message], None] = _change) -> Agent:
    """An agent whose model marks what it is sent, as adapters do."""

    async def answer(request: ModelRequest) -> ModelResponse:
        for message in request.messages:
            change(message)
        change(request.messages[-1])
        if request.messages[-1].role == "tool":
            return ModelResponse("done", metadata={"n": [1]})
        return ModelResponse("", [ToolCall("c", "look_up", {"order": 7})], metadata={"n": [1]})

    return Agent(model=FunctionModel(answer), tools=[look_up], store=store)


def given() -> Message:
    return Message("user", [{"type": "text", "text": "hi"}], metadata={"a": [1]})


async def test_what_a_model_changes_of_its_request_is_seen_by_nobody(store: AgentStore) -> None:
    expected = await changing(store, lambda _: None).session("still").send(given())
    session = changing(store).session("s")
    result = await session.send(given())
    assert result.messages == expected.messages
    await session.send(given())
    still = changing(store, lambda _: None).session("still")
    await still.send(given())
    assert await session.load() == await still.load()


async def test_one_pass_over_a_request_copies_each_message_once(
    store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0
    for_others = Message.for_others

    def counted(message: Message) -> Message:
        nonlocal copied
        copied += 1
        return for_others(message)

    passes: list[tuple[int, int]] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        nonlocal copied
        copied = 0
        passes.append((len([*request.messages]), copied))
        return ModelResponse("yes")

    session = Agent(model=FunctionModel(answer), store=store).session("s")
    monkeypatch.setattr(Message, "for_others", counted)
    for number in range(3):
        await session.send(str(number))
    assert passes == [(1, 1), (3, 3), (5, 5)]


async def test_what_a_caller_changes_of_an_answer_is_seen_by_nobody(store: AgentStore) -> None:
    session = changing(store, lambda _: None).session("s")
    run_id = (await session.send(given())).run_id
    expected = await changing(another(store)).session("s").load()

    async def result() -> Any:
        found = await session.result(run_id)
        assert found is not None
        return found.messages

    async def read() -> Any:
        return session.messages

    for answer in (read, session.load, session.history, result, read):
        for message in await answer():
            _change(message)
        assert await answer() == expected
    assert await changing(store).session("s").load() == expected


@tool(retries=1, idempotent=True)
def refund(order: dict[str, int]) -> str:
    """Refund an order."""
    TRIED.append(dict(order))
    if len(TRIED) == 1:
        raise OSError
    return "refunded"


TRIED: list[dict[str, int]] = []


async def test_what_a_listener_hides_in_an_event_the_turn_does_not_miss(store: AgentStore) -> None:
    """Whoever logs events hides secrets in them: neither a retry, the model, nor the result may lose them."""
    seen: list[Any] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        seen.append([call.arguments for message in request.messages for call in message.tool_calls])
        if request.messages[-1].role == "tool":
            return ModelResponse("done")
        return ModelResponse("", [ToolCall("c", "refund", {"order": {"number": 7}})], metadata={"a": [1]})

    heard: list[str] = []

    def hide(event: Any) -> None:
        heard.append(event.type)
        if isinstance(event, ToolStarted):
            event.arguments["order"] = {"number": 0}
        told = event.result.messages if isinstance(event, RunDone) else [getattr(event, "message", None)]
        for call in [call for message in told if message is not None for call in message.tool_calls]:
            call.arguments["order"]["number"] = 0

    TRIED.clear()
    session = Agent(model=FunctionModel(answer), tools=[refund], store=store).session("s")
    session.on(hide)
    async with session.stream(given()) as run:
        async for event in run:
            hide(event)
    assert {"model.responded", "tool.started", "run.done"} <= {*heard}
    assert TRIED == [{"number": 7}] * 2
    assert seen == [[], [{"order": {"number": 7}}]]
    assert run.result is not None
    calls = [
        call.arguments
        for messages in (run.result.messages, await session.load())
        for m in messages
        for call in m.tool_calls
    ]
    assert calls == [{"order": {"number": 7}}] * 2


async def test_what_a_listener_hides_in_an_approval_a_retry_does_not_miss(store: AgentStore) -> None:
    tried: list[Any] = []

    @tool(retries=1, idempotent=True, needs_approval=True)
    def pay(iban: dict[str, str]) -> str:
        """Pay."""
        tried.append(dict(iban))
        if len(tried) == 1:
            raise OSError
        return "paid"

    model = ScriptedModel([[ToolCall("c", "pay", {"iban": {"number": "secret"}})], "done"])
    payer = Agent(model=model, tools=[pay], store=store)

    def hide(event: Any) -> None:
        if isinstance(event, ApprovalRequested):
            for arguments in (event.approval.arguments, event.approval.effective_arguments):
                arguments["iban"]["number"] = "***"

    session = payer.session("s")
    session.on(hide)
    asked = (await session.send("Pay.")).approval_ids[0]
    await payer.approvals.resolve(asked, approved=True, arguments={"iban": {"number": "edited"}})
    assert tried == [{"number": "edited"}] * 2


def test_a_message_for_others_is_equal_and_shares_nothing_that_can_be_changed() -> None:
    parts: list[dict[str, Any]] = [{"type": "image", "data": b"x"}, {"type": "data", "value": {"a": [1]}}]
    call = ToolCall("c", "look_up", {"order": {"n": [1]}}, {"index": [0]})
    for message in (
        Message("user", parts),
        Message("user", tuple(parts)),
        Message("assistant", "text", (call,), metadata={"a": {}}, extra={"b": []}),
        Message("tool", "text", tool_call_id="c", is_error=True),
    ):
        copy = message.for_others()
        assert (copy, type(copy.content)) == (replace(message), type(message.content))
        shared = {id(one) for one in _changeable(message)} & {id(one) for one in _changeable(copy)}
        assert copy is message or not shared


def _changeable(value: Any) -> list[Any]:
    if isinstance(value, (Message, ToolCall)):
        return [one for name in value.__slots__ for one in _changeable(getattr(value, name))]
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in _changeable(item))]
    if isinstance(value, (list, tuple)):
        return [
            *([value] if isinstance(value, list) else []),
            *(found for item in value for found in _changeable(item)),
        ]
    return []


# --- how much is kept ---


def kept(recent: Recent[Thing]) -> str:
    """Return the names of what is kept though nobody holds it."""
    return "".join(name for name in "abcd" if name in recent)


def test_the_ones_used_last_are_kept_up_to_the_limit() -> None:
    recent: Recent[Thing] = Recent(10)
    for name in "abc":
        recent.of(name, Thing)
        assert kept(recent) == ""
    for name, weight, left in (
        ("a", 4, "a"),
        ("b", 4, "ab"),
        ("a", 5, "ab"),
        ("c", 2, "ac"),
        ("b", 8, "bc"),
        ("c", 11, "b"),
        ("b", 2, "b"),
        ("d", 8, "bd"),
        ("d", 9, "d"),
    ):
        held = recent.of(name, Thing)
        recent.keep(name, held, weight)
        del held
        assert kept(recent) == left, (name, weight)
    recent.forget("d")
    recent.forget("d")
    assert kept(recent) == ""


def test_there_is_one_object_for_a_name_as_long_as_somebody_holds_it() -> None:
    recent: Recent[Thing] = Recent(0)
    held = recent.of("a", Thing)
    recent.keep("a", held, 1)
    assert recent.of("a", Thing) is held
    assert recent.of("b", Thing) is not held


@pytest.mark.parametrize(
    "content",
    ["x" * 1000, "\u4e16" * 1000, [{"type": "text", "text": "x" * 500}, {"type": "file", "data": "y" * 500}]],
    ids=["ascii", "wide", "parts"],
)
def test_the_weight_of_what_was_read_is_about_its_memory(content: Any) -> None:
    calls = [{"id": "c", "name": "look_up", "arguments": {"order": "z" * 200}}]
    gc.collect()
    tracemalloc.start()
    try:
        read = Digest(
            {"kind": "message", "message": {"role": "assistant", "content": _anew(content), "tool_calls": _anew(calls)}}
            for _ in range(1000)
        )
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < read.weight / held < 1.25, read.weight / held


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "note", "text": "x" * 1000},
        {"kind": "message", "message": {"role": "user", "content": "x"}, "unknown": {"a": ["y" * 1000]}},
        {"kind": "message", "message": {"role": "user", "content": "x"}, "input_id": "z" * 32, "spent": {"steps": 1.5}},
    ],
    ids=["foreign", "unknown fields", "notes"],
)
def test_the_weight_counts_what_is_kept_beside_messages(record: dict[str, Any]) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        read = Digest(_anew(record) for _ in range(5000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < read.weight / held < 1.4, read.weight / held


def _anew(value: Any) -> Any:
    """Return a copy of which also the texts are new, as those that a store has read are."""
    if isinstance(value, dict):
        return {key: _anew(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_anew(item) for item in value]
    return (value + "!")[:-1] if isinstance(value, str) else value
