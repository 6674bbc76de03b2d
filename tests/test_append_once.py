"""`append_once`: repeating never stores a record twice."""

import asyncio
from typing import Any

import pytest

from perdure.backend import (
    InvalidArgumentError,
    JournalSnapshot,
    Key,
    NotJsonError,
    OutcomeUnknownError,
    SessionStore,
    StoreUnavailableError,
    VersionConflictError,
    append_once,
    journal_stores,
)
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio


class Faulty(MemoryJournal):
    """Takes its next outcomes from lists: `lost` writes and does not say so, `dropped` says so too but did not write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.written = 0

    async def read(self, key: Key, **kwargs: Any) -> JournalSnapshot | None:
        await asyncio.sleep(0)
        if self.reads and self.reads.pop(0) == "down":
            raise ConnectionError("down")
        return await super().read(key, **kwargs)

    async def write(self, operations: Any, /) -> tuple[int, ...]:
        outcome = self.writes.pop(0) if self.writes else "ok"
        if outcome == "unavailable":
            raise StoreUnavailableError("append", "s")
        if outcome == "conflict":
            raise VersionConflictError("s", 1, 2)
        if outcome == "dropped":
            raise ConnectionError("no answer")
        versions = await super().write(operations)
        self.written += 1
        if outcome == "lost":
            raise ConnectionError("no answer")
        return versions


@pytest.fixture
def journal() -> Faulty:
    return Faulty()


@pytest.fixture
def store(journal: Faulty) -> SessionStore:
    return journal_stores(journal).sessions


def records(*names: str) -> list[dict[str, Any]]:
    return [{"uuid": name, "text": f"text of {name}"} for name in names]


async def stored(store: SessionStore) -> list[str]:
    found = await store.load("s")
    return [] if found is None else [record["uuid"] for record in found.records]


async def test_records_that_are_there_are_left_out(store: SessionStore, journal: Faulty) -> None:
    first = await append_once(store, "s", records("a", "b"))
    second = await append_once(store, "s", records("b", "c", "a", "d"))
    assert await stored(store) == ["a", "b", "c", "d"]
    assert second == first + 1
    assert await append_once(store, "s", records("a", "d")) == second
    assert journal.written == 2


async def test_nothing_creates_an_empty_session_once(store: SessionStore, journal: Faulty) -> None:
    version = await append_once(store, "s", [])
    assert await append_once(store, "s", []) == version
    assert journal.written == 1


async def test_the_key_may_have_another_name(store: SessionStore) -> None:
    await append_once(store, "s", [{"uuid": "x", "id": "1"}], key="id")
    await append_once(store, "s", [{"uuid": "x", "id": "2"}, {"uuid": "x", "id": "1"}], key="id")
    assert await stored(store) == ["x", "x"]


async def test_records_of_others_without_the_key_are_no_hindrance(store: SessionStore) -> None:
    await store.append("s", [{"uuid": 5}, {"text": "none"}, {"uuid": None}])
    await append_once(store, "s", records("a"))
    found = await store.load("s")
    assert found is not None
    assert found.count == 4


@pytest.mark.parametrize("outcomes", [["lost"], ["dropped"], ["lost", "lost"], ["dropped", "lost"], ["conflict"]])
@pytest.mark.parametrize("before", [[], ["z"]])
async def test_an_unknown_outcome_is_repeated_without_a_duplicate(
    store: SessionStore, journal: Faulty, outcomes: list[str], before: list[str]
) -> None:
    await append_once(store, "s", records(*before))
    journal.writes = list(outcomes)
    version = await append_once(store, "s", records("a", "b"))
    assert await stored(store) == [*before, "a", "b"]
    found = await store.load("s")
    assert found is not None
    assert found.version == version


async def test_a_late_failure_does_not_claim_that_nothing_was_written(store: SessionStore, journal: Faulty) -> None:
    journal.writes, journal.reads = ["lost"], ["ok", "down"]
    with pytest.raises(OutcomeUnknownError):
        await append_once(store, "s", records("a"))
    journal.writes, journal.reads = ["dropped", "unavailable"], []
    with pytest.raises(OutcomeUnknownError):
        await append_once(store, "s", records("b"))
    journal.writes, journal.reads = ["unavailable"], []
    with pytest.raises(StoreUnavailableError):
        await append_once(store, "s", records("b"))
    assert await append_once(store, "s", records("a", "b"))
    assert await stored(store) == ["a", "b"]


async def test_it_does_not_try_for_ever(store: SessionStore, journal: Faulty) -> None:
    journal.writes = ["dropped"] * 1000
    with pytest.raises(OutcomeUnknownError):
        await append_once(store, "s", records("a"))
    journal.writes = ["conflict"] * 1000
    with pytest.raises(VersionConflictError):
        await append_once(store, "s", records("a"))
    journal.writes = ["dropped", *["conflict"] * 1000]
    with pytest.raises(OutcomeUnknownError):
        await append_once(store, "s", records("a"))


async def test_many_writers_of_the_same_records_store_each_once(store: SessionStore) -> None:
    await asyncio.gather(*(append_once(store, "s", records("a", "b", f"own-{n}")) for n in range(20)))
    found = await stored(store)
    assert len(found) == len(set(found)) == 22


async def test_the_snapshot_is_taken_at_the_call(store: SessionStore) -> None:
    given = records("a")
    appending = append_once(store, "s", given)
    given[0]["uuid"] = "changed"
    given.clear()
    await appending
    assert await stored(store) == ["a"]


@pytest.mark.parametrize("wrong", [{}, {"uuid": None}, {"uuid": 5}, {"id": "a"}])
async def test_a_record_without_an_id_is_refused(store: SessionStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await append_once(store, "s", [*records("a"), wrong])
    assert caught.value.argument == "records[1]"
    assert await store.load("s") is None


async def test_an_id_with_other_content_is_refused(store: SessionStore) -> None:
    await append_once(store, "s", [{"uuid": "a", "done": True}])
    with pytest.raises(InvalidArgumentError, match="has the id 'a' of a stored record, with other content"):
        await append_once(store, "s", [*records("b"), {"uuid": "a", "done": 1}])
    with pytest.raises(InvalidArgumentError, match="has the id 'c' of another one, with other content"):
        await append_once(store, "s", [{"uuid": "c"}, {"uuid": "c", "more": 1}])
    await append_once(store, "s", [{"uuid": "c"}, {"uuid": "c"}])
    assert await stored(store) == ["a", "c"]


async def test_what_is_no_json_is_refused(store: SessionStore) -> None:
    with pytest.raises(NotJsonError, match=r"records\[0\].x"):
        await append_once(store, "s", [{"uuid": "a", "x": {1}}])
