"""Dropping, clearing, deleting and pruning that die, or lose their store, at every write: done whole or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from core.tests.crash_world import SESSION, Scenario, SimulatedProcess, World, away_from, current, survive, told_of

from perdure import ToolCall
from perdure.errors import ApprovalOrphanedError
from perdure_conformance.interception import OUTCOMES, Call, Died, Interception, at

pytestmark = pytest.mark.anyio

AWAY = "away"
DEATHS = ("die-before", "die-after")
SOME_DEATHS = (pytest.param("die-before", marks=pytest.mark.soak), "die-after")
SCRIPT = Scenario(
    [
        "Hello.",
        [
            ToolCall(id="c1", name="wire", arguments={"to": "ann"}),
            ToolCall(id="c2", name="wire", arguments={"to": "bob"}),
            ToolCall(id="c3", name="pay", arguments={"to": "eve"}),
        ],
        "Never said.",
    ]
)
WEEK = timedelta(days=7)


async def texts(world: World) -> list[str] | None:
    """Return what the user has said according to the transcript; `None` if there is no session."""
    found = await world.stores.sessions.load(SESSION)
    if found is None:
        return None
    return [r["message"]["content"] for r in found.records if r["message"]["role"] == "user"]


async def statuses(world: World) -> list[str]:
    return [approval.status for approval in (await world.stores.approvals.list()).items]


# --- what is there before ---


async def waiting(world: World, *, atomic: bool) -> None:
    """A turn that waits for two decisions, one of which is made."""
    process = await world.process(atomic=atomic)
    current.set(process)
    await process.session.send("Hi.")
    result = await process.session.send("Wire.")
    await process.store.decide(result.approval_ids[0], approved=True)
    assert await statuses(world) == ["approved", "pending"]


async def cut_off(world: World, *, atomic: bool) -> None:
    """A turn whose process died when it had stored its approvals, and not yet noted that."""
    asked: list[Call] = []

    async def before(call: Call) -> None:
        parts = {operation.key.part for operation in call.operations}
        asked.extend([call] if "approvals" in parts else [])
        if len(asked) == 2 and "approvals" not in parts:
            raise Died

    process = await world.process(Interception(before=before), atomic=atomic)
    current.set(process)
    await process.session.send("Hi.")
    with pytest.raises(Died):
        await process.session.send("Wire.")
    assert await statuses(world) == ["pending", "pending"]


async def old_and_decided(world: World, *, atomic: bool) -> None:
    """A turn that could go on, and that nobody has touched for a month."""
    await waiting(world, atomic=atomic)
    pending = (await world.stores.approvals.list(status="pending")).items
    await world.stores.approvals.decide(pending[0].id, approved=False)
    world.clock.advance(timedelta(days=30))


# --- what is done, and what must be left ---


async def is_dropped(world: World) -> None:
    assert await texts(world) == ["Hi."]
    assert await statuses(world) == ["approved", "cancelled"]
    await world.check_idle()


async def is_cleared(world: World) -> None:
    assert await texts(world) == []
    assert await statuses(world) == []
    await world.check_idle()
    found = await world.stores.sessions.load(SESSION)
    assert found is not None
    assert found.state == {"title": "kept"}


async def is_gone(world: World) -> None:
    assert await texts(world) is None
    assert await world.checkpoint() is None
    assert await statuses(world) == []


@dataclass(frozen=True)
class Act:
    """Something that changes a conversation as a whole.

    Attributes:
        prepare: Makes what is there before.
        do: Does it; repeated by whoever comes after a crash.
        check: Checks that it is done whole.
        claim: The status of the turn journal while it is done.
        said: What the transcript holds of the user when another turn follows it.
    """

    prepare: Callable[..., Awaitable[None]]
    do: Callable[[SimulatedProcess], Awaitable[object]]
    check: Callable[[World], Awaitable[None]]
    claim: str
    said: tuple[str, ...]


ACTS = {
    "discard": Act(waiting, lambda p: p.session.discard_pending(), is_dropped, "discarding", ("Hi.", "Next.")),
    "clear": Act(cut_off, lambda p: p.session.clear(), is_cleared, "clearing", ("Next.",)),
    "delete": Act(waiting, lambda p: p.store.delete_session(SESSION), is_gone, "deleting", ("Next.",)),
    "prune": Act(old_and_decided, lambda p: p.store.prune(older_than=WEEK), is_gone, "deleting", ("Next.",)),
}


async def fail_once(world: World, act: Act, number: int, outcome: str, *, atomic: bool) -> SimulatedProcess | None:
    """Prepare, and do it with one fault; return the process that had it, or `None` if it made fewer writes."""
    await act.prepare(world, atomic=atomic)
    found = await world.stores.sessions.load(SESSION)
    assert found is not None
    await world.stores.sessions.append(SESSION, [], expected_version=found.version, state={"title": "kept"})
    if act.prepare is old_and_decided:
        world.clock.advance(timedelta(days=30))
    process = await world.process(away_from(number) if outcome == AWAY else at(number, outcome), atomic=atomic)
    await survive(act.do(process))
    return process if len(process.interception.calls) >= number else None


async def is_begun(world: World, act: Act) -> bool:
    """Whether whoever comes next must find it done: it was claimed, or is over."""
    found = await world.checkpoint()
    return found is None or found.head.status in (act.claim, "idle")


async def repeated(world: World, act: Act, other: SimulatedProcess, _: SimulatedProcess) -> None:
    """Another process does it again."""
    await act.do(other)
    await act.check(world)


async def repeated_here(world: World, act: Act, _: SimulatedProcess, first: SimulatedProcess) -> None:
    """Whoever was told that it failed does it again, once its store is back."""
    first.interception.before = first.interception.after = None
    await act.do(first)
    await act.check(world)


async def left_to_pending(world: World, act: Act, other: SimulatedProcess, _: SimulatedProcess) -> None:
    """Whoever looks at it finishes it."""
    begun = await is_begun(world, act)
    pending = await other.session.pending()
    assert (pending is None) == begun
    if not begun:
        await act.do(other)
    await act.check(world)


async def left_to_send(world: World, act: Act, other: SimulatedProcess, _: SimulatedProcess) -> None:
    """Whoever sends the next input finishes it first."""
    if not await is_begun(world, act):
        return
    current.set(other)
    world.scenario = Scenario(["Hello.", "Hello again."])
    assert (await other.session.send("Next.")).finish_reason == "stop"
    assert await texts(world) == list(act.said)
    await world.check_idle()


async def left_to_resolve(world: World, act: Act, other: SimulatedProcess, _: SimulatedProcess) -> None:
    """Whoever decides the approval that is left gets to know that its turn is gone."""
    pending = (await world.stores.approvals.list(status="pending")).items
    if not await is_begun(world, act) or not pending:
        return
    current.set(other)
    with pytest.raises(ApprovalOrphanedError):
        await other.agent.approvals.resolve(pending[0].id, approved=True)
    assert await texts(world) in (None, [], ["Hi."])
    found = await world.checkpoint()
    assert found is None or found.head.status == "idle"


FINISHES = [
    *((outcome, repeated) for outcome in (*OUTCOMES, AWAY)),
    *((outcome, repeated_here) for outcome in (*OUTCOMES, AWAY) if outcome not in DEATHS),
    *itertools.product(DEATHS, (left_to_pending, left_to_send, left_to_resolve)),
]


@pytest.mark.parametrize(("outcome", "finish"), FINISHES)
@pytest.mark.parametrize("name", ACTS)
async def test_it_is_done_whole_in_the_end(
    name: str, outcome: str, finish: Callable[..., Awaitable[None]], tmp_path: Path
) -> None:
    act = ACTS[name]
    number = 0
    for number in itertools.count(1):
        async with World("memory", tmp_path, SCRIPT) as world:
            first = await fail_once(world, act, number, outcome, atomic=True)
            if first is None:
                await act.check(world)
                break
            other = await world.process(atomic=True)
            async with told_of(first.interception, f"{outcome} at write {number}"):
                await finish(world, act, other, first)
                assert [effect.call_id for effect in world.effects] in (["c3"], [])
    assert number > 3


@pytest.mark.parametrize("outcome", SOME_DEATHS)
@pytest.mark.parametrize("name", ACTS)
async def test_it_is_done_whole_on_sqlite(name: str, outcome: str, tmp_path: Path) -> None:
    act = ACTS[name]
    number = 0
    for number in itertools.count(1):
        async with World("sqlite", tmp_path, SCRIPT) as world:
            first = await fail_once(world, act, number, outcome, atomic=True)
            if first is None:
                await act.check(world)
                break
            async with told_of(first.interception, f"{outcome} at write {number}"):
                await repeated(world, act, await world.process(atomic=True), first)
    assert number > 3


@pytest.mark.parametrize("again", SOME_DEATHS)
@pytest.mark.parametrize("name", ACTS)
async def test_who_finishes_it_may_die_too(name: str, again: str, tmp_path: Path) -> None:
    act = ACTS[name]
    for number, second in itertools.product(range(1, 8), range(1, 8)):
        async with World("memory", tmp_path, SCRIPT) as world:
            first = await fail_once(world, act, number, "die-after", atomic=True)
            if first is None:
                break
            other = await world.process(at(second, again), atomic=True)
            async with told_of(first.interception, f"die-after at {number}"), told_of(other.interception, f"{second}"):
                await survive(act.do(other))
                await act.do(await world.process(atomic=True))
                await act.check(world)
