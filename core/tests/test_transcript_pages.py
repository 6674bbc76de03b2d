"""A transcript is read in pages; whatever happens between two of them, what is shown is as of one version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from core.tests.plain_sessions import PlainSessions

from perdure import Agent, AgentStore, Session, open_store
from perdure.backend import StoredTranscript
from perdure.errors import StoreCorruptedError, StoreUnavailableError
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.models import ScriptedModel
from perdure.runtime.transcript import reading as transcript
from perdure_conformance.interception import Call, InterceptedJournal, Interception

pytestmark = pytest.mark.anyio

Happens = Callable[[AgentStore], Awaitable[object]]


def said(*texts: str) -> list[dict[str, object]]:
    return [{"kind": "message", "message": {"role": "user", "content": text}} for text in texts]


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


class Between(Interception):
    """Has something happen, by another process, after the first page that is read."""

    def __init__(self, other: AgentStore) -> None:
        super().__init__(counted=("read",), after=self._after)
        self.other = other
        self.happens: Happens | None = None

    async def _after(self, _: Call) -> None:
        happens, self.happens = self.happens, None
        if happens is not None:
            await happens(self.other)


@pytest.fixture(autouse=True)
def _pages_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "PAGE", 3)


@asynccontextmanager
async def session_of(*records: str) -> AsyncIterator[tuple[Session, Between]]:
    """Give a session that holds records, and what may happen while it is read."""
    async with open_store("memory:") as store:
        await store.sessions.append("s", said(*records))
        assert isinstance(store.sessions, JournalSessions)
        between = Between(store)
        parts = journal_stores(InterceptedJournal(store.sessions.journal, between))
        bundle = AgentStore(sessions=parts.sessions, checkpoints=parts.checkpoints, approvals=parts.approvals)
        yield Agent(model=ScriptedModel([]), store=bundle).session("s"), between


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 6, 7])
async def test_all_pages_are_read_and_no_more(number: int) -> None:
    names = list("abcdefg"[:number])
    async with session_of(*names) as (session, between):
        await session.load()
        assert texts(session) == names
        assert len(between.calls) == max(1, -(-number // 3))
        await session.load()
        assert len(between.calls) == max(1, -(-number // 3)) + 1  # what is new is one page more: none


async def test_what_is_appended_between_two_pages_is_read() -> None:
    async with session_of(*"abcd") as (session, between):
        between.happens = lambda store: store.sessions.append("s", said(*"efg"))
        await session.load()
        assert texts(session) == list("abcdefg")


async def test_what_is_rewritten_between_two_pages_is_read_anew() -> None:
    async with session_of(*"abcd") as (session, between):
        between.happens = lambda store: store.sessions.replace("s", said(*"ABCDE"), expected_version=None)
        await session.load()
        assert texts(session) == list("ABCDE")


async def test_what_is_deleted_between_two_pages_is_gone() -> None:
    async with session_of(*"abcd") as (session, between):
        between.happens = lambda store: store.sessions.delete("s")
        await session.load()
        assert texts(session) == []


async def test_another_session_of_the_id_is_read_anew() -> None:
    async with session_of(*"abcd") as (session, between):

        async def created_again(store: AgentStore) -> None:
            await store.sessions.delete("s")
            await store.sessions.append("s", said(*"ABCDE"))

        between.happens = created_again
        await session.load()
        assert texts(session) == list("ABCDE")


async def test_a_page_that_cannot_be_read_leaves_what_was_read_before() -> None:
    async with session_of(*"a") as (session, between):
        await session.load()
        await between.other.sessions.append("s", said(*"bcdefg"))

        async def fails(_: AgentStore) -> None:
            raise StoreUnavailableError("load", "s", "it is away")

        between.happens = lambda store: _next(between, fails)
        with pytest.raises(StoreUnavailableError):
            await session.load()
        assert texts(session) == ["a"]
        await session.load()
        assert texts(session) == list("abcdefg")


async def _next(between: Between, happens: Happens) -> None:
    between.happens = happens


class Short(PlainSessions):
    """A third party's store that says that it has a record more than it gives."""

    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        found = await super()._load(session_id, after=after, limit=limit, last=last)
        assert found is not None
        found_of_more: StoredTranscript = type(found)(
            found.session_id, found.version, found.count + 1, found.created_at, found.updated_at, records=found.records
        )
        return found_of_more


async def test_a_store_that_gives_fewer_records_than_it_counts_is_damaged() -> None:
    sessions = Short()
    await sessions.append("s", said("a"))
    session = Agent(model=ScriptedModel([]), store=AgentStore(sessions=sessions)).session("s")
    with pytest.raises(StoreCorruptedError, match="fewer records"):
        await session.load()


async def test_what_many_records_say_alike_is_in_memory_once(store: AgentStore) -> None:
    foreign: list[dict[str, Any]] = [
        {"kind": 1},
        {"kind": "note", "message": "text"},
        {"kind": "note", "message": {"role": None}},
        {},
    ]
    await store.sessions.append("s", [*foreign, *said("one")])
    session = Agent(model=ScriptedModel(["two"]), store=store).session("s")
    await session.send("go")
    await session.load()
    (one, go, _), (run_of_one, run_of_go, run_of_two) = session.messages, session._view.read.runs
    assert one.role is go.role
    assert run_of_one is None
    assert run_of_go is run_of_two
