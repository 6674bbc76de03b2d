"""Promise 7: no aliasing. The store keeps a snapshot; later changes of an object change nothing stored."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, Part, WritablePart, request


def spoil(value: Any) -> None:
    """Change an object wherever it can be changed."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value["spoiled"] = True
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.append("spoiled")


def fresh() -> dict[str, Any]:
    """Return an object with containers in it."""
    return {"message": {"parts": [{"text": "hi"}, [1, 2]]}, "n": 1}


@law_of_each("input-is-not-kept", promise=7, methods=["make"])
async def input_is_not_kept(bench: Bench, part: Part) -> None:
    """An object that is changed after the write changes nothing stored."""
    value = fresh()
    await part.make(bench.store, part.key("s1"), value)
    spoil(value)
    seen = await part.read(bench.store, part.key("s1"))
    equal(seen and seen.values, (fresh(),), "what is stored after the written object was changed")


@law_of_each("snapshot-is-taken-at-the-call", promise=7, methods=["make"])
async def snapshot_is_taken_at_the_call(bench: Bench, part: Part) -> None:
    """An object that is changed between the call and its await, or while the write runs, is stored as it was."""
    value = fresh()
    call = part.make(bench.store, part.key("s1"), value)
    spoil(value)
    await call
    seen = await part.read(bench.store, part.key("s1"))
    equal(seen and seen.values, (fresh(),), "what is stored after a change between the call and its await")
    value = fresh()
    task = asyncio.ensure_future(part.make(bench.store, part.key("s2"), value))
    await asyncio.sleep(0)
    spoil(value)
    await task
    seen = await part.read(bench.store, part.key("s2"))
    equal(seen and seen.values, (fresh(),), "what is stored after a change while the write ran")


@law_of_each("batch-is-a-snapshot", parts=LISTS, promise=7, methods=["write"])
async def batch_is_a_snapshot(bench: Bench, part: WritablePart) -> None:
    """The list of a batch may be changed as soon as the call is made: the store has its own."""
    batch = [fresh(), fresh()]
    task = asyncio.ensure_future(part.write(bench.store, "s1", batch))
    spoil(batch)
    await asyncio.sleep(0)
    batch.clear()
    await task
    equal(
        await part.values(bench.store, "s1"), [fresh(), fresh()], "what is stored of a batch that was emptied meanwhile"
    )


@law_of_each("output-is-new-each-time", promise=7, methods=["read"])
async def output_is_new_each_time(bench: Bench, part: Part) -> None:
    """An object that was read may be changed: neither the store nor another reader sees it."""
    key = part.key("s1")
    await part.make(bench.store, key, fresh())
    first = await part.read(bench.store, key)
    second = await part.read(bench.store, key)
    assert first is not None
    assert second is not None
    for value in first.values:
        spoil(value)
    equal(second.values, [fresh()], "what another reader had got before")
    third = await part.read(bench.store, key)
    equal(third and third.values, (fresh(),), "what is read after the first reader changed its copy")


@law("sessions-state-is-a-snapshot", parts=[SESSIONS], promise=7, methods=["sessions.append"])
async def state_is_a_snapshot(bench: Bench) -> None:
    """The state is a snapshot when it is given, and new each time when it is read or listed."""
    sessions = bench.store.sessions
    state = fresh()
    call = sessions.append("s1", [], state=state)
    spoil(state)
    await call
    for _ in range(2):
        found = await sessions.load("s1")
        if found is None:
            raise broken("loading a session that an append with a state created: expected its transcript, got None")
        equal(found.state, fresh(), "the state that is read")
        spoil(found.state)
    if sessions.capabilities.list:
        for _ in range(2):
            listed = (await sessions.list()).items[0]
            equal(listed.state, fresh(), "the state that is listed")
            spoil(listed.state)


@law("checkpoints-head-is-a-snapshot", parts=[CHECKPOINTS], promise=7, methods=["checkpoints.append"])
async def head_is_a_snapshot(bench: Bench) -> None:
    """The unknown fields of a head are a snapshot when they are given, and new each time when they are read."""
    checkpoints = bench.store.checkpoints
    extra = fresh()
    call = checkpoints.append("s1", [], expected_version=0, head=CheckpointHead("in-progress", extra=extra))
    spoil(extra)
    await call
    for _ in range(2):
        found = await checkpoints.load("s1")
        assert found is not None
        equal(found.head.extra, fresh(), "the head that is read")
        spoil(found.head.extra)
    for _ in range(2):
        listed = (await checkpoints.list()).items[0]
        equal(listed.head.extra, fresh(), "the head that is listed")
        spoil(listed.head.extra)


@law("sessions-replace-takes-a-snapshot", parts=[SESSIONS], needs=("replace",), promise=7, methods=["sessions.replace"])
async def replace_takes_a_snapshot(bench: Bench) -> None:
    """A replace stores its records as they were at the call."""
    await bench.store.sessions.append("s1", [{"n": 0}])
    batch = [fresh()]
    call = bench.store.sessions.replace("s1", batch, expected_version=None)
    spoil(batch)
    await call
    equal(await SESSIONS.values(bench.store, "s1"), [fresh()], "what a replace stored")


@law("approvals-decision-is-a-snapshot", parts=[APPROVALS], promise=7, methods=["approvals.decide"])
async def decision_is_a_snapshot(bench: Bench) -> None:
    """Edited arguments are a snapshot; what create, decide, get and list answer may be changed."""
    approvals = bench.store.approvals
    asked = await approvals.create(request(arguments=fresh(), metadata=fresh()))
    spoil(asked.arguments)
    spoil(asked.metadata)
    edited = fresh()
    call = approvals.decide(asked.id, approved=True, arguments=edited)
    spoil(edited)
    decided = await call
    for _ in range(2):
        equal(
            (decided.arguments, decided.metadata, decided.effective_arguments), (fresh(),) * 3, "the decided approval"
        )
        for part in (decided.arguments, decided.metadata, decided.effective_arguments):
            spoil(part)
        decided = (await approvals.list()).items[0]
    for part in (decided.arguments, decided.metadata, decided.effective_arguments):
        spoil(part)
    found = await approvals.get(asked.id)
    assert found is not None
    equal((found.arguments, found.metadata, found.effective_arguments), (fresh(),) * 3, "the approval read at the end")
