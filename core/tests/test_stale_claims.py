"""Claims on a conversation whose owner is gone are finished or undone by whoever comes next; live ones refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from core.tests.processes import another, dead, die_at, elsewhere, everything
from core.tests.session_world import CALLS, FIRST, World, awaiting, finished, in_progress, ready

from perdure import AgentStore
from perdure.conversations.claims import Claim, settle
from perdure.errors import SessionBusyError, SessionConflictError
from perdure.ownership.leases import OwnershipLostError
from perdure_conformance.interception import Call, Died, Interception, at

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(store: AgentStore) -> World:
    world = World(store)
    await world.session.send("first")
    return world


LEFT: dict[str, tuple[list[str], bool]] = {
    # the claim: what the transcript holds after it was finished or undone, and whether the turn is still there
    "discarding": (FIRST, False),
    "clearing": ([], False),
    "deleting": ([], False),
    "compacting": (FIRST, True),
    "copying": (FIRST, True),
}


async def claimed(world: World, action: str, store: AgentStore) -> None:
    """A process claimed the conversation, with a turn in progress, and wrote nothing more."""
    await in_progress(world)
    claim = await Claim.take(store, "s", await store.checkpoints.load("s"), action)
    claim.journal.forget()


@pytest.mark.parametrize("call", ["pending", "resume", "send", "discard_pending", "clear", "delete"])
@pytest.mark.parametrize("action", LEFT)
async def test_stale_claim(world: World, action: str, call: str) -> None:
    await claimed(world, action, another(world.store, process=dead()))
    left, turn = LEFT[action]
    hello = ["hello", "re: hello"] if turn else []
    next_turn = ["next", "re: next"]
    match call:
        case "pending":
            pending = await world.session.pending()
            assert (pending is not None) is turn
            assert await world.texts() == left
            assert await world.status() == ("in-progress" if turn else "absent" if action == "deleting" else "idle")
        case "resume":
            assert (await world.session.resume() is not None) is turn
            assert await world.texts() == [*left, *hello]
        case "send":
            assert (await world.session.send("next")).text == "re: next"
            assert await world.texts() == [*left, *hello, *next_turn]
        case "discard_pending":
            assert await world.session.discard_pending() is turn
            assert await world.texts() == left
        case "clear":
            await world.session.clear()
            assert await world.texts() == []
        case _:
            assert await world.store.delete_session("s") is True
            assert await everything(world.store) == {"sessions": [], "runs": [], "approvals": []}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("action", LEFT)
async def test_live_claim(world: World, action: str, call: str) -> None:
    await claimed(world, action, another(world.store, process=elsewhere()))
    pending = await world.session.pending()
    assert pending is not None
    assert pending.status == action
    before = await everything(world.store)
    with pytest.raises(SessionBusyError):
        await CALLS[call](world.session)
    assert await everything(world.store) == before


@pytest.mark.parametrize("call", ["discard_pending", "delete"])
@pytest.mark.parametrize("action", LEFT)
async def test_live_claim_is_fenced_off_by_force(world: World, action: str, call: str) -> None:
    owner = another(world.store, process=elsewhere())
    await in_progress(world)
    with await Claim.take(owner, "s", await owner.checkpoints.load("s"), action) as claim:
        if call == "delete":
            assert await world.store.delete_session("s", force=True) is True
            assert await everything(world.store) == {"sessions": [], "runs": [], "approvals": []}
        else:
            assert await world.session.discard_pending(force=True) is LEFT[action][1]
            assert await world.texts() == LEFT[action][0]
        with pytest.raises(OwnershipLostError):
            await claim.close()


@pytest.mark.parametrize(("action", "moved"), [("compacting", True), ("copying", False)])
async def test_late_write_of_an_undone_claim_is_refused(world: World, action: str, moved: bool) -> None:
    """A copy has none: it writes nothing to the transcript that it reads, so that keeps its version."""
    sleeper = another(world.store, process=dead())
    await claimed(world, action, sleeper)
    seen = await sleeper.sessions.load("s")
    assert seen is not None
    await world.session.pending()
    now = await world.store.sessions.load("s")
    assert now is not None
    assert (now.version > seen.version) is moved


async def test_stale_claim_without_a_turn(world: World) -> None:
    owner = another(world.store, process=dead())
    claim = await Claim.take(owner, "s", await owner.checkpoints.load("s"), "compacting")
    claim.journal.forget()
    assert await world.session.pending() is None
    assert await world.status() == "idle"
    assert await world.texts() == FIRST


@pytest.mark.parametrize("state", [awaiting, ready, finished])
@pytest.mark.parametrize("action", ["compacting", "copying"])
async def test_an_undone_claim_puts_the_status_back(
    world: World, action: str, state: Callable[[World], Awaitable[object]]
) -> None:
    await state(world)
    seen = await world.store.checkpoints.load("s")
    claim = await Claim.take(another(world.store, process=dead()), "s", seen, action)
    claim.journal.forget()
    found = await settle(world.store, "s")
    assert seen is not None
    assert found is not None
    assert (found.head.status, found.head.run_id, found.head.owner) == (seen.head.status, seen.head.run_id, None)


async def test_clearing_that_died_after_it_emptied(world: World) -> None:
    await die_at(world.store, 3, lambda store: world.by(store).clear())
    assert await world.status() == "clearing"
    assert await world.texts() == []
    await world.session.send("next")
    assert await world.texts() == ["next", "re: next"]


async def test_a_clearing_that_is_undone_leaves_the_decisions_of_its_turn(world: World) -> None:
    """A process died right before it emptied the transcript, and a title was set since."""

    async def before(call: Call) -> None:
        if "Replace" in str(call):
            raise Died

    await ready(world)
    with pytest.raises(Died):
        await world.by(another(world.store, Interception(before=before), process=dead())).clear()
    assert await world.status() == "clearing"
    await world.session.update_state(lambda _: {"title": "a title"})
    result = await world.session.resume()
    assert result is not None
    assert (result.finish_reason, world.paid) == ("stop", ["ann"])


async def test_a_clearing_that_another_undid_says_so(world: World) -> None:
    async def before(call: Call) -> None:
        if call.number == 2:  # the proof
            await world.session.update_state(lambda _: {"title": "a title"})
            await settle(world.store, "s", force=True)

    with pytest.raises(SessionConflictError):
        await world.by(another(world.store, Interception(before=before))).clear()
    assert await world.texts() == FIRST
    assert await world.status() == "idle"


async def test_a_clearing_that_another_finished_is_done(world: World) -> None:
    async def before(call: Call) -> None:
        if call.number == 2:  # the proof
            await settle(world.store, "s", force=True)

    await world.by(another(world.store, Interception(before=before))).clear()
    assert (await world.texts(), await world.status()) == ([], "idle")


async def test_undoing_a_clearing_may_die_too(world: World) -> None:
    """What came in since the version that the first claim names is not cleared, however often the undoing is cut short."""
    await die_at(world.store, 1, lambda store: world.by(store).clear())
    await world.store.sessions.append("s", [{"kind": "note", "text": "late"}])
    for write in (1, 2):
        await die_at(world.store, write, lambda store: world.by(store).pending())
    assert await world.session.pending() is None
    found = await world.store.sessions.load("s")
    assert found is not None
    assert found.records[-1] == {"kind": "note", "text": "late"}
    assert await world.texts() == FIRST


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("call", ["discard_pending", "clear", "delete"])
async def test_a_claim_that_failed_here_is_taken_up_here_at_once(world: World, call: str, cancelled: bool) -> None:
    """A claim whose task ended in an error is held by nobody, though its process lives and its lease runs."""
    await in_progress(world)
    interception = at(2, "unavailable")
    if cancelled:

        async def cut(call: object) -> None:
            if len(interception.calls) == 2:
                raise asyncio.CancelledError

        interception.before = cut
    broken = world.by(another(world.store, interception))
    with pytest.raises(BaseException):  # noqa: B017, PT011  # reason: which one depends on the call and on the cut
        await CALLS[call](broken)
    assert await world.status() in ("discarding", "clearing", "deleting")
    assert await world.session.pending() is None
    assert (await world.session.send("next")).text == "re: next"


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("action", LEFT)
async def test_an_agent_lists_a_turn_behind_a_claim(world: World, action: str, live: bool) -> None:
    """A loop over what is pending must not miss one; that the claim may take it away is said by its status."""
    await claimed(world, action, another(world.store, process=elsewhere() if live else dead()))
    (turn,) = await world.session.agent.pending()
    assert (turn.session_id, turn.status, turn.run_id is not None) == ("s", action, True)
    if not live:
        await world.session.agent.resume("s")
        assert await world.session.agent.pending() == []


async def test_an_agent_lists_no_claim_on_a_conversation_without_a_turn(world: World) -> None:
    for action in LEFT:
        claim = await Claim.take(world.store, "s", await world.store.checkpoints.load("s"), action)
        assert await world.session.agent.pending() == []
        await claim.let_go()
