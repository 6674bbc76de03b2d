"""Planted stores of the chapter on sessions: versions, order, windows, state and times of transcripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from conformance.tests.faults.planting import Around, Fault, Items, Scene, outcome

from perdure.backend import (
    Append,
    Delete,
    JournalSnapshot,
    Key,
    Part,
    Replace,
    StoredTranscript,
)
from perdure.journal.stores import JournalSessions


class DropsEqualRecords(Items):
    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return list(dict.fromkeys(items))


class CapsBatches(Items):
    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return items[:25]


class LexicalOrder(Around):
    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        if found is None or found.start or len(found.items) != found.count:
            return found
        order = sorted(range(found.count), key=str)
        return replace(found, items=tuple(found.items[index] for index in order))


class CapsReads(Around):
    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, items=found.items[:1000])


class LimitZeroIsAll(Around):
    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(key, **(window | {"limit": window.get("limit") or None}))


class LastGivesTheOldest(Around):
    async def read(self, key: Key, *, last: int | None = None, **window: Any) -> JournalSnapshot | None:
        return await super().read(key, **(window | {"limit": last} if last is not None else window))


class ReplaceKeepsTheTail(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key)
        if isinstance(operation, Replace) and found is not None:
            tail = tuple(found.items[operation.keep + len(operation.items) :])
            operation = replace(operation, items=operation.items + tail)
        return await self.inner.write([operation])


class EmptyAppendDoesNothing(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        if isinstance(operation, Append) and not operation.items and operation.key.part == Part.SESSIONS:
            return (0 if found is None else found.version,)
        return await self.inner.write(operations)


class MergesState(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        if isinstance(operation, Append) and found and found.head.data and operation.head.data:
            merged = json.dumps(json.loads(found.head.data) | json.loads(operation.head.data)).encode()
            operation = replace(operation, head=replace(operation.head, data=merged))
        return await self.inner.write([operation])


class KeepsOldHeadBytes(Around):
    """A delete leaves head and items, which come back with the next creation."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.buried: dict[Key, tuple[bytes, ...]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key)
        if isinstance(operation, Delete) and found is not None:
            self.buried[operation.key] = tuple(found.items)
        elif isinstance(operation, Append) and found is None:
            operation = replace(operation, items=self.buried.pop(operation.key, ()) + operation.items)
        return await self.inner.write([operation])


class EmptyForMissing(JournalSessions):
    async def _load(self, session_id: str, **window: Any) -> StoredTranscript | None:
        found = await super()._load(session_id, **window)
        nothing = datetime(2031, 1, 1, tzinfo=UTC)
        return found or StoredTranscript(session_id, 0, 0, nothing, nothing)


class MissingForEmpty(JournalSessions):
    async def _load(self, session_id: str, **window: Any) -> StoredTranscript | None:
        found = await super()._load(session_id, **window)
        return found if found is not None and found.count else None


class ScopeCanChange(JournalSessions):
    async def _append(self, session_id: str, records: Any, **options: Any) -> int:
        scope = options.pop("scope")
        version = await super()._append(session_id, records, scope=None, **options)
        entry = self.journal.entries[self.journal.namespace, Key(Part.SESSIONS, session_id)]  # type: ignore[attr-defined]  # reason: the fault's own journal
        entry.head = replace(entry.head, group=entry.head.group if scope is None else scope)
        return version


class ReversesBatches(Items):
    """A batch comes back last record first."""

    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return items[::-1]


class SortsByContent(Around):
    """Records come back sorted, not as appended."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, items=tuple(sorted(found.items)))


class AppendOverwrites(Around):
    """An append puts its records in the place of all."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Append) or operation.key.part != Part.SESSIONS or not operation.items:
            return operation
        entry = self.entries.get((self.namespace, operation.key))
        if entry is not None:
            entry.items.clear()
        return operation


class EmptyAppendTruncates(Around):
    """An append of nothing empties the transcript."""

    def change(self, operation: Any) -> Any:
        entry = self.entries.get((self.namespace, operation.key))
        if isinstance(operation, Append) and not operation.items and operation.key.part == Part.SESSIONS and entry:
            entry.items.clear()
        return operation


class EmptyAppendKeepsTheVersion(Around):
    """An append of nothing does all but raise the version."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        there = await self.inner.read(operation.key, limit=0)
        versions = await super().write(operations)
        if there is None or not isinstance(operation, Append) or operation.items:
            return versions
        self.stored(operation.key).version = there.version
        return (there.version,)


class CountFromTheWindow(Around):
    """`count` is how many records were asked for."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, count=len(found.items))


class ReplaceResetsTheVersion(Around):
    """A replace begins to count anew."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        if not isinstance(operations[0], Replace):
            return versions
        self.stored(operations[0].key).version = 1
        return (1,)


class StateLostByReplace(Around):
    """A replace forgets the state."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace) or operation.key.part != Part.SESSIONS:
            return operation
        return replace(operation, head=replace(operation.head, data=operation.head.data or b""))


class SharesState(Around):
    """All sessions have one state: the one given last."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.state = b""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Delete) and operation.key.part == Part.SESSIONS:
            self.state = operation.head.data or self.state
        return operation

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        if found is None or key.part != Part.SESSIONS:
            return found
        return replace(found, head=replace(found.head, data=self.state))


class RetryStoresTwice(Around):
    """Every third append of records is made twice, as a driver does that retries by itself."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.appends = 0

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Append) or not operation.items:
            return operation
        self.appends += 1
        return replace(operation, items=operation.items * 2) if self.appends % 3 == 0 else operation


class RewrittenIsForgotten(Around):
    """Nobody can see that a transcript was replaced."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, rewritten=0)


class DeleteLeavesTheRecords(Around):
    """A delete removes the head; whoever reads finds the records under it still."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.bodies: dict[Key, JournalSnapshot] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key)
        versions = await super().write(operations)
        if isinstance(operation, Delete) and found is not None:
            self.bodies[operation.key] = found
        else:
            self.bodies.pop(operation.key, None)
        return versions

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(key, **window) or self.bodies.get(key)


class ScopeLost(Around):
    """A session forgets its scope with the next append."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        if isinstance(operations[0], Append) and operations[0].head.group is None:
            entry = self.stored(operations[0].key)
            entry.head = replace(entry.head, group=None)
        return versions


async def two_batches(scene: Scene) -> Any:
    await scene.append(3, 1, 2)
    await scene.append(5, 4)
    return await scene.records()


async def nothing_appended(scene: Scene) -> Any:
    first = await scene.append(1)
    second = await scene.append()
    return second - first, await scene.records()


async def replaced(scene: Scene) -> Any:
    first = await scene.store.sessions.append("s1", [{"n": 1}, {"n": 2}], state={"title": "t"}, scope="ann")
    second = await scene.store.sessions.replace("s1", [{"n": 3}], expected_version=first)
    found = await scene.store.sessions.load("s1")
    assert found is not None
    return second - first, list(found.records), found.state, found.scope, found.rewritten - first


async def states(scene: Scene) -> Any:
    await scene.append(1, to="s1", state={"a": 1}, scope="ann")
    await scene.append(2, to="s2", state={"b": 2})
    await scene.append(2, to="s2", state={"c": 3})
    await scene.append(4, to="s1")
    found = [await scene.store.sessions.load(name) for name in ("s1", "s2")]
    return [(one.state, one.scope) for one in found if one is not None]


async def windows(scene: Scene) -> Any:
    await scene.append(1, 2, 3)
    seen = [await scene.store.sessions.load("s1", **window) for window in ({"limit": 0}, {"last": 1}, {"after": 2})]
    return [(one.count, list(one.records)) for one in seen if one is not None]


async def deleted(scene: Scene) -> Any:
    await scene.append(1)
    await scene.store.sessions.delete("s1")
    gone = await scene.records()
    await scene.append(2)
    return gone, await scene.records()


async def empty_and_missing(scene: Scene) -> Any:
    missing = await scene.records()
    await scene.append()
    return missing, await scene.records()


async def long_list(scene: Scene) -> Any:
    await scene.append(*range(30))
    for start in range(30, 1030, 100):
        await scene.append(*range(start, start + 100))
    return [record["n"] for record in await scene.records()]


async def equal_records(scene: Scene) -> Any:
    await scene.append(1, 1, 1)
    return await scene.records()


async def other_scope(scene: Scene) -> Any:
    await scene.append(1, scope="ann")
    return isinstance(await outcome(scene.append(2, scope="bob")), str)


async def dozen(scene: Scene) -> Any:
    for number in range(12):
        await scene.append(number)
    return await scene.records()


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


FAULTS = (
    of(DropsEqualRecords, equal_records, "sessions-equal-records-are-all-kept"),
    of(RetryStoresTwice, dozen, "sessions-order-across-batches", "sessions-errors-tell-the-truth"),
    of(CapsBatches, long_list, "sessions-no-cap-on-a-read"),
    of(CapsReads, long_list, "sessions-no-cap-on-a-read"),
    of(LexicalOrder, dozen, "sessions-order-across-batches"),
    of(ReversesBatches, two_batches, "sessions-order-inside-a-batch"),
    of(SortsByContent, two_batches, "sessions-order-inside-a-batch"),
    of(AppendOverwrites, two_batches, "sessions-order-across-batches"),
    of(LimitZeroIsAll, windows, "sessions-windows-are-slices", "sessions-windows-cost-what-they-return"),
    of(LastGivesTheOldest, windows, "sessions-last-gives-the-newest"),
    of(CountFromTheWindow, windows, "sessions-windows-tell-the-whole-head"),
    of(ReplaceKeepsTheTail, replaced, "sessions-replace-keeps-the-first", "checkpoints-replace-drops-every-entry"),
    of(ReplaceResetsTheVersion, replaced, "sessions-replace-adds-one"),
    of(RewrittenIsForgotten, replaced, "sessions-rewritten-names-the-last-replace"),
    of(StateLostByReplace, replaced, "sessions-replace-keeps-the-rest"),
    of(EmptyAppendDoesNothing, empty_and_missing, "sessions-append-of-nothing-creates", "sessions-write-adds-one"),
    of(EmptyAppendTruncates, nothing_appended, "sessions-append-of-nothing-keeps-all"),
    of(EmptyAppendKeepsTheVersion, nothing_appended, "sessions-append-of-nothing-keeps-all"),
    of(MergesState, states, "sessions-state-is-replaced-whole"),
    of(SharesState, states, "sessions-do-not-share"),
    of(ScopeLost, states, "sessions-scope-is-set-once"),
    of(KeepsOldHeadBytes, deleted, "checkpoints-deleted-journal-keeps-nothing", "sessions-delete-leaves-nothing"),
    of(DeleteLeavesTheRecords, deleted, "sessions-deleted-is-absent", "delete-session-leaves-nothing"),
    Fault("EmptyForMissing", ("sessions-absent-is-none",), empty_and_missing, sessions=EmptyForMissing),
    Fault("MissingForEmpty", ("sessions-empty-is-not-absent",), empty_and_missing, sessions=MissingForEmpty),
    Fault("ScopeCanChange", ("sessions-scope-is-set-once",), other_scope, sessions=ScopeCanChange),
)
