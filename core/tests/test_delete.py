"""Deleting a conversation: nothing of its id is left anywhere, whoever runs it, and wherever it is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, dead, die_at, elsewhere, everything, writes_nothing

from perdure import Agent, AgentStore, ToolCall, open_store, tool
from perdure.contracts.approvals import Approval
from perdure.errors import (
    InvalidIdError,
    SessionBusyError,
    SessionDeletedError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio

NOTHING: dict[str, list[Any]] = {"sessions": [], "runs": [], "approvals": []}


async def answer(request: ModelRequest) -> ModelResponse:
    last = request.messages[-1]
    if last.role == "user" and last.text.startswith("secret"):
        return ModelResponse(tool_calls=[ToolCall(f"c{n}", "pay", {"to": "secret-ann"}) for n in range(2)])
    return ModelResponse(text=f"re: {last.text}")


def agent(store: AgentStore) -> Agent:
    @tool(needs_approval=True, idempotent=True)
    def pay(to: str) -> str:
        return f"secret-paid {to}"

    return Agent(model=FunctionModel(answer), tools=[pay], store=store)


async def lived(store: AgentStore, session_id: str) -> None:
    """A conversation with saved turns, old decisions, a state, and a turn that waits."""
    session = agent(store).session(session_id, scope="secret-scope")
    await session.send("hello")
    for approval_id in (await session.send("secret")).approval_ids:
        await agent(store).approvals.resolve(approval_id, approved=True, note="secret-note")
    await session.update_state(lambda state: {"title": "secret-title"})
    await session.send("secret again")


async def test_nothing_is_left(any_store: AgentStore) -> None:
    """B113: a conversation with turns, decisions and a pending approval leaves zero traces in all parts."""
    await lived(any_store, "s")
    await lived(any_store, "s-2")
    before = await everything(any_store)
    assert [len(before[part]) for part in before] == [2, 2, 8]
    assert await any_store.delete_session("s") is True
    after = await everything(any_store)
    assert [info.session_id for info in after["sessions"]] == ["s-2"]
    assert [info.key for info in after["runs"]] == ["s-2"]
    assert {approval.session_id for approval in after["approvals"]} == {"s-2"}
    assert len(after["approvals"]) == 4
    session = agent(any_store).session("s")
    assert (list(await session.load()), await session.pending()) == ([], None)


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_nothing_is_left_in_the_file(tmp_path: Path, scheme: str) -> None:
    """B113: also not in the bytes of the database, nor in the names and bytes of files."""

    async def live_and_die() -> None:
        async with open_store(f"{scheme}:{tmp_path / 'a.db'}") as store:
            await lived(store, "secret-session")
            await store.delete_session("secret-session")

    asyncio.run(live_and_die())
    paths = [*tmp_path.rglob("*")]
    left = b"".join(path.read_bytes() for path in paths if path.is_file())
    assert b"secret" not in left
    assert [path for path in paths if "secret" in path.name] == []


async def test_a_missing_id_and_a_repeat(any_store: AgentStore) -> None:
    async with writes_nothing(any_store) as watched:
        assert await watched.delete_session("s") is False
    await lived(any_store, "s")
    assert [await any_store.delete_session("s") for _ in range(3)] == [True, False, False]
    assert await everything(any_store) == NOTHING


@pytest.mark.parametrize("session_id", ["", "a b", "s.run", "s\n", 5])
async def test_a_bad_id(store: AgentStore, session_id: Any) -> None:
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidIdError):
            await watched.delete_session(session_id)


async def test_parts_that_stand_alone(store: AgentStore) -> None:
    await lived(store, "s")
    assert await AgentStore(approvals=store.approvals).delete_session("s") is True
    assert await AgentStore(sessions=store.sessions).delete_session("s") is True
    assert await AgentStore(sessions=store.sessions, approvals=store.approvals).delete_session("s") is False
    assert await store.delete_session("s") is True  # the turn journal was left
    assert await everything(store) == NOTHING


async def test_an_approval_alone_is_something(store: AgentStore) -> None:
    await lived(store, "s")
    await store.sessions.delete("s")
    await store.checkpoints.delete("s")
    assert await store.delete_session("s") is True
    assert await everything(store) == NOTHING


async def test_more_approvals_than_a_page(store: AgentStore) -> None:
    for n in range(203):
        request = Approval(f"s.turn-1.s0.c{n}", "s.turn-1", f"c{n}", "pay", {}, store.clock.now(), session_id="s")
        await store.approvals.create(request)
    assert await store.delete_session("s") is True
    assert await everything(store) == NOTHING


async def test_a_part_that_cannot_delete_is_said_first(store: AgentStore) -> None:
    await lived(store, "s")
    mixed = AgentStore(sessions=PlainSessions(), checkpoints=store.checkpoints, approvals=store.approvals)
    before = await everything(store)
    with pytest.raises(UnsupportedOperationError):
        await mixed.delete_session("s")
    assert await everything(store) == before


# --- somebody runs it ---


async def held(store: AgentStore) -> tuple[asyncio.Task[Any], asyncio.Event]:
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: ModelRequest) -> ModelResponse:
        reached.set()
        await may_go_on.wait()
        return ModelResponse(text="late")

    task = asyncio.create_task(Agent(model=FunctionModel(wait), store=store).session("s").send("go"))
    await reached.wait()
    return task, may_go_on


@pytest.mark.parametrize("where", ["this bundle", "this process", "elsewhere"])
async def test_a_live_owner_refuses(any_store: AgentStore, where: str) -> None:
    used = any_store if where == "this bundle" else another(any_store, process=elsewhere() if where[0] == "e" else None)
    task, may_go_on = await held(used)
    before = await everything(any_store)
    with pytest.raises(SessionBusyError):
        await any_store.delete_session("s")
    assert await everything(any_store) == before
    may_go_on.set()
    assert (await task).text == "late"
    assert await any_store.delete_session("s") is True


@pytest.mark.parametrize("where", ["this bundle", "elsewhere"])
async def test_force_fences_the_owner_off(any_store: AgentStore, where: str) -> None:
    task, may_go_on = await held(any_store if where == "this bundle" else another(any_store, process=elsewhere()))
    assert await any_store.delete_session("s", force=True) is True
    may_go_on.set()
    with pytest.raises(SessionDeletedError):
        await task
    assert await everything(any_store) == NOTHING


async def test_a_sleeper_does_not_bring_it_back(store: AgentStore) -> None:
    """A process that sleeps right before its commit is refused, also when the session lives again."""
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def before(call: Call) -> None:
        if call.number == 4:
            reached.set()
            await may_go_on.wait()

    sleeper = another(store, Interception(before=before), process=elsewhere())
    task = asyncio.create_task(agent(sleeper).session("s").send("old"))
    await reached.wait()
    await store.delete_session("s", force=True)
    await agent(store).session("s").send("new")
    may_go_on.set()
    with pytest.raises(Exception, match="conflicts with its session"):
        await task
    assert [message.text for message in await agent(store).session("s").load()] == ["new", "re: new"]


# --- cut off ---


@pytest.mark.parametrize("outcome", ["die-before", "die-after"])
async def test_cut_off_anywhere_and_repeated(store: AgentStore, outcome: str) -> None:
    number = 0
    while True:
        number += 1
        await lived(store, "s")
        writes = at(number, outcome)
        try:
            await another(store, writes, process=dead()).delete_session("s")
        except Died:
            await store.delete_session("s")
            assert await everything(store) == NOTHING, f"{outcome} at write {number}"
        else:
            assert number > 7  # the claim, the proof, four approvals, the session, the journal
            return


@pytest.mark.parametrize("number", range(2, 9))
async def test_cut_off_and_met_by_a_send(store: AgentStore, number: int) -> None:
    await lived(store, "s")
    await die_at(store, number, lambda used: used.delete_session("s"))
    session = agent(store).session("s")
    assert (await session.send("new")).text == "re: new"
    assert [message.text for message in await session.load()] == ["new", "re: new"]
    assert (await store.approvals.list()).items == ()


async def test_a_store_that_fails_in_the_middle(store: AgentStore) -> None:
    await lived(store, "s")
    with pytest.raises(StoreUnavailableError):
        await another(store, at(4, "unavailable")).delete_session("s")
    assert await store.delete_session("s") is True
    assert await everything(store) == NOTHING


async def test_a_title_that_is_set_meanwhile_does_not_stop_it(store: AgentStore) -> None:
    await lived(store, "s")

    async def before(call: Call) -> None:
        if call.number == 3:  # the delete of the session
            await store.sessions.append("s", [], state={"title": "late"})

    assert await another(store, Interception(before=before)).delete_session("s") is True
    assert await everything(store) == NOTHING


async def test_two_deletions_at_once(any_store: AgentStore) -> None:
    await lived(any_store, "s")
    outcomes = await asyncio.gather(*(any_store.delete_session("s") for _ in range(4)), return_exceptions=True)
    assert True in outcomes
    assert all(isinstance(outcome, (bool, SessionBusyError)) for outcome in outcomes), outcomes
    await any_store.delete_session("s")
    assert await everything(any_store) == NOTHING
