"""Promise 3: all or nothing. A write of several records with its head is applied whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import NotJsonError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, WritablePart, request


@law_of_each("refused-batch-leaves-nothing", parts=LISTS, promise=3, methods=["write"])
async def refused_batch_leaves_nothing(bench: Bench, part: WritablePart) -> None:
    """A batch with one bad record writes none of the good ones, and does not create the key."""
    good, bad = {"n": 1}, {"n": float("nan")}
    for batch in ([good, bad], [bad, good], [good, good, good, bad, good]):
        for expected in (None, 0):
            await raises(
                NotJsonError,
                "an append of a batch with a NaN in it",
                part.write,
                bench.store,
                "s1",
                batch,
                expected_version=expected,
            )
            equal(await part.read(bench.store, "s1"), None, "the key after the refused batch")
    await part.make(bench.store, "s1")
    before = await part.read(bench.store, "s1")
    await raises(NotJsonError, "an append of a bad batch", part.write, bench.store, "s1", [good, bad])
    equal(await part.read(bench.store, "s1"), before, "an existing key after the refused batch")


@law_of_each("conflict-leaves-nothing", parts=LISTS, promise=3, methods=["write"])
async def conflict_leaves_nothing(bench: Bench, part: WritablePart) -> None:
    """A conflict leaves no record, no head, no state and no time of the refused write."""
    version = await part.make(bench.store, "s1")
    before = await part.read(bench.store, "s1")
    bench.clock.advance()
    more: dict[str, Any] = {"head": CheckpointHead("ready")} if part is CHECKPOINTS else {"state": {"title": "no"}}
    await raises(
        VersionConflictError,
        "an append of three records with a head or state, at a wrong version",
        part.write,
        bench.store,
        "s1",
        [{"n": 1}] * 3,
        expected_version=version + 1,
        **more,
    )
    equal(await part.read(bench.store, "s1"), before, "the key after the conflict")


@law_of_each("batches-are-whole-among-tasks", parts=LISTS, promise=3, methods=["write"])
async def batches_are_whole_among_tasks(bench: Bench, part: WritablePart) -> None:
    """Concurrent batches stay together, and no reader ever sees a part of one."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    await part.write(stores[0], "s1", [])

    async def writer(by: int) -> None:
        for number in range(5):
            batch = [{"by": by, "n": number, "place": place} for place in range(4)]
            await part.write(stores[by % 2], "s1", batch)

    async def look() -> None:
        whole(await part.values(stores[1], "s1"), "seen while others write")

    await watched(look, asyncio.gather(*(writer(by) for by in range(4))))
    values = await part.values(stores[0], "s1")
    whole(values, "after all writes")
    equal(len(values), 80, "how many records 20 batches of 4 left")


async def watched(look: Callable[[], Awaitable[None]], work: Awaitable[Any], *, looks: int = 200) -> None:
    """Do work, and look again and again meanwhile; whichever fails first ends both.

    Args:
        look: What a reader does; it raises what it must not see.
        work: What changes the store.
        looks: How often a reader looks at most: more would keep a store that works in threads from writing.
    """
    working = asyncio.ensure_future(work)
    try:
        for _ in range(looks):
            if working.done():
                break
            await look()
            await asyncio.sleep(0)
        await working
    finally:
        working.cancel()
        await asyncio.wait([working])


def whole(values: list[dict[str, Any]], when: str) -> None:
    """Demand that a list consists of whole batches of four."""
    for index in range(0, len(values), 4):
        batch = values[index : index + 4]
        expected = [{"by": batch[0]["by"], "n": batch[0]["n"], "place": place} for place in range(4)]
        equal(batch, expected, f"the batch at {index} of {len(values)} records, {when}")


@law("sessions-state-and-records-change-together", parts=[SESSIONS], promise=3, methods=["sessions.append"])
async def state_and_records_change_together(bench: Bench) -> None:
    """Records and state of one append are seen together or not at all."""
    first, second = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    await first.sessions.append("s1", [], state={"count": 0})

    async def look() -> None:
        found = await second.sessions.load("s1")
        assert found is not None
        counts = (found.state["count"], found.count, len(found.records))
        holds(len(set(counts)) == 1, f"state, count and records of one instant differ: {counts}")

    async def write() -> None:
        for number in range(1, 31):
            await first.sessions.append("s1", [{"n": number}], state={"count": number})
            await asyncio.sleep(0)

    await watched(look, write())


@law("checkpoints-head-and-entries-change-together", parts=[CHECKPOINTS], promise=3, methods=["checkpoints.append"])
async def head_and_entries_change_together(bench: Bench) -> None:
    """Entries and head of one append are seen together or not at all."""
    first, second = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    await first.checkpoints.append("s1", [], expected_version=0, head=CheckpointHead("in-progress", attempts=0))

    async def look() -> None:
        found = await second.checkpoints.load("s1")
        assert found is not None
        counts = (found.head.attempts, len(found.entries))
        holds(len(set(counts)) == 1, f"the head tells another number of entries than there are: {counts}")

    async def write() -> None:
        for number in range(1, 31):
            head = CheckpointHead("in-progress", attempts=number)
            await first.checkpoints.append("s1", [{"n": number}], expected_version=None, head=head)
            await asyncio.sleep(0)

    await watched(look, write())


@law("approvals-decision-is-seen-whole", parts=[APPROVALS], promise=3, methods=["approvals.decide"])
async def decision_is_seen_whole(bench: Bench) -> None:
    """Status, decision and version of an approval are seen together, by get and by list."""
    first, second = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    asked = [await first.approvals.create(request(f"s1.turn-1.s0.c{number}")) for number in range(15)]

    async def look() -> None:
        listed = (await second.approvals.list()).items
        for before, one in zip(asked, sorted(listed, key=lambda one: int(one.id.partition("c")[2])), strict=True):
            note = one.decision.note if one.decision else None
            seen = (one.status, note, one.version - before.version)
            holds(seen in (("pending", None, 0), ("approved", "n", 1)), f"a decision seen in parts: {seen}")

    async def decide() -> None:
        for one in asked:
            await first.approvals.decide(one.id, approved=True, note="n")
            await asyncio.sleep(0)

    await watched(look, decide())


@law_of_each("replace-shows-old-or-new", parts=LISTS, needs=("replace",), promise=3, methods=["replace"])
async def replace_shows_old_or_new(bench: Bench, part: WritablePart) -> None:
    """While a key is replaced a reader sees the old content or the new one, never a mixture, never none."""
    first, second = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    await part.write(first, "s1", contents(0), expected_version=0)
    for number in range(1, 31):
        replacing = asyncio.ensure_future(part.replace(first, "s1", contents(number)))
        for _ in range(20):  # no more: a store that works in threads would be kept from replacing
            if replacing.done():
                break
            values = await part.values(second, "s1")
            holds(values, "a reader found the key empty or absent while it was replaced")
            equal(values, contents(values[0]["n"]), "what a reader saw while the key was replaced")
            await asyncio.sleep(0)
        await replacing


@law("sessions-replace-shows-one-moment", parts=[SESSIONS], needs=("replace",), promise=3, methods=["sessions.load"])
async def replace_shows_one_moment(bench: Bench) -> None:
    """Version, state and records that one load answers are of one moment, while another handle replaces them all."""
    first, second = await bench.handles(2) if bench.target.reopens else [bench.store, bench.store]
    made = await first.sessions.append("s1", [{"n": 0}] * 3, state={"n": 0})

    async def look() -> None:
        # Many at once, so that a store which works in threads is hardly ever doing anything else than reading.
        for found in await asyncio.gather(*(second.sessions.load("s1") for _ in range(16))):
            assert found is not None
            parts = (found.version - made, found.state.get("n"), *(record.get("n") for record in found.records))
            wanted = "expected version, state and records of one load to be of one write"
            holds(len({*parts}) == 1, f"{wanted}, got them of the writes {', '.join(map(str, parts))}")

    async def write() -> None:
        for number in range(1, 61):
            await first.sessions.replace("s1", [{"n": number}] * 3, state={"n": number}, expected_version=None)
            await asyncio.sleep(0)

    await watched(look, write(), looks=1000)


def contents(number: int) -> list[dict[str, Any]]:
    """Return the content after the n-th replace, of a length of its own."""
    return [{"n": number, "place": place} for place in range(number % 5 + 1)]
