"""Forks: a copy of a transcript's first records that shares nothing with its source."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.compaction_world import COST, archives, gist, lived, records, session, status, texts
from core.tests.processes import another, dead, die_at, elsewhere, everything, writes_nothing

from perdure import AgentStore, Usage
from perdure.errors import (
    InvalidArgumentError,
    InvalidIdError,
    OutcomeUnknownError,
    SessionBusyError,
    SessionExistsError,
    StoreUnavailableError,
)
from perdure_conformance.interception import OUTCOMES, Call, Died, Interception, at

pytestmark = pytest.mark.anyio


async def test_a_copy_of_all(any_store: AgentStore) -> None:
    live = await lived(any_store, 2)
    made = await live.fork("copy")
    assert (made.id, await texts(any_store, "copy")) == ("copy", await texts(any_store))
    found = await any_store.sessions.load("copy")
    assert found is not None
    assert (found.state, found.scope, await status(any_store, "copy")) == ({"title": "kept"}, "acme", "absent")
    assert [message.text for message in await made.load()] == ["m0", "re: m0", "m1", "re: m1"]


async def test_they_go_their_own_ways(any_store: AgentStore) -> None:
    live = await lived(any_store, 2)
    before = await any_store.sessions.load("s")
    made = await live.fork("copy")
    assert (await made.send("other")).text == "re: other"
    await made.update_state(lambda _: {"title": "another"})
    assert await any_store.sessions.load("s") == before
    await any_store.delete_session("s")
    assert await texts(any_store, "copy") == ["m0", "re: m0", "m1", "re: m1", "other", "re: other"]


async def test_an_id_of_its_own(store: AgentStore) -> None:
    live = await lived(store, 1)
    first, second = await live.fork(), await live.fork()
    assert len({first.id, second.id, "s"}) == 3


@pytest.mark.parametrize(("given", "scope"), [({}, "acme"), ({"scope": None}, None), ({"scope": "b"}, "b")])
async def test_the_scope(store: AgentStore, given: dict[str, Any], scope: str | None) -> None:
    made = await (await lived(store, 1)).fork("copy", **given)
    found = await store.sessions.load("copy", limit=0)
    assert found is not None
    assert found.scope == made.scope == scope
    await made.send("next")


@pytest.mark.parametrize("count", range(5))
async def test_the_first_records(any_store: AgentStore, count: int) -> None:
    live = await lived(any_store, 2)
    await live.fork("copy", at=count)
    assert await texts(any_store, "copy") == (await texts(any_store))[:count]


async def test_what_is_not_carried(store: AgentStore) -> None:
    live = await lived(store, 2)
    made = await live.fork("copy")
    assert not any(name in record for record in await records(store, "copy") for name in ("input_id", "spent"))
    again = await made.send("m0", input_id="i0")
    assert again.text == "re: m0"
    assert len(await records(store, "copy")) == 6
    assert Usage.from_record((await records(store, "copy"))[-1]["spent"]) == COST


async def test_of_a_summary_only_the_message_is_carried(any_store: AgentStore) -> None:
    live = await lived(any_store, 3)
    await live.compact(keep=1, summarize=gist, archive=True)
    made = await live.fork("copy")
    (summary, *_) = await records(any_store, "copy")
    assert sorted(summary) == ["at", "kind", "message", "v"]
    assert [message.text for message in await made.history()] == ["<u:m0|a:re: m0|u:m1|a:re: m1>", "m2", "re: m2"]
    (archive,) = await archives(any_store)
    await any_store.delete_session("copy")
    assert await archives(any_store) == [archive]
    assert (await (await live.fork("second")).compact(keep=0, summarize=gist)).replaced == 3


async def test_foreign_records_are_copied_as_they_are(store: AgentStore) -> None:
    await lived(store, 1)
    foreign: list[dict[str, Any]] = [
        {"spent": 5, "input_id": 7},
        {"kind": "thought", "archive": "x"},
        {"kind": "message", "spent": "x"},
    ]
    await store.sessions.append("s", foreign)
    await session(store).fork("copy")
    assert (await records(store, "copy"))[2:] == foreign


# --- what is refused ---


@pytest.mark.parametrize("place", [-1, 5, True, 1.0, "1"])
async def test_a_place_that_is_none(store: AgentStore, place: Any) -> None:
    await lived(store, 2)
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError):
            await session(watched).fork("copy", at=place)


async def test_a_place_between_a_call_and_its_result(store: AgentStore) -> None:
    live = session(store)
    await live.send("first")
    await live.send("look a")  # user, assistant with a call, tool, assistant
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError, match="the nearest are 3 and 5"):
            await session(watched).fork("copy", at=4)
    for place in (0, 1, 2, 3, 5, 6):
        await live.fork(f"copy{place}", at=place)


async def test_a_call_that_never_had_a_result_is_cut_from_nothing(store: AgentStore) -> None:
    def message(role: str, **more: Any) -> dict[str, Any]:
        return {"kind": "message", "message": {"role": role, "content": "x", **more}}

    call = {"id": "c", "name": "n", "arguments": {}}
    given = [message("assistant", tool_calls=[call]), message("user"), message("tool", tool_call_id="other")]
    await store.sessions.append("s", given, expected_version=0)
    for place in range(4):
        made = await session(store).fork(at=place)
        assert [record["message"] for record in await records(store, made.id)] == [
            one["message"] for one in given[:place]
        ]


@pytest.mark.parametrize("other", ["s", "taken", "pending"])
async def test_an_id_that_is_taken(any_store: AgentStore, other: str) -> None:
    await lived(any_store, 1)
    await lived(any_store, 1, "taken")
    await session(any_store, "pending").send("pay ann")
    await any_store.sessions.delete("pending")  # the turn is there alone
    before = await everything(any_store)
    with pytest.raises(SessionExistsError):
        await session(any_store).fork(other)
    assert await everything(any_store) == before


@pytest.mark.parametrize("bad", ["a b", "", "s.run"])
async def test_a_bad_id(store: AgentStore, bad: str) -> None:
    live = await lived(store, 1)
    with pytest.raises(InvalidIdError):
        await live.fork(bad)


async def test_nothing_to_copy(store: AgentStore) -> None:
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError):
            await session(watched).fork("copy")


async def test_the_pending_turn_is_not_part_of_it(any_store: AgentStore) -> None:
    live = await lived(any_store, 1)
    asked = await live.send("pay ann")
    made = await live.fork("copy")
    assert await made.pending() is None
    assert await texts(any_store, "copy") == ["m0", "re: m0"]
    pending = await live.pending()
    assert pending is not None
    assert pending.approval_ids == tuple(asked.approval_ids)


# --- crashes and races ---


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_it_is_there_whole_or_not_at_all(any_store: AgentStore, outcome: str) -> None:
    await lived(any_store, 2)
    process = dead() if outcome.startswith("die") else None
    interception = at(1, outcome)
    try:
        await session(another(any_store, interception, process=process)).fork("copy")
        came = True
    except (Died, StoreUnavailableError):
        came = False
    there = await any_store.sessions.load("copy")
    assert len(interception.calls) == (2 if outcome in ("lost", "unknown") else 1)
    assert (there is not None) == (outcome not in ("die-before", "unavailable"))
    assert came == (outcome in ("lost", "unknown"))
    if there is not None:
        assert await texts(any_store, "copy") == await texts(any_store)


@pytest.mark.parametrize("second", ["lost", "unknown", "unavailable", "taken"])
async def test_nobody_knows_twice(store: AgentStore, second: str) -> None:
    await lived(store, 1)

    async def before(call: Call) -> None:
        if call.number == 2 and second == "unavailable":
            raise StoreUnavailableError("write", "key")
        if call.number == 2 and second == "taken":
            await store.sessions.append("copy", [{"rival": 1}], expected_version=0)
        elif call.number == 1 or second == "lost":
            raise OutcomeUnknownError("write", "key")

    async def after(call: Call) -> None:
        if call.number == 2 and second == "unknown":
            raise OutcomeUnknownError("write", "key")

    with pytest.raises(SessionExistsError if second == "taken" else OutcomeUnknownError):
        await session(another(store, Interception(before=before, after=after))).fork("copy")


async def test_several_at_once_make_one(any_store: AgentStore) -> None:
    live = await lived(any_store, 1)
    came = await asyncio.gather(*(live.fork("copy") for _ in range(5)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in came) == ["Session", *["SessionExistsError"] * 4]


async def test_a_deletion_that_died_does_not_take_the_fork_along(store: AgentStore) -> None:
    await lived(store, 1, "copy")
    live = await lived(store, 1)
    await die_at(store, 3, lambda used: used.delete_session("copy"))  # the session is gone, the journal is not
    made = await live.fork("copy")
    assert await made.pending() is None
    assert await texts(store, "copy") == ["m0", "re: m0"]


async def test_a_deletion_that_goes_on_is_waited_for(store: AgentStore) -> None:
    await lived(store, 1, "copy")
    live = await lived(store, 1)
    with pytest.raises(Died):
        await another(store, at(3, "die-after"), process=elsewhere()).delete_session("copy")
    with pytest.raises(SessionBusyError):
        await live.fork("copy")
    assert [info.session_id for info in (await everything(store))["sessions"]] == ["s"]


async def test_an_idle_journal_is_no_session(store: AgentStore) -> None:
    await lived(store, 1, "copy")
    await store.sessions.delete("copy")
    made = await (await lived(store, 2)).fork("copy", at=2)
    assert (await made.send("next")).text == "re: next"
