"""Stores that are broken on purpose, one fault each, around the memory journal: they prove that the laws can fail."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from perdure import AgentStore
from perdure.backend import (
    Append,
    Approval,
    Capabilities,
    Delete,
    Head,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    OutcomeUnknownError,
    Page,
    Part,
    Replace,
    StoredTranscript,
    UnsupportedOperationError,
    VersionConflictError,
)
from perdure.clock import SYSTEM_CLOCK, Clock
from perdure.contracts.ids import check_namespace
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions
from perdure_conformance.target import Place, Target
from perdure_memory.journal import MemoryJournal

MANY = 10**6


class Around(Journal):
    """A right journal that passes everything on to the memory journal; each fault changes one thing of it."""

    capabilities = Capabilities(atomic=True)

    def __init__(self, place: Place) -> None:
        self.place = place
        self.namespace = place.namespace
        self.inner = MemoryJournal(place.name, namespace=place.namespace)

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await self.inner.read(key, **window)

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        return await self.inner.write([self.change(operation) for operation in operations])

    def change(self, operation: Any) -> Any:
        return operation

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return await self.inner.scan(part, **options)

    async def everything(self, part: Part, order: str, after: Any) -> list[JournalInfo]:
        found = await self.inner.scan(part, group=None, status=None, before=None, order=order, after=after, limit=MANY)
        return list(found)


# --- versions, compare and set ---


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


# --- atomicity, cancellation ---


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


class CancelledKeepsLock(Around):
    """A cancelled call never gives its lock back."""

    locked: ClassVar[set[str]] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        while self.place.name in self.locked:  # noqa: ASYNC110  # reason: a lock that is lost needs no event
            await asyncio.sleep(0.01)  # reason: a lock that is lost needs no event
        self.locked.add(self.place.name)
        await asyncio.sleep(0)
        versions = await super().write(operations)
        self.locked.discard(self.place.name)
        return versions


class RepliesShift(Around):
    """A read that was cancelled leaves its reply behind, and the next read gets it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.left: list[JournalSnapshot | None] = []

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        if self.left:
            return self.left.pop()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.left.append(found)
            raise
        return found


# --- order and content ---


class Items(Around):
    """Changes items on their way in."""

    def change(self, operation: Any) -> Any:
        if isinstance(operation, Delete):
            return operation
        return replace(operation, items=tuple(self.kept(operation.items)))

    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return [self.one(item) for item in items]

    def one(self, item: bytes) -> bytes:
        return item


class DropsEqualRecords(Items):
    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return list(dict.fromkeys(items))


class CapsBatches(Items):
    def kept(self, items: Sequence[bytes]) -> Sequence[bytes]:
        return items[:25]


class CutsLongTexts(Items):
    def one(self, item: bytes) -> bytes:
        return item if len(item) < 2**16 else json.dumps({"text": json.loads(item)["text"][: 2**16 - 1]}).encode()


def through(change: Callable[[Any], Any]) -> type[Items]:
    """Return a journal that changes every value inside a record."""

    class Changes(Items):
        def one(self, item: bytes) -> bytes:
            return json.dumps(walk(json.loads(item))).encode()

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            value = {change(key): walk(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            value = [walk(inner) for inner in value]
        return change(value)

    return Changes


def on(kind: type, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: change(value) if type(value) is kind else value


BigIntsAsFloats = through(on(int, lambda n: float(n) if 2**64 < abs(n) < 2**900 else n))
TrimsNul = through(on(str, lambda text: text.rstrip("\0")))
TrimsBlanks = through(on(str, str.strip))
Normalises = through(on(str, lambda text: unicodedata.normalize("NFC", text)))
ReplacesSurrogates = through(on(str, lambda text: text.encode("utf-8", "replace").decode()))
LosesNegativeZero = through(on(float, lambda x: x + 0.0))
FloatsAsInts = through(on(float, lambda x: int(x) if x.is_integer() and x < 2**53 else x))
BooleansAsNumbers = through(on(bool, int))
SortsKeys = through(on(dict, lambda value: dict(sorted(value.items()))))
DropsNulls = through(on(dict, lambda value: {key: inner for key, inner in value.items() if inner is not None}))
EmptyListsAsNull = through(on(list, lambda value: value or None))


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


# --- keys ---


class FoldsCase(Around):
    def change(self, operation: Any) -> Any:
        return replace(operation, key=Key(operation.key.part, operation.key.id.lower()))

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(Key(key.part, key.id.lower()), **window)


class DeletesByPrefix(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Delete):
                for info in await self.everything(operation.key.part, "id", None):
                    if info.id.startswith(operation.key.id.partition(".")[0]):
                        await self.inner.write([Delete(Key(operation.key.part, info.id), None)])
        return versions


class ReadingCreates(Around):
    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        if key.part != Part.SESSIONS or await super().read(key, limit=0):
            return await super().read(key, **window)
        await self.inner.write([Append(key, (), Head(data=b""), None, datetime(2031, 1, 1, tzinfo=UTC), 1)])
        return None


class SharesAllNamespaces(Around):
    def __init__(self, place: Place) -> None:
        super().__init__(replace(place, namespace="default"))


class ListsNamespacesByPrefix(Around):
    opened: ClassVar[dict[str, set[str]]] = {}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.opened.setdefault(place.name, set()).add(place.namespace)

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found: list[JournalInfo] = []
        for name in self.opened[self.place.name]:
            if name.startswith(self.namespace):
                found += await MemoryJournal(self.place.name, namespace=name).scan(part, **options)
        return sorted(found, key=lambda info: info.id)[: options["limit"]]


# --- heads, times, listings ---


class KeepsOldHeadBytes(Around):
    """A delete leaves head and items, which come back with the next creation."""

    def __init__(self, place: Place) -> None:
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


class MergesState(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        if isinstance(operation, Append) and found and found.head.data and operation.head.data:
            merged = json.dumps(json.loads(found.head.data) | json.loads(operation.head.data)).encode()
            operation = replace(operation, head=replace(operation.head, data=merged))
        return await self.inner.write([operation])


class UpdatedGoesBack(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Delete):
                self.inner._data.entries[self.namespace, operation.key].updated_at = operation.at
        return versions


class SecondsOnly(Around):
    def change(self, operation: Any) -> Any:
        return (
            operation if isinstance(operation, Delete) else replace(operation, at=operation.at.replace(microsecond=0))
        )


class Scans(Around):
    """Filters in its own way."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await self.everything(part, options["order"], options["after"])
        return [info for info in found if self.fits(info, **options)][: options["limit"]]

    def fits(self, info: JournalInfo, **options: Any) -> bool:
        return (
            self.in_group(info.head.group, options["group"])
            and options["status"] in (None, info.head.status)
            and (options["before"] is None or info.updated_at < options["before"])
        )

    def in_group(self, has: str | None, wanted: str | None) -> bool:
        return wanted in (None, has)


class GroupByPrefix(Scans):
    def in_group(self, has: str | None, wanted: str | None) -> bool:
        return wanted is None or (has or "").startswith(wanted)


class EmptyGroupIsNone(Scans):
    def in_group(self, has: str | None, wanted: str | None) -> bool:
        return not wanted or wanted == has


class StatusIgnored(Scans):
    def fits(self, info: JournalInfo, **options: Any) -> bool:
        return super().fits(info, **(options | {"status": None}))


class BeforeIsInclusive(Scans):
    def fits(self, info: JournalInfo, **options: Any) -> bool:
        before = options["before"]
        return super().fits(info, **(options | {"before": before and before + timedelta(microseconds=1)}))


class RecentIsCreated(Around):
    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        order = "created" if options["order"] == "recent" else options["order"]
        return await super().scan(part, **(options | {"order": order}))


class ListingStopsAtTwenty(Around):
    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return list(await super().scan(part, **options))[:20]


class ListsStaleHeads(Around):
    """The listing shows each key as it was created."""

    first: ClassVar[dict[tuple[str, Key], JournalInfo]] = {}

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        return [self.first.setdefault((self.place.name, Key(part, info.id)), info) for info in found]

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            await self.scan(
                operation.key.part, group=None, status=None, before=None, order="id", after=None, limit=MANY
            )
        return versions


# --- stores ---


class EmptyForMissing(JournalSessions):
    async def _load(self, session_id: str, **window: Any) -> StoredTranscript | None:
        found = await super()._load(session_id, **window)
        nothing = datetime(2031, 1, 1, tzinfo=UTC)
        return found or StoredTranscript(session_id, 0, 0, nothing, nothing)


class MissingForEmpty(JournalSessions):
    async def _load(self, session_id: str, **window: Any) -> StoredTranscript | None:
        found = await super()._load(session_id, **window)
        return found if found is not None and found.count else None


class LateSnapshot(JournalSessions):
    async def append(self, *args: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        await asyncio.sleep(0)
        return await JournalSessions.append(self, *args, **options)


class RemembersAnswers(JournalSessions):
    """Gives every reader of a version the same objects."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        answers: dict[Any, Any] = vars(self).setdefault("answers", {})
        return found and answers.setdefault((session_id, found.version, tuple(window.items())), found)


class ForeignErrorEscapes(JournalSessions):
    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        if found is None:
            raise KeyError(session_id)
        return found


class ScopeCanChange(JournalSessions):
    async def _append(self, session_id: str, records: Any, **options: Any) -> int:
        scope = options.pop("scope")
        version = await super()._append(session_id, records, scope=None, **options)
        entry = self.journal.inner._data.entries[self.journal.namespace, Key(Part.SESSIONS, session_id)]  # type: ignore[attr-defined]  # reason: the fault's own journal
        entry.head = replace(entry.head, group=entry.head.group if scope is None else scope)
        return version


class PagesByOffset(JournalSessions):
    async def _list(self, **options: Any) -> Page[StoredTranscript]:
        start, limit = int(options.pop("cursor") or 0), options.pop("limit")
        found = (await super()._list(**options, cursor=None, limit=MANY)).items
        end = start + limit
        return Page(tuple(found[start:end]), str(end) if len(found) > end else None)


class DeclaresWhatItCannot(JournalSessions):
    async def _replace(self, *_: Any, **__: Any) -> int:
        raise UnsupportedOperationError(self.title, "replace")


class ExtraFieldsDropped(JournalCheckpoints):
    async def append(self, key: str, entries: Any, *, head: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        return await JournalCheckpoints.append(self, key, entries, head=replace(head, extra={}), **options)


class CreateResetsDecided(JournalApprovals):
    async def _create(self, approval: Approval) -> Approval:
        stored = await self._get(approval.id)
        if stored is not None and stored.decided:
            await self._delete(approval.id, expected_version=None)
        return await super()._create(approval)


class LaterDecisionOverwrites(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        await asyncio.sleep(0)
        stored = await self._get(approval.id)
        if stored is not None and stored.decided:
            await self._delete(approval.id, expected_version=None)
            return await super()._create(replace(approval, version=stored.version + 1))
        return await super()._settle(approval)


class DecidingCreates(JournalApprovals):
    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        if found is None and approval_id.endswith("c1"):
            run = approval_id.partition(".s0")[0]
            return Approval(approval_id, run, "call", "tool", {}, datetime(2031, 1, 1, tzinfo=UTC), version=1)
        return found

    async def _settle(self, approval: Approval) -> Approval | None:
        return await super()._settle(approval) if await super()._get(approval.id) else approval


class NoteLost(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        decision = approval.decision and replace(approval.decision, note=None)
        return await super()._settle(replace(approval, decision=decision))


class StatusBeforeDecision(JournalApprovals):
    """A decision is written in two steps: first that there is one, then what it says."""

    async def _settle(self, approval: Approval) -> Approval | None:
        if approval.decision is None:
            return await super()._settle(approval)
        half = await super()._settle(replace(approval, decision=replace(approval.decision, note=None)))
        await asyncio.sleep(0)
        if half is not None:
            key = Key(Part.APPROVALS, approval.id)
            head = Head(data=approval.encode())
            entry = self.journal.inner._data.entries[self.journal.namespace, key]  # type: ignore[attr-defined]  # reason: the fault's own journal
            entry.head = replace(entry.head, data=head.data)
        return half and replace(approval, version=half.version)


class EmptyEditsLost(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        decision = approval.decision and replace(approval.decision, arguments=approval.decision.arguments or None)
        return await super()._settle(replace(approval, decision=decision))


class ExpiresATickLate(JournalApprovals):
    async def decide(self, approval_id: str, *, at: datetime | None = None, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        at = (self.clock.now() if at is None else at) - timedelta(microseconds=1)
        return await JournalApprovals.decide(self, approval_id, at=at, **options)


class DecisionIsConsumed(JournalApprovals):
    """Reading a decision twice finds it used up."""

    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        reads: dict[str, int] = vars(self).setdefault("reads", {})
        if found is not None and found.decided:
            reads[approval_id] = reads.get(approval_id, 0) + 1
        return None if reads.get(approval_id, 0) > 1 else found


# --- on disk, for processes that die ---


class OnDisk(Around):
    """A right journal of one process at a time, whose data is one file that is replaced at every write."""

    capabilities = Capabilities(durable=True)
    every = 1

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.inner = MemoryJournal(namespace=place.namespace)
        self.file = place.directory / "data"
        self.writes = 0

    async def open(self) -> None:
        if self.file.exists():
            self.inner._data.entries = pickle.loads(self.file.read_bytes())

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        self.writes += 1
        if self.writes % self.every == 0:
            self.save()
        return versions

    def save(self) -> None:
        fresh = self.file.with_name(f"fresh-{os.getpid()}")
        fresh.write_bytes(pickle.dumps(self.inner._data.entries))
        fresh.replace(self.file)

    async def close(self) -> None:
        if self.writes % self.every:
            self.save()
        await super().close()


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
        self.inner._data.entries[self.namespace, operation.key].version = version
        return (version,)


class SetUpDropsData(OnDisk):
    async def open(self) -> None:
        self.file.unlink(missing_ok=True)


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


# --- the list of faults ---


@dataclass(frozen=True)
class Fault:
    """A broken store, and the laws of which each one catches it."""

    name: str
    laws: tuple[str, ...]
    journal: type[Around] = Around
    sessions: type[JournalSessions] = JournalSessions
    checkpoints: type[JournalCheckpoints] = JournalCheckpoints
    approvals: type[JournalApprovals] = JournalApprovals
    closes: bool = True

    async def open(self, place: Place, clock: Clock) -> AgentStore:
        journal = self.journal(replace(place, namespace=check_namespace(place.namespace)))
        await journal.open()
        parts = (self.sessions(journal), self.checkpoints(journal), self.approvals(journal))

        async def closing() -> None:
            if self.closes:
                for part in parts:
                    part.seal()
                await journal.close()

        for part in parts:
            part.bind(max_record=place.max_record)
        sessions, checkpoints, approvals = parts
        return AgentStore(sessions=sessions, checkpoints=checkpoints, approvals=approvals, clock=clock, closing=closing)

    def target(self) -> Target:
        durable = issubclass(self.journal, OnDisk)
        return Target(self.name, self.open, url=self.url if durable else None)

    def url(self, place: Place) -> str:
        return f"python:{__file__}:open_by_name:{self.name}|{place.name}|{place.directory}"


async def open_by_name(text: str) -> AgentStore:
    """Open a store of this file in another process."""
    name, place, directory = text.split("|")
    fault = RIGHT_ON_DISK if name == RIGHT_ON_DISK.name else next(one for one in FAULTS if one.name == name)
    return await fault.open(Place(place, Path(directory)), SYSTEM_CLOCK)


def of_journal(journal: type[Around], *laws: str) -> Fault:
    return Fault(journal.__name__, laws, journal)


def of_items(name: str, journal: type[Items], law: str) -> Fault:
    return Fault(name, (f"sessions-{law}", f"checkpoints-{law}"), journal)


RIGHT = Fault("right", ())
RIGHT_ON_DISK = Fault("right-on-disk", (), OnDisk)

FAULTS: tuple[Fault, ...] = (
    of_journal(NoVersionCheck, "sessions-append-refuses-another-version", "checkpoints-two-readers-one-writer"),
    of_journal(ReplaceIgnoresVersion, "sessions-replace-refuses-another-version"),
    of_journal(DeleteIgnoresVersion, *(f"{part}-delete-refuses-another-version" for part in ("sessions", "approvals"))),
    of_journal(VersionsRestart, "sessions-version-never-repeats", "checkpoints-sleeper-is-refused-after-re-creation"),
    of_journal(CreatesOverExisting, "sessions-expected-zero-means-absent", "checkpoints-one-of-many-creates"),
    of_journal(LengthAsVersion, "sessions-write-adds-one", "checkpoints-replace-adds-one"),
    of_journal(ChecksThenWrites, "sessions-one-of-many-tasks-wins", "checkpoints-one-claim-wins"),
    of_journal(ConflictWithoutFacts, "sessions-append-refuses-another-version", "approvals-errors-carry-their-facts"),
    of_journal(ConflictAsUnknown, "sessions-append-refuses-another-version"),
    of_journal(StaleHandle, "sessions-second-handle-is-never-stale", "approvals-second-handle-is-never-stale"),
    of_journal(RowByRow, "sessions-batches-are-whole-among-tasks", "checkpoints-cancelled-append-is-whole-or-absent"),
    of_journal(HeadThenEntries, "checkpoints-head-and-entries-change-together"),
    of_journal(
        ReplaceIsDeleteAndAppend, "sessions-replace-shows-old-or-new", "sessions-cancelled-replace-is-old-or-new"
    ),
    of_journal(WritesBothOneByOne, "atomic-write-is-all-or-none", "atomic-write-is-seen-whole"),
    of_journal(CancelledKeepsLock, "sessions-cancelled-call-holds-no-lock"),
    of_journal(RepliesShift, "sessions-answers-stay-with-their-calls"),
    of_journal(DropsEqualRecords, "sessions-equal-records-are-all-kept"),
    of_journal(CapsBatches, "sessions-no-cap-on-a-read"),
    of_journal(CutsLongTexts, "sessions-long-text-comes-back"),
    of_items("big-ints-as-floats", BigIntsAsFloats, "integers-come-back"),
    of_items("trims-nul", TrimsNul, "text-comes-back"),
    of_items("trims-blanks", TrimsBlanks, "text-comes-back"),
    of_items("normalises", Normalises, "text-comes-back"),
    of_items("replaces-surrogates", ReplacesSurrogates, "text-comes-back"),
    of_items("loses-negative-zero", LosesNegativeZero, "floats-come-back"),
    of_items("floats-as-ints", FloatsAsInts, "floats-come-back"),
    of_items("booleans-as-numbers", BooleansAsNumbers, "booleans-are-not-numbers"),
    of_items("sorts-keys", SortsKeys, "keys-come-back"),
    of_items("drops-nulls", DropsNulls, "emptiness-comes-back"),
    of_items("empty-lists-as-null", EmptyListsAsNull, "emptiness-comes-back"),
    of_items("any-change-is-found", BooleansAsNumbers, "any-json-comes-back"),
    of_journal(LexicalOrder, "sessions-order-across-batches"),
    of_journal(CapsReads, "sessions-no-cap-on-a-read"),
    of_journal(LimitZeroIsAll, "sessions-windows-are-slices"),
    of_journal(LastGivesTheOldest, "sessions-last-gives-the-newest"),
    of_journal(ReplaceKeepsTheTail, "sessions-replace-keeps-the-first", "checkpoints-replace-drops-every-entry"),
    of_journal(EmptyAppendDoesNothing, "sessions-append-of-nothing-creates", "sessions-write-adds-one"),
    of_journal(FoldsCase, "sessions-confusable-ids-stay-apart", "approvals-confusable-ids-stay-apart"),
    of_journal(DeletesByPrefix, "sessions-delete-removes-one-id", "checkpoints-delete-removes-one-id"),
    of_journal(ReadingCreates, "sessions-reading-creates-nothing"),
    of_journal(SharesAllNamespaces, "sessions-namespaces-share-no-key", "approvals-namespaces-delete-their-own"),
    of_journal(ListsNamespacesByPrefix, "sessions-namespaces-list-their-own"),
    of_journal(KeepsOldHeadBytes, "checkpoints-deleted-journal-keeps-nothing", "sessions-delete-leaves-nothing"),
    of_journal(MergesState, "sessions-state-is-replaced-whole"),
    of_journal(UpdatedGoesBack, "sessions-updated-never-goes-back"),
    of_journal(SecondsOnly, "sessions-times-come-from-the-clock"),
    of_journal(GroupByPrefix, "sessions-scope-filters-exactly"),
    of_journal(EmptyGroupIsNone, "checkpoints-status-and-agent-filter-exactly"),
    of_journal(StatusIgnored, "checkpoints-status-and-agent-filter-exactly", "approvals-filters-are-exact"),
    of_journal(BeforeIsInclusive, "sessions-before-is-strict"),
    of_journal(RecentIsCreated, "sessions-order-by-last-write"),
    of_journal(ListingStopsAtTwenty, "sessions-no-cap-on-a-listing"),
    of_journal(ListsStaleHeads, "checkpoints-listing-shows-the-head", "approvals-reading-consumes-nothing"),
    Fault("EmptyForMissing", ("sessions-absent-is-none",), sessions=EmptyForMissing),
    Fault("MissingForEmpty", ("sessions-empty-is-not-absent",), sessions=MissingForEmpty),
    Fault("LateSnapshot", ("sessions-snapshot-is-taken-at-the-call",), sessions=LateSnapshot),
    Fault("RemembersAnswers", ("sessions-output-is-new-each-time",), sessions=RemembersAnswers),
    Fault("ForeignErrorEscapes", ("sessions-absent-is-none",), sessions=ForeignErrorEscapes),
    Fault("ScopeCanChange", ("sessions-scope-is-set-once",), sessions=ScopeCanChange),
    Fault("PagesByOffset", ("sessions-pages-hold-under-writes",), sessions=PagesByOffset),
    Fault("DeclaresWhatItCannot", ("sessions-declared-operation-works",), sessions=DeclaresWhatItCannot),
    Fault("ExtraFieldsDropped", ("checkpoints-every-head-field-comes-back",), checkpoints=ExtraFieldsDropped),
    Fault("CreateResetsDecided", ("approvals-create-again-gives-the-stored",), approvals=CreateResetsDecided),
    Fault("LaterDecisionOverwrites", ("approvals-one-of-many-tasks-decides",), approvals=LaterDecisionOverwrites),
    Fault("DecidingCreates", ("approvals-unknown-is-not-created",), approvals=DecidingCreates),
    Fault("NoteLost", ("approvals-decision-is-recorded-whole",), approvals=NoteLost),
    Fault("StatusBeforeDecision", ("approvals-decision-is-seen-whole",), approvals=StatusBeforeDecision),
    Fault("EmptyEditsLost", ("approvals-decision-is-recorded-whole",), approvals=EmptyEditsLost),
    Fault("ExpiresATickLate", ("approvals-expired-is-rejected",), approvals=ExpiresATickLate),
    Fault("DecisionIsConsumed", ("approvals-reading-consumes-nothing",), approvals=DecisionIsConsumed),
    Fault("CloseDoesNothing", ("sessions-closed-store-refuses", "approvals-close-ends-all-parts"), closes=False),
    of_journal(SavesNowAndThen, "sessions-append-survives-kill"),
    of_journal(CloseLosesTheTail, "sessions-close-loses-no-tail"),
    of_journal(SavesRowByRow, "sessions-append-survives-kill"),
    of_journal(SetUpDropsData, "sessions-survives-reopening", "approvals-survives-reopening"),
    of_journal(LastWriterWins, "sessions-one-of-many-processes-wins"),
)
