"""Pruning: conversations whose every part is old go whole, what somebody needs stays, and a dry run says the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, dead, die_at, elsewhere, everything, writes_nothing

from perdure import Agent, AgentStore, PruneReport, ToolCall, tool
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure.contracts.records import Page
from perdure.conversations.claims import Claim
from perdure.errors import InvalidArgumentError, UnsupportedOperationError
from perdure.journal.contract import Part
from perdure.journal.stores import JournalApprovals
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import TICK, ManualClock

pytestmark = pytest.mark.anyio

WEEK = timedelta(days=7)
NOTHING: dict[str, list[Any]] = {"sessions": [], "runs": [], "approvals": []}


async def answer(request: ModelRequest) -> ModelResponse:
    last = request.messages[-1]
    if last.role == "user" and last.text == "pay":
        return ModelResponse(tool_calls=[ToolCall("c1", "pay")])
    return ModelResponse(text=f"re: {last.text}")


def agent(store: AgentStore, **options: Any) -> Agent:
    @tool(needs_approval=True, idempotent=True, **options)
    def pay() -> str:
        return "paid"

    return Agent(model=FunctionModel(answer), tools=[pay], store=store)


async def prune(store: AgentStore, older_than: timedelta = WEEK) -> PruneReport:
    """Prune, after a dry run that writes nothing and reports the same; a second time nothing is left to do."""
    async with writes_nothing(store) as watched:
        foretold = await watched.prune(older_than=older_than, dry_run=True)
    report = await store.prune(older_than=older_than)
    assert foretold == PruneReport(True, report.sessions, report.runs, report.approvals, report.kept)
    async with writes_nothing(store) as watched:
        assert await watched.prune(older_than=older_than) == PruneReport(False, kept=report.kept)
    return report


async def paid(store: AgentStore, session_id: str) -> str:
    """A conversation with one approved payment, all of it saved."""
    asked = await agent(store).session(session_id).send("pay")
    await agent(store).approvals.resolve(asked.approval_ids[0], approved=True)
    return asked.approval_ids[0]


# --- age ---


async def test_old_conversations_go_whole_and_young_ones_stay(any_store: AgentStore, clock: ManualClock) -> None:
    old = await paid(any_store, "old")
    clock.advance(WEEK)
    young = await paid(any_store, "young")
    clock.advance(TICK)
    report = await prune(any_store)
    assert report == PruneReport(False, ("old",), ("old",), (old,))
    left = await everything(any_store)
    assert [info.session_id for info in left["sessions"]] == ["young"]
    assert [info.key for info in left["runs"]] == ["young"]
    assert [approval.id for approval in left["approvals"]] == [young]


async def test_nothing_old_is_found_by_the_order_of_last_writes(
    store: AgentStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store has an index of it: no young head is passed over."""
    await paid(store, "young")
    journal = cast("JournalApprovals", store.approvals).journal
    original, asked = journal.scan, []

    async def scan(part: Part, **filters: Any) -> Any:
        asked.append((part.value, filters["order"], filters["before"]))
        return await original(part, **filters)

    monkeypatch.setattr(journal, "scan", scan)
    assert await store.prune(older_than=WEEK) == PruneReport(False)
    assert asked == [(part, "recent", clock.now() - WEEK) for part in ("sessions", "runs", "approvals")]


async def test_an_empty_page_that_others_follow_is_not_taken_for_the_end(
    store: AgentStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = await paid(store, "old")
    clock.advance(WEEK + TICK)
    for part in (store.sessions, store.checkpoints):
        original = part.list

        async def listed(original: Any = original, **filters: Any) -> Any:
            return await original(**filters) if filters.get("limit") != 1 else Page((), "more")

        monkeypatch.setattr(part, "list", listed)
    assert await store.prune(older_than=WEEK) == PruneReport(False, ("old",), ("old",), (approval,))


async def test_exactly_at_the_cutoff_stays(any_store: AgentStore, clock: ManualClock) -> None:
    await paid(any_store, "s")
    clock.advance(WEEK)
    assert await prune(any_store) == PruneReport(False)
    clock.advance(TICK)
    assert (await prune(any_store)).sessions == ("s",)


async def test_zero_removes_all_that_was_written_before_now(store: AgentStore, clock: ManualClock) -> None:
    await paid(store, "s")
    assert await prune(store, timedelta(0)) == PruneReport(False)
    clock.advance(TICK)
    assert (await prune(store, timedelta(0))).sessions == ("s",)


@pytest.mark.parametrize("age", [timedelta(0), WEEK])
@pytest.mark.parametrize("part", ["session", "journal", "approval"])
async def test_the_newest_part_decides(any_store: AgentStore, clock: ManualClock, part: str, age: timedelta) -> None:
    approval_id = await paid(any_store, "s")
    clock.advance(WEEK + TICK)
    if part == "session":
        await agent(any_store).session("s").update_state(lambda state: {"title": "new"})
    elif part == "journal":
        found = await any_store.checkpoints.load("s")
        assert found is not None
        await any_store.checkpoints.append("s", [], expected_version=found.version, head=found.head)
    else:
        other = Approval("s.turn-1.s0.c0", "s.turn-1", "c1", "pay", {}, clock.now(), session_id="s")
        await any_store.approvals.create(other)
    clock.advance(age)
    report = await prune(any_store)
    assert (report.sessions, report.runs, report.approvals) == ((), (), (approval_id,))  # its run is over


async def test_more_than_a_page(store: AgentStore, clock: ManualClock) -> None:
    for n in range(203):
        await store.sessions.append(f"s{n:03}", [{"n": n}], expected_version=0)
    clock.advance(WEEK + TICK)
    assert len((await prune(store)).sessions) == 203
    assert await everything(store) == NOTHING


async def test_a_clock_that_goes_back_removes_nothing(store: AgentStore, clock: ManualClock) -> None:
    await paid(store, "s")
    clock.advance(timedelta(days=-30))
    await paid(store, "t")
    assert await prune(store) == PruneReport(False)
    clock.advance(WEEK + TICK)
    assert (await prune(store)).sessions == ("t",)


# --- what keeps a conversation ---


async def test_an_undecided_approval_keeps_it_however_old(any_store: AgentStore, clock: ManualClock) -> None:
    await agent(any_store).session("s").send("pay")
    clock.advance(timedelta(days=3650))
    report = await prune(any_store)
    assert report == PruneReport(False, kept={"s": "an approval of its turn is undecided"})
    (approval,) = (await any_store.approvals.list()).items
    assert (await agent(any_store).approvals.resolve(approval.id, approved=True)).text == "re: paid"


@pytest.mark.parametrize("on_expiry", ["deny", "keep"])
async def test_an_expired_approval(store: AgentStore, clock: ManualClock, on_expiry: str) -> None:
    await agent(store, approval_timeout=WEEK, on_expiry=on_expiry).session("s").send("pay")
    clock.advance(WEEK + TICK)
    report = await prune(store)
    assert report.sessions == (("s",) if on_expiry == "deny" else ())
    assert list(report.kept) == ([] if on_expiry == "deny" else ["s"])


async def test_a_decided_turn_that_nobody_continued_is_old(store: AgentStore, clock: ManualClock) -> None:
    (approval_id,) = (await agent(store).session("s").send("pay")).approval_ids
    clock.advance(WEEK)
    await store.decide(approval_id, approved=True)
    assert await prune(store) == PruneReport(False)  # the decision is its newest part
    clock.advance(WEEK + TICK)
    assert await prune(store) == PruneReport(False, ("s",), ("s",), (approval_id,))


async def test_a_pending_turn_of_a_dead_process_goes_with_its_session(store: AgentStore, clock: ManualClock) -> None:
    await die_at(store, 3, lambda used: agent(used).session("s").send("hello"))
    clock.advance(WEEK + TICK)
    assert await prune(store) == PruneReport(False, ("s",), ("s",))


async def test_a_live_owner_keeps_it(store: AgentStore, clock: ManualClock) -> None:
    with pytest.raises(Died):
        await agent(another(store, at(3, "die-after"), process=elsewhere())).session("s").send("hello")
    clock.advance(TICK)
    report = await prune(store, timedelta(0))
    assert report == PruneReport(False, kept={"s": "a live owner holds it"})


# --- approvals in living conversations ---


async def test_old_approvals_of_ended_runs_go_from_living_conversations(store: AgentStore, clock: ManualClock) -> None:
    first = await paid(store, "s")
    clock.advance(WEEK + TICK)
    second = await paid(store, "s")
    third = (await agent(store).session("s").send("pay")).approval_ids[0]
    assert await prune(store) == PruneReport(False, approvals=(first,))
    assert {approval.id for approval in (await store.approvals.list()).items} == {second, third}


async def test_the_approvals_of_an_unfinished_run_stay_together(store: AgentStore, clock: ManualClock) -> None:
    (approval_id,) = (await agent(store).session("s").send("pay")).approval_ids
    await store.decide(approval_id, approved=True)
    clock.advance(WEEK + TICK)
    await agent(store).session("s").update_state(lambda state: {"alive": 1})
    assert await prune(store) == PruneReport(False)
    assert (await agent(store).session("s").resume()) is not None


async def test_the_approvals_of_a_run_that_is_not_saved_yet_stay(store: AgentStore, clock: ManualClock) -> None:
    (approval_id,) = (await agent(store).session("s").send("pay")).approval_ids
    await store.decide(approval_id, approved=True)
    await die_at(store, 5, lambda used: agent(used).session("s").resume(), atomic=False)
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "finished"
    clock.advance(WEEK + TICK)
    await agent(store).session("s").update_state(lambda state: {"alive": 1})
    assert await prune(store) == PruneReport(False)
    assert await agent(store).session("s").pending() is None  # that saves it
    assert (await prune(store)).approvals == (approval_id,)


async def test_orphans_go_whatever_their_status(any_store: AgentStore, clock: ManualClock) -> None:
    for n, session_id in enumerate([None, "gone", "gone"]):
        run = f"{session_id or 'job'}.turn-{n}"
        await any_store.approvals.create(
            Approval(f"{run}.s0.c0", run, "c1", "pay", {}, clock.now(), session_id=session_id)
        )
    await any_store.approvals.decide("gone.turn-2.s0.c0", approved=True)
    clock.advance(WEEK)
    assert await prune(any_store) == PruneReport(False)
    clock.advance(TICK)
    assert len((await prune(any_store)).approvals) == 3
    assert await everything(any_store) == NOTHING


async def test_runs_without_a_session(store: AgentStore, clock: ManualClock) -> None:
    head = CheckpointHead("finished", run_id="job.run-1")
    await store.checkpoints.append("job.run", [], expected_version=0, head=head, version=1)
    await store.approvals.create(Approval("job.run-1.s0.c0", "job.run-1", "c1", "pay", {}, clock.now()))
    clock.advance(WEEK + TICK)
    assert await prune(store) == PruneReport(False, (), ("job.run",), ("job.run-1.s0.c0",))


# --- claims, races, crashes ---


@pytest.mark.parametrize("action", ["discarding", "clearing", "deleting", "compacting", "copying"])
async def test_old_stale_claims(store: AgentStore, clock: ManualClock, action: str) -> None:
    approval_id = await paid(store, "s")
    owner = another(store, process=dead())
    await Claim.take(owner, "s", await owner.checkpoints.load("s"), action)
    clock.advance(WEEK + TICK)
    assert await prune(store) == PruneReport(False, ("s",), ("s",), (approval_id,))
    assert await everything(store) == NOTHING


async def test_a_session_written_between_look_and_claim_stays(store: AgentStore, clock: ManualClock) -> None:
    await paid(store, "s")
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the claim
            await store.sessions.append("s", [{"late": 1}])

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert (report.sessions, report.kept) == ((), {"s": "it was written to meanwhile"})
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (found.head.status, found.updated_at) == ("idle", clock.now() - WEEK - TICK)
    assert len(await agent(store).session("s").load()) == 4


@pytest.mark.parametrize("number", range(1, 6))
async def test_a_title_set_before_any_write_is_kept(store: AgentStore, clock: ManualClock, number: int) -> None:
    """Of the claim, the proof, the deletions of session, approval and turn journal: whole, or gone with a new beginning."""
    approval_id = await paid(store, "s")
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == number:
            await store.sessions.append("s", [], state={"title": "late"})

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    found, journal, gone = await store.sessions.load("s"), await store.checkpoints.load("s"), number > 3
    assert found is not None
    assert (found.state, found.count) == ({"title": "late"}, 0 if gone else 4)
    assert (report.sessions, journal and journal.head.status) == ((("s",), None) if gone else ((), "idle"))
    assert report.approvals == (approval_id,)  # its run is over: it goes from a living conversation, too


async def test_a_conversation_deleted_between_listing_and_look_is_not_claimed(
    store: AgentStore, clock: ManualClock
) -> None:
    await paid(store, "s")
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the look
            await store.delete_session("s")

    looking = Interception(counted=("read", "write"), before=before)
    assert await another(store, looking).prune(older_than=WEEK) == PruneReport(dry_run=False)
    assert {call.kind for call in looking.calls} == {"read"}


async def test_letting_go_puts_back_a_turn_and_its_age(store: AgentStore, clock: ManualClock) -> None:
    (approval_id,) = (await agent(store).session("s").send("pay")).approval_ids
    await store.decide(approval_id, approved=True)
    clock.advance(WEEK + TICK)
    seen = await store.checkpoints.load("s")

    async def before(call: Call) -> None:
        if call.number == 1:  # the claim
            await store.sessions.append("s", [{"late": 1}])

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert report.kept == {"s": "it was written to meanwhile"}
    found = await store.checkpoints.load("s")
    assert found is not None
    assert seen is not None
    assert (found.head, found.updated_at) == (seen.head, seen.updated_at)


async def test_letting_go_leaves_no_journal_where_there_was_none(store: AgentStore, clock: ManualClock) -> None:
    await store.sessions.append("s", [], expected_version=0)
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the claim
            await store.sessions.append("s", [{"late": 1}])

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert report.kept == {"s": "it was written to meanwhile"}
    assert await store.checkpoints.load("s") is None


async def test_a_turn_started_between_look_and_claim_stays(store: AgentStore, clock: ManualClock) -> None:
    await paid(store, "s")
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:
            await agent(store).session("s").send("late")

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert (report.sessions, report.kept) == ((), {"s": "it was written to meanwhile"})
    assert len(await agent(store).session("s").load()) == 6


async def test_a_claim_that_is_fenced_off_stops_nothing_else(store: AgentStore, clock: ManualClock) -> None:
    for session_id in ("s", "t"):
        await paid(store, session_id)
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 2:  # the proof that "s" is still claimed
            await another(store).delete_session("s", force=True)

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert (report.sessions, report.kept) == (("t",), {"s": "it was written to meanwhile"})
    assert await everything(store) == NOTHING


async def test_a_deletion_that_was_begun_is_finished_whatever_came_since(store: AgentStore, clock: ManualClock) -> None:
    approval_id = await paid(store, "s")
    await die_at(store, 3, lambda used: used.delete_session("s"))  # the claim, the proof, the session
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the claim
            await store.sessions.append("s", [{"late": 1}])

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert (report.sessions, report.kept, await store.approvals.get(approval_id)) == (("s",), {}, None)
    assert await everything(store) == NOTHING


async def test_an_orphan_that_is_decided_meanwhile_stays_for_once(store: AgentStore, clock: ManualClock) -> None:
    await store.approvals.create(Approval("gone.turn-1.s0.c0", "gone.turn-1", "c1", "pay", {}, clock.now()))
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the delete
            await store.approvals.decide("gone.turn-1.s0.c0", approved=True)

    report = await another(store, Interception(before=before)).prune(older_than=WEEK)
    assert report == PruneReport(False)
    assert await store.approvals.get("gone.turn-1.s0.c0") is not None


async def test_a_session_alone_that_is_written_to_meanwhile_stays(store: AgentStore, clock: ManualClock) -> None:
    await store.sessions.append("s", [], expected_version=0)
    clock.advance(WEEK + TICK)

    async def before(call: Call) -> None:
        if call.number == 1:  # the delete
            await store.sessions.append("s", [{"late": 1}])

    alone = AgentStore(sessions=another(store, Interception(before=before)).sessions, clock=clock)
    assert await alone.prune(older_than=WEEK) == PruneReport(False, kept={"s": "it was written to meanwhile"})
    assert await store.sessions.load("s") is not None


@pytest.mark.parametrize("outcome", ["die-before", "die-after"])
async def test_cut_off_anywhere_and_repeated(store: AgentStore, clock: ManualClock, outcome: str) -> None:
    number = 0
    while True:
        number += 1
        await paid(store, "s")
        clock.advance(WEEK + TICK)
        try:
            await another(store, at(number, outcome), process=dead()).prune(older_than=WEEK)
        except Died:
            await store.prune(older_than=WEEK)
            assert await everything(store) == NOTHING, f"{outcome} at write {number}"
        else:
            assert number > 5
            return


# --- less than all stores; bad input ---


async def test_stand_alone_stores(store: AgentStore, clock: ManualClock) -> None:
    approval_id = await paid(store, "s")
    pending = await agent(store).session("t").send("pay")
    clock.advance(WEEK + TICK)
    sessions, approvals = (
        AgentStore(sessions=store.sessions, clock=clock),
        AgentStore(approvals=store.approvals, clock=clock),
    )
    before = await everything(store)
    assert await sessions.prune(older_than=WEEK, dry_run=True) == PruneReport(True, ("s", "t"))
    assert await approvals.prune(older_than=WEEK, dry_run=True) == PruneReport(True, approvals=(approval_id,))
    assert await everything(store) == before
    assert await sessions.prune(older_than=WEEK) == PruneReport(False, ("s", "t"))
    assert (await store.sessions.list()).items == ()
    assert await approvals.prune(older_than=WEEK) == PruneReport(False, approvals=(approval_id,))
    left = (await store.approvals.list()).items
    assert [approval.id for approval in left] == list(pending.approval_ids)


@pytest.mark.parametrize("older_than", [timedelta(seconds=-1), -1, 7, "7d", None, 7.0])
async def test_bad_ages(store: AgentStore, clock: ManualClock, older_than: Any) -> None:
    await paid(store, "s")
    clock.advance(WEEK)
    async with writes_nothing(store) as watched:
        with pytest.raises(InvalidArgumentError, match="older_than"):
            await watched.prune(older_than=older_than)


async def test_an_age_before_all_time(store: AgentStore) -> None:
    await paid(store, "s")
    assert await prune(store, timedelta.max) == PruneReport(False)


async def test_parts_that_cannot_be_pruned_are_said_first(store: AgentStore, clock: ManualClock) -> None:
    await paid(store, "s")
    clock.advance(WEEK + TICK)
    mixed = AgentStore(sessions=PlainSessions(), checkpoints=store.checkpoints, approvals=store.approvals, clock=clock)
    before = await everything(store)
    with pytest.raises(UnsupportedOperationError):
        await mixed.prune(older_than=WEEK)
    assert await everything(store) == before
