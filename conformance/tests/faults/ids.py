"""Planted stores of the chapters on ids, errors and lifecycle."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure import AgentStore, safe_id
from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    Head,
    JournalInfo,
    JournalSnapshot,
    Key,
    Page,
    Part,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
)
from perdure.journal.stores import JournalApprovals, JournalSessions
from perdure_conformance.target import Place
from perdure_memory.journal import MemoryJournal


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


class ForeignErrorEscapes(JournalSessions):
    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        if found is None:
            raise KeyError(session_id)
        return found


class DeclaresWhatItCannot(JournalSessions):
    async def _replace(self, *_: Any, **__: Any) -> int:
        raise UnsupportedOperationError(self.title, "replace")


class Ids(Around):
    """Keeps keys under other ids."""

    def kept(self, key_id: str) -> str:
        return key_id

    def change(self, operation: Any) -> Any:
        return replace(operation, key=Key(operation.key.part, self.kept(operation.key.id)))

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(Key(key.part, self.kept(key.id)), **window)


class CutsIds(Ids):
    """An id has 127 characters at most."""

    def kept(self, key_id: str) -> str:
        return key_id[:127]


class UnderscoreIsAnyCharacter(Ids):
    """`_` and `-` are one character."""

    def kept(self, key_id: str) -> str:
        return key_id.replace("-", "_")


class LeadingZerosLost(Ids):
    """An id of digits is a number."""

    def kept(self, key_id: str) -> str:
        return str(int(key_id)) if key_id.isascii() and key_id.isdigit() else key_id


class ListsLowerIds(Around):
    """A listing gives ids in lower case."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return [replace(info, id=info.id.lower()) for info in await super().scan(part, **options)]


class DeletesAllNamespaces(Around):
    """A delete removes the key from every namespace."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Delete):
                for place in [place for place in self.inner._data.entries if place[1] == operation.key]:
                    del self.inner._data.entries[place]
        return versions


class WritesNamespaceByPrefix(Around):
    """Namespaces that begin alike are one."""

    def __init__(self, place: Place) -> None:
        super().__init__(replace(place, namespace=place.namespace[:3]))


class SwallowsErrors(Around):
    """A write that fails answers as if it had been done."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        try:
            return await super().write(operations)
        except VersionConflictError as error:
            return tuple((error.actual or 0) + 1 for _ in operations)


class AbsentWhileDown(JournalSessions):
    """A read that fails answers that there is nothing."""

    async def _load(self, session_id: str, **window: Any) -> Any:
        try:
            return await super()._load(session_id, **window)
        except Exception:  # noqa: BLE001  # reason: the fault
            return None


class NoneListedWhileDown(JournalSessions):
    """A listing that fails answers that there is nothing."""

    async def _list(self, **options: Any) -> Any:
        try:
            return await super()._list(**options)
        except Exception:  # noqa: BLE001  # reason: the fault
            return Page(())


class LosesTheCause(JournalSessions):
    """A driver's error is told without its cause."""

    async def _load(self, session_id: str, **window: Any) -> Any:
        try:
            return await super()._load(session_id, **window)
        except Exception:  # noqa: BLE001  # reason: the fault
            raise StoreUnavailableError("load", session_id) from None


class UnavailableThoughWritten(Around):
    """Every third write says that nothing was written, after it was."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.writes = 0

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        self.writes += 1
        if self.writes % 3 == 0:
            raise StoreUnavailableError("write", operations[0].key.id)
        return versions


class WrittenThoughUnavailable(Around):
    """Every third write is answered, and is not made."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.writes = 0

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.writes += 1
        if self.writes % 3 == 0 and all(isinstance(operation, Append) and operation.items for operation in operations):
            found = [await self.inner.read(operation.key, limit=0) for operation in operations]
            if all(found):
                return tuple(one.version + 1 for one in found if one is not None)
        return await super().write(operations)


class UnknownIsUnavailable(JournalSessions):
    """Whatever the driver raises in a write is told as nothing written."""

    async def _append(self, session_id: str, records: Any, **options: Any) -> int:
        try:
            return await super()._append(session_id, records, **options)
        except VersionConflictError:
            raise
        except Exception as error:
            raise StoreUnavailableError("append", session_id) from error


class RetriesInside(JournalSessions):
    """A write whose outcome is unknown is simply made again."""

    async def _append(self, session_id: str, records: Any, **options: Any) -> int:
        try:
            return await super()._append(session_id, records, **options)
        except VersionConflictError:
            raise
        except Exception:  # noqa: BLE001  # reason: the fault
            again: dict[str, Any] = options | {"expected_version": None}
            return await super()._append(session_id, records, **again)


class StaysDown(JournalSessions):
    """After one failure of its backend it answers nothing any more."""

    async def _load(self, session_id: str, **window: Any) -> Any:
        if vars(self).get("down"):
            raise StoreUnavailableError("load", session_id)
        try:
            return await super()._load(session_id, **window)
        except Exception:
            vars(self)["down"] = True
            raise


class FailedBatchLeavesHalf(JournalSessions):
    """A record that is refused stops the batch, and leaves what came before it."""

    async def append(self, session_id: str, records: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        if not isinstance(records, list):
            return await JournalSessions.append(self, session_id, records, **options)
        version = await JournalSessions.append(self, session_id, records[:1], **options)
        return await JournalSessions.append(self, session_id, records[1:], expected_version=version)


class SecondCloseRaises(AgentStore):
    """Closing a second time is an error."""

    async def close(self) -> None:
        if vars(self).get("is_closed"):
            raise StoreUnavailableError("close", "store")
        vars(self)["is_closed"] = True
        await super().close()


class ClosesAllHandles(Around):
    """Closing one handle closes every handle of the place."""

    handles: ClassVar[dict[str, list[MemoryJournal]]] = {}

    async def open(self) -> None:
        await super().open()
        self.handles.setdefault(self.place.name, []).append(self.inner)

    async def close(self) -> None:
        for handle in self.handles[self.place.name]:
            await handle.close()


class LeaksTasks(Around):
    """Each handle leaves a task behind that waits for ever."""

    left: ClassVar[list[Any]] = []

    async def open(self) -> None:
        await super().open()
        self.left.append(asyncio.ensure_future(asyncio.Event().wait()))


class LeaksDescriptors(Around):
    """Each handle leaves a file open."""

    async def open(self) -> None:
        await super().open()
        os.open(os.devnull, os.O_RDONLY)


class LeaksThreads(Around):
    """Each handle leaves a thread behind."""

    async def open(self) -> None:
        await super().open()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class UndeclaredWorks(JournalSessions):
    """Deletes, and does not say that it can."""

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: the fault
        return Capabilities(replace=True, list=True)

    async def delete(self, session_id: str, *, expected_version: int | None = None) -> bool:  # type: ignore[misc]  # reason: the fault
        return await self._delete(session_id, expected_version=expected_version)


class UndeclaredDoesNothing(JournalApprovals):
    """Does not declare `delete`, and answers False instead of refusing."""

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: the fault
        return Capabilities(list=True)

    async def delete(self, approval_id: str, *, expected_version: int | None = None) -> bool:  # type: ignore[misc]  # reason: the fault
        return False


class TakesAnyId(JournalSessions):
    """What is no id is made one, quietly."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        return await JournalSessions.load(self, safe_id(str(session_id).rstrip()), **window)

    async def append(self, session_id: str, records: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        return await JournalSessions.append(self, safe_id(str(session_id).rstrip()), records, **options)


class HangsInASecondLoop(JournalSessions):
    """A call from another event loop waits for ever."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        loop = vars(self).setdefault("loop", asyncio.get_running_loop())
        if loop is not asyncio.get_running_loop():
            await asyncio.Event().wait()
        return await JournalSessions.load(self, session_id, **window)


# --- witnesses ---


async def alike(scene: Scene) -> Any:
    """What is stored under ids that look alike, and how they are listed and deleted."""
    names = ("a", "A", "a_b", "a-b", "1", "01", "x" * 127, "x" * 128, "s1", "s10")
    made = [await outcome(scene.append(number, to=name, expected_version=0)) for number, name in enumerate(names)]
    found = [await scene.records(name) for name in names]
    await scene.store.sessions.delete("a")
    await scene.store.sessions.delete("s1")
    return [isinstance(one, int) for one in made], found, await scene.ids()


async def bad_ids(scene: Scene) -> Any:
    return [await outcome(scene.append(1, to=name)) == "InvalidIdError" for name in ("a/b", "a:b", "a ", "..")]


async def from_another_loop(scene: Scene) -> Any:
    """What a call from another loop comes to."""
    await scene.records()
    asking = asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(_asked(scene))), 5)
    return await outcome(asking)


async def _asked(scene: Scene) -> str:
    return str(await outcome(asyncio.wait_for(scene.store.sessions.load("s1"), 0.2)))


async def namespaces(scene: Scene) -> Any:
    """What one namespace shows of another, and what a delete in it leaves there."""
    other = await scene.open(namespace="default2")
    await other.sessions.append("s1", [{"of": "other"}])
    await other.sessions.append("s2", [{"of": "other"}])
    seen, listed = await scene.records(), await scene.ids()
    await scene.store.sessions.delete("s2")
    return seen, listed, await other.sessions.load("s2") is None


async def reading(scene: Scene) -> Any:
    return await outcome(scene.records()), await scene.ids()


async def conflicts(scene: Scene) -> Any:
    version = await scene.append(1)
    return isinstance(await outcome(scene.append(2, expected_version=version + 5)), int)


async def six_writes(scene: Scene) -> Any:
    """How six writes are answered, and what is there of them."""
    answers = [await outcome(scene.append(number)) for number in range(6)]
    return [one if isinstance(one, str) else "answered" for one in answers], await scene.records()


async def while_down(scene: Scene) -> Any:
    """What calls raise while the journal below fails, before a write and after it, and when it is back."""
    await scene.append(1)
    journal: Any = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    inner, failures = journal.inner, [0]

    class Down:
        def __getattr__(self, name: str) -> Any:
            async def fail(*args: Any, **options: Any) -> Any:
                failures[0] += 1
                if name == "write" and failures[0] < 4:
                    await inner.write(*args, **options)
                raise ConnectionError(name)

            return fail

    journal.inner = Down()
    calls = (scene.append(2), scene.records(), scene.ids())
    seen = [await outcome(call) for call in calls]
    try:
        await scene.store.sessions.load("s1")
    except StoreUnavailableError as error:
        seen.append(type(error.__cause__).__name__)
    journal.inner = inner
    return seen, await outcome(scene.records())


async def bad_batch(scene: Scene) -> Any:
    records: list[Any] = [{"n": 1}, {"n": float("nan")}]
    return await outcome(scene.store.sessions.append("s1", records)), await scene.records()


async def closing(scene: Scene) -> Any:
    """What works after a close, of one handle and of another."""
    other = await scene.open()
    await scene.append(1)
    closed = await outcome(scene.store.close())
    again = await outcome(scene.store.close())
    return closed, again, await outcome(scene.records()), isinstance(await outcome(other.sessions.load("s1")), str)


async def leaks(scene: Scene) -> Any:
    """How many tasks, threads and files five handles leave."""

    def counted() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = counted()
    for _ in range(5):
        await (await scene.open()).close()
    return [after - one for after, one in zip(counted(), before, strict=True)]


async def operations(scene: Scene) -> Any:
    """What becomes of operations that may not be declared."""
    await scene.append(1)
    asked = await scene.ask()
    calls = (
        scene.store.sessions.replace("s1", [], expected_version=None),
        scene.store.sessions.delete("s1"),
        scene.store.approvals.delete(asked.id),
    )
    answers = [await outcome(call) for call in calls]
    return [one if isinstance(one, (str, bool)) else "answered" for one in answers], [
        getattr(scene.store, part).capabilities.delete for part in ("sessions", "approvals")
    ]


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_sessions(sessions: type[JournalSessions], witness: Any, *laws: str) -> Fault:
    return Fault(sessions.__name__, laws, witness, sessions=sessions)


FAULTS = (
    of(FoldsCase, alike, "sessions-confusable-ids-stay-apart", "approvals-confusable-ids-stay-apart"),
    of_sessions(TakesAnyId, bad_ids, "sessions-bad-ids-are-refused"),
    of_sessions(HangsInASecondLoop, from_another_loop, "sessions-other-loop-is-refused"),
    of(CutsIds, alike, "sessions-confusable-ids-stay-apart"),
    of(UnderscoreIsAnyCharacter, alike, "sessions-confusable-ids-stay-apart"),
    of(LeadingZerosLost, alike, "sessions-confusable-ids-stay-apart"),
    of(ListsLowerIds, alike, "sessions-listing-gives-exact-ids"),
    of(DeletesByPrefix, alike, "sessions-delete-removes-one-id", "checkpoints-delete-removes-one-id"),
    of(ReadingCreates, reading, "sessions-reading-creates-nothing"),
    of(SharesAllNamespaces, namespaces, "sessions-namespaces-share-no-key", "prune-stays-in-its-namespace"),
    of(WritesNamespaceByPrefix, namespaces, "sessions-namespaces-share-no-key"),
    of(ListsNamespacesByPrefix, namespaces, "sessions-namespaces-list-their-own"),
    of(DeletesAllNamespaces, namespaces, "sessions-namespaces-delete-their-own", "prune-stays-in-its-namespace"),
    of_sessions(ForeignErrorEscapes, reading, "sessions-absent-is-none"),
    of(SwallowsErrors, conflicts, "sessions-append-refuses-another-version"),
    of_sessions(AbsentWhileDown, while_down, "sessions-failed-read-is-unavailable"),
    of_sessions(NoneListedWhileDown, while_down, "sessions-failed-read-is-unavailable"),
    of_sessions(LosesTheCause, while_down, "sessions-failed-read-is-unavailable"),
    of_sessions(UnknownIsUnavailable, while_down, "sessions-failed-write-is-of-unknown-outcome"),
    of_sessions(RetriesInside, while_down, "sessions-typed-failure-passes-unchanged"),
    of_sessions(StaysDown, while_down, "sessions-works-again-after-an-outage"),
    of(UnavailableThoughWritten, six_writes, "sessions-errors-tell-the-truth"),
    of(WrittenThoughUnavailable, six_writes, "sessions-errors-tell-the-truth"),
    of_sessions(FailedBatchLeavesHalf, bad_batch, "sessions-refused-batch-leaves-nothing"),
    Fault("SecondCloseRaises", ("sessions-close-twice-is-fine",), closing, bundle=SecondCloseRaises),
    of(ClosesAllHandles, closing, "sessions-closing-one-handle-leaves-the-other"),
    Fault(
        "CloseDoesNothing", ("sessions-closed-store-refuses", "approvals-close-ends-all-parts"), closing, closes=False
    ),
    of(LeaksTasks, leaks, "sessions-opening-and-closing-leaks-nothing"),
    of(LeaksDescriptors, leaks, "sessions-opening-and-closing-leaks-nothing"),
    of(LeaksThreads, leaks, "sessions-opening-and-closing-leaks-nothing"),
    of_sessions(DeclaresWhatItCannot, operations, "sessions-declared-operation-works"),
    of_sessions(UndeclaredWorks, operations, "sessions-undeclared-operation-refuses"),
    Fault(
        "UndeclaredDoesNothing",
        ("approvals-undeclared-operation-refuses",),
        operations,
        approvals=UndeclaredDoesNothing,
    ),
)
