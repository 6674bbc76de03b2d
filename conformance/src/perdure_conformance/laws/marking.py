"""Deciding through the bundle: the last decision that a turn waits for marks it `ready`, and stands in any case."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import ApprovalAlreadyResolvedError, ApprovalExpiredError, ApprovalNotFoundError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, raises
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.laws.conversations import head_of, status_of, waiting
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, request

DECIDE: dict[str, Any] = {"parts": (CHECKPOINTS, APPROVALS), "methods": ("bundle.decide",)}


@law("decide-marks-the-turn-ready", **DECIDE)
async def marks_the_turn_ready(bench: Bench) -> None:
    """The last decision marks the waiting turn `ready` and keeps its entries; the ones before it leave it waiting."""
    asked = await waiting(bench.store, calls=3)
    for number, one in enumerate(asked):
        equal(await status_of(bench.store), "awaiting-approval", f"the status after {number} of 3 decisions")
        decided = await bench.store.decide(one.id, approved=number != 1, note="n", decided_by="ann")
        equal(decided, await bench.store.approvals.get(one.id), "what decide answers")
    found = await bench.store.checkpoints.load("s1")
    expected = head_of("s1", "ready", approval_ids=[one.id for one in asked])
    equal(found and (found.head, list(found.entries)), (expected, [{"kind": "input"}]), "head and entries of the turn")


@law("decide-marks-no-other-turn", **DECIDE)
async def marks_no_other_turn(bench: Bench) -> None:
    """A turn of another run, one that does not wait, and one of another session stay as they are."""
    store = bench.store
    for name, status in (("s1", "in-progress"), ("s2", "finished"), ("s10", "awaiting-approval")):
        await waiting(store, name, status=status)
    (asked,) = await waiting(store, "s3")
    other = head_of("s3", "awaiting-approval", turn=2, approval_ids=["s3.turn-2.s0.c0"])
    await store.checkpoints.append("s3", [], expected_version=None, head=other)
    before = [await store.checkpoints.load(name) for name in ("s1", "s2", "s3", "s10")]
    for approval_id in ("s1.turn-1.s0.c0", "s2.turn-1.s0.c0", asked.id):
        await store.decide(approval_id, approved=True)
    after = [await store.checkpoints.load(name) for name in ("s1", "s2", "s3", "s10")]
    equal(after, before, "the turn journals after the decisions")


@law("decide-marks-a-run-without-a-session", **DECIDE)
async def marks_a_run_without_a_session(bench: Bench) -> None:
    """The turn of a run that has no session is marked as well."""
    asked = await bench.store.approvals.create(request("job.run-7.s0.c0", session_id=None))
    head = CheckpointHead("awaiting-approval", run_id="job.run-7", approval_ids=[asked.id])
    await bench.store.checkpoints.append("job.run", [], expected_version=0, head=head)
    await bench.store.decide(asked.id, approved=False)
    equal(await status_of(bench.store, "job.run"), "ready", "the status of the run")


@law("decide-of-an-expired-one-marks-too", **DECIDE)
async def expired_one_marks_too(bench: Bench) -> None:
    """A decision that comes too late is recorded as a rejection, is refused, and marks the turn as the last one does."""
    until = bench.clock.now() + timedelta(hours=1)
    (asked,) = await waiting(bench.store, expires_at=until, on_expiry="deny")
    bench.clock.set(until)
    await raises(ApprovalExpiredError, "a decision at expires_at", bench.store.decide, asked.id, approved=True)
    found = await bench.store.approvals.get(asked.id)
    equal((found and found.status, await status_of(bench.store)), ("rejected", "ready"), "the approval and the turn")


@law("decide-again-is-as-the-first-time", **DECIDE)
async def again_is_as_the_first_time(bench: Bench) -> None:
    """The same decision again gives the recorded one; another one is refused; neither moves the turn journal again."""
    (asked,) = await waiting(bench.store)
    first = await bench.store.decide(asked.id, approved=True, note="first")
    before = await bench.store.checkpoints.load("s1")
    equal(await bench.store.decide(asked.id, approved=True, note="second"), first, "the same decision again")
    await raises(ApprovalAlreadyResolvedError, "another decision", bench.store.decide, asked.id, approved=False)
    await raises(ApprovalNotFoundError, "deciding an unknown id", bench.store.decide, "s1.turn-9.s0.c0", approved=True)
    equal(await bench.store.checkpoints.load("s1"), before, "the turn journal after these")


@law("decide-stands-without-its-mark", **DECIDE)
async def stands_without_its_mark(bench: Bench) -> None:
    """When marking the turn fails, or somebody else moves the turn meanwhile, the decision is answered and stands."""
    for number, outcome in enumerate(("unavailable", "lost", "unknown")):
        (asked,) = await waiting(bench.store, f"s{number}")
        decided = await tapped(bench.store, at(2, outcome)).decide(asked.id, approved=True)
        equal(decided, await bench.store.approvals.get(asked.id), f"the answer when the mark is {outcome}")
    (asked,) = await waiting(bench.store, "s9")
    head = head_of("s9", "in-progress", owner="somebody", approval_ids=[asked.id])

    async def take_it_over(call: Call) -> None:
        if call.number == 2:
            await bench.store.checkpoints.append("s9", [{"kind": "resumed"}], expected_version=None, head=head)

    decided = await tapped(bench.store, Interception(before=take_it_over)).decide(asked.id, approved=True)
    found = await bench.store.checkpoints.load("s9")
    equal(decided.status, "approved", "the answer when somebody takes the turn over meanwhile")
    equal(found and found.head, head, "the head of who took the turn over")


@law("decide-stores-the-decision-first", **DECIDE)
async def stores_the_decision_first(bench: Bench) -> None:
    """A turn that is marked `ready` has its decisions stored: a decider that dies between leaves no mark alone."""
    for number, outcome in enumerate(("die-before", "die-after", "die-before", "die-after")):
        (asked,) = await waiting(bench.store, f"s{number}")
        with suppress(Died):
            await tapped(bench.store, at(number // 2 + 1, outcome)).decide(asked.id, approved=True)
        found = await bench.store.approvals.get(asked.id)
        decided = found is not None and found.decided
        equal(decided, number > 0, f"whether it is decided, {outcome} write {number // 2 + 1}")
        ready = await status_of(bench.store, f"s{number}") == "ready"
        equal(ready, number == 3, f"whether the turn is marked, {outcome} write {number // 2 + 1}")
