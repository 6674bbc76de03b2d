"""Planted stores of the chapter on crashes and durability: what is acknowledged is not what is there later."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conformance.tests.faults.planting import Fault, OnDisk, Scene, outcome

from perdure.backend import (
    Append,
    Delete,
    JournalSnapshot,
    Key,
    Part,
    Replace,
    SchemaVersionError,
    StoreCorruptedError,
    StoreUnavailableError,
)
from perdure_conformance.target import Place


class SavesNowAndThen(OnDisk):
    """Acknowledges before it has saved."""

    every = 4


class CloseLosesTheTail(SavesNowAndThen):
    async def close(self) -> None:
        await self.inner.close()


class SavesRowByRow(OnDisk):
    """Saves a batch record by record."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Append) or len(operation.items) < 2:
            return await super().write(operations)
        found = await self.inner.read(operation.key, limit=0)
        await super().write([replace(operation, items=operation.items[:1])])
        for item in operation.items[1:]:
            await asyncio.sleep(0.003)
            await super().write([replace(operation, items=(item,), expected_version=None)])
        version = operation.first_version if found is None else found.version + 1
        self.entries[self.namespace, operation.key].version = version
        return (version,)


class SetUpDropsData(OnDisk):
    async def open(self) -> None:
        self.file.unlink(missing_ok=True)


class NeverSaves(OnDisk):
    """Nothing is written to the disk before the close."""

    every = 10**6


class DeleteIsNotSaved(OnDisk):
    """A delete reaches the disk with the next write."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        saving, self.every = self.every, 10**6 if isinstance(operations[0], Delete) else self.every
        versions = await super().write(operations)
        self.every = saving
        return versions

    async def close(self) -> None:
        await self.inner.close()


class ReplaceInTwoSaves(OnDisk):
    """A replace is saved as an empty key first."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if not isinstance(operation, Replace) or not operation.items:
            return await super().write(operations)
        (version,) = await super().write([replace(operation, items=())])
        await asyncio.sleep(0.1)
        await super().write([Append(operation.key, operation.items, operation.head, None, operation.at, 1)])
        self.stored(operation.key).version = version
        self.save()
        return (version,)


class DeleteInTwoSaves(OnDisk):
    """A delete is saved as an empty key first."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        entry = self.entries.get((self.namespace, operation.key))
        if isinstance(operation, Delete) and entry is not None and operation.expected_version in (None, entry.version):
            items, entry.items = entry.items, []
            self.save()
            await asyncio.sleep(0.1)
            entry.items = items
        return await super().write(operations)


class TempFileBlocks(OnDisk):
    """What a killed save leaves behind stops the next save."""

    def save(self) -> None:
        fresh = self.file.with_name("fresh")
        if fresh.exists():
            raise StoreUnavailableError("write", "data", "somebody else is saving")
        fresh.write_bytes(b"")
        data = pickle.dumps(self.inner._data.parts)
        for start in range(0, len(data), 200):
            with fresh.open("ab") as file:
                file.write(data[start : start + 200])
        fresh.replace(self.file)


class LockOutlivesItsProcess(OnDisk):
    """A lock file that only a clean close removes."""

    def lock(self) -> Any:
        return self.file.with_name(f"lock-{os.getpid()}")

    async def open(self) -> None:
        others = [one for one in self.file.parent.glob("lock-*") if one != self.lock()]
        if others:
            raise StoreUnavailableError("open", "data", "another process has it")
        self.lock().touch()
        await super().open()

    async def close(self) -> None:
        self.lock().unlink(missing_ok=True)
        await super().close()


class SavesInPlace(OnDisk):
    """The file is overwritten where it is, piece by piece; half of it is read as nothing."""

    def save(self) -> None:
        data = pickle.dumps(self.inner._data.parts)
        with self.file.open("wb", buffering=0) as file:
            for start in range(0, len(data), 1000):
                file.write(data[start : start + 1000])
                os.fsync(file.fileno())

    async def open(self) -> None:
        try:
            await super().open()
        except (EOFError, pickle.UnpicklingError):
            self.inner._data.parts.clear()


class NumbersRestart(OnDisk):
    """Versions are counted from one in each process."""

    async def open(self) -> None:
        await super().open()
        for number, entry in enumerate(self.entries.values(), 1):
            entry.version = number


class HeadsAreNotSaved(OnDisk):
    """Scopes and states live as long as the process."""

    async def open(self) -> None:
        await super().open()
        for entry in self.entries.values():
            entry.head = replace(entry.head, group=None)


class DecisionsAreNotSaved(OnDisk):
    """A decision is remembered until the store is opened again."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        there = await self.inner.read(operation.key, limit=0)
        decided = operation.key.part == Part.APPROVALS and there is not None
        saving, self.every = self.every, 10**6 if decided else self.every
        before = self.inner._data.parts
        versions = await super().write(operations)
        self.every = saving
        assert before is self.inner._data.parts
        return versions

    async def close(self) -> None:
        await self.inner.close()


class ReplaceComesBack(OnDisk):
    """After a reopening the records before a replace stand behind it again."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key)
        versions = await super().write(operations)
        if isinstance(operation, Replace) and found is not None:
            self.file.with_name("old").write_bytes(pickle.dumps((operation.key, tuple(found.items))))
        return versions

    async def open(self) -> None:
        await super().open()
        old = self.file.with_name("old")
        if old.exists():
            key, items = pickle.loads(old.read_bytes())
            entry = self.entries.get((self.namespace, key))
            if entry is not None:
                entry.items.extend(items)


class DamageIsEmpty(OnDisk):
    """What cannot be read is taken for nothing."""

    async def open(self) -> None:
        try:
            await super().open()
        except Exception:  # noqa: BLE001  # reason: the fault
            self.inner._data.parts.clear()


class DamageIsNotListed(OnDisk):
    """What cannot be read is refused when it is read, and left out of every listing."""

    damaged = False

    async def open(self) -> None:
        try:
            await super().open()
        except pickle.UnpicklingError:
            self.damaged = True

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        if self.damaged:
            raise StoreCorruptedError("data", "is no store")
        return await super().read(key, **window)


class Versioned(OnDisk):
    """A right store that knows the version of its format."""

    async def open(self) -> None:
        found = self.file.with_name("format")
        if found.exists():
            self.refuse(found.read_text())
        try:
            await super().open()
        except pickle.UnpicklingError as error:
            raise StoreCorruptedError("data", "is no store") from error

    def refuse(self, found: str) -> None:
        raise SchemaVersionError("data", int(found), 1)


class NewerSchemaIsRead(Versioned):
    """Data of a newer release is read as if it were of this one."""

    def refuse(self, found: str) -> None:
        """Do nothing."""


def newer_schema(place: Place) -> Callable[[], None]:
    """Mark what is stored as a newer release's."""
    mark = place.directory / "format"
    mark.write_text("9")
    return mark.unlink


def spoil(place: Place) -> None:
    """Overwrite the data with what is none."""
    (place.directory / "data").write_bytes(b"no data")


# --- witnesses ---


async def left_on_disk(scene: Scene) -> Any:
    """What a second handle finds after each of several writes, as another process would."""
    seen: list[Any] = []

    async def look() -> None:
        other = await scene.open()
        found = await other.sessions.load("s1")
        asked = await other.approvals.get("s1.turn-1.s0.c0")
        seen.append((found and (list(found.records), found.scope), asked and asked.status))

    await scene.append(1, 2, scope="ann")
    await look()
    await scene.ask()
    await scene.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    await look()
    await scene.store.sessions.replace("s1", [{"new": 1}], expected_version=None)
    await look()
    await scene.append(3)
    await scene.store.sessions.delete("s1")
    await look()
    return seen


async def closed_and_opened(scene: Scene) -> Any:
    """What is there after a close, and whether the version goes on."""
    await scene.append(1)
    version = await scene.append(2)
    await scene.store.close()
    scene.store = await scene.open()
    return await scene.records(), await outcome(scene.append(3, expected_version=version)) == version + 1


async def saves(scene: Scene) -> Any:
    """What is on the disk each time that something is saved, and what files there are."""
    journal: Any = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    inner, seen = journal.save, []

    def save() -> None:
        inner()
        parts = pickle.loads(journal.file.read_bytes())
        entry = parts["default", Part.SESSIONS].entries.get("s1")
        seen.append(None if entry is None else len(entry.items))

    journal.save = save
    await scene.append(1, 2, 3)
    await scene.store.sessions.replace("s1", [{"n": 4}, {"n": 5}], expected_version=None)
    await scene.store.sessions.delete("s1")
    return seen


async def after_a_killed_save(scene: Scene) -> Any:
    """What a write, an opening and a read come to, beside what a killed process has left."""
    directory = scene.place().directory
    await scene.append(1)
    (directory / "fresh").touch()
    (directory / "lock-999999").touch()
    written = await outcome(scene.append(2))
    opened = await outcome(scene.open())
    return isinstance(written, str), isinstance(opened, str)


async def half_a_file(scene: Scene) -> Any:
    """What an opening makes of half a file."""
    await scene.append(1)
    file = scene.place().directory / "data"
    file.write_bytes(file.read_bytes()[:20])
    return isinstance(await outcome(scene.open()), str)


async def newer(scene: Scene) -> Any:
    await scene.append(1)
    newer_schema(scene.place())
    return await outcome(scene.open()) == "SchemaVersionError"


def of(journal: type[OnDisk], witness: Any, *laws: str, beside: type[OnDisk] | None = None, **options: Any) -> Fault:
    return Fault(journal.__name__, laws, witness, journal, options=options, beside=beside)


FAULTS = (
    of(SavesNowAndThen, left_on_disk, "sessions-append-survives-kill"),
    of(NeverSaves, left_on_disk, "sessions-append-survives-kill"),
    of(CloseLosesTheTail, closed_and_opened, "sessions-close-loses-no-tail"),
    of(SavesRowByRow, saves, "sessions-append-survives-kill"),
    of(ReplaceInTwoSaves, saves, "sessions-replace-survives-kill"),
    of(DeleteInTwoSaves, saves, "sessions-delete-survives-kill"),
    of(DeleteIsNotSaved, left_on_disk, "sessions-deletion-survives-reopening"),
    of(DecisionsAreNotSaved, left_on_disk, "approvals-decision-survives-reopening"),
    of(HeadsAreNotSaved, left_on_disk, "sessions-whole-head-survives-reopening"),
    of(ReplaceComesBack, left_on_disk, "sessions-replaced-stays-replaced"),
    of(SetUpDropsData, closed_and_opened, "sessions-survives-reopening", "approvals-survives-reopening"),
    of(NumbersRestart, closed_and_opened, "sessions-survives-reopening", "sessions-whole-head-survives-reopening"),
    of(TempFileBlocks, after_a_killed_save, "sessions-append-survives-kill"),
    of(LockOutlivesItsProcess, after_a_killed_save, "sessions-append-survives-kill"),
    of(SavesInPlace, half_a_file, "sessions-append-survives-kill"),
    of(DamageIsEmpty, half_a_file, "sessions-damage-is-neither-absent-nor-empty", damage=spoil),
    of(
        DamageIsNotListed,
        half_a_file,
        *(f"{part}-damage-is-neither-absent-nor-empty" for part in ("sessions", "checkpoints", "approvals")),
        damage=spoil,
    ),
    of(NewerSchemaIsRead, newer, "newer-schema-is-refused", newer_schema=newer_schema, beside=Versioned),
)
RIGHT = (
    of(Versioned, newer, "newer-schema-is-refused", newer_schema=newer_schema),
    of(Versioned, half_a_file, "sessions-damage-is-neither-absent-nor-empty", damage=spoil),
)
"""Right stores that tell what other targets do not, each with the law that is about it."""
