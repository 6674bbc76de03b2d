"""Promise 9: errors are the contract's own, they carry their facts, and a refused call changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from perdure.contracts.approvals import Decision
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    InvalidArgumentError,
    InvalidIdError,
    NotJsonError,
    PerdureError,
    VersionConflictError,
)
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.manual_clock import START
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, Part, WritablePart, request

HEAD = CheckpointHead("in-progress")
NAIVE = datetime(2031, 1, 1)  # noqa: DTZ001 - a naive time is what the laws hand in
YES = Decision(True, START)
NUMBERS: tuple[Any, ...] = (-1, 1.0, "1", True, b"1", 1.5)
"""What is no count and no version."""


@law("sessions-bad-arguments-are-refused", parts=[SESSIONS], promise=9, methods=["sessions.append"])
async def bad_session_arguments(bench: Bench) -> None:
    """Bad versions, times and scopes are refused by the contract's errors, and write nothing."""
    append, replace = bench.store.sessions.append, bench.store.sessions.replace
    for bad in (*NUMBERS, 2**63):
        await raises(InvalidArgumentError, f"append(expected_version={bad!r})", append, "s1", [], expected_version=bad)
    for bad in NUMBERS:
        await raises(
            InvalidArgumentError, f"append(version={bad!r})", append, "s1", [], expected_version=0, version=bad
        )
        await raises(InvalidArgumentError, f"replace(keep={bad!r})", replace, "s1", [], expected_version=None, keep=bad)
    for bad in (0, 2**62 + 1, 2**70):
        await raises(InvalidArgumentError, f"append(version={bad})", append, "s1", [], expected_version=0, version=bad)
    for expected in (None, 1):
        what = f"append(expected_version={expected}, version=5)"
        await raises(InvalidArgumentError, what, append, "s1", [], expected_version=expected, version=5)
    times: tuple[Any, ...] = (NAIVE, "2031-01-01", 0, START.date())
    for at in times:
        await raises(InvalidArgumentError, f"append(at={at!r})", append, "s1", [], at=at)
    scopes: tuple[Any, ...] = (5, b"x", ["x"], "u" * 513, "é" * 257, "\ud800")
    for scope in scopes:
        await raises(InvalidArgumentError, f"append(scope={scope!r:.40})", append, "s1", [], scope=scope)
    equal(await bench.store.sessions.load("s1"), None, "the session after all refusals")


@law("checkpoints-bad-arguments-are-refused", parts=[CHECKPOINTS], promise=9, methods=["checkpoints.append"])
async def bad_checkpoint_arguments(bench: Bench) -> None:
    """Bad versions, times and heads are refused by the contract's errors, and write nothing."""
    append = bench.store.checkpoints.append
    for bad in NUMBERS:
        what = f"append(expected_version={bad!r})"
        await raises(InvalidArgumentError, what, append, "s1", [], expected_version=bad, head=HEAD)
        what = f"append(version={bad!r})"
        await raises(InvalidArgumentError, what, append, "s1", [], expected_version=0, head=HEAD, version=bad)
    heads: tuple[Any, ...] = (
        *(None, {}, "idle", CheckpointHead("sleeping"), CheckpointHead(""), CheckpointHead("Idle")),
        *(CheckpointHead("idle", agent="x" * 513), CheckpointHead("idle", lease_expires_at=NAIVE)),
    )
    for head in heads:
        what = f"append(head={head!r:.40})"
        await raises(InvalidArgumentError, what, append, "s1", [], expected_version=0, head=head)
    await raises(InvalidArgumentError, "append(at=naive)", append, "s1", [], expected_version=0, head=HEAD, at=NAIVE)
    equal(await bench.store.checkpoints.load("s1"), None, "the turn journal after all refusals")


@law("checkpoints-heads-stay-in-their-conversation", parts=[CHECKPOINTS], promise=9, methods=["checkpoints.append"])
async def heads_stay_in_their_conversation(bench: Bench) -> None:
    """A head that names another session, or a run of another conversation, is refused and writes nothing."""
    append = bench.store.checkpoints.append
    foreign: tuple[tuple[str, dict[str, Any]], ...] = (
        *(("s1", {"session_id": "s10"}), ("s1", {"run_id": "s10.turn-1"}), ("s1", {"run_id": "S1.turn-1"})),
        *(("job.run", {"session_id": "job"}), ("job.run", {"run_id": "job2.run-1"}), ("s1", {"run_id": "../s1"})),
    )
    for key, ids in foreign:
        head = CheckpointHead("in-progress", **ids)
        await raises(InvalidIdError, f"append to {key} with {ids}", append, key, [], expected_version=0, head=head)
        equal(await bench.store.checkpoints.load(key), None, f"{key} after its refused head")
    own: tuple[tuple[str, dict[str, Any]], ...] = (
        *(("s1", {"session_id": "s1", "run_id": "s1.turn-1"}), ("job.run", {"run_id": "job.run-1"})),
    )
    for key, ids in own:
        await append(key, [], expected_version=0, head=CheckpointHead("in-progress", **ids))


@law("approvals-bad-requests-are-refused", parts=[APPROVALS], promise=9, methods=["approvals.create"])
async def bad_requests_are_refused(bench: Bench) -> None:
    """A request that contradicts itself is refused by the contract's errors, and stores nothing."""
    create = bench.store.approvals.create
    contradictions: tuple[dict[str, Any], ...] = (
        *({"status": "done"}, {"kind": "other"}, {"on_expiry": "allow"}, {"status": "approved"}, {"kind": ""}),
        *({"created_at": NAIVE}, {"expires_at": NAIVE}, {"arguments_sha256": "0" * 64}, {"decision": YES}),
        *({"status": "rejected", "decision": YES}, {"status": "cancelled", "decision": YES}),
        *({"status": "approved", "decision": Decision(True, NAIVE)}, {"status": "approved", "decision": {"a": 1}}),
    )
    for changes in contradictions:
        await raises(InvalidArgumentError, f"create with {changes!s:.60}", create, request(**changes))
    foreign: tuple[tuple[str, str], ...] = (
        *(("run_id", "s2.turn-1"), ("session_id", "s2"), ("session_id", "S1"), ("run_id", "s10.turn-1")),
    )
    for name, other in foreign:
        asked = replace(request(), **{name: other})  # type: ignore[arg-type]  # reason: both fields hold text
        await raises(InvalidIdError, f"create with {name}={other}", create, asked)
    given: tuple[Any, ...] = (None, {}, "s1.turn-1.s0.c0")
    for bad in given:
        await raises(InvalidArgumentError, f"create({bad!r})", create, bad)
    equal(await bench.store.approvals.get(request().id), None, "the approval after all refusals")


@law("approvals-bad-decisions-are-refused", parts=[APPROVALS], promise=9, methods=["approvals.decide"])
async def bad_decisions_are_refused(bench: Bench) -> None:
    """A decision is True or False; other values, naive times and edits of a refusal decide nothing."""
    decide = bench.store.approvals.decide
    asked = await bench.store.approvals.create(request())
    approved: tuple[Any, ...] = (None, 1, 0, "yes", "", [])
    for value in approved:
        await raises(InvalidArgumentError, f"decide(approved={value!r})", decide, asked.id, approved=value)
    options: tuple[dict[str, Any], ...] = (
        *({"note": 5}, {"decided_by": 5}, {"decided_by": "expiry"}, {"at": NAIVE}, {"at": "2031-01-01"}),
        {"note": ["x"]},
    )
    for option in options:
        await raises(InvalidArgumentError, f"decide with {option}", decide, asked.id, approved=True, **option)
    await raises(InvalidArgumentError, "a rejection with edits", decide, asked.id, approved=False, arguments={"a": 1})
    equal(await bench.store.approvals.get(asked.id), asked, "the approval after all refusals")


@law_of_each("errors-carry-their-facts", promise=9, methods=["delete"], needs=("delete",))
async def errors_carry_their_facts(bench: Bench, part: Part) -> None:
    """Each error has a message with the id, a hint and `retryable`, and pickles with all of it."""
    key = part.key("s1")
    await part.make(bench.store, key)
    errors: list[PerdureError] = [
        await raises(VersionConflictError, "a delete at 1", part.delete, bench.store, key, expected_version=1),
        await raises(NotJsonError, "NaN", part.make, bench.store, part.key("s2"), {"n": float("nan")}),
        await raises(InvalidIdError, "a bad id", part.delete, bench.store, "a/b"),
        await raises(InvalidArgumentError, "a version of -1", part.delete, bench.store, key, expected_version=-1),
    ]
    if part is APPROVALS:
        approvals = bench.store.approvals
        await approvals.decide(key, approved=True)
        errors += [
            await raises(ApprovalAlreadyResolvedError, "another decision", approvals.decide, key, approved=False),
            await raises(ApprovalNotFoundError, "an unknown approval", approvals.decide, "s9.t.c", approved=True),
        ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        equal((type(again), str(again), again.hint, again.retryable), (type(error), *facts(error)), "a pickled error")
        equal(vars(again), vars(error), f"the attributes of a pickled {type(error).__name__}")
        holds(str(error).strip() and error.hint, f"{type(error).__name__} has no message or no hint")
    holds(key in str(errors[0]), f"the message of a conflict names no key: {errors[0]}")


def facts(error: PerdureError) -> tuple[str, str, bool]:
    """Return what every error says."""
    return str(error), error.hint, error.retryable


@law_of_each("store-works-after-conflicts", parts=LISTS, needs=("replace", "delete"), promise=9, methods=["write"])
async def store_works_after_conflicts(bench: Bench, part: WritablePart) -> None:
    """After a refused replace or delete every handle can write, replace and delete the key at once."""
    version = await part.make(bench.store, "s1")
    second = await bench.open() if bench.target.reopens else bench.store
    refused: list[tuple[str, Callable[..., Awaitable[object]], tuple[Any, ...]]] = [
        ("a replace", part.replace, ([{"n": 1}],)),
        ("a delete", part.delete, ()),
    ]
    for number, (what, call, values) in enumerate(refused):
        for store, other in ((bench.store, second), (second, bench.store)):
            await raises(VersionConflictError, f"{what} at 7", call, store, "s1", *values, expected_version=7)
            version = await part.write(other, "s1", [{"n": number}], expected_version=version)
            version = await part.replace(store, "s1", [{"n": number}], expected_version=version)
    equal(await part.delete(second, "s1", expected_version=version), True, "a delete after the conflicts")


@law_of_each("store-works-after-errors", parts=LISTS, promise=9, methods=["write"])
async def store_works_after_errors(bench: Bench, part: WritablePart) -> None:
    """Refused calls leave nothing behind that a later call trips over, on any handle."""
    version = await part.make(bench.store, "s1", {"n": 0})
    second = await bench.open() if bench.target.reopens else bench.store
    bad_calls: list[tuple[type[Exception], list[Any], int | None]] = [
        (VersionConflictError, [{"n": 1}], version + 5),
        (NotJsonError, [{"n": 1}, {"n": {1}}], None),
        (InvalidArgumentError, [], -1),
    ]
    write: Callable[..., Awaitable[object]] = part.write
    for turn in range(3):
        for kind, values, expected in bad_calls:
            await raises(kind, "a bad append", write, bench.store, "s1", values, expected_version=expected)
        for number, store in enumerate((second, bench.store)):
            version = await part.write(store, "s1", [{"turn": turn, "n": number}], expected_version=version)
    left = [{"n": 0}, *({"turn": turn, "n": number} for turn in range(3) for number in range(2))]
    equal(await part.values(second, "s1"), left, "the key after good appends between bad ones")
