"""Copying conversations from one store to another."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from core.tests.moving_world import CALLS, RAN, agent, differences, everything, fill
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, dead, elsewhere, writes_nothing
from core.tests.session_world import World, in_progress
from hypothesis import given
from hypothesis import strategies as st

from perdure import AgentStore, open_store
from perdure.archives import archive_id, archive_state
from perdure.backend import Key, Part, Replace
from perdure.contracts.approvals import Approval
from perdure.contracts.sessions import Transcript
from perdure.conversations.claims import Claim
from perdure.errors import (
    InvalidArgumentError,
    SessionBusyError,
    SessionHalfCopiedError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from perdure.moving import Progress, copy_conversations
from perdure.moving.plans import plan
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
NOT_AT_ALL = timedelta(0)


@pytest.fixture
async def target(clock: ManualClock) -> AsyncIterator[AgentStore]:
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


async def test_everything_is_copied_at_the_versions_that_it_has(any_store: AgentStore, target: AgentStore) -> None:
    await fill(any_store)
    seen: list[Progress] = []
    report = await copy_conversations(any_store, target, progress=seen.append)
    there, here = await everything(target), await everything(any_store)
    assert differences(there, here) == []
    assert len(here) > 15
    assert report.not_copied == {}
    assert (report.copied, report.approvals) == (9, 3)
    assert [step.outcome for step in seen] == ["copied"] * 9
    assert (seen[-1].done, seen[-1].total) == (9, 9)


async def test_a_copy_again_writes_nothing_anywhere(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    await copy_conversations(store, target)
    async with writes_nothing(store) as source, writes_nothing(target) as same:
        report = await copy_conversations(source, same)
    assert (report.copied, report.present, report.not_copied) == (0, 9, {})


async def test_a_copy_makes_nothing_look_younger(store: AgentStore, target: AgentStore, clock: ManualClock) -> None:
    await fill(store)
    before = await everything(store, turn_versions=False)
    clock.advance(timedelta(days=1))
    await copy_conversations(store, target)
    assert differences(await everything(store, turn_versions=False), before) == []
    assert differences(await everything(target, turn_versions=False), before) == []


async def test_a_pending_turn_goes_on_at_the_target_without_repeating_what_is_done(
    store: AgentStore, target: AgentStore
) -> None:
    await fill(store)
    await copy_conversations(store, target)
    RAN.clear()
    script = [CALLS["failed"][0], CALLS["failed"][1], "All done."]
    session = agent(target, script).session("failed")
    pending = await session.pending()
    assert pending is not None
    assert pending.status == "in-progress"
    with pytest.raises(Exception, match="the post is closed"):
        await session.resume()
    assert RAN == ["post b"]  # and not `look a`, whose result is recorded
    assert len(await session.load()) == 0


async def test_approvals_are_decided_at_the_target_and_applied_there(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    await copy_conversations(store, target)
    RAN.clear()
    (asked,) = (await target.approvals.list(session_id="waiting")).items
    await target.decide(asked.id, approved=True)
    waiting = await target.checkpoints.load("waiting")
    assert waiting is not None
    assert waiting.head.status == "ready"
    assert (result := await agent(target, CALLS["waiting"]).resume("waiting"))
    assert (result.text, RAN) == ("Paid.", ["pay ann"])
    assert (result := await agent(target, CALLS["decided"]).resume("decided"))
    assert (result.text, RAN) == ("Paid.", ["pay ann", "pay carl"])
    mine = await store.approvals.get(asked.id)
    assert mine is not None
    assert not mine.decided


async def test_an_application_goes_on_with_the_versions_that_it_expects(store: AgentStore, target: AgentStore) -> None:
    await store.sessions.append("s", [{"n": 1}])
    version = await store.sessions.append("s", [{"n": 2}])
    await copy_conversations(store, target)
    assert await target.sessions.append("s", [{"n": 3}], expected_version=version) == version + 1
    talk = await store.checkpoints.load("s")
    assert talk is None
    assert await target.checkpoints.load("s") is None


async def test_what_differs_at_the_target_is_never_overwritten(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    await target.sessions.append("plain", [{"mine": True}])
    await agent(target).session("talk").send("mine")
    (asked,) = (await store.approvals.list(session_id="waiting")).items
    await target.approvals.create(asked)  # at another version
    before = await everything(target)
    report = await copy_conversations(store, target)
    assert set(report.not_copied) == {"plain", "talk", "waiting"}
    assert "at another version" in report.not_copied["waiting"]
    assert not report.complete
    after = await everything(target)
    assert {name: after.get(name) for name in before} == before
    assert "session waiting" not in after
    assert report.copied == 6


async def test_a_live_owner_is_waited_for(store: AgentStore, target: AgentStore) -> None:
    world = World(store)
    await world.session.send("first")
    await in_progress(world)
    owner = another(store, process=elsewhere())
    found = await store.checkpoints.load("s")
    assert found is not None
    seen: list[str] = []
    waits = asyncio.Event()
    with await Claim.take(owner, "s", found, "clearing") as claim:

        def look(step: Progress) -> None:
            seen.append(step.outcome)
            waits.set()

        copying = asyncio.create_task(
            copy_conversations(another(store, clock=None), target, wait=timedelta(seconds=1), progress=look)
        )
        await waits.wait()
        assert await everything(target) == {}
        await claim.let_go()
    report = await copying
    assert (report.copied, report.not_copied, seen) == (1, {}, ["waiting", "copied"])


async def test_a_live_owner_is_skipped_and_said_so(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    found = await store.checkpoints.load("failed")
    assert found is not None
    away = elsewhere()
    head = dataclasses.replace(
        found.head,
        owner=away.new_owner(),
        lease=timedelta(seconds=30),
        lease_expires_at=store.clock.now() + timedelta(seconds=30),
    )
    await store.checkpoints.append("failed", [], expected_version=found.version, head=head)
    before = await store.checkpoints.load("failed")
    report = await copy_conversations(store, target, wait=NOT_AT_ALL)
    assert list(report.not_copied) == ["failed"]
    assert f"process {away.pid} on elsewhere owns it" in report.not_copied["failed"]
    assert await store.checkpoints.load("failed") == before
    assert await target.sessions.load("failed") is None
    assert report.copied == 8


async def test_no_turn_begins_while_a_conversation_is_copied(store: AgentStore, target: AgentStore) -> None:
    await agent(store).session("s").send("one")
    refused: list[str] = []

    async def send(call: Call) -> None:
        if call.number == 3:
            try:
                await agent(another(store, process=elsewhere())).session("s").send("two")
            except SessionBusyError as error:
                refused.append(str(error))

    source = another(store)
    await copy_conversations(source, another(target, Interception(before=send)))
    assert refused
    assert differences(await everything(target), await everything(store)) == []
    assert (await agent(store).session("s").send("two")).text == "heard two"


async def test_what_goes_on_at_the_source_at_the_last_moment_is_not_let_go_at_the_target(
    store: AgentStore, target: AgentStore
) -> None:
    await agent(store).session("talk").send("one")
    taken = False

    async def before(call: Call) -> None:
        nonlocal taken
        if not taken and any(isinstance(operation, Replace) for operation in call.operations):  # it lets go here
            taken = True
            await agent(another(store, process=elsewhere())).session("talk").discard_pending(force=True)
            await agent(store).session("talk").send("two")

    report = await copy_conversations(another(store, Interception(before=before)), target, wait=NOT_AT_ALL)
    assert list(report.not_copied) == ["talk"]
    half = await target.checkpoints.load("talk")
    assert half is not None
    assert half.head.status == "copying"
    assert (await copy_conversations(store, target)).complete
    assert differences(await everything(target), await everything(store)) == []


async def test_a_copy_that_died_makes_nothing_look_younger(
    store: AgentStore, target: AgentStore, clock: ManualClock
) -> None:
    await agent(store).session("talk").send("one")
    before = await store.checkpoints.load("talk")
    assert before is not None
    clock.advance(timedelta(days=1))
    with pytest.raises(Died):
        await copy_conversations(another(store, at(1, "die-after"), process=dead()), target)
    assert await agent(store).session("talk").pending() is None  # whoever meets the claim undoes it
    after = await store.checkpoints.load("talk")
    assert after is not None
    assert (after.head, after.updated_at) == (before.head, before.updated_at)
    assert after.version > before.version


async def test_an_approval_that_does_not_arrive_is_noticed(
    store: AgentStore, target: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(approval: Approval, **_: Any) -> Approval:
        return approval

    await agent(store, CALLS["waiting"]).session("waiting").send("Go.")
    monkeypatch.setattr(target.approvals, "create", lose)
    report = await copy_conversations(store, target)
    assert "what was read again differs" in report.not_copied["waiting"]
    assert await everything(target) == {}


async def test_prune_at_the_target_takes_nothing_away_that_is_being_copied(
    store: AgentStore, target: AgentStore, clock: ManualClock
) -> None:
    await fill(store)
    clock.advance(timedelta(days=1))
    pruned: list[Any] = []

    async def prune(_: Call) -> None:
        pruned.append(await target.prune(older_than=timedelta(hours=1)))

    # What is complete there is old and may go; what is being copied may not.
    interception = Interception(after=prune)
    report = await copy_conversations(store, another(target, interception, process=elsewhere()))
    assert report.not_copied == {}
    assert report.copied == 9
    assert any(name == "waiting" and "live owner" in why for one in pruned for name, why in one.kept.items())
    held, wanted = await everything(target), await everything(store)
    assert [name for name in held if held[name] != wanted[name]] == []
    assert "turn waiting" in held  # it waits for an approval, so it is kept however old
    assert any(name.startswith("approval waiting") for name in held)


@pytest.mark.parametrize("what", ["title", "decision"])
async def test_what_comes_in_while_a_conversation_is_copied_is_not_lost(
    store: AgentStore, target: AgentStore, what: str
) -> None:
    await fill(store)
    (asked,) = (await store.approvals.list(session_id="waiting")).items
    done: list[int] = []

    async def change(call: Call) -> None:
        if not done and call.operations[0].key == Key(Part.SESSIONS, "waiting"):
            done.append(call.number)
            if what == "title":
                await store.sessions.append("waiting", [], state={"title": "new"})
            else:
                await store.decide(asked.id, approved=True)

    source = another(store)
    report = await copy_conversations(source, another(target, Interception(after=change)), wait=timedelta(seconds=1))
    assert done
    assert report.not_copied == {}
    assert differences(await everything(target), await everything(store)) == []


async def test_a_copy_that_dies_at_any_write_is_finished_by_the_next(clock: ManualClock) -> None:
    """At the target or at the source: what is there is whole or known as half, and the next copy ends at equal versions."""
    halves = 0
    for side in ("source", "target"):
        number = 0
        while True:
            number += 1
            source, target = await _fresh(clock), await _fresh(clock)
            await _few(source)
            before = await everything(source, turn_versions=False)
            process, interception = dead(), at(number, "die-after")
            one = another(source, interception if side == "source" else None, process=process)
            other = another(target, interception if side == "target" else None, process=process)
            try:
                await copy_conversations(one, other)
            except Died:
                pass
            else:
                break
            for info in (await target.checkpoints.list(status="copying")).items:
                if await _is_half(target, info.key):
                    with pytest.raises(SessionHalfCopiedError):
                        await agent(target).session(info.key).send("Anybody there?")
                    halves += 1
            report = await copy_conversations(source, target)
            assert report.not_copied == {}
            assert differences(await everything(target), await everything(source)) == []
            assert differences(await everything(source, turn_versions=False), before) == []
            report = await copy_conversations(source, target)
            assert (report.copied, report.present) == (0, 3)
        assert number > 8
    assert halves > 8


async def _fresh(clock: ManualClock) -> AgentStore:
    return await open_store(f"memory:{uuid.uuid4().hex}", clock=clock)


async def _few(store: AgentStore) -> None:
    session = agent(store).session("talk")
    await session.send("one")
    await session.send("two")
    await session.compact(keep=1, summarize=_short, archive=True)
    await agent(store, CALLS["waiting"]).session("waiting").send("Go.")
    await store.sessions.append("plain", [{"n": 1}])
    await store.sessions.append("plain", [{"n": 2}], state={"title": "x"})


async def _short(_: Any) -> str:
    return "short"


async def test_a_half_that_the_source_has_no_longer_is_named_and_can_be_deleted(
    store: AgentStore, target: AgentStore
) -> None:
    await _few(store)
    with contextlib.suppress(Died):
        await copy_conversations(store, another(target, at(3, "die-after"), process=dead()))
    (half,) = (await target.checkpoints.list(status="copying")).items
    await store.delete_session(half.key)
    report = await copy_conversations(store, target)
    assert list(report.not_copied) == [half.key]
    with contextlib.suppress(Died):
        await another(target, at(2, "die-after"), process=dead()).delete_session(half.key)
    assert await agent(target).session(half.key).pending() is None  # whoever meets the deletion finishes it
    assert await target.checkpoints.load(half.key) is None
    assert (await copy_conversations(store, target)).complete
    assert differences(await everything(target), await everything(store)) == []


async def test_a_half_of_what_has_changed_since_is_made_anew(store: AgentStore, target: AgentStore) -> None:
    await _few(store)
    for number in (4, 5, 6):
        with contextlib.suppress(Died):
            await copy_conversations(store, another(target, at(number, "die-after"), process=dead()))
        await store.sessions.append("plain", [], state={"title": f"x{number}"})
        await agent(store).session("talk").send("more")
    report = await copy_conversations(store, target)
    assert report.not_copied == {}
    assert differences(await everything(target), await everything(store)) == []


async def test_a_half_has_nothing_left_of_what_was_cleared_since(clock: ManualClock) -> None:
    """Wherever the copy died: archives and approvals that the half has, and the source no longer, are gone."""
    for number in range(1, 15):
        source, target = await _fresh(clock), await _fresh(clock)
        await _few(source)
        with contextlib.suppress(Died):
            await copy_conversations(source, another(target, at(number, "die-after"), process=dead()))
        half = {info.key for info in (await target.checkpoints.list(status="copying")).items}
        for name in half & {"talk", "waiting"}:
            await agent(source, CALLS["waiting"]).session(name).discard_pending()
            await agent(source).session(name).clear()
        report = await copy_conversations(source, target)
        assert report.not_copied == {}
        assert differences(await everything(target), await everything(source)) == []


async def test_damage_costs_its_conversation_and_no_other(store: AgentStore, target: AgentStore) -> None:
    await _few(store)
    await store.approvals.create(Approval("dam.turn-1.s0.c0", "dam.turn-1", "c", "t", {"big": "x" * 5000}, _now(store)))
    await store.sessions.append("dam", [{"big": "x" * 5000}])
    target.sessions.bind(max_record=1000)
    report = await copy_conversations(store, target)
    assert list(report.not_copied) == ["dam"]
    assert "limit is 1000" in report.not_copied["dam"]
    assert await target.sessions.load("dam") is None
    assert await target.checkpoints.load("dam") is None
    target.sessions.bind(max_record=10_000)
    assert (await copy_conversations(store, target)).complete
    assert differences(await everything(target), await everything(store)) == []


async def test_the_store_that_is_away_leaves_no_claim_behind(store: AgentStore, target: AgentStore) -> None:
    await _few(store)
    before = await everything(store, turn_versions=False)
    with pytest.raises(StoreUnavailableError):
        await copy_conversations(another(store), another(target, at(3, "unavailable")))
    assert differences(await everything(store, turn_versions=False), before) == []
    assert {info.head.owner for info in (await target.checkpoints.list()).items} == {None}
    assert (await copy_conversations(store, target)).complete


async def test_a_copy_that_is_cancelled_leaves_no_claim_behind(store: AgentStore, target: AgentStore) -> None:
    await _few(store)
    before = await everything(store, turn_versions=False)
    running: list[asyncio.Task[Any]] = []

    async def cancel(call: Call) -> None:
        if call.number == 3:
            running[-1].cancel()

    cancelled = 0
    while True:
        other = another(target, Interception(after=cancel))
        running.append(asyncio.create_task(copy_conversations(store, other)))
        await asyncio.wait(running)
        if not running[-1].cancelled():
            break
        cancelled += 1
        assert differences(await everything(store, turn_versions=False), before) == []
        assert {info.head.owner for info in (await target.checkpoints.list()).items} <= {None}
    assert cancelled > 2
    assert running[-1].result().complete
    assert differences(await everything(target), await everything(store)) == []


async def test_transcripts_alone_are_copied_and_a_half_is_finished(clock: ManualClock) -> None:
    source, target = await _fresh(clock), await _fresh(clock)
    await source.sessions.append("s", [{"n": n} for n in range(2_500)], scope="acme", state={"a": 1})
    await source.sessions.append("s", [{"n": -1}])
    await source.sessions.append("t", [])
    for number in range(1, 6):
        with contextlib.suppress(Died):
            process = another(target, at(number, "die-after"))
            await copy_conversations(AgentStore(sessions=source.sessions), AgentStore(sessions=process.sessions))
    report = await copy_conversations(AgentStore(sessions=source.sessions), AgentStore(sessions=target.sessions))
    assert report.not_copied == {}
    assert differences(await everything(target), await everything(source)) == []


class Forgetful(PlainSessions):
    """A store that says it has written what it has not."""

    async def _append(self, session_id: str, records: tuple[bytes, ...], **rest: Any) -> int:
        return await super()._append(session_id, records[:-1] if len(records) > 1 else records, **rest)


async def test_what_was_written_is_read_again(store: AgentStore) -> None:
    await store.sessions.append("s", [{"n": 1}])
    await store.sessions.append("t", [{"n": 1}, {"n": 2}])
    target = AgentStore(sessions=Forgetful(), clock=store.clock)
    report = await copy_conversations(AgentStore(sessions=store.sessions, clock=store.clock), target)
    assert report.copied == 1
    assert report.not_copied == {"t": "what was read again differs: session t has another number of records (1, not 2)"}


async def test_an_archive_that_nothing_names_is_copied_too(store: AgentStore, target: AgentStore) -> None:
    await _few(store)
    await store.sessions.append(archive_id("talk", 7), [{"n": 1}], state=archive_state("talk", 7))
    report = await copy_conversations(store, target)
    assert (report.copied, report.not_copied) == (4, {})
    assert differences(await everything(target), await everything(store)) == []


async def test_what_cannot_be_copied_is_refused_before_anything_is_written(
    store: AgentStore, target: AgentStore
) -> None:
    await _few(store)
    with pytest.raises(UnsupportedOperationError, match="approvals"):
        await copy_conversations(store, AgentStore(sessions=target.sessions, checkpoints=target.checkpoints))
    with pytest.raises(InvalidArgumentError, match="target is the source"):
        await copy_conversations(store, store)
    with pytest.raises(InvalidArgumentError, match="wait"):
        await copy_conversations(store, target, wait=timedelta(seconds=-1))
    assert await everything(target) == {}


def _now(store: AgentStore) -> datetime:
    return store.clock.now()


@given(
    st.integers(1, 3_000),
    st.integers(0, 3_000),
    st.integers(0, 5_500),
    st.none() | st.integers(1, 3_000),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_plan_ends_at_the_version_and_makes_no_turn_think_it_was_rewritten(
    version: int,
    rewritten: int,
    count: int,
    open_since: int | None,
    same_time: bool,
    can_replace: bool,
    claimed: bool,
) -> None:
    if rewritten:
        rewritten, version = rewritten + 1, version + rewritten  # what is replaced was there
    began = datetime(2031, 1, 1, tzinfo=UTC)
    if rewritten == 0 and version == 1:
        same_time = True
    if open_since is not None:
        open_since = min(version, max(open_since, rewritten))
    transcript = Transcript(
        *("s", version, count, rewritten, 0),
        *([{"n": n} for n in range(count)], {}, None),
        *(began, began if same_time else began + timedelta(days=1)),
    )
    planned = plan(transcript, open_since=open_since, can_replace=can_replace, claimed=claimed)
    assert planned.first_version >= 1
    records: list[dict[str, int]] = []
    at_version = 0
    for place, write in enumerate(planned.writes):
        if write.replaces:
            assert place > 0
            records, at_version = [], planned.first_version + place
        records += write.records
    assert records == transcript.records
    assert planned.writes[0].at == transcript.created_at
    assert planned.writes[-1].at == transcript.updated_at
    assert planned.count_after(len(planned.writes)) == count
    if can_replace:
        assert (at_version == 0) == (rewritten == 0)
        assert rewritten <= at_version <= (version if open_since is None else max(open_since, rewritten))
        assert version - rewritten > 100 or at_version == rewritten
    assert len(planned.writes) <= 110 or open_since is not None
    if same_time and not claimed and at_version == 0:
        assert len(planned.writes) == 1


async def _is_half(store: AgentStore, key: str) -> bool:
    found = await store.checkpoints.load(key)
    return found is not None and any("making" in entry for entry in found.entries)
