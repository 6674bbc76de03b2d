"""Saving a turn: it never creates a session, and never drops a finished turn because the store is away."""

from __future__ import annotations

from uuid import uuid4

import pytest
from core.tests.processes import another, die_at

from perdure import Agent, AgentStore, open_store
from perdure.errors import OutcomeUnknownError, PerdureError, SessionConflictError, StoreUnavailableError
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, InterceptedJournal, Interception

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
async def test_a_commit_creates_no_session(atomic: bool) -> None:
    async with open_store(f"memory:{uuid4().hex}") as store:
        assert isinstance(store.sessions, JournalSessions)
        stores = journal_stores(InterceptedJournal(store.sessions.journal, Interception(), atomic=atomic))
        bundle = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)
        assert bundle.atomic is atomic

        async def answer(_: ModelRequest) -> ModelResponse:
            await store.sessions.delete("s")
            return ModelResponse(text="late")

        session = Agent(model=FunctionModel(answer), store=bundle).session("s")
        with pytest.raises(SessionConflictError, match="the session was deleted"):
            await session.send("hello")
        assert await store.sessions.load("s") is None
        pending = await session.pending()
        assert pending is not None
        assert await session.discard_pending()
        assert await store.sessions.load("s") is None


@pytest.mark.parametrize("error", [StoreUnavailableError, OutcomeUnknownError])
async def test_a_store_that_fails_while_a_finished_turn_is_saved_does_not_drop_it(error: type[PerdureError]) -> None:
    """Discarding saves a turn that has finished; when that fails for now, the turn stays for a later attempt."""
    away = False

    async def before(call: Call) -> None:
        if away and any(operation.key.part == "sessions" for operation in call.operations):
            raise error("append", "s", "the test says so")

    async with open_store(f"memory:{uuid4().hex}") as store:
        assert isinstance(store.sessions, JournalSessions)
        stores = journal_stores(InterceptedJournal(store.sessions.journal, Interception(before=before), atomic=False))
        bundle = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)

        async def answer(_: ModelRequest) -> ModelResponse:
            nonlocal away
            away = True
            return ModelResponse(text="kept")

        session = Agent(model=FunctionModel(answer), store=bundle).session("s")
        for call in (lambda: session.send("hello"), session.discard_pending, session.discard_pending):
            with pytest.raises(error):
                await call()
        away = False
        assert await session.discard_pending() is False
        assert [message.text for message in await session.load()] == ["hello", "kept"]


async def test_an_append_whose_outcome_stays_unknown_is_repeated_once_and_stays_for_a_resume(store: AgentStore) -> None:
    tries = 0

    async def before(call: Call) -> None:
        nonlocal tries
        if any(operation.key.part == "sessions" and getattr(operation, "items", ()) for operation in call.operations):
            tries += 1
            assert tries <= 2
            raise OutcomeUnknownError("append", "s")

    async def answer(_: ModelRequest) -> ModelResponse:
        return ModelResponse(text="kept")

    agent = Agent(model=FunctionModel(answer))
    with pytest.raises(OutcomeUnknownError):
        await agent.session("s", store=another(store, Interception(before=before), atomic=False)).send("hello")
    assert tries == 2
    session = agent.session("s", store=store)
    assert await session.resume() is not None
    assert [message.text for message in await session.load()] == ["hello", "kept"]


async def test_a_turn_that_another_has_saved_shows_once(store: AgentStore) -> None:
    """A process died between the append to the transcript and the close of the journal."""

    async def answer(_: ModelRequest) -> ModelResponse:
        return ModelResponse(text="saved")

    agent = Agent(model=FunctionModel(answer))
    await die_at(store, 5, lambda store: agent.session("s", store=store).send("hello"), atomic=False)
    session = agent.session("s", store=another(store, atomic=False))
    result = await session.resume()
    assert result is not None
    assert [message.text for message in session.messages] == ["hello", "saved"]
    await session.send("again")
    assert [message.text for message in session.messages] == ["hello", "saved", "again", "saved"]
