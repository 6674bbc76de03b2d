"""Compactions whose owner sleeps or is gone: undone or closed by whoever comes next, and nothing comes back.

And removals that sleep: they take nothing that is later than they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from core.tests.compaction_world import (
    archives,
    compacted_with_archives,
    gist,
    heard,
    lived,
    records,
    said,
    session,
    status,
    texts,
)
from core.tests.processes import another, dead, die_at, everything

from perdure import AgentStore
from perdure.archives import archive_id, archive_state
from perdure.conversations.claims import Claim, settle
from perdure.errors import OutcomeUnknownError, SessionConflictError, StoreUnavailableError
from perdure_conformance.interception import Call, Died, Interception

pytestmark = pytest.mark.anyio

NOTHING: dict[str, list[Any]] = {"sessions": [], "runs": [], "approvals": []}


# --- whoever sleeps ---


async def sleeping(
    store: AgentStore,
    number: int,
    meanwhile: Callable[[], Awaitable[Any]],
    action: Callable[[AgentStore], Awaitable[Any]],
) -> Any:
    """Let a process that is taken for dead do something, and something else happen right before its n-th write."""

    async def before(call: Call) -> None:
        if call.number == number:
            await meanwhile()

    interception = Interception(before=before)
    try:
        return await action(another(store, interception, process=dead()))
    except Exception as error:  # noqa: BLE001  # reason: what it is told is looked at
        error.add_note(str(interception.calls))
        return error


FULL: Callable[[AgentStore], Awaitable[Any]] = lambda used: session(used).compact(keep=1, summarize=gist, archive=True)  # noqa: E731  # reason: one of several


@pytest.mark.parametrize("number", range(2, 8))
async def test_a_sleeper_that_was_undone(store: AgentStore, number: int) -> None:
    """Before each of its writes somebody takes the claim over; it wakes, and leaves nothing."""
    await lived(store)
    before = await records(store)
    woken = await sleeping(store, number, lambda: settle(store, "s", force=True), FULL)
    if number == 7:  # it has replaced: only the journal was left to be closed
        assert woken.replaced == 6
        assert (await heard(store), len(await archives(store))) == (said(4), 1)
    else:
        assert isinstance(woken, SessionConflictError)
        assert (await records(store), await archives(store)) == (before, [])
    assert await status(store) == "idle"


@pytest.mark.parametrize("number", range(2, 8))
async def test_a_sleeper_does_not_bring_back_what_was_deleted(any_store: AgentStore, number: int) -> None:
    await lived(any_store)
    woken = await sleeping(any_store, number, lambda: any_store.delete_session("s", force=True), FULL)
    if number < 7:
        assert isinstance(woken, Exception)
    assert await everything(any_store) == NOTHING


@pytest.mark.parametrize("number", range(2, 8))
async def test_a_sleeper_meets_another_compaction(store: AgentStore, number: int) -> None:
    await lived(store)

    async def again() -> None:
        await session(store).compact(keep=0, summarize=lambda _: "other", archive=True)

    async def taken_over() -> None:
        await settle(store, "s", force=True)
        await again()

    await sleeping(store, number, taken_over, FULL)
    assert (await texts(store))[0] == "other"
    assert await heard(store) == said(4)
    assert len(await archives(store)) == (1 if number < 7 else 2)


@pytest.mark.parametrize("number", range(2, 12))
@pytest.mark.parametrize("act", ["clear", "delete"])
async def test_a_remover_that_slept_takes_no_later_archive(store: AgentStore, act: str, number: int) -> None:
    """It wakes before each of its writes, when the conversation has been finished off, lives again, and was compacted."""
    await compacted_with_archives(store, 2)

    async def lived_again() -> None:
        if await status(store) not in ("absent", "idle"):
            await settle(store, "s", force=True)
        live = await lived(store, 3)
        await live.compact(keep=1, summarize=gist, archive=True)

    done: Callable[[AgentStore], Awaitable[Any]] = lambda used: (  # noqa: E731  # reason: one of two
        session(used).clear() if act == "clear" else used.delete_session("s")
    )
    slept: list[int] = []

    async def meanwhile() -> None:
        slept.append(number)
        await lived_again()

    await sleeping(store, number, meanwhile, done)
    if slept:
        assert await heard(store) == said(3)
        assert len(await archives(store)) == 1


async def test_two_compactions_at_one_version(store: AgentStore) -> None:
    """The first ended without a change, so that the second's archive has the same name."""
    live = await lived(store)
    with pytest.raises(OSError, match="away"):
        await live.compact(keep=1, summarize=_away, archive=True)
    assert (await live.compact(keep=1, summarize=gist, archive=True)).replaced == 6
    assert await heard(store) == said(4)


def _away(_: object) -> str:
    raise OSError("away")


@pytest.mark.parametrize("ours", [True, False])
async def test_the_name_of_the_archive_is_taken(store: AgentStore, *, ours: bool) -> None:
    live = await lived(store)
    found = await store.sessions.load("s", limit=0)
    assert found is not None
    name = archive_id("s", found.version)
    state = archive_state("s", found.version) if ours else {"archive_of": "s"}
    await store.sessions.append(name, [{"left": 1}], expected_version=0, state=state)
    if ours:  # a process that slept has left it
        await live.compact(keep=1, summarize=gist, archive=True)
        assert await heard(store) == said(4)
    else:
        with pytest.raises(SessionConflictError):
            await live.compact(keep=1, summarize=gist, archive=True)
        assert await texts(store, name) == ["?"]
        assert (await texts(store), await status(store)) == (said(4), "idle")


async def test_an_archive_that_somebody_removes_meanwhile(store: AgentStore) -> None:
    await lived(store)

    async def before(call: Call) -> None:
        if call.number == 4:  # the records of the archive
            for name in await archives(store):
                await store.sessions.delete(name)

    with pytest.raises(SessionConflictError):
        await FULL(another(store, Interception(before=before)))
    assert (await texts(store), await archives(store), await status(store)) == (said(4), [], "idle")


# --- stale claims ---


async def test_a_title_that_is_set_after_the_crash_does_not_hide_that_it_was_done(store: AgentStore) -> None:
    await lived(store)
    await die_at(store, 6, FULL)  # the replace
    await session(store).update_state(lambda _: {"title": "late"})
    assert await session(store).pending() is None
    assert (await heard(store), len(await archives(store))) == (said(4), 1)


async def test_one_that_was_done_is_only_closed(store: AgentStore) -> None:
    """Also when something came in while it was made: the claim names the version that was replaced."""
    await lived(store)

    async def before(call: Call) -> None:
        if call.number == 5:  # the last proof
            await store.sessions.append("s", [{"late": 1}])

    async def after(call: Call) -> None:
        if call.number == 8:  # the replace, after a refused one and another proof
            raise Died

    interception = Interception(before=before, after=after)
    with pytest.raises(Died):
        await FULL(another(store, interception, process=dead()))
    written = Interception()
    await settle(another(store, written), "s")
    assert [str(call) for call in written.calls] == ["call 1 (write: Append runs)", "call 2 (write: Replace runs)"]
    assert (await heard(store), (await texts(store))[-1]) == (said(4), "?")


async def test_a_foreign_rewrite_at_the_named_version_is_not_taken_for_ours(store: AgentStore) -> None:
    await lived(store)
    await die_at(store, 5, FULL)  # the last proof
    found = await store.sessions.load("s")
    assert found is not None
    await store.sessions.replace("s", [], expected_version=found.version, keep=7)
    assert await session(store).pending() is None
    assert (await texts(store), await archives(store)) == (said(4)[:7], [])


async def test_a_sleepers_replace_that_lands_while_it_is_undone(store: AgentStore) -> None:
    """Right before the version is moved: the transcript names the archive then, which stays."""
    await lived(store)
    at_replace = Interception()
    landing: list[Any] = []

    async def hold(call: Call) -> None:
        if call.number == 6:
            landing.extend(call.operations)
            raise Died

    at_replace.before = hold
    with pytest.raises(Died):
        await FULL(another(store, at_replace, process=dead()))

    async def before(call: Call) -> None:
        if landing and "Append sessions" in str(call):
            await store.sessions.journal.write([landing.pop()])  # type: ignore[attr-defined]  # reason: of the fixture

    await settle(another(store, Interception(before=before)), "s")
    assert landing == []
    assert (await heard(store), len(await archives(store)), await status(store)) == (said(4), 1, "idle")


async def test_a_claim_that_was_never_archived(store: AgentStore) -> None:
    await lived(store)
    owner = another(store, process=dead())
    with await Claim.take(owner, "s", await owner.checkpoints.load("s"), "compacting", archive=True):
        pass
    assert await session(store).pending() is None
    assert (await status(store), await archives(store)) == ("idle", [])


async def test_a_deletion_that_died_while_taking_them_along(store: AgentStore) -> None:
    await compacted_with_archives(store, 2)
    for number in range(2, 6):  # the claim, the proof, two archives, the session, the journal
        await die_at(store, number, lambda used: used.delete_session("s"))
        await session(store).pending()
        assert await everything(store) == NOTHING
        await compacted_with_archives(store, 2)


async def test_a_rival_that_rewrites_at_the_version_of_a_lost_write_is_not_taken_for_us(store: AgentStore) -> None:
    await lived(store)

    async def before(call: Call) -> None:
        if call.number == 6:  # the replace
            await store.sessions.replace("s", [], expected_version=None, keep=7)
            raise OutcomeUnknownError("replace", "s")

    with pytest.raises(SessionConflictError):
        await FULL(another(store, Interception(before=before)))
    assert (await texts(store), await archives(store), await status(store)) == (said(4)[:7], [], "idle")


@pytest.mark.parametrize("second", ["unknown", "unavailable", "cancelled"])
async def test_a_replace_that_lands_after_everybody_has_gone(store: AgentStore, second: str) -> None:
    """While it may still land, its archive stays: whoever undoes the claim moves the session's version first."""
    await lived(store)
    sent: list[Any] = []

    async def before(call: Call) -> None:
        if "Replace sessions" not in str(call):
            return
        sent.extend(call.operations)
        if second == "cancelled":
            raise asyncio.CancelledError
        if len(sent) == 2 and second == "unavailable":
            raise StoreUnavailableError("replace", "s")
        raise OutcomeUnknownError("replace", "s")

    with pytest.raises(asyncio.CancelledError if second == "cancelled" else OutcomeUnknownError):
        await FULL(another(store, Interception(before=before)))
    assert (await status(store), len(await archives(store))) == ("compacting", 1)
    await store.sessions.journal.write(sent[:1])  # type: ignore[attr-defined]  # reason: of the fixture
    assert await session(store).pending() is None
    assert (await heard(store), len(await archives(store)), await status(store)) == (said(4), 1, "idle")
