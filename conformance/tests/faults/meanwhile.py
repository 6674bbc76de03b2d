"""Planted stores that are right call by call: they differ in what other calls and handles do meanwhile, or did before."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from conformance.tests.faults.planting import IDLE, Around, Fault, Scene

from perdure.backend import Append, Delete, JournalInfo, JournalSnapshot, Key, Part, Replace
from perdure.contracts.checkpoints import CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure_conformance.target import Place


class NumbersInBlocks(Around):
    """Each handle takes the numbers that items are sorted by from a block of a hundred of its own."""

    last: ClassVar[Counter[str]] = Counter()
    numbers: ClassVar[dict[int, dict[bytes, int]]] = {}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.block = iter(range(0))

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Delete):
                items = self.stored(operation.key).items
                numbers = self.numbers.setdefault(id(items), {})
                numbers.update((item, self.number()) for item in operation.items)
                items.sort(key=lambda item: numbers.get(item, 0))
        return versions

    def number(self) -> int:
        try:
            return next(self.block)
        except StopIteration:
            self.last[self.place.name] += 100
            self.block = iter(range(self.last[self.place.name], self.last[self.place.name] + 100))
            return self.number()


class RecentGoesOnFromNow(Around):
    """A page in order `recent` goes on behind the place that its last key has by now."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        after = options["after"]
        entry = after and options["order"] == "recent" and self.entries.get((self.namespace, Key(part, after.id)))
        return await super().scan(
            part, **(options | {"after": after._replace(at=entry.updated_at)} if entry else options)
        )


class ListsItsOwnWrites(Around):
    """A handle keeps the pages that it has listed, until it writes itself."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.pages: dict[str, Sequence[JournalInfo]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.pages.clear()
        return await super().write(operations)

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        return self.pages.setdefault(f"{part} {options}", found)


class JoinsReadsUnderWay(Around):
    """A read joins one of the same that is under way, whatever was written since that began."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.reading: dict[str, asyncio.Task[JournalSnapshot | None]] = {}

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        name = f"{key} {window}"
        if name not in self.reading:
            self.reading[name] = asyncio.ensure_future(self.slowly(key, **window))
            self.reading[name].add_done_callback(lambda _: self.reading.pop(name))
        return await asyncio.shield(self.reading[name])

    async def slowly(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        await asyncio.sleep(0)
        return found


class TogetherKeepsTheTime(Around):
    """A write of several moves `updated_at` of the first alone."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        times = [self.stored(one.key).updated_at for one in operations[1:]]
        versions = await super().write(operations)
        for one, time in zip(operations[1:], times, strict=True):
            self.stored(one.key).updated_at = time
        return versions


class TogetherKeepsTheGroup(Around):
    """A write of several leaves the columns as they are that filters go by."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        if len(operations) > 1:
            operations = [replace(one, head=replace(one.head, group=None, status=None)) for one in operations]
        return await super().write(operations)


class ReplacesDropEqualRecords(Around):
    """A replace takes equal records of its own for one."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace):
            return operation
        return replace(operation, items=tuple(dict.fromkeys(operation.items)))


class ListsTheCountOfAppends(Around):
    """The count that a listing tells is kept by appends, and not by replaces."""

    counts: ClassVar[dict[tuple[str, Key], int]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Append):
                self.counts[self.place.name, operation.key] = len(self.stored(operation.key).items)
        return versions

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        return [replace(info, count=self.counts[self.place.name, Key(part, info.id)]) for info in found]


# --- witnesses ---


async def in_turn(scene: Scene) -> Any:
    stores = (scene.store, await scene.open())
    for number in range(6):
        await stores[number % 2].sessions.append("s1", [{"n": number}])
    return await scene.records()


async def listed_by_another(scene: Scene) -> Any:
    other, listed = await scene.open(), []
    for name in "ab":
        await scene.append(1, to=name)
        listed.append(len((await other.sessions.list()).items))
    return listed


async def beside_an_older_load(scene: Scene) -> Any:
    await scene.append(1)
    older = [asyncio.ensure_future(scene.records()) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(0)
    await scene.append(2)
    found = await scene.records()
    await asyncio.wait(older)
    return found


async def recent_beside_a_write(scene: Scene) -> Any:
    for name in "abc":
        await scene.append(1, to=name, at=scene.clock.advance(timedelta(seconds=1)))
    page = await scene.store.sessions.list(order="recent", limit=2)
    await scene.append(2, to="b", at=scene.clock.advance(timedelta(seconds=1)))
    return await scene.ids(order="recent", cursor=page.cursor)


async def closed_together(scene: Scene) -> Any:
    versions = await scene.append(1), await scene.turn()
    scene.clock.advance(timedelta(seconds=1))
    await scene.store.write(SessionAppend("s1", [], versions[0]), CheckpointReplace("s1", [], IDLE, versions[1]))
    turn = await scene.store.checkpoints.load("s1")
    return turn and turn.updated_at, await scene.ids("checkpoints", status="idle")


async def replaced(scene: Scene) -> Any:
    await scene.append(1)
    await scene.store.sessions.replace("s1", [{"n": 2}] * 3, expected_version=None)
    return len(await scene.records()), [one.count for one in (await scene.store.sessions.list()).items]


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def lists(law: str) -> tuple[str, str]:
    return f"sessions-{law}", f"checkpoints-{law}"


FAULTS = (
    of(NumbersInBlocks, in_turn, *lists("handles-write-in-turn")),
    of(
        RecentGoesOnFromNow,
        recent_beside_a_write,
        *lists("recent-pages-give-each-key-once"),
    ),
    of(
        ListsItsOwnWrites,
        listed_by_another,
        *(f"{part}-second-handle-is-never-stale" for part in ("sessions", "checkpoints", "approvals")),
    ),
    of(JoinsReadsUnderWay, beside_an_older_load, "sessions-every-window-is-fresh"),
    of(TogetherKeepsTheTime, closed_together, "atomic-write-writes-both"),
    of(TogetherKeepsTheGroup, closed_together, "atomic-write-writes-both"),
    of(ReplacesDropEqualRecords, replaced, "sessions-replace-keeps-the-first"),
    of(ListsTheCountOfAppends, replaced, *lists("listing-shows-the-head")),
)
