"""Compacting, and removing what was compacted, that die or lose their store at every write: old or new, never a mixture."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from core.tests.compaction_world import agent, archives, lived, records, session, status
from core.tests.crash_world import away_from, survive, told_of
from core.tests.processes import another, dead, everything

from perdure import AgentStore
from perdure_conformance.interception import OUTCOMES, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

AWAY = "away"
DEATHS = ("die-before", "die-after")
SOME_DEATHS = (pytest.param("die-before", marks=pytest.mark.soak), "die-after")
WEEK = timedelta(days=7)
Messages = list[tuple[str, str]]
TURNS: Messages = [pair for n in range(4) for pair in (("user", f"m{n}"), ("assistant", f"re: m{n}"))]


def fault(number: int, outcome: str) -> Interception:
    return away_from(number) if outcome == AWAY else at(number, outcome)


def summary_of(messages: Messages) -> tuple[str, str]:
    return "user", "<" + "|".join(f"{role[0]}:{text}" for role, text in messages) + ">"


@dataclass(frozen=True)
class Model:
    """What a conversation must hold: worked out from what was done to it, not from what is stored.

    Attributes:
        transcript: Its messages.
        history: All that can still be read.
        archives: How many archives it has.
        spent: How many responses were paid for.
    """

    transcript: tuple[tuple[str, str], ...]
    history: tuple[tuple[str, str], ...]
    archives: int
    spent: int

    def compacted(self, keep: int, *, archive: bool) -> Model:
        cut = len(self.transcript) - 2 * keep
        new = (summary_of(list(self.transcript[:cut])), *self.transcript[cut:])
        return Model(new, self.history if archive else new, self.archives + archive, self.spent + 1)

    def sent(self, text: str) -> Model:
        more = (("user", text), ("assistant", f"re: {text}"))
        return Model((*self.transcript, *more), (*self.history, *more), self.archives, self.spent + 1)


BEFORE = Model(tuple(TURNS), tuple(TURNS), 0, 4)


async def seen(store: AgentStore) -> Model:
    """What is stored, read by a fresh process."""
    live = session(store)
    transcript = tuple((message.role, message.text) for message in await live.load())
    history = tuple((message.role, message.text) for message in await live.history())
    counted = [record["spent"]["requests"] for record in await records(store) if "spent" in record]
    return Model(transcript, history, len(await archives(store)), counted[-1] if counted else 0)


async def compact(store: AgentStore, archive: bool) -> Any:
    return await session(store).compact(keep=1, archive=archive)


# --- compact ---


async def repeated(store: AgentStore, archive: bool, _: AgentStore, __: Interception) -> None:
    await compact(store, archive)


async def repeated_here(_: AgentStore, archive: bool, first: AgentStore, interception: Interception) -> None:
    interception.before = interception.after = None
    await compact(first, archive)


async def left_to_pending(store: AgentStore, archive: bool, _: AgentStore, __: Interception) -> None:
    assert await session(store).pending() is None
    assert await status(store) == "idle"
    assert await seen(store) in (BEFORE, BEFORE.compacted(1, archive=archive))
    await compact(store, archive)


async def left_to_send(store: AgentStore, archive: bool, _: AgentStore, __: Interception) -> None:
    """B035: all that was said is still reached."""
    now = await seen(store)
    after = BEFORE.compacted(1, archive=archive)
    assert (await session(store).send("m0", input_id="i0")).usage.requests == 1  # had its turn, whatever has happened
    await session(store).send("next")
    found = await seen(store)
    assert found in (BEFORE.sent("next"), after.sent("next"))
    assert (found.transcript[0] == after.transcript[0]) == (now.transcript == after.transcript)
    await session(store).compact(keep=2, archive=archive)
    found = await seen(store)
    if found.transcript[0] == after.transcript[0]:
        assert found == after.sent("next")  # there are two turns and the summary: nothing to replace
    else:
        assert found == BEFORE.sent("next").compacted(2, archive=archive)


FINISHES = [
    *((outcome, repeated) for outcome in (*OUTCOMES, AWAY)),
    *((outcome, repeated_here) for outcome in (*OUTCOMES, AWAY) if outcome not in DEATHS),
    *itertools.product(DEATHS, (left_to_pending, left_to_send)),
]


@pytest.mark.parametrize(("outcome", "finish"), FINISHES)
@pytest.mark.parametrize("archive", [False, True])
async def test_old_or_new(
    store: AgentStore, outcome: str, finish: Callable[..., Awaitable[None]], *, archive: bool
) -> None:
    await cut_off_everywhere(store, outcome, finish, archive=archive)


@pytest.mark.parametrize("any_store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("outcome", SOME_DEATHS)
async def test_old_or_new_in_a_file(any_store: AgentStore, outcome: str) -> None:
    await cut_off_everywhere(any_store, outcome, left_to_pending, archive=True)


async def cut_off_everywhere(
    store: AgentStore, outcome: str, finish: Callable[..., Awaitable[None]], *, archive: bool
) -> None:
    after = BEFORE.compacted(1, archive=archive)
    number = 0
    for number in itertools.count(1):
        await lived(store)
        interception = fault(number, outcome)
        first = another(store, interception, process=dead() if outcome in DEATHS else None)
        error = await survive(compact(first, archive))
        async with told_of(interception, f"{outcome} at write {number}"):
            if len(interception.calls) < number:
                assert (error, await seen(store)) == (None, after)
                break
            if error is None:
                assert await seen(store) == after
            if finish is repeated_here and isinstance(error, Exception) and await status(store) != "compacting":
                assert await seen(store) in (BEFORE, after)
            await finish(store, archive, first, interception)
            if finish is not left_to_send:
                assert await seen(store) == after
            assert await status(store) == "idle"
            for number in (0, 3):
                await session(store).send(f"m{number}", input_id=f"i{number}")
            assert ("user", "again") not in (await seen(store)).transcript
        await store.delete_session("s")
        assert (await everything(store))["sessions"] == []
    assert number > (6 if archive else 3)


@pytest.mark.parametrize("again", SOME_DEATHS)
@pytest.mark.parametrize("archive", [False, True])
async def test_who_finishes_it_may_die_too(store: AgentStore, again: str, *, archive: bool) -> None:
    for number, second in itertools.product(range(1, 8), range(1, 8)):
        await lived(store)
        one, two = at(number, "die-after"), at(second, again)
        await survive(compact(another(store, one, process=dead()), archive))
        async with told_of(one, f"die-after at {number}"), told_of(two, f"{again} at {second}"):
            await survive(session(another(store, two, process=dead())).pending())
            assert await session(store).pending() is None
            assert await seen(store) in (BEFORE, BEFORE.compacted(1, archive=archive))
            await compact(store, archive)
            assert await seen(store) == BEFORE.compacted(1, archive=archive)
        await store.delete_session("s")


# --- clear, delete and prune take the archives along ---


async def is_clear(store: AgentStore) -> None:
    assert await seen(store) == Model((), (), 0, 0)
    assert (await status(store), len((await store.sessions.list()).items)) == ("idle", 1)


async def is_gone(store: AgentStore) -> None:
    assert await everything(store) == {"sessions": [], "runs": [], "approvals": []}


REMOVALS: dict[str, tuple[Callable[[AgentStore], Awaitable[Any]], Callable[[AgentStore], Awaitable[None]]]] = {
    "clear": (lambda store: agent(store).session("s").clear(), is_clear),
    "delete": (lambda store: store.delete_session("s"), is_gone),
    "prune": (lambda store: store.prune(older_than=WEEK), is_gone),
}


async def compacted_twice(store: AgentStore, clock: ManualClock) -> Model:
    live = await lived(store)
    model = BEFORE
    for _ in range(2):
        await live.compact(keep=1, archive=True)
        await live.send("next")
        model = model.compacted(1, archive=True).sent("next")
    assert await seen(store) == model
    clock.advance(timedelta(days=30))
    return model


@pytest.mark.parametrize("outcome", [*OUTCOMES, AWAY])
@pytest.mark.parametrize("name", REMOVALS)
async def test_removed_whole_or_not_at_all(store: AgentStore, clock: ManualClock, name: str, outcome: str) -> None:
    await removed_everywhere(store, clock, name, outcome)


@pytest.mark.parametrize("any_store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", REMOVALS)
async def test_removed_whole_or_not_at_all_in_a_file(any_store: AgentStore, clock: ManualClock, name: str) -> None:
    await removed_everywhere(any_store, clock, name, "die-after")


async def removed_everywhere(store: AgentStore, clock: ManualClock, name: str, outcome: str) -> None:
    remove, check = REMOVALS[name]
    number = 0
    for number in itertools.count(1):
        model = await compacted_twice(store, clock)
        interception = fault(number, outcome)
        process = dead() if outcome in DEATHS else None
        error = await survive(remove(another(store, interception, process=process)))
        async with told_of(interception, f"{outcome} at write {number}"):
            if len(interception.calls) < number:
                await check(store)
                break
            begun = await status(store) != "idle"
            assert await session(store).pending() is None
            if begun or error is None:
                await check(store)
            else:
                assert await seen(store) in (model, Model((), (), 0, 0))
            clock.advance(timedelta(days=30))
            await remove(store)
            await check(store)
        with contextlib.suppress(Exception):
            await store.delete_session("s")
    assert number > 5


@pytest.mark.parametrize("again", SOME_DEATHS)
@pytest.mark.parametrize("name", REMOVALS)
async def test_who_finishes_the_removal_may_die_too(
    store: AgentStore, clock: ManualClock, name: str, again: str
) -> None:
    remove, check = REMOVALS[name]
    for number, second in itertools.product(range(1, 8), range(1, 8)):
        await compacted_twice(store, clock)
        one, two = at(number, "die-after"), at(second, again)
        await survive(remove(another(store, one, process=dead())))
        async with told_of(one, f"die-after at {number}"), told_of(two, f"{again} at {second}"):
            await survive(remove(another(store, two, process=dead())))
            clock.advance(timedelta(days=30))
            await remove(store)
            await check(store)
        await store.delete_session("s")
