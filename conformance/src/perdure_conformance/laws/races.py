"""Promise 2 among many: tasks, handles and processes that meet at one version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import permutations
from typing import Any

from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, holds, only
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import CHECKPOINTS, LISTS, SESSIONS, Part, WritablePart
from perdure_conformance.processes import error_of


async def race(part: WritablePart, stores: list[Any], what: str) -> None:
    """Let writers meet at one version, round after round: one of them wins."""
    version = await part.make(stores[0], "s1", {"n": 0})
    for number in range(8):
        calls = [
            part.write(store, "s1", [{"round": number, "by": by}], expected_version=version)
            for by, store in enumerate(stores)
        ]
        won = only(VersionConflictError, await all_of(list(calls)), what)
        equal(won, [version + 1], f"round {number} of {what}: the versions that the winners got")
        version += 1
    values = await part.values(stores[-1], "s1")
    equal([value["round"] for value in values[1:]], list(range(8)), f"{what}: one record a round")


@law_of_each("one-of-many-tasks-wins", parts=LISTS, promise=2, methods=["write"])
async def one_of_many_tasks_wins(bench: Bench, part: WritablePart) -> None:
    """Of many tasks that append at one version exactly one writes, and the others are refused."""
    await race(part, [bench.store] * 12, "12 tasks at one version")


@law_of_each("one-of-many-handles-wins", parts=LISTS, promise=2, methods=["write"])
async def one_of_many_handles_wins(bench: Bench, part: WritablePart) -> None:
    """Of many handles of one place that append at one version exactly one writes."""
    await race(part, await bench.handles(4), "4 handles at one version")


@law_of_each(
    "one-of-every-kind-wins", parts=LISTS, needs=("replace", "delete"), promise=2, methods=["replace", "delete"]
)
async def one_of_every_kind_wins(bench: Bench, part: WritablePart) -> None:
    """Of appends, replaces and deletes by several handles that meet at one version exactly one is done."""
    stores = await bench.handles(4)
    for number, order in enumerate(permutations(range(4))):
        key, made = f"s{number}", {"made": number}
        version = await part.make(stores[0], key, made)

        def write(by: int, key: str = key, version: int = version) -> Awaitable[Any]:
            if by % 3 == 0:
                return part.write(stores[by], key, [{"by": by}], expected_version=version)
            if by % 3 == 1:
                return part.replace(stores[by], key, [{"by": by}], expected_version=version)
            return part.delete(stores[by], key, expected_version=version)

        outcomes = await all_of([write(by) for by in order])
        what = f"two appends, a replace and a delete of {key} at one version"
        won = only(VersionConflictError, outcomes, what)
        equal(len(won), 1, f"how many were done of {what}")
        winner = next(by for by, outcome in zip(order, outcomes, strict=True) if outcome is won[0])
        left = ([made, {"by": winner}], [{"by": winner}], [])[winner % 3]
        equal(await part.values(stores[-1], key), left, f"what is left of {what}, of which number {winner} won")


@law_of_each("one-of-many-creates", parts=LISTS, promise=2, methods=["write"])
async def one_of_many_creates(bench: Bench, part: WritablePart) -> None:
    """Of many tasks that create one key exactly one does; without an expected version all write."""
    for number in range(4):
        calls = [part.write(bench.store, f"a{number}", [{"by": by}], expected_version=0) for by in range(8)]
        won = only(VersionConflictError, await all_of(list(calls)), "8 creations of one key at version 0")
        equal(len(won), 1, "how many of 8 tasks created one key at version 0")
        equal(len(await part.values(bench.store, f"a{number}")), 1, "how many records it has then")
    calls = [part.write(bench.store, "b", [{"by": by}], expected_version=None) for by in range(20)]
    versions = await asyncio.gather(*calls)
    equal(sorted(versions), list(range(min(versions), min(versions) + 20)), "the versions of 20 first appends at None")
    values = await part.values(bench.store, "b")
    equal(sorted(value["by"] for value in values), list(range(20)), "what 20 first appends at None left")


@law_of_each("no-update-is-lost", parts=LISTS, promise=2, methods=["write"])
async def no_update_is_lost(bench: Bench, part: WritablePart) -> None:
    """Writers that read, write at the version read, and repeat on a conflict lose nothing, whatever their handles."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store]
    await part.make(bench.store, "s1", {"n": 0})

    async def writer(by: int) -> None:
        store = stores[by % len(stores)]
        for number in range(6):
            while True:
                found = await part.read(store, "s1")
                assert found is not None
                try:
                    await part.write(store, "s1", [{"by": by, "n": number}], expected_version=found.version)
                    break
                except VersionConflictError:
                    await asyncio.sleep(0)

    await asyncio.gather(*(writer(by) for by in range(5)))
    values = (await part.values(bench.store, "s1"))[1:]
    for by in range(5):
        mine = [value["n"] for value in values if value["by"] == by]
        equal(mine, list(range(6)), f"the six records of writer {by}, in its order")
    equal(len(values), 30, "how many records five writers left")


@law_of_each("second-handle-is-never-stale", promise=2, methods=["read"])
async def second_handle_is_never_stale(bench: Bench, part: Part) -> None:
    """What one handle has written, another reads and lists at once, also if it had read the key or listed before."""
    first, second = await bench.handles(2)
    key, lists = part.key("s1"), bench.capabilities(part.name).list

    async def same(what: str, version: int) -> None:
        seen = await part.read(second, key)
        equal(seen and seen.version, version, f"the version of {what}")
        equal(seen, await part.read(first, key), what)
        if lists:
            listed = [await part.page(store) for store in (second, first)]
            equal(listed[0], listed[1], f"the listing with {what}")

    equal(await part.read(second, key), None, "an absent key")
    if lists:
        equal((await part.page(second)).items, (), "the listing of a fresh place")
    await same("a key that the other handle created", await part.make(first, key))
    if isinstance(part, WritablePart):
        version = await part.write(first, key, [{"n": 2}])
    else:
        version = (await first.approvals.decide(key, approved=True)).version
    await same("a key that the other handle changed", version)


@law(
    "sessions-one-of-many-processes-wins",
    parts=[SESSIONS],
    needs=("shared",),
    promise=2,
    timeout=60,
    methods=["sessions.append"],
)
async def one_of_many_processes_wins(bench: Bench) -> None:
    """Of several processes that append at one version exactly one writes."""
    workers = await bench.workers(2)
    await all_of([worker.call("open") for worker in workers])
    version = await bench.store.sessions.append("s1", [{"n": 0}])
    for number in range(30):
        answers = await all_of(
            [
                worker.call("append", key="s1", records=[{"round": number, "by": by}], expected_version=version)
                for by, worker in enumerate(workers)
            ]
        )
        won = [answer for answer in answers if error_of(answer) is None]
        lost = [error_of(answer) for answer in answers if error_of(answer) is not None]
        equal((won, lost), ([version + 1], ["VersionConflictError"]), f"round {number} of 2 processes: {answers}")
        version += 1
    found = await bench.store.sessions.load("s1")
    assert found is not None
    equal([record["round"] for record in found.records[1:]], list(range(30)), "one record a round")


@law(
    "checkpoints-one-of-many-processes-takes-the-turn",
    parts=[CHECKPOINTS],
    needs=("shared",),
    promise=2,
    timeout=60,
    methods=["checkpoints.append"],
)
async def one_of_many_processes_takes_the_turn(bench: Bench) -> None:
    """Of several processes that open a turn at once exactly one becomes its owner."""
    workers = await bench.workers(2)
    await all_of([worker.call("open") for worker in workers])
    for number in range(30):
        answers = await all_of(
            [
                worker.call("turn", key=f"s{number}", entries=[{"by": by}], expected_version=0, owner=f"worker-{by}")
                for by, worker in enumerate(workers)
            ]
        )
        won = [by for by, answer in enumerate(answers) if error_of(answer) is None]
        equal(len(won), 1, f"how many of 2 processes opened the turn of s{number}: {answers}")
        found = await bench.store.checkpoints.load(f"s{number}")
        assert found is not None
        equal((found.head.owner, list(found.entries)), (f"worker-{won[0]}", [{"by": won[0]}]), "what the winner left")


@law(
    "sessions-no-update-is-lost-between-processes",
    parts=[SESSIONS],
    needs=("shared",),
    promise=2,
    timeout=60,
    methods=["sessions.append"],
)
async def no_update_is_lost_between_processes(bench: Bench) -> None:
    """Appends of several processes at no expected version all arrive, each batch whole and in its writer's order."""
    workers = await bench.workers(2)
    await all_of([worker.call("open") for worker in workers])

    async def writer(by: int) -> None:
        for number in range(15):
            batch = [{"by": by, "n": number, "place": place} for place in range(3)]
            answer = await workers[by].call("append", key="s1", records=batch, expected_version=None)
            holds(error_of(answer) is None, f"append {number} of process {by} at None: {answer}")

    await asyncio.gather(*(writer(by) for by in range(2)))
    found = await bench.store.sessions.load("s1")
    assert found is not None
    records = found.records
    batches = [records[index : index + 3] for index in range(0, len(records), 3)]
    for batch in batches:
        expected = [{"by": batch[0]["by"], "n": batch[0]["n"], "place": place} for place in range(3)]
        equal(batch, expected, "a batch among the appends of other processes")
    for by in range(2):
        equal([batch[0]["n"] for batch in batches if batch[0]["by"] == by], list(range(15)), f"batches of process {by}")


@law("sessions-processes-open-a-fresh-place-at-once", parts=[SESSIONS], needs=("shared",), promise=2, timeout=60)
async def processes_open_a_fresh_place_at_once(bench: Bench) -> None:
    """Processes that open a fresh place at the same moment all succeed, and all of their writes arrive."""
    place = bench.another_place()
    workers = await bench.workers(4, place)
    calls = [
        worker.call("append", key="s1", records=[{"by": by}], expected_version=None)
        for by, worker in enumerate(workers)
    ]
    for answer in await all_of(list(calls)):
        holds(error_of(answer) is None, f"opening a fresh place and appending, beside three others: {answer}")
    found = await (await bench.open(place)).sessions.load("s1")
    assert found is not None
    equal(sorted(record["by"] for record in found.records), [0, 1, 2, 3], "what four processes wrote")
