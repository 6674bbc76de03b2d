"""Planted stores that are right in each thing alone: they differ where two writes, parts, calls or instants meet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from conformance.tests.faults.planting import IDLE, Around, Fault, Scans, Scene

from perdure.backend import Append, Delete, Head, JournalInfo, JournalSnapshot, Key, Part, Replace
from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.target import Place


class SkipsReplacesOfNothing(Around):
    """A replace that keeps every item and changes nothing of the head is answered without being made."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        skips = isinstance(operation, Replace) and operation.head == Head() and not operation.items
        if skips and found and (operation.keep, operation.expected_version) == (found.count, found.version):
            return (found.version,)
        return await super().write(operations)


class TakesABatchForARepetition(Around):
    """An append at no version whose batch stands at the end already is taken for its repetition after a failure."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Append) or operation.expected_version is not None or len(operation.items) < 2:
            return await super().write(operations)
        found = await self.inner.read(operation.key, last=len(operation.items))
        if found and tuple(found.items) == operation.items:
            return (found.version,)
        return await super().write(operations)


class IndexesAppends(Scans):
    """The index by status is kept by appends, and not by replaces."""

    statuses: ClassVar[dict[tuple[str, str], str | None]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Append) and operation.key.part == Part.RUNS:
                self.statuses[self.place.name, operation.key.id] = operation.head.status
        return versions

    def fits(self, info: JournalInfo, **options: Any) -> bool:
        indexed = self.statuses.get((self.place.name, info.id), info.head.status)
        return super().fits(replace(info, head=replace(info.head, status=indexed)), **options)


class HeadsOfOneId(Around):
    """A statement that sets the group forgets to name the part of the key."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Delete) and operation.head.group is not None:
                self.spread(operation.key.id, operation.head.group)
        return versions

    def spread(self, name: str, group: str) -> None:
        for place, entry in self.entries.items():
            if place[0] == self.namespace and place[1].id == name:
                entry.head = replace(entry.head, group=group)


class InstantsAsText(Around):
    """Instants are compared as texts, in which a fraction of zero is left out."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        before, order, after = options["before"], options["order"], options["after"]
        if order != "created":
            return await super().scan(part, **options)
        asked = options | {"before": None, "after": None, "limit": 10**6}
        found = sorted(await super().scan(part, **asked), key=lambda info: (text(info.created_at), info.id))
        if after is not None:
            found = [info for info in found if (text(info.created_at), info.id) > (text(after.at), after.id)]
        return [info for info in found if before is None or text(info.updated_at) < text(before)][: options["limit"]]


def text(instant: datetime) -> str:
    """Return an instant as such a store has it."""
    return instant.isoformat().replace("+00:00", "Z")


class CapsPages(Around):
    """A scan gives a thousand heads at the most, and who asked for more takes them for the last."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return await super().scan(part, **(options | {"limit": min(options["limit"], 1000)}))


class AnswersWhoStillWaits(Around):
    """Reads that wait together are answered together: the answers in order go to those who still wait."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.waiting: list[tuple[asyncio.Future[Any], Key, dict[str, Any]]] = []

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[JournalSnapshot | None] = loop.create_future()
        self.waiting.append((answer, key, window))
        if len(self.waiting) == 1:
            loop.call_soon(self.send)
        return await answer

    def send(self) -> None:
        calls, self.waiting = self.waiting, []
        asyncio.get_running_loop().create_task(self.answer(calls))

    async def answer(self, calls: list[tuple[asyncio.Future[Any], Key, dict[str, Any]]]) -> None:
        answers = [await self.inner.read(key, **window) for _, key, window in calls]
        await asyncio.sleep(0)
        for call, answer in zip([call for call, *_ in calls if not call.done()], answers, strict=False):
            call.set_result(answer)


class ReadsItemsLater(Around):
    """A read takes the head, and then as many items as it tells."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        head = await super().read(key, **window)
        await asyncio.sleep(0)
        later = await super().read(key, **window)
        return head and later and replace(head, items=later.items[: len(head.items)])


class IndexOf16Bits(Around):
    """An item has an index of 16 bits, so that the next ones take the places of the first."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Append) and len(items := self.stored(operation.key).items) > 2**16:
                late = items[2**16 :]
                items[: len(late)] = late
        return versions


# --- witnesses ---


async def replaced_by_nothing(scene: Scene) -> Any:
    version = await scene.append(1, 2)
    return await scene.store.sessions.replace("s1", [], keep=2, expected_version=version) - version


async def same_batch_twice(scene: Scene) -> Any:
    for _ in range(2):
        await scene.append(1, 2)
    return await scene.records()


async def status_after_replace(scene: Scene) -> Any:
    await scene.turn()
    await scene.store.checkpoints.replace("s1", [], expected_version=None, head=IDLE)
    return await scene.ids("checkpoints", status="idle"), await scene.ids("checkpoints", status="in-progress")


async def scope_beside_a_turn(scene: Scene) -> Any:
    await scene.append(1, scope="ann")
    await scene.turn(head=CheckpointHead("in-progress", agent="bob"))
    return await scene.ids(scope="ann")


async def whole_second(scene: Scene) -> Any:
    second = scene.clock.now().replace(microsecond=0)
    for name, microseconds in (("a", 1), ("b", 0)):
        await scene.append(1, to=name, at=second + timedelta(microseconds=microseconds))
    return await scene.ids(order="created")


async def thousand_and_one(scene: Scene) -> Any:
    for number in range(1001):
        await scene.append(to=f"s{number}")
    return (await scene.store.sessions.list(limit=1000)).cursor is None


async def beside_a_cancelled(scene: Scene) -> Any:
    """What two reads answer while a third, made before them, is cancelled after so many steps."""
    seen = []
    for name in "abc":
        await scene.append(1, to=name)
    for steps in range(1, 8):
        tasks = [asyncio.ensure_future(scene.store.sessions.load(name)) for name in "abc"]
        for _ in range(steps):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        seen.append([(found := await task) and found.version for task in tasks[1:]])
    versions = [(found := await scene.store.sessions.load(name)) and found.version for name in "bc"]
    return [one == versions for one in seen]


async def while_replaced(scene: Scene) -> Any:
    """Whether state and records were of one write in each of a few reads."""
    together = True
    await scene.append(0, state={"n": 0})
    for number in range(1, 9):
        reading = asyncio.ensure_future(scene.store.sessions.load("s1"))
        await asyncio.sleep(0)
        await scene.store.sessions.replace("s1", [{"n": number}], expected_version=None, state={"n": number})
        found = await reading
        assert found is not None
        together &= found.state == found.records[0]
    return together


async def long_list(scene: Scene) -> Any:
    await scene.store.sessions.append("s1", [{"n": number} for number in range(2**16 + 1)])
    return await scene.records(limit=1)


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


FAULTS = (
    of(SkipsReplacesOfNothing, replaced_by_nothing, "sessions-write-that-changes-nothing-adds-one"),
    of(
        TakesABatchForARepetition,
        same_batch_twice,
        "sessions-equal-records-are-all-kept",
        "checkpoints-equal-records-are-all-kept",
    ),
    of(IndexesAppends, status_after_replace, "checkpoints-filters-follow-every-write"),
    of(HeadsOfOneId, scope_beside_a_turn, "parts-of-one-id-are-listed-apart"),
    of(
        InstantsAsText,
        whole_second,
        *(f"{part}-order-goes-by-microseconds" for part in ("sessions", "checkpoints", "approvals")),
    ),
    of(
        AnswersWhoStillWaits,
        beside_a_cancelled,
        *(f"{part}-answers-stay-beside-a-cancelled-call" for part in ("sessions", "checkpoints", "approvals")),
    ),
    of(CapsPages, thousand_and_one, "sessions-no-cap-on-a-page"),
    of(ReadsItemsLater, while_replaced, "sessions-replace-shows-one-moment"),
    of(IndexOf16Bits, long_list, "sessions-no-cap-on-a-transcript"),
)
