"""What is particular to approvals: the requests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from perdure.contracts.approvals import Approval, Decision
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    InvalidArgumentError,
    VersionConflictError,
)
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, holds, only, raises
from perdure_conformance.laws.register import law
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import APPROVALS, request

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


@law("approvals-first-version-can-be-given", parts=[APPROVALS], promise=1, methods=["approvals.create"])
async def first_version_can_be_given(bench: Bench) -> None:
    """A create starts the approval at the version given, as a copy does; one that is there keeps its own."""
    for approval_id, version in (("s1.turn-1.s0.c0", 77), ("s1.turn-1.s0.c1", 2**62 - 5)):
        created = await bench.store.approvals.create(request(approval_id), version=version)
        equal(created.version, version, f"create(version={version})")
        equal((await stored(bench, approval_id)).version, version, "the version that get tells")
        again = await bench.store.approvals.create(request(approval_id), version=5)
        equal(again.version, version, "the version that a second create answers")
    decided = await bench.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    equal(decided.version, 78, "the version after a decision")


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
