"""Compaction: a summary and the newest turns take the place of a transcript, and nothing that counts is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from core.tests.compaction_world import (
    COST,
    SlowSummary,
    agent,
    answer,
    archives,
    gist,
    lived,
    records,
    session,
    status,
    texts,
)
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, writes_nothing
from core.tests.session_world import World, awaiting, elsewhere_running, finished, in_progress, ready

from perdure import Agent, AgentStore, Lease, Message, ToolCall, Usage
from perdure.clock import SYSTEM_CLOCK
from perdure.conversations.claims import settle
from perdure.errors import (
    AgentChangedError,
    ApprovalOrphanedError,
    InvalidArgumentError,
    RecordTooLargeError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    SummaryError,
    UnsupportedOperationError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure.observers.listening import Channel
from perdure.runtime.transcript.compaction import CompactionResult, Compactor
from perdure.runtime.transcript.compaction_policy import Compaction, CompactionOptions
from perdure.runtime.transcript.reading import TranscriptView
from perdure_conformance.interception import Call, Interception

pytestmark = pytest.mark.anyio

LATE = {"v": 1, "kind": "message", "at": "later", "message": {"role": "user", "content": "late"}}
FOREIGN = {"from": "somebody else", "message": {"role": "user", "content": "never sent"}}


# --- what the transcript holds ---


async def test_a_summary_and_the_newest_turns(any_store: AgentStore) -> None:
    live = await lived(any_store)
    done = await live.compact(keep=2, summarize=gist)
    summary = "<u:m0|a:re: m0|u:m1|a:re: m1>"
    assert done == CompactionResult(4, summary)
    assert await texts(any_store) == [summary, "m2", "re: m2", "m3", "re: m3"]
    assert [message.text for message in live.messages] == await texts(any_store)
    assert [message.text for message in await live.history()] == await texts(any_store)
    found = await any_store.sessions.load("s", limit=0)
    assert found is not None
    assert (found.state, found.scope, await status(any_store)) == ({"title": "kept"}, "acme", "idle")
    assert await archives(any_store) == []
    first = (await records(any_store))[0]
    assert (first["v"], first["kind"], first["message"]["role"]) == (1, "summary", "user")
    assert first["at"] == any_store.clock.now().isoformat()
    assert (await live.send("m4")).text == "re: m4"


@pytest.mark.parametrize("keep", range(6))
async def test_how_many_turns_stay(store: AgentStore, keep: int) -> None:
    live = await lived(store)
    before = await records(store)
    done = await live.compact(keep=keep, summarize=gist)
    kept = before[-2 * keep :] if keep else []
    if keep >= 4:
        assert (done.replaced, await records(store)) == (0, before)
    else:
        assert done.replaced == 8 - 2 * keep
        assert [record["message"] for record in (await records(store))[1:]] == [record["message"] for record in kept]


async def test_nothing_to_replace_writes_nothing(store: AgentStore) -> None:
    async with writes_nothing(store) as watched:
        assert (await session(watched).compact()).replaced == 0  # there is no session
    live = await lived(store, 2)
    async with writes_nothing(store) as watched:
        assert (await session(watched).compact(keep=2)).replaced == 0
    await live.compact(keep=0, summarize=gist)
    async with writes_nothing(store) as watched:
        assert (await session(watched).compact(keep=0)).replaced == 0  # a summary of a summary alone
        assert (await session(watched).compact(keep=10**9)).replaced == 0


async def test_an_older_summary_is_part_of_what_is_summarised(store: AgentStore) -> None:
    live = await lived(store, 3)
    await live.compact(keep=1, summarize=gist)
    await live.send("m3", input_id="i3")
    await live.compact(keep=1, summarize=gist)
    assert (await texts(store))[0] == "<u:<u:m0|a:re: m0|u:m1|a:re: m1>|u:m2|a:re: m2>"


async def test_what_is_somebody_elses_stays_in_order_and_is_never_sent(store: AgentStore) -> None:
    live = await lived(store, 1)
    await store.sessions.append("s", [FOREIGN, {"kind": "thought", "run_id": "x", "n": 1}])
    await live.send("m1")
    await store.sessions.append("s", [FOREIGN | {"n": 2}])
    await live.send("m2")
    await live.compact(keep=1, summarize=gist)
    after = await records(store)
    assert after[1:4] == [FOREIGN, {"kind": "thought", "run_id": "x", "n": 1}, FOREIGN | {"n": 2}]
    assert await texts(store) == ["<u:m0|a:re: m0|u:m1|a:re: m1>", "?", "?", "?", "m2", "re: m2"]
    await live.compact(keep=0, summarize=gist)
    assert await texts(store) == ["<u:<u:m0|a:re: m0|u:m1|a:re: m1>|u:m2|a:re: m2>", "?", "?", "?"]


async def test_a_turn_stays_whole(store: AgentStore) -> None:
    live = session(store)
    for text in ("look a", "look b", "plain"):
        await live.send(text)
    await live.compact(keep=2, summarize=gist)
    after = await records(store)
    assert after[0]["message"]["content"] == "<u:look a|a:|t:seen a|a:re: seen a>"
    assert [record["message"]["role"] for record in after[1:]] == [
        "user",
        "assistant",
        "tool",
        *["assistant", "user", "assistant"],
    ]
    assert (await live.send("next")).finish_reason == "stop"


async def test_messages_without_a_run_are_cut_at_the_users(store: AgentStore) -> None:
    """As others append them: a call that another message stands in front of keeps its result."""

    def message(role: str, content: str, **more: Any) -> dict[str, Any]:
        return {"kind": "message", "message": {"role": role, "content": content, **more}}

    call = {"id": "c1", "name": "look", "arguments": {}}
    given = [
        message("user", "a"),
        message("assistant", "b"),
        message("user", "c"),
        message("assistant", "d", tool_calls=[call]),
        message("user", "in between"),
        message("tool", "e", tool_call_id="c1"),
        message("user", "f"),
    ]
    await store.sessions.append("s", given, expected_version=0)
    await session(store).compact(keep=2, summarize=gist)  # the newest two begin at "in between"
    assert await texts(store) == ["<u:a|a:b>", "c", "d", "in between", "e", "f"]


async def test_the_model_is_asked_plainly(store: AgentStore) -> None:
    model = ScriptedModel(["one", "two", "the gist"])
    live = Agent(model=model, store=store, instructions="Be brief.").session("s")
    await live.send("a")
    await live.send("b")
    done = await live.compact(keep=0)
    assert (done.summary, done.usage) == ("the gist", Usage(requests=1))
    request = model.calls[-1]
    assert [message.text for message in request.messages[:-1]] == ["a", "one", "b", "two"]
    assert (request.messages[-1].role, request.tools, request.instructions) == ("user", (), None)


# --- what goes on being known ---


def spent(record: dict[str, Any]) -> Usage:
    return Usage.from_record(record["spent"])


@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_what_was_spent_goes_on(store: AgentStore, keep: int) -> None:
    """What the last record tells counts, so the summary's cost is in each of the kept ones too."""
    live = await lived(store, 3)
    four = COST + COST + COST + COST
    await live.compact(keep=keep)
    after = await records(store)
    assert spent([record for record in after if "spent" in record][-1]) == four
    assert spent(after[0]) == sum((COST for _ in range(3 - keep)), COST)
    await live.send("next")
    assert spent((await records(store))[-1]) == four + COST
    await live.compact(keep=0)
    assert spent((await records(store))[-1]) == four + COST + COST


async def test_counters_of_later_releases_go_on_too(store: AgentStore) -> None:
    live = await lived(store, 1)
    await store.sessions.append("s", [LATE | {"spent": {"input_tokens": 5, "steps": 4, "seconds": 1.5}}])
    await live.compact(keep=0)
    found = (await records(store))[0]["spent"]
    assert (found["input_tokens"], found["steps"], found["seconds"]) == (5 + COST.input_tokens, 4, 1.5)


@pytest.mark.parametrize("times", [1, 2])
async def test_an_input_is_not_taken_twice(any_store: AgentStore, times: int) -> None:
    live = await lived(any_store, 3)
    before = {f"i{n}": (await live.send(f"m{n}", input_id=f"i{n}")).run_id for n in range(3)}
    for n in range(times):
        await live.compact(keep=0, summarize=gist)
        await live.send(f"more {n}")
    after = await records(any_store)
    for input_id, run_id in before.items():
        result = await session(any_store).send("again", input_id=input_id)
        assert (result.run_id, result.finish_reason, result.messages, result.usage) == (run_id, "stop", (), COST)
        assert await live.result(run_id) == result
    assert await records(any_store) == after
    assert await live.result("s.turn-1") is None


async def test_a_hundred_turns_are_known_and_no_more(store: AgentStore) -> None:
    live = await lived(store, 60)
    await live.compact(keep=0, summarize=gist)
    for n in range(60, 110):
        await live.send(f"m{n}", input_id=f"i{n}")
    await live.compact(keep=5, summarize=gist)
    first = (await records(store))[0]
    assert [turn["input_ids"] for turn in first["turns"]] == [[f"i{n}"] for n in range(5, 105)]
    count = len(await records(store))
    for n in (10, 50, 106):
        await live.send(f"m{n}", input_id=f"i{n}")
    assert len(await records(store)) == count
    await live.send("not known any more", input_id="i9")
    assert len(await records(store)) == count + 2


async def test_a_resolved_approval_of_an_ended_turn(store: AgentStore) -> None:
    live = session(store)
    asked = await live.send("pay ann")
    await agent(store).approvals.resolve(asked.approval_ids[0], approved=True)
    await live.compact(keep=0, summarize=gist)
    again = await agent(store).approvals.resolve(asked.approval_ids[0], approved=True)
    assert (again.run_id, again.finish_reason, again.messages) == (asked.run_id, "stop", ())
    await live.clear()
    with pytest.raises(ApprovalOrphanedError):
        await agent(store).session("s").continue_run(asked.run_id, asked.approval_ids[0])


# --- what is refused ---


@pytest.mark.parametrize(
    "options", [{"keep": -1}, {"keep": True}, {"keep": 1.0}, {"keep": None}, {"summarize": "text"}]
)
async def test_options_that_mean_nothing(store: AgentStore, options: dict[str, Any]) -> None:
    await lived(store)
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError):
            await session(watched).compact(**options)
        with pytest.raises(InvalidArgumentError):
            Compaction(max_tokens=5, **options)


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, None])
def test_a_policy_needs_a_limit(tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Compaction(max_tokens=tokens)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("bad", ["", " \n", None, 5, ModelResponse(text="text"), OSError("no")])
@pytest.mark.parametrize("kind", ["plain", "async", "model"])
async def test_a_summary_that_is_none(store: AgentStore, kind: str, bad: Any, *, archive: bool) -> None:
    live = await lived(store)
    before = await records(store)

    def plain(_: object) -> Any:
        if isinstance(bad, OSError):
            raise bad
        return bad

    async def awaited(messages: object) -> Any:
        return plain(messages)

    async def answered(_: ModelRequest) -> ModelResponse:
        text = plain(None)
        return ModelResponse(text=text if isinstance(text, str) else "")

    if kind == "model":
        live = Agent(model=FunctionModel(answered), store=store).session("s")
    function: Any = {"plain": plain, "async": awaited, "model": None}[kind]
    with pytest.raises(OSError if isinstance(bad, OSError) else SummaryError):
        await live.compact(summarize=function, archive=archive)
    assert (await records(store), await archives(store), await status(store)) == (before, [], "idle")
    assert (await live.compact(summarize=lambda _: "well", archive=archive)).summary == "well"


async def test_a_summary_that_calls_a_tool(store: AgentStore) -> None:
    await lived(store)
    with pytest.raises(SummaryError):
        await Agent(model=ScriptedModel([[]] * 8), store=store).session("s").compact()
    calling = ScriptedModel([*[""] * 4, ModelResponse("text", tool_calls=[ToolCall("c", "look")])])
    with pytest.raises(SummaryError):
        await Agent(model=calling, store=store).session("s").compact()


async def test_a_store_that_cannot(store: AgentStore) -> None:
    live = Agent(model=FunctionModel(answer), store=AgentStore(sessions=PlainSessions())).session("s")
    await live.send("a")
    with pytest.raises(UnsupportedOperationError):
        await live.compact(keep=0, summarize=gist)
    assert (await live.send("b")).text == "re: b"


async def test_without_turn_journals(store: AgentStore) -> None:
    live = Agent(model=FunctionModel(answer), store=AgentStore(sessions=store.sessions)).session("s")
    for text in ("a", "b"):
        await live.send(text)
    done = await live.compact(keep=1, archive=True)
    assert await texts(store) == ["<u:a|a:re: a>", "b", "re: b"]
    assert [message.text for message in await live.history()] == ["a", "re: a", "b", "re: b"]
    assert await archives(store) == [done.archive_id]
    await live.clear()
    assert (await texts(store), await archives(store)) == ([], [])


# --- in each state (section 2 of the design) ---


@pytest.fixture
async def world(store: AgentStore) -> World:
    world = World(store)
    await world.session.send("first")
    return world


async def test_in_progress(world: World) -> None:
    await in_progress(world)
    with pytest.raises(SessionBusyError):
        await world.session.compact(keep=0, summarize=gist)
    assert await world.texts() == ["first", "re: first"]


async def test_awaiting_approval(world: World) -> None:
    approval_id = await awaiting(world)
    with pytest.raises(SessionAwaitingApprovalError) as raised:
        await world.session.compact(keep=0, summarize=gist)
    assert raised.value.approval_ids == (approval_id,)


async def test_ready(world: World) -> None:
    await ready(world)
    with pytest.raises(SessionBusyError):
        await world.session.compact(keep=0, summarize=gist)


async def test_finished_is_saved_first(world: World) -> None:
    await finished(world)
    await world.session.compact(keep=0, summarize=gist)
    assert await world.texts() == ["<u:first|a:re: first|u:hello|a:re: hello>"]


async def test_running_elsewhere(world: World) -> None:
    await elsewhere_running(world)
    with pytest.raises(SessionBusyError):
        await world.session.compact(keep=0, summarize=gist)


async def test_a_finished_turn_of_another_agent(world: World) -> None:
    await finished(world)
    with pytest.raises(AgentChangedError):
        await Agent(model=ScriptedModel([]), store=world.store, name="other").session("s").compact(keep=0)


async def test_calls_on_the_session_wait_for_it(store: AgentStore) -> None:
    live, slow = await lived(store, 2), SlowSummary()
    compacting = asyncio.create_task(live.compact(keep=0, summarize=slow))
    await slow.reached.wait()
    sending = asyncio.create_task(session(store).send("next"))
    with pytest.raises(SessionBusyError):
        await session(another(store)).send("from elsewhere")
    slow.may_go_on.set()
    await compacting
    assert (await sending).text == "re: next"
    assert await texts(store) == ["<u:m0|a:re: m0|u:m1|a:re: m1>", "next", "re: next"]


# --- while the summary is made ---


@pytest.mark.parametrize("archive", [False, True])
async def test_what_comes_in_meanwhile_comes_behind(any_store: AgentStore, *, archive: bool) -> None:
    """B106a."""
    live, slow = await lived(any_store), SlowSummary()
    compacting = asyncio.create_task(live.compact(keep=1, summarize=slow, archive=archive))
    await slow.reached.wait()
    await any_store.sessions.append("s", [LATE, FOREIGN], state={"title": "late"})
    slow.may_go_on.set()
    await compacting
    assert (await texts(any_store))[1:] == ["m3", "re: m3", "late", "?"]
    history = [message.text for message in await live.history()]
    if archive:
        assert history == [text for n in range(4) for text in (f"m{n}", f"re: m{n}")] + ["late"]
    assert live.state == {"title": "late"}


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("how", ["cleared", "popped", "deleted", "deleted and made again"])
async def test_a_transcript_that_is_rewritten_meanwhile_stays_so(store: AgentStore, how: str, *, archive: bool) -> None:
    """B106b."""
    live, slow = await lived(store), SlowSummary()
    compacting = asyncio.create_task(live.compact(keep=1, summarize=slow, archive=archive))
    await slow.reached.wait()
    if how in ("cleared", "popped"):
        await store.sessions.replace("s", [], expected_version=None, keep=0 if how == "cleared" else 7)
    else:
        await store.sessions.delete("s")
    if how.endswith("again"):
        await store.sessions.append("s", [LATE] * 20, expected_version=0)
    before = await store.sessions.load("s")
    slow.may_go_on.set()
    with pytest.raises(SessionDeletedError if how == "deleted" else SessionConflictError):
        await compacting
    assert await store.sessions.load("s") == before
    assert (await status(store), await archives(store)) == ("idle", [])


@pytest.mark.parametrize("archive", [False, True])
async def test_cancelled_meanwhile(store: AgentStore, *, archive: bool) -> None:
    live, slow = await lived(store), SlowSummary()
    before = await records(store)
    compacting = asyncio.create_task(live.compact(summarize=slow, archive=archive))
    await slow.reached.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    assert (await records(store), await status(store), await archives(store)) == (before, "idle", [])


async def test_the_lease_is_renewed_meanwhile_and_its_loss_ends_it(store: AgentStore) -> None:
    await lived(store)
    before = await records(store)
    renewed, slow = asyncio.Event(), SlowSummary()

    async def after(call: Call) -> None:
        if call.number == 3:  # the claim, and two heartbeats
            renewed.set()

    lease = Lease(heartbeat=timedelta(microseconds=1), length=timedelta(days=1))
    sleeper = session(another(store, Interception(after=after), lease=lease, clock=SYSTEM_CLOCK))
    compacting = asyncio.create_task(sleeper.compact(keep=0, summarize=slow, archive=True))
    await renewed.wait()
    await settle(store, "s", force=True)
    with pytest.raises(SessionConflictError, match="took the compaction over"):
        await compacting
    assert (await records(store), await status(store), await archives(store)) == (before, "idle", [])


async def test_a_summary_that_is_too_large_is_found_out_before_anything_is_written(store: AgentStore) -> None:
    live = await lived(store)
    before = await records(store)
    calls = Interception()
    small = another(store, calls)
    small.sessions.bind(max_record=4096)
    with pytest.raises(RecordTooLargeError):
        await session(small).compact(summarize=lambda _: "x" * 5000, archive=True)
    assert [str(call) for call in calls.calls] == [
        "call 1 (write: Append runs)",
        "call 2 (write: Replace runs)",
    ]
    assert await records(store) == before
    found = await store.checkpoints.load("s")
    options = CompactionOptions(summarize=lambda _: "x" * 5000)
    view, channel = TranscriptView(small.sessions, "s"), Channel("s", store.clock, print)
    done = await Compactor(live.agent, small, view, channel, options).run_if_possible(found)
    assert done.replaced == 0


@pytest.mark.parametrize("policy", ["wait", "queue"])
@pytest.mark.parametrize("how", ["send", "submit", "compact", "clear", "abort", "resolve"])
async def test_a_summary_may_not_be_made_by_its_own_conversation(
    store: AgentStore, how: str, policy: Literal["wait", "queue"]
) -> None:
    """It would wait for itself."""
    live = await lived(store)
    await live.send("pay ann")
    (approval,) = (await store.approvals.list()).items
    await agent(store).approvals.resolve(approval.id, approved=True)
    again = agent(store).session("s", turn_policy=policy)

    async def resolve() -> object:
        return await agent(store).approvals.resolve(approval.id, approved=True)

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: again.send("sum up"),
        "submit": lambda: again.submit("sum up"),
        "compact": again.compact,
        "clear": again.clear,
        "abort": again.abort,
        "resolve": resolve,
    }

    async def summarize(_: Sequence[Message]) -> str:
        return str(await calls[how]())

    before = await records(store)
    async with asyncio.timeout(60):
        with pytest.raises(SessionBusyError, match="the call that makes this call"):
            await live.compact(summarize=summarize)
    assert (await records(store), await status(store)) == (before, "idle")
    assert (await again.send("more")).text == "re: more"


async def test_what_a_summary_leaves_running_may_call_the_conversation_later(store: AgentStore) -> None:
    live, compacted = await lived(store), asyncio.Event()
    later: list[asyncio.Task[Any]] = []

    async def call_later() -> Any:
        await compacted.wait()
        return await live.send("later")

    async def summarize(messages: Sequence[Message]) -> str:
        later.append(asyncio.create_task(call_later()))
        return gist(messages)

    await live.compact(summarize=summarize)
    compacted.set()
    assert (await later[0]).text == "re: later"


async def test_a_summary_that_cancels_itself_is_an_error(store: AgentStore) -> None:
    async def summarize(_: Sequence[Message]) -> str:
        raise asyncio.CancelledError

    live = await lived(store)
    before = await records(store)
    with pytest.raises(SummaryError, match="cancelled itself"):
        await live.compact(summarize=summarize)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await live.compact(summarize=lambda _: next(iter(())))
    assert (await records(store), await status(store)) == (before, "idle")
