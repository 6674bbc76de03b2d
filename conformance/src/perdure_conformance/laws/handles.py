"""Promises 2 and 4 between the handles of one place: each sees, and builds on, what the others did last."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, broken, equal, only
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import LISTS, SESSIONS, Stores, WritablePart


@law("sessions-every-window-is-fresh", parts=[SESSIONS], promise=2, methods=["sessions.load"])
async def every_window_is_fresh(bench: Bench) -> None:
    """However a handle reads a session, the head alone too, it sees what another handle wrote since it last looked."""
    first, second = await bench.handles(2)
    windows: tuple[dict[str, Any], ...] = ({"limit": 0}, {"last": 0}, {"last": 1}, {"after": 1}, {"limit": 1}, {})
    await first.sessions.append("s1", [{"n": 0}, {"n": 1}], state={"n": 0})
    for number in range(3):
        for window in windows:
            seen = await second.sessions.load("s1", **window)
            own = await first.sessions.load("s1", **window)
            equal(seen, own, f"load({window}) by a handle after another one's write {number}")
        await first.sessions.append("s1", [{"n": number + 2}] * (number % 2), state={"n": number + 1})
    for steps in range(1, 9):
        under_way = asyncio.ensure_future(first.sessions.load("s1"))
        for _ in range(steps):
            await asyncio.sleep(0)
        version = await first.sessions.append("s1", [])
        found = await first.sessions.load("s1")
        await under_way
        equal(found and found.version, version, "the version that a load tells after a write, beside an older load")


@law_of_each("handles-write-in-turn", parts=LISTS, needs=("replace", "delete"), promise=2, methods=["write"])
async def handles_write_in_turn(bench: Bench, part: WritablePart) -> None:
    """Each of several handles builds on what another wrote, replaced, deleted or made anew, and nothing is lost."""
    stores, values = await bench.handles(3), [{"n": 0}]
    version = await part.make(stores[0], "s1", {"n": 0})
    for number in range(1, 16):
        what = f"write {number}, by handle {number % 3}, at the version that handle {(number - 1) % 3} was answered"
        try:
            version, values = await turned(part, stores[number % 3], number, version, values)
        except VersionConflictError as error:
            raise broken(f"{what}: {error}") from error
        for which, reader in enumerate(stores):
            seen = await part.read(reader, "s1")
            equal(seen and (seen.version, seen.values), (version, values), f"what handle {which} reads after {what}")
    for number in range(16, 25):
        values = [*values, {"n": number}]
        await part.write(stores[number % 3], "s1", values[-1:])
    equal(await part.values(stores[0], "s1"), values, "what three handles have appended in turn, in that order")


async def turned(
    part: WritablePart, store: Stores, number: int, version: int, values: list[dict[str, Any]]
) -> tuple[int, list[dict[str, Any]]]:
    """Append, replace, or delete and make anew, and return the version and what the key holds then."""
    value = {"n": number}
    if number % 5 == 0:
        await part.delete(store, "s1", expected_version=version)
        return await part.make(store, "s1", value), [value]
    if number % 2 == 0:
        return await part.replace(store, "s1", [value], expected_version=version), [value]
    return await part.write(store, "s1", [value], expected_version=version), [*values, value]


@law_of_each("one-of-many-handles-wins-after-a-deletion", parts=LISTS, needs=("delete",), promise=2, methods=["write"])
async def one_of_many_handles_wins_after_a_deletion(bench: Bench, part: WritablePart) -> None:
    """Handles that all wrote a key exclude each other as before when one of them has deleted it and made it anew."""
    stores = await bench.handles(4)
    for number in range(10):
        for store in stores:
            await part.write(store, "s1", [{"n": number}])
        await part.delete(stores[0], "s1")
        version = await part.make(stores[1], "s1", {"life": number})
        # Large records, so that who was let in too soon is still there when the next one is.
        batches = [[{"by": by, "text": "x" * 200_000}] for by in range(4)]
        calls = [part.write(*one, expected_version=version) for one in zip(stores, ["s1"] * 4, batches, strict=True)]
        what = "4 handles at one version of a key that was made anew"
        equal(only(VersionConflictError, await all_of(list(calls)), what), [version + 1], f"{what}: the winners")
        seen = await part.read(stores[-1], "s1")
        equal(seen and (seen.version, len(seen.values)), (version + 1, 2), f"{what}: version and number of records")
