"""Planted stores whose versions are wrong, and that write where they must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure.backend import (
    Append,
    Delete,
    JournalSnapshot,
    Key,
    OutcomeUnknownError,
    Replace,
    VersionConflictError,
)


class NoVersionCheck(Around):
    def change(self, operation: Any) -> Any:
        return replace(operation, expected_version=None) if isinstance(operation, Append) else operation


class ReplaceIgnoresVersion(Around):
    def change(self, operation: Any) -> Any:
        return replace(operation, expected_version=None) if isinstance(operation, Replace) else operation


class DeleteIgnoresVersion(Around):
    def change(self, operation: Any) -> Any:
        return replace(operation, expected_version=None) if isinstance(operation, Delete) else operation


class VersionsRestart(Around):
    def change(self, operation: Any) -> Any:
        return replace(operation, first_version=1) if isinstance(operation, Append) else operation


class CreatesOverExisting(Around):
    """Expected version 0 is read as "whatever it is"."""

    def change(self, operation: Any) -> Any:
        zero = isinstance(operation, Append) and operation.expected_version == 0
        return replace(operation, expected_version=None) if zero else operation


class LengthAsVersion(Around):
    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, version=found.count + 1)

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.read(operation.key, limit=0)
        shown = 0 if found is None else found.version
        if operation.expected_version not in (None, shown):
            raise VersionConflictError(operation.key.id, operation.expected_version, shown)
        await self.inner.write([replace(operation, expected_version=None)])
        now = await self.read(operation.key, limit=0)
        return (shown if now is None else now.version,)


class ConflictWithoutFacts(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        try:
            return await super().write(operations)
        except VersionConflictError as error:
            raise VersionConflictError("key", None, None) from error


class ConflictAsUnknown(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        try:
            return await super().write(operations)
        except VersionConflictError as error:
            raise OutcomeUnknownError("write", operations[0].key.id) from error


class KeepBeyondTheEnd(Around):
    """A replace that keeps more than there is keeps what there is."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        if isinstance(operation, Replace) and found is not None:
            operation = replace(operation, keep=min(operation.keep, found.count))
        return await self.inner.write([operation])


class ReplaceCreates(Around):
    """A replace of an absent key creates it."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if isinstance(operation, Replace) and await self.inner.read(operation.key, limit=0) is None:
            made = Append(operation.key, operation.items, operation.head, 0, operation.at, 1)
            return await self.inner.write([made])
        return await self.inner.write(operations)


async def refusals(scene: Scene) -> Any:
    """How wrong versions are met, by each kind of write."""
    sessions = scene.store.sessions
    version = await scene.append(1)
    calls = (
        scene.append(2, expected_version=version + 1),
        scene.append(2, expected_version=0),
        sessions.replace("s1", [], expected_version=version + 7),
        sessions.replace("absent", [], expected_version=None),
        sessions.replace("s1", [], keep=9, expected_version=None),
        sessions.delete("s1", expected_version=version + 7),
    )
    return [answer if isinstance(answer := await outcome(call), str) else "answered" for call in calls]


async def conflict_facts(scene: Scene) -> Any:
    version = await scene.append(1)
    try:
        await scene.append(2, expected_version=version + 1)
    except VersionConflictError as error:
        return error.key, (error.expected or 0) - version, (error.actual or 0) - version
    except Exception as error:  # noqa: BLE001  # reason: what it raises is what is shown
        return type(error).__name__


async def created_twice(scene: Scene) -> Any:
    first = await scene.append(1)
    await scene.store.sessions.delete("s1")
    return await scene.append(1) == first


async def versions_and_lengths(scene: Scene) -> Any:
    first = await scene.append(1, 2, 3)
    return await scene.append(4, 5) - first


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


FAULTS = (
    of(NoVersionCheck, refusals, "sessions-append-refuses-another-version", "checkpoints-two-readers-one-writer"),
    of(ReplaceIgnoresVersion, refusals, "sessions-replace-refuses-another-version"),
    of(
        DeleteIgnoresVersion,
        refusals,
        *(f"{part}-delete-refuses-another-version" for part in ("sessions", "checkpoints", "approvals")),
    ),
    of(VersionsRestart, created_twice, "sessions-version-never-repeats", "delete-session-refuses-the-sleeper"),
    of(CreatesOverExisting, refusals, "sessions-expected-zero-means-absent", "checkpoints-one-of-many-creates"),
    of(LengthAsVersion, versions_and_lengths, "sessions-write-adds-one", "checkpoints-replace-adds-one"),
    of(
        ConflictWithoutFacts,
        conflict_facts,
        "sessions-append-refuses-another-version",
        "approvals-errors-carry-their-facts",
    ),
    of(ConflictAsUnknown, conflict_facts, "sessions-append-refuses-another-version"),
    of(ReplaceCreates, refusals, "sessions-replace-of-absent-conflicts"),
    of(KeepBeyondTheEnd, refusals, "sessions-keep-beyond-the-end-conflicts"),
)
