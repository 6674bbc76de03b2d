"""A session object of another scope sees nothing of a conversation, and changes nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from core.tests.processes import Held, another, everything

from perdure import Agent, AgentStore, Compaction, Limits, Session
from perdure.errors import AgentChangedError, InvalidArgumentError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.turns import TurnPolicy

pytestmark = pytest.mark.anyio


async def echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(f"re: {request.messages[-1].text}")


def agent(store: AgentStore, name: str = "agent") -> Agent:
    return Agent(name=name, model=FunctionModel(echo), store=store)


USES: dict[str, Callable[[Session], Awaitable[object]]] = {
    "load": lambda session: session.load(),
    "history": lambda session: session.history(),
    "result": lambda session: session.result("any-run"),
    "fork": lambda session: session.fork(),
    "clear": lambda session: session.clear(),
    "compact": lambda session: session.compact(keep=0, summarize=lambda _: "sum"),
    "pending": lambda session: session.pending(),
    "resume": lambda session: session.resume(),
    "discard": lambda session: session.discard_pending(force=True),
    "abort": lambda session: session.abort(),
    "send": lambda session: session.send("mine"),
    "submit": lambda session: session.submit("mine"),
    "send again": lambda session: session.send("more", input_id="i1"),
    "submit again": lambda session: session.submit("more", input_id="i1"),
    "update": lambda session: session.update_state(lambda state: {**state, "mine": True}),
}


@pytest.mark.parametrize("pending", [False, True], ids=["idle", "pending"])
@pytest.mark.parametrize("use", USES)
async def test_another_scope_is_refused(store: AgentStore, use: str, pending: bool) -> None:
    owner = agent(store).session("s", scope="acme")
    await owner.send("secret")
    await owner.update_state(lambda _: {"secret": True})
    await owner.load()
    if pending:
        await owner.submit("more", input_id="i1")
    before = await everything(store)
    for scope in ("other", ""):
        session = agent(store).session("s", scope=scope)
        with pytest.raises(InvalidArgumentError, match="scope"):
            await USES[use](session)
        assert (session.messages, session.state) == ((), {})
    assert await everything(store) == before
    assert len(await agent(store).session("s").load()) == 2  # without a scope nobody is asked for it


async def test_a_turn_that_runs_is_stopped_by_no_other_scope_and_no_other_agent(store: AgentStore) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> ModelResponse:
        asked.set()
        await go_on.wait()
        return ModelResponse("done")

    mine = Agent(name="mine", model=FunctionModel(answer), store=store)
    turn = asyncio.create_task(mine.session("s", scope="acme").send("go"))
    await asked.wait()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await agent(store, "mine").session("s", scope="other").abort()
    store.transcripts.forget(
        "s"
    )  # as a deletion does, also one that is refused: a fresh object knows nothing of the session
    with pytest.raises(InvalidArgumentError, match="scope"):
        await agent(store, "mine").session("s", scope="other").abort()
    with pytest.raises(AgentChangedError, match="belongs to the agent 'mine'"):
        await agent(store, "other").session("s", scope="acme").abort()
    go_on.set()
    assert (await turn).text == "done"


@pytest.mark.parametrize("policy", ["queue", "steer"])
async def test_an_input_of_another_scope_joins_no_turn(store: AgentStore, policy: TurnPolicy) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.set()
        await go_on.wait()
        return await echo(request)

    mine = Agent(model=FunctionModel(answer), store=store)
    turn = asyncio.create_task(mine.session("s", scope="acme").send("secret"))
    await asked.wait()
    joining = asyncio.create_task(mine.session("s", scope="other", turn_policy=policy).send("mine"))
    for _ in range(50):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await joining
    assert (await turn).text == "re: secret"
    assert [message.text for message in await mine.session("s").load()] == ["secret", "re: secret"]


async def test_a_turn_of_another_life_is_stopped_by_no_object_of_the_scope_before(store: AgentStore) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> ModelResponse:
        asked.set()
        await go_on.wait()
        return ModelResponse("done")

    before = agent(store).session("s", scope="acme")
    await before.send("hello")
    await before.load()
    await store.delete_session("s")
    turn = asyncio.create_task(Agent(model=FunctionModel(answer), store=store).session("s", scope="other").send("go"))
    await asked.wait()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await before.abort()
    go_on.set()
    assert (await turn).text == "done"


async def test_a_turn_that_has_read_nothing_yet_is_stopped_by_no_object_of_the_scope_before(store: AgentStore) -> None:
    slow = Held("before", skip=2)  # the turn journal and the session are read, then the turn is opened
    mine = agent(another(store, slow))
    before = mine.session("s", scope="acme")
    await before.send("hello")
    await store.delete_session("s")
    slow.next = True
    turn = asyncio.create_task(mine.session("s", scope="other").send("go"))
    await slow.held.wait()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await before.abort()
    slow.go_on.set()
    assert (await turn).text == "re: go"


@pytest.mark.parametrize("first", ["send", "state"])
async def test_of_two_scopes_that_create_one_session_the_second_runs_nothing_in_it(
    store: AgentStore, first: str
) -> None:
    slow = Held("after", skip=1)  # the turn journal is read first, then the session
    late = another(store, slow)
    slow.next = True
    second = asyncio.create_task(agent(late).session("s", scope="other").send("mine"))
    await slow.held.wait()
    owner = agent(store).session("s", scope="acme")
    await (owner.send("secret") if first == "send" else owner.update_state(lambda _: {"secret": True}))
    before = await everything(store)
    slow.go_on.set()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await second
    assert await everything(store) == before


async def test_a_listener_of_another_scope_hears_nothing(store: AgentStore) -> None:
    other, mine = agent(store).session("s", scope="other"), agent(store).session("s", scope="acme")
    heard: list[object] = []
    other.on(heard.append)
    told: list[str] = []
    unscoped = agent(store).session("s")
    for session in (mine, unscoped):
        session.on(lambda event: told.append(event.type))
    await mine.send("secret")
    assert heard == []
    assert sorted(told) == sorted(["run.started", "model.responded", "run.done"] * 2)


async def test_of_a_turn_that_is_taken_up_again_another_scope_hears_no_content(store: AgentStore) -> None:
    await agent(store).session("s", scope="acme").submit("secret")
    fresh = another(store)
    heard: list[str] = []
    other = agent(fresh).session("s", scope="other")
    other.on(lambda event: heard.append(event.type))
    assert await agent(fresh).session("s").resume() is not None
    await agent(fresh).session("s").send("more")
    assert heard == []


@pytest.mark.parametrize("use", ["clear", "compact", "compact_if_due", "discard"])
async def test_of_what_is_no_turn_another_scope_hears_nothing_either(store: AgentStore, use: str) -> None:
    """Not even in a process that begins, of an object without a scope, which need not know the session's."""
    owner, policy = agent(store).session("s", scope="acme"), Compaction(max_tokens=1, summarize=lambda _: "sum")
    for _ in range(3):
        await owner.send("secret")
    if use in ("clear", "discard"):
        await owner.submit("more")
    fresh, heard, told = another(store), list[object](), list[object]()
    other, mine = agent(fresh).session("s", scope="other"), agent(fresh).session("s", scope="acme")
    other.on(heard.append)
    mine.on(told.append)
    unscoped = agent(fresh).session("s", compaction=policy)
    await (unscoped.compact_if_due() if use == "compact_if_due" else USES[use](unscoped))
    await agent(fresh).session("s").send("go")
    assert (heard, bool(told)) == ([], True)


async def test_another_scope_compacts_nothing_and_is_told_no_limit(store: AgentStore) -> None:
    owner = agent(store).session("s", scope="acme")
    for _ in range(3):
        await owner.send("secret")
    before, seen = await everything(store), list[object]()

    def summarize(messages: object) -> str:
        seen.append(messages)
        return "gone"

    policy = Compaction(max_tokens=1, keep=1, summarize=summarize)
    compacting = agent(store).session("s", scope="other", compaction=policy)
    for session in (compacting, agent(store).session("s", scope="other", limits=Limits(max_steps=1))):
        with pytest.raises(InvalidArgumentError, match="scope"):
            await session.send("mine")
    assert (seen, await everything(store)) == ([], before)


@pytest.mark.parametrize("use", ["clear", "compact", "discard", "resume"])
async def test_a_session_that_another_scope_makes_behind_the_check_is_left_alone(store: AgentStore, use: str) -> None:
    await agent(store).session("s", scope="acme").send("mine")
    slow = Held("after")
    late = agent(another(store, slow)).session("s", scope="acme")
    slow.next = True
    using = asyncio.create_task(cast("Any", USES[use](late)))
    await slow.held.wait()
    await store.delete_session("s")
    owner = agent(store).session("s", scope="other")
    await owner.send("secret")
    if use != "compact":
        await owner.submit("more")
    before = await everything(store)
    slow.go_on.set()
    with pytest.raises(InvalidArgumentError, match="scope"):
        await using
    assert await everything(store) == before
