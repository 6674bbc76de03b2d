"""When an approval's time is over: at `expires_at` and after, and never a tick before."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from perdure.contracts.approvals import Approval, Decision
from perdure.errors import ApprovalAlreadyResolvedError, ApprovalExpiredError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, only, raises
from perdure_conformance.laws.register import law
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import APPROVALS, request

UNTIL = START + timedelta(hours=1)


async def asked(bench: Bench, number: int = 0, *, until: datetime | None = UNTIL, on_expiry: str = "deny") -> Approval:
    """Create an approval that expires."""
    one = request(f"s1.turn-1.s0.c{number}", expires_at=until, on_expiry=on_expiry)
    return await bench.store.approvals.create(one)


@law("approvals-decidable-until-expiry", parts=[APPROVALS], methods=["approvals.decide"])
async def decidable_until_expiry(bench: Bench) -> None:
    """A microsecond before `expires_at` a decision counts, by the clock and by `at`."""
    bench.clock.set(UNTIL - TICK)
    decided = await bench.store.approvals.decide((await asked(bench)).id, approved=True)
    equal(
        (decided.status, decided.decision and decided.decision.decided_at), ("approved", UNTIL - TICK), "by the clock"
    )
    bench.clock.set(UNTIL + timedelta(days=9))
    decided = await bench.store.approvals.decide((await asked(bench, 1)).id, approved=True, at=UNTIL - TICK)
    equal(decided.status, "approved", "the status after a decision at a time before expiry")


@law("approvals-expired-is-rejected", parts=[APPROVALS], methods=["approvals.decide"])
async def expired_is_rejected(bench: Bench) -> None:
    """From `expires_at` on a decision, yes or no, raises and records a rejection by `expiry`, which stands."""
    decide = bench.store.approvals.decide
    for number, (late, approved) in enumerate(((timedelta(0), True), (TICK, False), (timedelta(days=4000), True))):
        one = await asked(bench, number)
        error = await raises(
            ApprovalExpiredError, "deciding too late", decide, one.id, approved=approved, at=UNTIL + late
        )
        recorded = await bench.store.approvals.get(one.id)
        decision = Decision(False, UNTIL + late, decided_by="expiry")
        expected = replace(one, status="rejected", version=one.version + 1, decision=decision)
        equal(recorded, expected, "what is recorded of an approval that was decided too late")
        equal(error.approval, expected, "the approval that the error carries")
        for again in (True, False):
            await raises(ApprovalExpiredError, "deciding it once more", decide, one.id, approved=again, at=UNTIL - TICK)
        equal(await bench.store.approvals.get(one.id), expected, "what is recorded after more decisions")


@law("approvals-kept-ones-stay-open", parts=[APPROVALS], methods=["approvals.decide"])
async def kept_ones_stay_open(bench: Bench) -> None:
    """With `on_expiry="keep"`, or without `expires_at`, time decides nothing."""
    bench.clock.set(UNTIL + timedelta(days=4000))
    for number, one in enumerate((await asked(bench, 0, on_expiry="keep"), await asked(bench, 1, until=None))):
        equal(await bench.store.approvals.expire(one.id), one, "what expire answers for it")
        decided = await bench.store.approvals.decide(one.id, approved=number == 0)
        equal(decided.status, "approved" if number == 0 else "rejected", "the status after a late decision")


@law("approvals-decided-does-not-expire", parts=[APPROVALS], methods=["approvals.expire"])
async def decided_does_not_expire(bench: Bench) -> None:
    """What was decided or cancelled in time stays so when its time is over."""
    approvals = bench.store.approvals
    decided = await approvals.decide((await asked(bench)).id, approved=True)
    cancelled = await approvals.cancel((await asked(bench, 1)).id, reason="no")
    bench.clock.set(UNTIL + timedelta(days=1))
    for one in (decided, cancelled):
        equal(await approvals.expire(one.id), one, f"what expire answers for the {one.status} one")
        equal(await approvals.get(one.id), one, f"the {one.status} one after its time")
    equal(await approvals.decide(decided.id, approved=True), decided, "the same decision again, after its time")
    await raises(
        ApprovalAlreadyResolvedError, "another one, after its time", approvals.decide, decided.id, approved=False
    )


@law("approvals-expire-at-the-instant", parts=[APPROVALS], methods=["approvals.expire"])
async def expire_at_the_instant(bench: Bench) -> None:
    """`expire` leaves an approval open a microsecond before its time, and records the rejection from the instant on."""
    approvals = bench.store.approvals
    options: tuple[dict[str, Any], ...] = ({"at": UNTIL - TICK}, {})
    one = await asked(bench)
    for option in options:
        equal(await approvals.expire(one.id, **option), one, f"expire({option}) before its time")
    expired = await approvals.expire(one.id, at=UNTIL)
    decision = Decision(False, UNTIL, decided_by="expiry")
    expected = replace(one, status="rejected", version=one.version + 1, decision=decision)
    equal(expired, expected, "what expire answers at the instant")
    equal(await approvals.expire(one.id, at=UNTIL + TICK), expected, "what a second expire answers")
    equal(await approvals.get(one.id), expected, "what is stored")


@law("approvals-expired-is-listed-as-stored", parts=[APPROVALS], methods=["approvals.list"])
async def expired_is_listed_as_stored(bench: Bench) -> None:
    """Reading and listing decide nothing: an expired approval is pending until somebody records the rejection."""
    one = await asked(bench)
    bench.clock.set(UNTIL + TICK)
    equal(await bench.store.approvals.get(one.id), one, "an expired approval that was read")
    equal((await bench.store.approvals.list(status="pending")).items, (one,), "the pending approvals")
    await bench.store.approvals.expire(one.id)
    equal(await APPROVALS.ids(bench.store, status="pending"), [], "the pending approvals after the rejection")


@law("approvals-expiry-and-decision-race", parts=[APPROVALS], promise=2, methods=["approvals.expire"])
async def expiry_and_decision_race(bench: Bench) -> None:
    """Of an expiry and a decision in time one is recorded, and both callers are told which."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store] * 2
    for number in range(6):
        one = await asked(bench, number)
        decide = stores[0].approvals.decide(one.id, approved=True, at=UNTIL - TICK)
        expire = stores[1].approvals.expire(one.id, at=UNTIL)
        calls = [decide, expire] if number % 2 else [expire, decide]
        answers = only(ApprovalExpiredError, await all_of(list(calls)), "an expiry and a decision at once")
        recorded = await bench.store.approvals.get(one.id)
        equal(recorded and recorded.version, one.version + 1, "the version after both")
        equal(answers, [recorded] * len(answers), "what the callers got")
