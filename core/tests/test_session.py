"""A session as its users meet it: what goes in, what is read back, whose turn it is, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest
from core.tests.processes import another, elsewhere, everything, writes_nothing

from perdure import Agent, AgentStore, Message, Session, ToolCall, Usage, open_store, safe_id, tool
from perdure.errors import InvalidArgumentError, InvalidIdError, NotJsonError, RecordTooLargeError, SessionBusyError
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import TICK, ManualClock

pytestmark = pytest.mark.anyio


async def echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=f"re: {request.messages[-1].text}", usage=Usage(1, 2, 1, 0.5))


def agent(store: AgentStore, **options: Any) -> Agent:
    return Agent(model=FunctionModel(echo), store=store, **options)


async def texts(session: Session) -> list[str]:
    return [message.text for message in await session.load()]


# --- what goes in and comes back ---


async def test_a_result_tells_the_turn(any_store: AgentStore) -> None:
    session = agent(any_store).session("s")
    await session.send("one")
    result = await session.send("two")
    assert result.text == "re: two"
    assert result.finish_reason == "stop"
    assert list(result.messages) == [Message("user", "two"), Message("assistant", "re: two")]
    assert result.usage == Usage(1, 2, 1, 0.5)
    assert await session.result(result.run_id) == result
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    spent = transcript.records[-1]["spent"]
    assert Usage.from_record(spent) == Usage(2, 4, 2, 1.0)
    assert spent["steps"] == 2


async def test_the_model_sees_the_conversation_and_the_instructions(store: AgentStore) -> None:
    model = ScriptedModel(["a", "b"])
    session = Agent(model=model, store=store, instructions="Be brief.").session()
    await session.send("1")
    await session.send("2")
    assert [message.text for message in model.calls[1].messages] == ["1", "a", "2"]
    assert model.calls[1].instructions == "Be brief."


async def test_messages_are_a_snapshot_and_load_reads_what_is_new(store: AgentStore) -> None:
    mine, other = agent(store).session("s"), agent(another(store)).session("s")
    assert len(mine.messages) == 0
    await other.send("hello")
    before = mine.messages
    assert await texts(mine) == ["hello", "re: hello"]
    assert [message.text for message in mine.messages] == ["hello", "re: hello"]
    assert len(before) == 0


async def test_messages_show_what_was_sent_here(any_store: AgentStore) -> None:
    session = agent(any_store).session("s")
    result = await session.send(Message("user", "one", metadata={"n": [1]}))
    assert [message.text for message in session.messages] == ["one", "re: one"]
    result.messages[0].metadata["n"].append(2)
    await agent(any_store).session("s").send("two")
    await session.send("three")
    assert [message.text for message in session.messages] == ["one", "re: one", "two", "re: two", "three", "re: three"]
    assert session.messages[0].metadata == {"n": [1]}
    assert await session.load() == session.messages


async def test_send_loads_by_itself(store: AgentStore) -> None:
    """B119: a forgotten await of `load` loses nothing; `send` reads the store itself."""
    await agent(store).session("s").send("one")
    model = ScriptedModel(["never", "two"])
    await Agent(model=model, store=store).session("s").send("next")
    assert [message.text for message in model.calls[0].messages] == ["one", "re: one", "next"]


@pytest.mark.parametrize("by", ["clock", "version"])
async def test_a_conversation_that_lives_again_is_read_whole(store: AgentStore, clock: ManualClock, by: str) -> None:
    """A second life is told from the first by its creation, and where the clock stood still by its version."""
    session = agent(store).session("s")
    await session.send("one")
    assert await texts(session) == ["one", "re: one"]
    seen = await store.sessions.load("s")
    assert seen is not None
    await store.delete_session("s")
    clock.advance(TICK if by == "clock" else timedelta(0))
    await store.sessions.append("s", [], expected_version=0, version=seen.version + 1 if by == "clock" else None)
    for text in ("two", "three"):
        await agent(another(store)).session("s").send(text)
    assert await texts(session) == ["two", "re: two", "three", "re: three"]


async def test_records_that_come_in_right_before_the_opening_are_part_of_the_base(store: AgentStore) -> None:
    async def before(call: Call) -> None:
        if call.number == 1:  # the opening
            record = {"kind": "message", "message": {"role": "user", "content": "between"}}
            await store.sessions.append("s", [record])

    await agent(store).session("s").send("one")
    model = ScriptedModel(["unused", "yes"])
    await Agent(model=model, store=another(store, Interception(before=before))).session("s").send("two")
    assert [message.text for message in model.calls[0].messages] == ["one", "re: one", "between", "two"]


async def test_a_conversation_that_was_cleared_is_read_whole(store: AgentStore) -> None:
    session, other = agent(store).session("s"), agent(another(store)).session("s")
    await session.send("one")
    assert await texts(session) == ["one", "re: one"]
    await other.clear()
    for text in ("two", "three"):
        await other.send(text)
    assert await texts(session) == ["two", "re: two", "three", "re: three"]


async def test_two_loads_at_once_take_the_news_in_once(store: AgentStore) -> None:
    both_wait, interception = asyncio.Event(), Interception(counted=("read",))
    session = agent(another(store, interception)).session("s")
    await session.send("one")
    await agent(store).session("s").send("two")

    async def before(_: object) -> None:
        await both_wait.wait()

    interception.before = before
    loads = [asyncio.create_task(session.load()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both_wait.set()
    for loaded in await asyncio.gather(*loads):
        assert [message.text for message in loaded] == ["one", "re: one", "two", "re: two"]


async def test_input_forms(store: AgentStore) -> None:
    session = agent(store).session("s")
    await session.send(Message("user", "one", metadata={"from": "ann"}))
    await session.send([Message("user", "two"), Message("user", "three")])
    await session.send([{"type": "text", "text": "four"}, {"type": "text", "text": "!"}])
    assert await texts(session) == ["one", "re: one", "two", "three", "re: three", "four!", "re: four!"]
    assert session.messages[0].metadata == {"from": "ann"}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_in_parts(any_store: AgentStore, kind: Any) -> None:
    """B055: bytes in message parts go in and come back by every route, and stand in the store as base64."""
    part = {"type": "image", "media_type": "image/png", "data": kind(b"\x89PNG")}
    for given in ([part], Message("user", [part]), [Message("user", [part])]):
        session = agent(any_store).session()
        result = await session.send(given)
        want = [{"type": "image", "media_type": "image/png", "data": b"\x89PNG"}]
        assert result.messages[0].content == want
        assert (await session.load())[0].content == want
        transcript = await any_store.sessions.load(session.id)
        assert transcript is not None
        assert transcript.records[0]["message"]["content"][0]["data"] == "iVBORw=="


async def test_unknown_fields_and_foreign_records_are_kept(any_store: AgentStore) -> None:
    """B056: what a newer release or somebody else wrote survives, and a foreign record never reaches a model."""
    newer = {
        "v": 9,
        "kind": "message",
        "run_id": "s.turn-1",
        "message": {"role": "user", "content": [{"type": "text", "text": "hi", "new": 1}], "new": {"a": None}},
        "usage": {"input_tokens": 1, "new": 2},
        "new": [1],
    }
    foreign = {"whose": "somebody else's"}
    await any_store.sessions.append("s", [newer, foreign], expected_version=0)
    model = ScriptedModel(["yes"])
    await Agent(model=model, store=any_store).session("s").send(Message("user", "and", extra={"new": 3}))
    transcript = await any_store.sessions.load("s")
    assert transcript is not None
    assert list(transcript.records[:2]) == [newer, foreign]
    assert transcript.records[2]["message"]["new"] == 3
    assert [message.text for message in model.calls[0].messages] == ["hi", "and"]
    assert model.calls[0].messages[0].extra == {"new": {"a": None}}


# --- bad input is refused before anything is written ---

DEEP: list[Any] = []
DEEP.append(DEEP)


async def test_unknown_fields_of_a_turn_journal_outlive_its_turns(any_store: AgentStore) -> None:
    session = agent(any_store).session("s")
    await session.send("one")
    found = await any_store.checkpoints.load("s")
    assert found is not None
    head = replace(found.head, extra={"new": [1]})
    await any_store.checkpoints.append("s", [], expected_version=found.version, head=head)
    await session.send("two")
    found = await any_store.checkpoints.load("s")
    assert found is not None
    assert found.head.extra == {"new": [1]}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, InvalidArgumentError),
        (5, InvalidArgumentError),
        (b"bytes", InvalidArgumentError),
        ([], InvalidArgumentError),
        (["text"], InvalidArgumentError),
        ([Message("user", "a"), {"type": "text"}], InvalidArgumentError),
        (Message("tool", "a", tool_call_id="c1"), InvalidArgumentError),
        (Message("tool", "a"), InvalidArgumentError),
        (
            Message("user", "a", extra={"tool_calls": [{"id": "c1", "name": "f", "arguments": {}}]}),
            InvalidArgumentError,
        ),
        (Message("user", "a", extra={"tool_call_id": "c1"}), InvalidArgumentError),
        (Message("oracle", "a"), InvalidArgumentError),
        (Message("assistant", "a", [ToolCall("c1", "t")]), InvalidArgumentError),
        (Message("user", 5), NotJsonError),  # type: ignore[arg-type]  # reason: a wrong value on purpose
        (Message("user", ["a"]), NotJsonError),  # type: ignore[list-item]  # reason: the same
        (Message("user", [{"type": "x", "when": {1, 2}}]), NotJsonError),
        (Message("user", "a", metadata={"x": DEEP}), NotJsonError),
        (Message("user", "a", metadata={"x": float("nan")}), NotJsonError),
        ("x" * 3000, RecordTooLargeError),
        ([Message("user", "x" * 1500)] * 2, RecordTooLargeError),
    ],
)
async def test_bad_input(store: AgentStore, given: Any, error: type[Exception]) -> None:
    async with writes_nothing(store) as watched:
        watched.checkpoints.bind(max_record=3000)
        watched.sessions.bind(max_record=3000)
        with pytest.raises(error, match="input"):
            await agent(watched).session("s").send(given)


async def test_an_input_whose_record_is_just_too_large(store: AgentStore) -> None:
    """What would fit a turn journal but not the transcript is refused now, not when the turn is to be saved."""
    refused: list[bool] = []
    for size in range(500, 700, 7):
        async with another(store) as watched:
            watched.sessions.bind(max_record=1000)
            session = Agent(model=ScriptedModel(["short"]), store=watched).session()
            try:
                await session.send("x" * size)
            except RecordTooLargeError:
                assert await store.sessions.load(session.id) is None
            else:
                assert await session.pending() is None
        refused.append(await store.sessions.load(session.id) is None)
    assert refused.index(True) > 0
    assert refused == sorted(refused)


@pytest.mark.parametrize("input_id", [5, "x" * 513, "\ud800"])
async def test_bad_input_id(store: AgentStore, input_id: Any) -> None:
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError, match="input_id"):
            await agent(watched).session("s").send("a", input_id=input_id)


@pytest.mark.parametrize("session_id", ["", "a b", "a.b", "a\n", "ü", "x" * 129, 5, b"a"])
async def test_bad_session_id(store: AgentStore, session_id: Any) -> None:
    with pytest.raises(InvalidIdError, match="session id"):
        agent(store).session(session_id)
    if isinstance(session_id, str):
        assert (await agent(store).session(safe_id(session_id)).send("a")).text == "re: a"


async def test_bad_run_id_scope_name_and_state(store: AgentStore) -> None:
    async with writes_nothing(store) as watched:
        session = agent(watched).session("s")
        for call in (session.result("a b"), session.result(5)):  # type: ignore[arg-type]  # reason: wrong on purpose
            with pytest.raises(InvalidIdError):
                await call
        with pytest.raises(InvalidArgumentError, match="scope"):
            agent(watched).session("s", scope="x" * 513)
        with pytest.raises(InvalidArgumentError, match="name"):
            agent(watched, name=5)
        with pytest.raises(NotJsonError, match="state"):
            await session.update_state(lambda state: {"x": {1}})
        with pytest.raises(NotJsonError, match="state"):
            await session.update_state(lambda state: None)  # type: ignore[arg-type, return-value]  # reason: the same


async def test_no_store() -> None:
    with pytest.raises(InvalidArgumentError, match="store"):
        Agent(model=ScriptedModel([])).session("s")


# --- ids, scopes, namespaces, several sessions ---


async def test_an_id_of_ones_own_stays_and_listing_needs_no_agent(any_store: AgentStore) -> None:
    """B128: the id that the user gave stays, and sessions are listed and read without starting an agent."""
    assert agent(any_store).session("mine").id == "mine"
    await agent(any_store).session("mine", scope="acme").send("a")
    (info,) = (await any_store.sessions.list(scope="acme")).items
    assert (info.session_id, info.count) == ("mine", 2)
    assert len({agent(any_store).session().id for _ in range(100)}) == 100


async def test_scope_is_set_once(any_store: AgentStore) -> None:
    await agent(any_store).session("s", scope="acme").send("a")
    await agent(any_store).session("s").send("b")
    await agent(any_store).session("s", scope="acme").send("c")
    before = await everything(any_store)
    other = agent(any_store).session("s", scope="ACME")
    for call in (other.send("d"), other.update_state(lambda state: {"x": 1})):
        with pytest.raises(InvalidArgumentError, match="scope"):
            await call
    assert await everything(any_store) == before


@pytest.mark.parametrize("state", ["submitted", "elsewhere", "ended"])
async def test_a_wrong_scope_is_told_nothing_of_an_input(store: AgentStore, state: str) -> None:
    own, other = (agent(store).session("s", scope=scope) for scope in ("acme", "other"))
    await own.submit("a", input_id="i")
    if state == "ended":
        await own.resume()
    if state == "elsewhere":
        with pytest.raises(Died):
            await agent(another(store, at(2, "die-before"), process=elsewhere())).session("s").resume()
    for call in (other.submit, other.send):
        with pytest.raises(SessionBusyError if (state, call) == ("elsewhere", other.send) else InvalidArgumentError):
            await call("a", input_id="i")
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == ("idle" if state == "ended" else "in-progress")


@pytest.mark.parametrize("policy", ["queue", "steer"])
async def test_a_wrong_scope_joins_no_turn(store: AgentStore, policy: Literal["queue", "steer"]) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.set()
        await may_answer.wait()
        return ModelResponse(text=f"re: {request.messages[-1].text}")

    slow = Agent(model=FunctionModel(answer), store=store)
    turn = asyncio.create_task(slow.session("s", scope="acme").send("a"))
    await asked.wait()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await slow.session("s", scope="other", turn_policy=policy).send("b")
    may_answer.set()
    await turn
    assert [message.text for message in await slow.session("s").load()] == ["a", "re: a"]


async def test_a_wrong_scope_does_not_run_the_pending_turn(store: AgentStore) -> None:
    model = ScriptedModel([ConnectionError("no route")])
    with pytest.raises(ConnectionError):
        await Agent(model=model, store=store).session("s", scope="acme").send("a")
    with pytest.raises(InvalidArgumentError, match="scope"):
        await agent(store).session("s", scope="other").send("b")
    pending = await agent(store).session("s").pending()
    assert pending is not None
    assert pending.attempts == 1


async def test_interleaved_sessions_do_not_mix(any_store: AgentStore) -> None:
    """B010: turns of several sessions that run at once land each in its own transcript, once."""
    of = agent(any_store)
    sessions = [of.session(name) for name in "abc"]
    for n in range(3):
        await asyncio.gather(*(session.send(f"{session.id}{n}") for session in sessions))
    for session in sessions:
        want = [text for n in range(3) for text in (f"{session.id}{n}", f"re: {session.id}{n}")]
        assert await texts(of.session(session.id)) == want


async def test_namespaces_are_apart() -> None:
    name = uuid.uuid4().hex
    async with open_store(f"memory:{name}?namespace=a") as a, open_store(f"memory:{name}?namespace=b") as b:
        await agent(a).session("s").send("for a")
        await agent(b).session("s").send("for b")
        assert await texts(agent(a).session("s")) == ["for a", "re: for a"]
        await b.delete_session("s")
        assert await texts(agent(b).session("s")) == []
        assert await texts(agent(a).session("s")) == ["for a", "re: for a"]


# --- a tool and its own session ---


@pytest.mark.parametrize("call", ["send", "resume", "discard_pending", "clear"])
async def test_a_tool_that_calls_its_own_session_is_refused(store: AgentStore, call: str) -> None:
    @tool
    async def call_myself() -> str:
        with pytest.raises(SessionBusyError, match="the call that makes this call"):
            await getattr(of.session("s"), call)(*(["again"] if call == "send" else []))
        return "refused"

    of = Agent(model=ScriptedModel([[ToolCall("c1", "call_myself")], "done"]), tools=[call_myself], store=store)
    result = await of.session("s").send("go")
    assert [message.text for message in result.messages] == ["go", "", "refused", "done"]


async def test_a_tool_may_use_another_session_and_its_own_state(store: AgentStore) -> None:
    @tool
    async def remember(fact: str) -> str:
        await of.session("s").update_state(lambda state: {**state, "fact": fact})
        pending = await of.session("s").pending()
        assert pending is not None
        return (await agent(store).session("helper").send(fact)).text

    model = ScriptedModel([[ToolCall("c1", "remember", {"fact": "x"})], "done"])
    of = Agent(model=model, tools=[remember], store=store)
    result = await of.session("s").send("go")
    assert [message.text for message in result.messages] == ["go", "", "re: x", "done"]
    transcript = await store.sessions.load("s")
    assert transcript is not None
    assert (transcript.state, transcript.count) == ({"fact": "x"}, 4)


async def test_work_that_a_tool_left_behind_may_send_when_the_turn_is_over(store: AgentStore) -> None:
    later: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    async def afterwards() -> Any:
        await over.wait()
        return await agent(store).session("s").send("afterwards")

    @tool
    async def start() -> None:
        later.append(asyncio.create_task(afterwards()))

    of = Agent(model=ScriptedModel([[ToolCall("c1", "start")], "done"]), tools=[start], store=store)
    await of.session("s").send("go")
    over.set()
    assert (await later[0]).text == "re: afterwards"
