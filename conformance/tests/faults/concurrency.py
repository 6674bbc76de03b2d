"""Planted stores of the chapters on concurrency and cancellation: races, torn batches, locks, mixed answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from conformance.tests.faults.planting import IDLE, Around, Fault, OnDisk, Scene, at_once

from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    Head,
    JournalSnapshot,
    Key,
    Part,
    Replace,
    StoreUnavailableError,
    VersionConflictError,
)
from perdure.contracts.checkpoints import CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure.journal.stores import JournalSessions
from perdure_conformance.target import Place


class ChecksThenWrites(Around):
    """The check and the write are two steps."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        for operation in operations:
            found = await self.read(operation.key, limit=0)
            actual = 0 if found is None else found.version
            if operation.expected_version not in (None, actual):
                raise VersionConflictError(operation.key.id, operation.expected_version, actual)
        await asyncio.sleep(0)
        return await self.inner.write([replace(operation, expected_version=None) for operation in operations])


class ReplaceChecksThenWrites(Around):
    """The check of a replace and its write are two steps, and those of an append are one."""

    kind: ClassVar[type[Any]] = Replace

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, self.kind) or operation.expected_version is None:
            return await super().write(operations)
        found = await self.read(operation.key, limit=0)
        actual = 0 if found is None else found.version
        if operation.expected_version != actual:
            raise VersionConflictError(operation.key.id, operation.expected_version, actual)
        await asyncio.sleep(0)
        return await self.inner.write([replace(operation, expected_version=None)])


class DeleteChecksThenWrites(ReplaceChecksThenWrites):
    """The check of a delete and the delete are two steps, and those of an append are one."""

    kind = Delete


class StaleHandle(Around):
    """Each handle remembers what it has read and forgets it only when it writes itself."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.known: dict[Key, JournalSnapshot | None] = {}

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        if any(value for value in window.values()):
            return await super().read(key, **window)
        if key not in self.known:
            self.known[key] = await super().read(key, **window)
        return self.known[key]

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.known.clear()
        return await super().write(operations)


class RowByRow(Around):
    """A batch is written record by record."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Append) or len(operation.items) < 2:
            return await super().write(operations)
        found = await self.inner.read(operation.key, limit=0)
        await self.inner.write([replace(operation, items=operation.items[:1])])
        for item in operation.items[1:]:
            await asyncio.sleep(0)
            await self.inner.write([replace(operation, items=(item,), expected_version=None)])
        return (operation.first_version if found is None else found.version + 1,)


class HeadThenEntries(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Append) or not operation.items:
            return await super().write(operations)
        versions = await self.inner.write([replace(operation, items=())])
        await asyncio.sleep(0)
        await self.inner.write([replace(operation, expected_version=None, head=Head())])
        return versions


class ReplaceIsDeleteAndAppend(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Replace):
            return await super().write(operations)
        (version,) = await self.inner.write([replace(operation, items=())])
        await asyncio.sleep(0)
        await self.inner.write(
            [Append(operation.key, operation.items, operation.head, None, operation.at, operation.at.year)]
        )
        return (version,)


class WritesBothOneByOne(Around):
    """Claims `atomic`, and writes one after the other."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions: tuple[int, ...] = ()
        for operation in operations:
            versions += await self.inner.write([operation])
            await asyncio.sleep(0)
        return versions


class LastWriterWins(OnDisk):
    """Claims `shared`; reads before each call and saves after it, without a lock between processes."""

    capabilities = Capabilities(durable=True, shared=True)

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        await self.open()
        return await super().read(key, **window)

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        await self.open()
        await asyncio.sleep(0.002)
        return await super().write(operations)


class LastHandleWins(Around):
    """Each handle writes all it knows of a key: what another appended meanwhile is lost."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.mine: dict[Key, list[bytes]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Append):
                self.mine.pop(operation.key, None)
                continue
            entry = self.stored(operation.key)
            known = self.mine.setdefault(operation.key, entry.items[: len(entry.items) - len(operation.items)])
            known.extend(operation.items)
            entry.items[:] = known
        return versions


class CancelInterruptsAnother(Around):
    """Writes go one at a time, and one that is cancelled while it waits interrupts the one that is under way."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.order = asyncio.Lock()
        self.interrupted = False

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        try:
            async with self.order:
                self.interrupted = False
                await asyncio.sleep(0)
                if self.interrupted:
                    raise StoreUnavailableError("write", operations[0].key.id, "interrupted")
                return await super().write(operations)
        except asyncio.CancelledError:
            self.interrupted = True
            raise


class TornReads(Around):
    """A read of a long list is made in two steps, and a write may come between them."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        first = await super().read(key, **window)
        if first is None or len(first.items) < 2:
            return first
        await asyncio.sleep(0)
        second = await super().read(key, **window)
        return second and replace(second, items=first.items)


class BusyErrorEscapes(Around):
    """A second write at the same time fails, instead of waiting."""

    busy: ClassVar[set[str]] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        if self.place.name in self.busy:
            raise StoreUnavailableError("write", operations[0].key.id, "the database is locked")
        self.busy.add(self.place.name)
        try:
            await asyncio.sleep(0)
            return await super().write(operations)
        finally:
            self.busy.discard(self.place.name)


class CancelledDeleteIsHalf(Around):
    """A delete removes the items first and the key a moment later."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations[:1]
        if isinstance(operation, Delete):
            entry = self.entries.get((self.namespace, operation.key))
            if entry is not None and operation.expected_version in (None, entry.version):
                entry.items.clear()
                await asyncio.sleep(0)
        return await super().write(operations)


class OneAtATimePerHandle(Around):
    """Compare and set holds among the calls of one handle only."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.lock = asyncio.Lock()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        async with self.lock:
            for operation in operations:
                found = await self.read(operation.key, limit=0)
                actual = 0 if found is None else found.version
                if operation.expected_version not in (None, actual):
                    raise VersionConflictError(operation.key.id, operation.expected_version, actual)
            await asyncio.sleep(0)
            return await self.inner.write([replace(operation, expected_version=None) for operation in operations])


class ReplaceInTwoWrites(JournalSessions):
    """A replace empties the transcript, and appends then."""

    async def _replace(self, session_id: str, records: tuple[bytes, ...], **options: Any) -> int:
        if not records:
            return await super()._replace(session_id, records, **options)
        version = await super()._replace(session_id, (), **options)
        entry = self.journal.stored(Key(Part.SESSIONS, session_id))  # type: ignore[attr-defined]  # reason: the fault's own journal
        entry.version -= 1
        more = Append(Key(Part.SESSIONS, session_id), records, Head(), None, options["at"], 1)
        await self.journal.write((more,))
        return version


class AppendInTwoWrites(JournalSessions):
    """A batch is appended in two writes."""

    async def _append(self, session_id: str, records: tuple[bytes, ...], **options: Any) -> int:
        if len(records) < 2:
            return await super()._append(session_id, records, **options)
        version = await super()._append(session_id, records[:1], **options)
        more = Append(Key(Part.SESSIONS, session_id), records[1:], Head(), version, options["at"], 1)
        return (await self.journal.write((more,)))[0]


async def two_at_once(scene: Scene) -> Any:
    """Two tasks, and two handles, that write at one version."""
    other = await scene.open()
    version = await scene.append(1)
    tasks = await at_once(*(scene.append(number, expected_version=version) for number in (2, 3)))
    version += 1
    handles = await at_once(
        scene.append(4, expected_version=version),
        other.sessions.append("s1", [{"n": 5}], expected_version=version),
    )
    return tasks, handles


async def kinds_at_once(scene: Scene) -> Any:
    """What a replace and an append, and a delete and an append, come to at one version."""
    version, sessions = await scene.append(1), scene.store.sessions
    replaced = await at_once(
        sessions.replace("s1", [], expected_version=version), scene.append(2, expected_version=version)
    )
    version = await scene.append(1, to="s2")
    deleted = await at_once(
        sessions.delete("s2", expected_version=version), scene.append(2, to="s2", expected_version=version)
    )
    return replaced, deleted


async def beside_a_cancelled_one(scene: Scene) -> Any:
    """What three appends come to when the last of them is cancelled a step after they began."""
    tasks = [asyncio.ensure_future(scene.append(number)) for number in range(3)]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    return await at_once(*tasks)


async def two_handles(scene: Scene) -> Any:
    """What two handles see of each other's appends."""
    other = await scene.open()
    await scene.append(1)
    await other.sessions.load("s1")
    await scene.append(2)
    found = await other.sessions.load("s1")
    await other.sessions.append("s1", [{"n": 3}])
    await scene.append(4)
    return found and list(found.records), await scene.records()


async def seen_while_written(scene: Scene) -> Any:
    """The lengths that a reader sees while a batch, a replace, a turn's end and a delete are written."""
    await scene.append()
    lengths = []

    async def watch(work: Any) -> None:
        task = asyncio.ensure_future(work)
        while not task.done():
            found, turn = await scene.store.sessions.load("s1"), await scene.store.checkpoints.load("s1")
            lengths.append((found and len(found.records), found and found.count, turn and len(turn.entries)))
            await asyncio.sleep(0)
        await task

    await watch(scene.append(1, 2, 3))
    version = await scene.turn({"n": 1}, {"n": 2})
    await watch(scene.store.sessions.replace("s1", [{"new": 1}, {"new": 2}], expected_version=None))
    await watch(scene.turn({"n": 3}, at=version))
    found = await scene.store.sessions.load("s1")
    assert found is not None
    both = scene.store.write(
        SessionAppend("s1", [{"n": 9}], found.version), CheckpointReplace("s1", [], IDLE, version + 1)
    )
    await watch(both)
    await watch(scene.store.sessions.delete("s1"))
    return sorted(set(lengths), key=str)


async def writes_of_a_call(scene: Scene) -> Any:
    """How many writes of the journal an append and a replace of several records take."""
    journal = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    writes: list[int] = []
    inner = journal.inner.write

    async def write(operations: Any) -> Any:
        writes.append(len(operations))
        return await inner(operations)

    journal.inner.write = write
    await scene.append(1, 2, 3)
    await scene.store.sessions.replace("s1", [{"n": 4}, {"n": 5}], expected_version=None)
    return len(writes)


async def torn(scene: Scene) -> Any:
    """Head and records of a read while another writes."""
    await scene.append(1, 2)
    reading = asyncio.ensure_future(scene.store.sessions.load("s1"))
    await asyncio.sleep(0)
    await scene.append(3)
    found = await reading
    return found and found.count - len(found.records)


async def two_processes(scene: Scene) -> Any:
    """Two handles on disk that write at one version."""
    other = await scene.open()
    await scene.append(1)
    await other.sessions.load("s1")
    calls = (scene.append(2), other.sessions.append("s1", [{"n": 3}]), scene.append(4), other.sessions.append("s1", []))
    await asyncio.gather(*calls)
    return len(await scene.records())


def of(journal: type[Around], witness: Any, *laws: str, **more: Any) -> Fault:
    return Fault(journal.__name__, laws, witness, journal, **more)


FAULTS = (
    of(ChecksThenWrites, two_at_once, "sessions-one-of-many-tasks-wins", "checkpoints-one-claim-wins"),
    of(ReplaceChecksThenWrites, kinds_at_once, "sessions-one-of-every-kind-wins", "checkpoints-one-of-every-kind-wins"),
    of(DeleteChecksThenWrites, kinds_at_once, "sessions-one-of-every-kind-wins", "checkpoints-one-of-every-kind-wins"),
    of(OneAtATimePerHandle, two_at_once, "sessions-one-of-many-handles-wins"),
    of(BusyErrorEscapes, two_at_once, "sessions-no-update-is-lost", "sessions-one-of-many-tasks-wins"),
    of(StaleHandle, two_handles, "sessions-second-handle-is-never-stale", "approvals-second-handle-is-never-stale"),
    of(LastHandleWins, two_handles, "sessions-no-update-is-lost", "sessions-errors-tell-the-truth"),
    of(
        RowByRow,
        seen_while_written,
        "sessions-batches-are-whole-among-tasks",
        "checkpoints-cancelled-append-is-whole-or-absent",
    ),
    of(HeadThenEntries, seen_while_written, "checkpoints-head-and-entries-change-together"),
    of(
        ReplaceIsDeleteAndAppend,
        seen_while_written,
        "sessions-replace-shows-old-or-new",
        "sessions-cancelled-replace-is-old-or-new",
    ),
    of(WritesBothOneByOne, seen_while_written, "atomic-write-is-all-or-none", "atomic-write-is-seen-whole"),
    of(CancelledDeleteIsHalf, seen_while_written, "sessions-cancelled-delete-is-whole-or-absent"),
    of(CancelInterruptsAnother, beside_a_cancelled_one, "sessions-storm-of-cancellations"),
    of(TornReads, torn, "sessions-state-and-records-change-together"),
    Fault(
        "ReplaceInTwoWrites",
        ("sessions-cut-anywhere-is-old-or-new", "sessions-replace-costs-what-it-adds"),
        writes_of_a_call,
        sessions=ReplaceInTwoWrites,
    ),
    Fault(
        "AppendInTwoWrites",
        ("sessions-cut-anywhere-is-old-or-new", "sessions-append-costs-what-it-appends"),
        writes_of_a_call,
        sessions=AppendInTwoWrites,
    ),
    of(LastWriterWins, two_processes, "sessions-one-of-many-processes-wins"),
)
