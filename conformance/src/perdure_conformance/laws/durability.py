"""Promise 4: durable when acknowledged, after closing, after kill -9, and for other processes at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.errors import PerdureError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal, holds
from perdure_conformance.effort import Effort
from perdure_conformance.laws.checkpoints import FULL
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.laws.storms import law_of_storm
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, PARTS, SESSIONS, Part, WritablePart, request
from perdure_conformance.processes import Worker, error_of
from perdure_conformance.storm import KEY, state_after, state_of
from perdure_conformance.target import Place

POINTS = 6
"""At how many points of one write a writer is killed at most: a driver of many small calls would have hundreds."""


@law_of_each("survives-reopening", needs=("durable",), promise=4, methods=["make"])
async def survives_reopening(bench: Bench, part: Part) -> None:
    """What was acknowledged is there when the store is opened again: keys, versions, times and all."""
    keys = [part.key(f"s{number}") for number in range(12)]
    for key in keys:
        await part.make(bench.store, key, {"of": key, "text": "\0\ud800é😀", "big": 2**70})
        bench.clock.advance(timedelta(seconds=1))
    before = [await part.read(bench.store, key) for key in keys]
    listed = await part.page(bench.store) if bench.capabilities(part.name).list else None
    for _ in range(2):
        await bench.reopen()
        equal([await part.read(bench.store, key) for key in keys], before, "the keys after the store was opened again")
        if listed is not None:
            equal((await part.page(bench.store)).items, listed.items, "the listing after the store was opened again")


@law(
    "sessions-whole-head-survives-reopening",
    parts=[SESSIONS],
    needs=("durable", "replace"),
    promise=4,
    methods=["sessions.append"],
)
async def session_head_survives(bench: Bench) -> None:
    """State, scope, `rewritten` and times of a session survive, and its version goes on from where it was."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": 1}, {"n": 2}], state={"title": "t", "n": -0.0}, scope="ann\0")
    bench.clock.advance(timedelta(microseconds=1))
    version = await sessions.replace("s1", [{"n": 3}], keep=1, expected_version=None)
    before = await sessions.load("s1")
    store = await bench.reopen()
    equal(await store.sessions.load("s1"), before, "the session after the store was opened again")
    equal(
        await store.sessions.append("s1", [], expected_version=version), version + 1, "the version of the next append"
    )


@law(
    "checkpoints-whole-head-survives-reopening",
    parts=[CHECKPOINTS],
    needs=("durable",),
    promise=4,
    methods=["checkpoints.append"],
)
async def turn_head_survives(bench: Bench) -> None:
    """Every field of a turn's head survives, and the version goes on: an owner finds its own turn again."""
    version = await bench.store.checkpoints.append("s1", [{"n": 1}], expected_version=0, head=FULL)
    before = await bench.store.checkpoints.load("s1")
    store = await bench.reopen()
    equal(await store.checkpoints.load("s1"), before, "the turn journal after the store was opened again")
    head = replace(FULL, attempts=4)
    answered = await store.checkpoints.append("s1", [], expected_version=version, head=head)
    equal(answered, version + 1, "the version of the next append")


@law(
    "approvals-decision-survives-reopening",
    parts=[APPROVALS],
    needs=("durable",),
    promise=4,
    methods=["approvals.decide"],
)
async def decision_survives(bench: Bench) -> None:
    """Decisions and cancellations survive whole, and what was pending can be decided then."""
    approvals = bench.store.approvals
    for number in range(4):
        await approvals.create(request(f"s1.turn-1.s0.c{number}"))
    await approvals.decide("s1.turn-1.s0.c0", approved=True, note="n", arguments={"sum": 2}, decided_by="ann")
    await approvals.decide("s1.turn-1.s0.c1", approved=False)
    await approvals.cancel("s1.turn-1.s0.c2", reason="no")
    before = (await approvals.list()).items
    store = await bench.reopen()
    equal((await store.approvals.list()).items, before, "the approvals after the store was opened again")
    decided = await store.approvals.decide("s1.turn-1.s0.c3", approved=False)
    equal((decided.status, decided.version), ("rejected", before[3].version + 1), "a decision after that")


@law_of_each("deletion-survives-reopening", needs=("durable", "delete"), promise=4, methods=["delete"])
async def deletion_survives(bench: Bench, part: Part) -> None:
    """A deleted key stays deleted, the others stay, and no version of its life before comes back."""
    key, other = part.key("s1"), part.key("s2")
    used = {await part.make(bench.store, key)}
    await part.make(bench.store, other)
    await part.delete(bench.store, key)
    await bench.reopen()
    equal(await part.read(bench.store, key), None, "the deleted key after the store was opened again")
    holds(await part.read(bench.store, other) is not None, "the other key is gone after the store was opened again")
    version = await part.make(bench.store, key)
    holds(version not in used, f"the key starts again at version {version}, which its life before had")


@law_of_each("replaced-stays-replaced", parts=LISTS, needs=("durable", "replace"), promise=4, methods=["replace"])
async def replaced_stays_replaced(bench: Bench, part: WritablePart) -> None:
    """After a reopening a replaced key has its new content alone, and appends go behind it."""
    await part.write(bench.store, "s1", [{"old": number} for number in range(20)])
    await part.replace(bench.store, "s1", [{"new": 1}])
    await bench.reopen()
    equal(await part.values(bench.store, "s1"), [{"new": 1}], "the content after the store was opened again")
    await part.write(bench.store, "s1", [{"new": 2}])
    await bench.reopen()
    equal(await part.values(bench.store, "s1"), [{"new": 1}, {"new": 2}], "the content after one more append")


@law("sessions-close-loses-no-tail", parts=[SESSIONS], needs=("durable",), promise=4)
async def close_loses_no_tail(bench: Bench) -> None:
    """Closing right after the last acknowledgement, many times over, loses nothing."""
    for number in range(8):
        await bench.store.sessions.append("s1", [{"n": number}])
        await bench.reopen()
    equal(
        await SESSIONS.values(bench.store, "s1"), [{"n": number} for number in range(8)], "eight appends, each closed"
    )


async def survives_kill(bench: Bench, kind: str) -> None:
    """Kill a writer at points of its opening and of each write, and once by time, and look at what it has left."""
    worker = await bench.worker()
    by_time = bench.another_place()
    acknowledged, said = await worker.storm(bench.url(by_time), kind, by_time=True)
    await worker.call("import", modules=said["modules"])
    said = await killed(bench, worker, kind, "after its last write")
    for write, count in enumerate(said["points"]):
        for point in bench.effort.sweep(Effort(POINTS).sweep(range(count))):
            when = f"at point {point} of {f'write {write}' if write else 'its opening'}"
            await killed(bench, worker, kind, when, kill=(write, point))
    await left_whole(bench, by_time, kind, acknowledged, "by time")


async def killed(bench: Bench, worker: Worker, kind: str, when: str, **how: Any) -> dict[str, Any]:
    """Kill a writer at a fresh place, look at what it has left, and return what it said."""
    place = bench.another_place()
    acknowledged, said = await worker.storm(bench.url(place), kind, **how)
    await left_whole(bench, place, kind, acknowledged, when)
    return said


async def left_whole(bench: Bench, place: Place, kind: str, acknowledged: int, when: str) -> None:
    """Open the place of a killed writer, and compare with what it acknowledged."""
    store = await bench.open(place)
    found = await state_of(store, kind)
    allowed = [state_after(kind, acknowledged), state_after(kind, acknowledged + 1)]
    if found not in allowed:
        equal(
            found, allowed[0], f"what is stored of a storm ({kind}) that was killed {when}, after write {acknowledged}"
        )
    await store.close()
    store = await bench.open(place)
    equal(
        await state_of(store, kind), found, f"the same after one more opening: a storm ({kind}) that was killed {when}"
    )
    try:
        await usable(bench, store, kind)
    except PerdureError as error:
        what = f"a write after a storm ({kind}) that was killed {when}"
        raise broken(f"{what}: expected an answer, got {type(error).__name__} ({error})") from error
    await store.close()


async def usable(bench: Bench, store: Any, kind: str) -> None:
    """Demand that the store takes writes to what the killed process was writing, without any wait."""
    if kind == "decide":
        await APPROVALS.make(store, f"{KEY}.turn-2.s0.c0")
        return
    part = CHECKPOINTS if kind == "turn" else SESSIONS
    before = await part.values(store, KEY)
    await part.write(store, KEY, [{"after": "kill"}])
    equal(await part.values(store, KEY), [*before, {"after": "kill"}], f"an append after a killed storm ({kind})")


@law_of_storm("append", "survives-kill")
async def append_survives_kill(bench: Bench) -> None:
    """After kill -9 every acknowledged batch is there, whole and in order, and the one under way is whole or absent."""
    await survives_kill(bench, "append")


@law_of_storm("replace", "survives-kill")
async def replace_survives_kill(bench: Bench) -> None:
    """After kill -9 a replaced session has the content of one replace, never a mixture, never none."""
    await survives_kill(bench, "replace")


@law_of_storm("delete", "survives-kill")
async def delete_survives_kill(bench: Bench) -> None:
    """After kill -9 a session that was created and deleted over and over is there whole or not at all."""
    await survives_kill(bench, "delete")


@law_of_storm("turn", "survives-kill")
async def turn_survives_kill(bench: Bench) -> None:
    """After kill -9 head and entries of a turn journal are those of one write."""
    await survives_kill(bench, "turn")


@law_of_storm("decide", "survives-kill")
async def decision_survives_kill(bench: Bench) -> None:
    """After kill -9 every acknowledged request and decision is there."""
    await survives_kill(bench, "decide")


@law(
    "sessions-other-process-sees-it-at-once",
    parts=PARTS,
    needs=("shared",),
    promise=4,
    timeout=60,
    methods=["sessions.load"],
)
async def other_process_sees_it(bench: Bench) -> None:
    """What one process was told is written, another reads at once, and the other way round."""
    worker = await bench.worker()
    for number in range(10):
        version = await bench.store.sessions.append("s1", [{"by": "kit", "n": number}])
        answer = await worker.call("load", key="s1")
        equal(answer and answer.get("version"), version, f"the version that another process reads: {answer}"[:300])
        answer = await worker.call("append", key="s1", records=[{"by": "other", "n": number}], expected_version=version)
        if error_of(answer) is not None:
            raise broken(f"an append of another process at the version that this one wrote: {answer}")
        last = await bench.store.sessions.load("s1", last=1)
        equal(
            last and list(last.records), [{"by": "other", "n": number}], "the newest record, written by another process"
        )
