"""What is particular to decisions: they are made once, and what is recorded stands."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.contracts.approvals import Decision
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
)
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, only, raises
from perdure_conformance.laws.approvals import AT, stored
from perdure_conformance.laws.register import law
from perdure_conformance.parts import APPROVALS, request
from perdure_conformance.processes import error_of


@law("approvals-decision-is-recorded-whole", parts=[APPROVALS], methods=["approvals.decide"])
async def decision_is_recorded_whole(bench: Bench) -> None:
    """A decision comes back with its answer, note, edits, person and time: False, empty and missing are kept apart."""
    decisions: tuple[dict[str, Any], ...] = (
        *({"approved": True}, {"approved": False}, {"approved": True, "note": "", "decided_by": ""}),
        *({"approved": True, "arguments": {}}, {"approved": True, "arguments": {"sum": 2, "x": None}, "note": "n"}),
        {"approved": False, "note": "no\0\ud800\n", "decided_by": "ann 📚"},
    )
    for number, given in enumerate(decisions):
        asked = await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}"))
        decided = await bench.store.approvals.decide(asked.id, **given, at=AT)
        status = "approved" if given["approved"] else "rejected"
        expected = replace(asked, version=asked.version + 1, status=status, decision=Decision(decided_at=AT, **given))
        equal(decided, expected, "what decide answers")
        equal(await stored(bench, asked.id), expected, "what get answers")
        listed = (await bench.store.approvals.list(status=status)).items[-1]
        equal(listed, expected, "what list answers")
        equal(decided.effective_arguments, given.get("arguments", asked.arguments), "the arguments that will run")


@law("approvals-decision-comes-at-the-clock", parts=[APPROVALS], methods=["approvals.decide"])
async def decision_comes_at_the_clock(bench: Bench) -> None:
    """Without `at`, the clock that was passed in tells when it was decided or cancelled."""
    for number in range(2):
        await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}"))
    now = bench.clock.advance(timedelta(days=400, microseconds=7))
    decided = await bench.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    cancelled = await bench.store.approvals.cancel("s1.turn-1.s0.c1", reason="no")
    for one in (decided, cancelled):
        equal(one.decision and one.decision.decided_at, now, f"when the {one.status} one was decided")


@law("approvals-decided-once", parts=[APPROVALS], methods=["approvals.decide"])
async def decided_once(bench: Bench) -> None:
    """Another decision is refused with the recorded one, which stands."""
    first: tuple[dict[str, Any], ...] = (
        {"approved": True},
        {"approved": False},
        {"approved": True, "arguments": {"a": 1}},
    )
    for number, given in enumerate(first):
        asked = await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}"))
        decided = await bench.store.approvals.decide(asked.id, **given, note="first")
        others: list[dict[str, Any]] = [{"approved": not given["approved"]}, {"approved": True, "arguments": {"a": 2}}]
        if "arguments" in given:
            others += [{"approved": True, "arguments": asked.arguments}, {"approved": True, "arguments": {"a": 1.0}}]
        for other in others:
            call = bench.store.approvals.decide
            error = await raises(
                ApprovalAlreadyResolvedError, f"{other} after {given}", call, asked.id, **other, note="second"
            )
            equal(error.approval, decided, "the recorded approval that the error carries")
            equal(await stored(bench, asked.id), decided, "what is stored after another decision")


@law("approvals-same-decision-again-is-fine", parts=[APPROVALS], methods=["approvals.decide"])
async def same_decision_again(bench: Bench) -> None:
    """The same decision again returns the recorded one, with the first one's note, person and time."""
    same: tuple[tuple[dict[str, Any], tuple[dict[str, Any], ...]], ...] = (
        ({"approved": True}, ({"approved": True}, {"approved": True, "arguments": {"sum": 1, "to": "ann"}})),
        ({"approved": False}, ({"approved": False},)),
        ({"approved": True, "arguments": {"b": 1, "a": [2]}}, ({"approved": True, "arguments": {"a": [2], "b": 1}},)),
        ({"approved": True, "arguments": {"b": 1}}, ({"approved": True, "arguments": {"b": 1}}, {"approved": True})),
        ({"approved": True, "arguments": {"to": "ann", "sum": 1}}, ({"approved": True},)),
    )
    for number, (given, agains) in enumerate(same):
        asked = await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}"))
        decided = await bench.store.approvals.decide(asked.id, **given, note="first", decided_by="ann", at=AT)
        if number == 3:
            agains = agains[:1]
        for again in agains:
            answer = await bench.store.approvals.decide(asked.id, **again, note="second", decided_by="bob")
            equal(answer, decided, f"{again} after {given}")
            equal(await stored(bench, asked.id), decided, "what is stored after the same decision")


@law("approvals-unknown-is-not-created", parts=[APPROVALS], methods=["approvals.decide"])
async def unknown_is_not_created(bench: Bench) -> None:
    """Deciding, cancelling or expiring what is not there raises, and creates nothing."""
    approvals = bench.store.approvals
    await approvals.create(request("s1.turn-1.s0.c10"))
    for name in ("s1.turn-1.s0.c1", "s1.turn-1", "s9.turn-1.s0.c0"):
        error = await raises(ApprovalNotFoundError, "deciding", approvals.decide, name, approved=True)
        equal(error.approval_id, name, "the id that the error carries")
        await raises(ApprovalNotFoundError, "cancelling", approvals.cancel, name, reason="no")
        await raises(ApprovalNotFoundError, "expiring", approvals.expire, name)
        equal(await approvals.get(name), None, f"{name} after it was decided without being there")
    equal(await APPROVALS.ids(bench.store), ["s1.turn-1.s0.c10"], "the listing")


@law("approvals-deleted-is-not-revived", parts=[APPROVALS], needs=("delete",), methods=["approvals.delete"])
async def deleted_is_not_revived(bench: Bench) -> None:
    """A decision on a deleted approval raises and revives nothing; created again, it is pending."""
    approvals = bench.store.approvals
    asked = await approvals.create(request(metadata={"life": 1}))
    await approvals.decide(asked.id, approved=True, note="old")
    await approvals.delete(asked.id)
    await raises(ApprovalNotFoundError, "deciding a deleted approval", approvals.decide, asked.id, approved=True)
    equal(await approvals.get(asked.id), None, "the approval after a late decision")
    again = await approvals.create(request())
    equal((again.status, again.decision, again.metadata), ("pending", None, {}), "the approval that was created again")


@law("approvals-reading-consumes-nothing", parts=[APPROVALS], methods=["approvals.get"])
async def reading_consumes_nothing(bench: Bench) -> None:
    """A decision is there however often it was read, and a pending approval stays pending."""
    approvals = bench.store.approvals
    await approvals.create(request("s1.turn-1.s0.c1"))
    asked = await approvals.create(request())
    decided = await approvals.decide(asked.id, approved=True)
    for _ in range(4):
        equal(await stored(bench), decided, "the decided approval")
        equal([one.status for one in (await approvals.list()).items], ["approved", "pending"], "both statuses")
        equal(await approvals.expire(asked.id), decided, "what expire answers for it")


async def decide_at_once(bench: Bench, stores: list[Any], what: str) -> None:
    """Let deciders meet: one decision is recorded, and only those who say the same get an answer."""
    for turn in range(6):
        asked = await bench.store.approvals.create(request(f"s1.turn-{turn}.s0.c0"))
        calls = [
            store.approvals.decide(asked.id, approved=number % 2 == turn % 2, note=f"by {number}")
            for number, store in enumerate(stores)
        ]
        answers = only(ApprovalAlreadyResolvedError, await all_of(list(calls)), what)
        recorded = await stored(bench, asked.id)
        equal(recorded.version, asked.version + 1, f"{what}: the version after the decisions")
        equal(answers, [recorded] * (len(stores) // 2), f"{what}: what those got who say the same")


@law("approvals-one-of-many-tasks-decides", parts=[APPROVALS], promise=2, methods=["approvals.decide"])
async def one_of_many_tasks_decides(bench: Bench) -> None:
    """Of many tasks exactly one decides; those that say the same get its decision, the others are refused."""
    await decide_at_once(bench, [bench.store] * 8, "8 tasks deciding at once")


@law("approvals-one-of-many-handles-decides", parts=[APPROVALS], promise=2, methods=["approvals.decide"])
async def one_of_many_handles_decides(bench: Bench) -> None:
    """Of many handles exactly one decides."""
    await decide_at_once(bench, await bench.handles(4), "4 handles deciding at once")


@law(
    "approvals-one-of-many-processes-decides",
    parts=[APPROVALS],
    needs=("shared",),
    promise=2,
    timeout=60,
    methods=["approvals.decide"],
)
async def one_of_many_processes_decides(bench: Bench) -> None:
    """Of several processes exactly one decides."""
    workers = await bench.workers(2)
    await all_of([worker.call("open") for worker in workers])
    for turn in range(20):
        asked = await bench.store.approvals.create(request(f"s1.turn-{turn}.s0.c0"))
        calls = [
            worker.call("decide", key=asked.id, note=f"by {number}", approved=number == turn % 2)
            for number, worker in enumerate(workers)
        ]
        answers = await all_of(list(calls))
        recorded = await stored(bench, asked.id)
        assert recorded.decision is not None
        won = [one for one in answers if error_of(one) is None]
        lost = [error_of(one) for one in answers if error_of(one) is not None]
        equal(won, [recorded.decision.note], f"what the one decider got in round {turn}: {answers}")
        equal(lost, ["ApprovalAlreadyResolvedError"], f"what the other got in round {turn}: {answers}")


# --- cancel ---


@law("approvals-cancel-is-recorded", parts=[APPROVALS], methods=["approvals.cancel"])
async def cancel_is_recorded(bench: Bench) -> None:
    """A cancelled approval keeps the reason and the time; a second cancel returns the recorded one."""
    approvals = bench.store.approvals
    asked = await approvals.create(request())
    cancelled = await approvals.cancel(asked.id, reason="turn discarded", at=AT)
    expected = replace(
        asked, status="cancelled", version=asked.version + 1, decision=Decision(False, AT, note="turn discarded")
    )
    equal(cancelled, expected, "what cancel answers")
    equal(await approvals.cancel(asked.id, reason="another"), expected, "what a second cancel answers")
    equal(await stored(bench), expected, "what is stored")
    equal(await APPROVALS.ids(bench.store, status="pending"), [], "the listing of pending approvals")


@law("approvals-cancelled-stays-cancelled", parts=[APPROVALS], methods=["approvals.cancel"])
async def cancelled_stays_cancelled(bench: Bench) -> None:
    """A cancelled approval cannot be decided, a rejection neither, and a decided one cannot be cancelled."""
    approvals = bench.store.approvals
    for number, approved in enumerate((True, False)):
        one = await approvals.create(request(f"s1.turn-1.s0.c{number}"))
        cancelled = await approvals.cancel(one.id, reason="no")
        error = await raises(
            ApprovalAlreadyResolvedError, "deciding a cancelled approval", approvals.decide, one.id, approved=approved
        )
        equal(error.approval, cancelled, "the approval that the error carries")
        equal(await stored(bench, one.id), cancelled, "the cancelled approval")
        other = await approvals.create(request(f"s2.turn-1.s0.c{number}"))
        decided = await approvals.decide(other.id, approved=approved)
        error = await raises(
            ApprovalAlreadyResolvedError, "cancelling a decided approval", approvals.cancel, other.id, reason="no"
        )
        equal(error.approval, decided, "the approval that the error carries")
        equal(await stored(bench, other.id), decided, "the decided approval")


@law("approvals-cancel-and-decide-race", parts=[APPROVALS], promise=2, methods=["approvals.cancel"])
async def cancel_and_decide_race(bench: Bench) -> None:
    """Of a cancel and a decision at once one wins, and the loser is told."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store] * 2
    for turn in range(8):
        asked = await bench.store.approvals.create(request(f"s1.turn-{turn}.s0.c0"))
        decide = stores[turn % 2].approvals.decide(asked.id, approved=True)
        cancel = stores[1 - turn % 2].approvals.cancel(asked.id, reason="no")
        calls = [decide, cancel] if turn % 4 < 2 else [cancel, decide]
        answers = only(ApprovalAlreadyResolvedError, await all_of(list(calls)), "a cancel and a decision at once")
        equal(answers, [await stored(bench, asked.id)], "what the one winner got")
