"""Promise 14: cancellation leaves the store usable, writes whole or absent, and answers where they belong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, holds
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, PARTS, Part, Seen, WritablePart, request

STEPS = (1, 2, 3, 4, 5, 8, 13)
"""After how many turns of the event loop a call is cancelled."""

JUST_ENDED = 10
"""How many turns of the event loop a call that had ended may take to hand its answer on."""

LARGE = 100_000
"""How long a text is that makes a record large: a store may write such a one by another way."""


async def turns(number: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(number):
        await asyncio.sleep(0)


async def cancelled(call: Awaitable[Any], steps: int) -> None:
    """Start a call, cancel it after so many turns of the loop, and wait until it is over."""
    task = asyncio.ensure_future(call)
    await turns(steps)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@law_of_each("cancelled-append-is-whole-or-absent", parts=LISTS, promise=14, methods=["write"])
async def cancelled_append(bench: Bench, part: WritablePart) -> None:
    """An append that is cancelled, whenever that is and however large, wrote its whole batch or nothing; the next call works."""
    for size, text in (("small", "n"), ("large", "n" * LARGE)):
        batch = [{"n": number, "text": text} for number in (1, 2, 3)]
        for steps in STEPS:
            key = f"{size}-{steps}"
            version = await part.make(bench.store, key, {"n": 0})
            await cancelled(part.write(bench.store, key, batch), steps)
            seen = await part.read(bench.store, key)
            holds(seen is not None, f"an append of 3 {size} records, cancelled after {steps} steps, left no key")
            assert seen is not None
            values, moved = list(seen.values), seen.version - version
            left = f"left {len(values) - 1} of them and moved the version by {moved}"
            what = f"an append of 3 {size} records, cancelled after {steps} steps, {left}"
            holds((len(values), moved) in ((1, 0), (4, 1)), what)
            await part.write(bench.store, key, [{"n": 4}])
            equal(await part.values(bench.store, key), [*values, {"n": 4}], "the key after the next append")


@law_of_each("cancelled-replace-is-old-or-new", parts=LISTS, needs=("replace",), promise=14, methods=["replace"])
async def cancelled_replace(bench: Bench, part: WritablePart) -> None:
    """A replace that is cancelled left the old content or the new one."""
    old, new = [{"old": 1}, {"old": 2}], [{"new": 1}]
    for steps in STEPS:
        key = f"s{steps}"
        await part.write(bench.store, key, old)
        await cancelled(part.replace(bench.store, key, new), steps)
        values = await part.values(bench.store, key)
        holds(values in (old, new), f"a replace, cancelled after {steps} steps, left {values}")


@law(
    "checkpoints-cancelled-append-keeps-head-and-entries",
    parts=[CHECKPOINTS],
    promise=14,
    methods=["checkpoints.append"],
)
async def cancelled_append_keeps_head_and_entries(bench: Bench) -> None:
    """An append to a turn journal that is cancelled changed head, entries and version together, or none."""
    for steps in STEPS:
        key = f"s{steps}"
        version = await CHECKPOINTS.make(bench.store, key)
        head = CheckpointHead("ready", attempts=1)
        await cancelled(bench.store.checkpoints.append(key, [{"n": 1}], expected_version=version, head=head), steps)
        found = await bench.store.checkpoints.load(key)
        assert found is not None
        seen = (found.version - version, found.head.attempts, len(found.entries) - 1)
        holds(seen in ((0, 0, 0), (1, 1, 1)), f"version, head and entries moved by {seen} after {steps} steps")


@law("approvals-cancelled-decide-is-whole-or-absent", parts=[APPROVALS], promise=14, methods=["approvals.decide"])
async def cancelled_decide(bench: Bench) -> None:
    """A decision that is cancelled is recorded whole or not at all, and the same can be decided again."""
    for steps in STEPS:
        asked = await bench.store.approvals.create(request(f"s1.turn-{steps}.s0.c0"))
        await cancelled(bench.store.approvals.decide(asked.id, approved=True, note="n"), steps)
        found = await bench.store.approvals.get(asked.id)
        assert found is not None
        whole = found.decision is not None and (found.status, found.decision.note) == ("approved", "n")
        holds(found == asked or whole, f"a decision, cancelled after {steps} steps, left {found}")
        again = await bench.store.approvals.decide(asked.id, approved=True, note="n")
        equal(again.status, "approved", "the same decision after a cancelled one")


@law_of_each("cancelled-create-is-whole-or-absent", promise=14, methods=["make"])
async def cancelled_create(bench: Bench, part: Part) -> None:
    """A creation that is cancelled made the whole key or none, and what it left can be read."""
    for steps in STEPS:
        key = part.key(f"s{steps}")
        await cancelled(part.make(bench.store, key, {"n": steps}), steps)
        seen = await part.read(bench.store, key)
        holds(seen is None or seen.values == ({"n": steps},), f"a creation, cancelled after {steps} steps, left {seen}")


@law_of_each("cancelled-delete-is-whole-or-absent", needs=("delete",), promise=14, methods=["delete"])
async def cancelled_delete(bench: Bench, part: Part) -> None:
    """A delete that is cancelled removed the whole key or nothing."""
    for steps in STEPS:
        key = part.key(f"s{steps}")
        await part.make(bench.store, key)
        before = await part.read(bench.store, key)
        await cancelled(part.delete(bench.store, key), steps)
        seen = await part.read(bench.store, key)
        holds(seen in (None, before), f"a delete, cancelled after {steps} steps, left {seen}")


@law_of_each("answers-stay-with-their-calls", promise=14, methods=["read"])
async def answers_stay_with_their_calls(bench: Bench, part: Part) -> None:
    """After a read is cancelled the next one gets its own answer, never the cancelled one's."""
    names = ("alice", "bob")
    for name in names:
        await part.make(bench.store, part.key(name), {"of": name})
    for steps in STEPS:
        for number in range(3):
            first, second = names[number % 2], names[1 - number % 2]
            await cancelled(part.read(bench.store, part.key(first)), steps)
            seen = await part.read(bench.store, part.key(second))
            equal(seen and seen.values, ({"of": second},), f"reading {second} after a cancelled read of {first}")


@law_of_each("answers-stay-beside-a-cancelled-call", promise=14, methods=["read"])
async def answers_stay_beside_a_cancelled_call(bench: Bench, part: Part) -> None:
    """Of calls that wait together one is cancelled, whenever that is: each of the others gets its own answer."""
    names = ("ann", "bob", "cem", "dan")
    for name in names:
        await part.make(bench.store, part.key(name), {"of": name})
    for steps in range(1, 21):
        tasks = [asyncio.ensure_future(part.read(bench.store, part.key(name))) for name in names]
        await turns(steps)
        gone = steps % 3  # never the last: behind it no answer would go astray
        tasks[gone].cancel()
        outcomes = await all_of(list(tasks))
        for name, outcome in zip(names, outcomes, strict=True):
            what = f"reading {name} while a read of {names[gone]} was cancelled after {steps} steps"
            if name != names[gone]:
                holds(isinstance(outcome, Seen), f"{what}: expected its answer, got {outcome!r:.200}")
                equal(outcome.values, ({"of": name},), what)


@law_of_each("cancelled-call-raises", promise=14, methods=["make", "read", "list"])
async def cancelled_call_raises(bench: Bench, part: Part) -> None:
    """A call that is cancelled while it is under way raises `CancelledError`; it does not go on and answer."""
    await part.make(bench.store, part.key("s0"))
    for steps in STEPS:
        calls: list[tuple[Any, ...]] = [("a write", part.make, part.key(f"s{steps}"))]
        calls += [("a read", part.read, part.key("s0")), ("a listing", part.page)]
        for what, call, *arguments in calls[: 2 + bench.capabilities(part.name).list]:
            task = asyncio.ensure_future(call(bench.store, *arguments))
            await turns(steps)
            task.cancel()
            await turns(JUST_ENDED)
            under_way = not task.done()
            (outcome,) = await all_of([task])
            told = f"{what}, cancelled after {steps} steps and under way for {JUST_ENDED} more"
            raised = isinstance(outcome, asyncio.CancelledError)
            holds(raised or not under_way, f"{told}: expected CancelledError, got {outcome!r:.200}")


@law_of_each("cancelled-call-holds-no-lock", promise=14, methods=["make"])
async def cancelled_call_holds_no_lock(bench: Bench, part: Part) -> None:
    """After a write or a listing is cancelled every handle can write at once."""
    second = await bench.open() if bench.target.reopens else bench.store
    for steps in STEPS:
        await cancelled(part.make(bench.store, part.key(f"a{steps}")), steps)
        if bench.capabilities(part.name).list:
            await cancelled(part.page(bench.store), steps)
        await part.make(second, part.key(f"b{steps}"), {"n": steps})
        seen = await part.read(bench.store, part.key(f"b{steps}"))
        equal(seen and seen.values, ({"n": steps},), "what the other handle wrote after the cancellation")


@law("sessions-storm-of-cancellations", parts=PARTS, promise=14)
async def storm_of_cancellations(bench: Bench) -> None:
    """Many calls of which half are cancelled, at once or one by one, leave the others whole, and the store as fast as before."""
    outcomes: dict[int, object] = {}
    for storm in range(4):
        numbers = range(60 * storm + 1, 60 * storm + 61)
        tasks = [
            asyncio.ensure_future(bench.store.sessions.append(f"s{number % 5}", [{"n": number}, {"n": -number}]))
            for number in numbers
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
            if storm:
                await asyncio.sleep(0)
        outcomes |= zip(numbers, await all_of(list(tasks)), strict=True)
    written: list[int] = []
    for name in range(5):
        found = await bench.store.sessions.load(f"s{name}")
        records = [record["n"] for record in found.records] if found else []
        equal(records[1::2], [-number for number in records[::2]], f"pairs of records of s{name}")
        written += records[::2]
    for number, outcome in outcomes.items():
        holds(isinstance(outcome, (int, asyncio.CancelledError)), f"append {number} in the storm: {outcome!r:.200}")
        if isinstance(outcome, int):
            holds(number in written, f"append {number} was acknowledged in the storm, but is not there")
