"""What is particular to approvals: requests, and decisions that are made once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from perdure.contracts.approvals import Approval, Decision
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    InvalidArgumentError,
    VersionConflictError,
)
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, holds, only, raises
from perdure_conformance.laws.register import law
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import APPROVALS, request
from perdure_conformance.processes import error_of

AT = START + timedelta(minutes=5)


async def stored(bench: Bench, approval_id: str = "s1.turn-1.s0.c0") -> Approval:
    """Return an approval that must be there."""
    found = await bench.store.approvals.get(approval_id)
    assert found is not None, f"{approval_id} was created, but get answers None"
    return found


def full() -> Approval:
    """Return a request with every field set."""
    return request(
        *("s1.turn-7.s2.c1.d3", {"to": "ann", "sum": 2**70, "cents": -0.0, "items": [{}, None]}),
        run_id="s1.turn-7",
        tool_call_id="call \0 \u2028",
        tool_name="pay-📚",
        agent="Bücher",
        kind="in-doubt",
        created_at=START + TICK,
        expires_at=START + timedelta(days=30, microseconds=1),
        on_expiry="keep",
        metadata={"channel": {"id": 0}},
        extra={"later": [1, 1.0, True, None]},
    )


# --- create and get ---


@law("approvals-every-field-comes-back", parts=[APPROVALS], promise=6, methods=["approvals.create"])
async def every_field_comes_back(bench: Bench) -> None:
    """Every field of a request comes back, by create, get and list: zero, empty and unknown ones too."""
    for asked in (full(), request("s2.turn-1.s0.c0", {}), request("s3.run-1.s0.c0", session_id=None, agent="")):
        created = await bench.store.approvals.create(asked)
        expected = replace(asked, version=created.version, arguments_sha256=created.arguments_sha256)
        equal(created, expected, "what create answers")
        equal(await stored(bench, asked.id), expected, "what get answers")
        listed = (await bench.store.approvals.list(run_id=asked.run_id)).items
        equal(listed, (expected,), "what list answers")
        holds(
            len(created.arguments_sha256) == 64, f"arguments_sha256 was left empty, and is {created.arguments_sha256!r}"
        )


@law("approvals-times-come-back-in-utc", parts=[APPROVALS], promise=6, methods=["approvals.create"])
async def times_come_back_in_utc(bench: Bench) -> None:
    """Times given in any zone come back as the same instants in UTC."""
    zone = timezone(timedelta(hours=-7))
    asked_at, until = datetime(2031, 3, 9, 2, 30, tzinfo=zone), datetime(9990, 1, 1, tzinfo=zone)
    await bench.store.approvals.create(request(created_at=asked_at, expires_at=until))
    await bench.store.approvals.decide(request().id, approved=True, at=AT.astimezone(zone))
    found = await stored(bench)
    assert found.decision is not None
    times = (found.created_at, found.expires_at, found.decision.decided_at)
    equal(times, (asked_at.astimezone(UTC), until.astimezone(UTC), AT), "the times that came back")
    for time in times:
        equal(time and time.utcoffset(), timedelta(0), "their distance from UTC")


@law("approvals-create-again-gives-the-stored", parts=[APPROVALS], methods=["approvals.create"])
async def create_again_gives_the_stored(bench: Bench) -> None:
    """Creating an id that is there returns the stored approval unchanged: pending, decided or cancelled."""
    approvals = bench.store.approvals
    steps = ("nothing", "approved", "rejected", "cancelled")
    for number, step in enumerate(steps):
        asked = request(f"s1.turn-1.s0.c{number}")
        await approvals.create(asked)
        if step == "cancelled":
            await approvals.cancel(asked.id, reason="no")
        elif step != "nothing":
            await approvals.decide(asked.id, approved=step == "approved", note="first")
        before = await stored(bench, asked.id)
        other = replace(asked, tool_name="other", metadata={"m": 1}, created_at=AT, expires_at=START)
        for again in (asked, other):
            equal(await approvals.create(again), before, f"creating an approval again after {step} was decided")
            equal(await stored(bench, asked.id), before, "what is stored then")


@law("approvals-create-with-other-arguments-conflicts", parts=[APPROVALS], methods=["approvals.create"])
async def create_with_other_arguments(bench: Bench) -> None:
    """Creating an id that is there with other arguments, or of another kind, conflicts and changes nothing."""
    approvals = bench.store.approvals
    created = await approvals.create(request(arguments={"sum": 1, "deep": {"a": 1, "b": 2}}))
    for arguments in (
        {"sum": 900},
        {},
        {"sum": 1.0, "deep": {"a": 1, "b": 2}},
        {"sum": True, "deep": {"a": 1, "b": 2}},
    ):
        other = request(arguments=arguments)
        error = await raises(VersionConflictError, f"create with {arguments}", approvals.create, other)
        equal((error.key, error.actual), (created.id, created.version), "the conflict's key and actual version")
    other = request(arguments=created.arguments, kind="in-doubt")
    await raises(VersionConflictError, "create of another kind", approvals.create, other)
    equal(await stored(bench), created, "the approval after the conflicts")
    same = request(arguments={"deep": {"b": 2, "a": 1}, "sum": 1})
    equal(await approvals.create(same), created, "creating it with the same arguments in another order of keys")


@law("approvals-create-takes-a-decided-one", parts=[APPROVALS], methods=["approvals.create"])
async def create_takes_a_decided_one(bench: Bench) -> None:
    """A decided approval is stored as it is, decision and all, and is decided from then on."""
    decision = Decision(True, AT, note="n", arguments={"sum": 2}, decided_by="ann", extra={"via": "chat"})
    for number, (status, how) in enumerate(
        (("approved", decision), ("rejected", Decision(False, AT)), ("cancelled", Decision(False, AT, note="why")))
    ):
        asked = request(f"s1.turn-1.s0.c{number}", status=status, decision=how)
        created = await bench.store.approvals.create(asked)
        equal((created.status, created.decision), (status, how), "status and decision that create answers")
        equal(await stored(bench, asked.id), created, "what get answers")
        equal(await APPROVALS.ids(bench.store, status=status), [asked.id], f"the listing of status {status}")
        call = bench.store.approvals.decide
        await raises(
            ApprovalAlreadyResolvedError, "the opposite decision", call, asked.id, approved=status != "approved"
        )


@law("approvals-one-of-many-creates", parts=[APPROVALS], promise=2, methods=["approvals.create"])
async def one_of_many_creates(bench: Bench) -> None:
    """Of many tasks and handles that create one approval all get the same one."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store]
    for turn in range(4):
        asked = request(f"s1.turn-{turn}.s0.c0")
        calls = [
            stores[number % len(stores)].approvals.create(replace(asked, metadata={"by": number}))
            for number in range(8)
        ]
        created = only(VersionConflictError, await all_of(list(calls)), "8 creations of one approval")
        equal(created, [created[0]] * 8, "what 8 creators got")
        equal(await stored(bench, asked.id), created[0], "what is stored")


# --- decide ---


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


# --- what the arguments are ---


@law("approvals-hash-tells-arguments-apart", parts=[APPROVALS], methods=["approvals.create"])
async def hash_tells_arguments_apart(bench: Bench) -> None:
    """Arguments that differ in value, type or nesting have different hashes; the order of keys does not count."""
    different: tuple[dict[str, Any], ...] = (
        *({}, {"a": None}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": [1]}, {"a": {"1": 1}}, {"a": 0}),
        *({"a": 0.0}, {"a": -0.0}, {"a": False}, {"a": ""}, {"a": []}, {"a": {}}, {"b": 1}, {"A": 1}, {"a": "\0"}),
        *(
            {"a": [1, 2]},
            {"a": [2, 1]},
            {"a": "é"},
            {"a": "e\u0301"},
            {"a": 2**64},
            {"a": float(2**64)},
            {"a": "\ud800"},
        ),
    )
    hashes = set()
    for number, arguments in enumerate(different):
        created = await bench.store.approvals.create(request(f"s1.turn-1.s0.c{number}", arguments))
        hashes.add(created.arguments_sha256)
    equal(len(hashes), len(different), "how many different hashes so many arguments have")
    for number, arguments in enumerate(({"b": {"y": 1, "x": 2}, "a": [1]}, {"a": [1], "b": {"x": 2, "y": 1}})):
        created = await bench.store.approvals.create(request(f"s2.turn-1.s0.c{number}", arguments))
        hashes.add(created.arguments_sha256)
    equal(len(hashes), len(different) + 1, "how many with two more that differ in the order of keys")


@law("approvals-given-hash-is-checked", parts=[APPROVALS], methods=["approvals.create"])
async def given_hash_is_checked(bench: Bench) -> None:
    """A hash that comes with a request must be the one of its arguments."""
    created = await bench.store.approvals.create(request())
    await bench.store.approvals.create(request("s2.turn-1.s0.c0", arguments_sha256=created.arguments_sha256))
    forged = request("s3.turn-1.s0.c0", {"to": "bob", "sum": 900}, arguments_sha256=created.arguments_sha256)
    await raises(InvalidArgumentError, "create with the hash of other arguments", bench.store.approvals.create, forged)
    equal(await bench.store.approvals.get(forged.id), None, "the forged approval")
