"""Planted stores that are right in the common case, and wrong in a corner of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from conformance.tests.faults.planting import HEAD, IDLE, Around, Fault, Scene, at_once, outcome

from perdure.backend import Append, Delete, JournalSnapshot, Key, Part, Replace, VersionConflictError
from perdure.contracts.checkpoints import CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure_conformance.target import Place


class KeepingAllIsAppending(Around):
    """A replace that keeps every record is taken for an append."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key, limit=0)
        versions = await super().write(operations)
        if isinstance(operation, Replace) and found is not None and operation.keep == found.count:
            self.stored(operation.key).rewritten = found.rewritten
        return versions


class FirstAtNoneIsOne(Around):
    """An append that expects no version makes a new key at version 1."""

    def change(self, operation: Any) -> Any:
        if isinstance(operation, Append) and operation.expected_version is None:
            return replace(operation, first_version=1)
        return operation


class AnswersRepeatedWrites(Around):
    """A write that was made before at this version is answered again, whoever makes it."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        found = await self.inner.read(operation.key)
        count = len(operation.items) if isinstance(operation, Append) else 0
        made = found is not None and tuple(found.items[-count:]) == operation.items if count else False
        if made and found is not None and operation.expected_version == found.version - 1:
            return (found.version,)
        return await super().write(operations)


class ReplaceDropsUnknownFields(Around):
    """A replace keeps the fields of a head that it knows."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace) or operation.key.part != Part.RUNS:
            return operation
        data = (operation.head.data or b"").replace(b'"later"', b'"lately"')
        return replace(operation, head=replace(operation.head, data=data))


class CancelledMovesTheVersion(Around):
    """An append sets the head, waits, and adds the records."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.order = asyncio.Lock()

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        async with self.order:
            return await super().read(key, **window)

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        async with self.order:
            (operation,) = operations
            if not isinstance(operation, Append):
                return await super().write(operations)
            versions = await self.inner.write([replace(operation, items=())])
            await asyncio.sleep(0)
            self.stored(operation.key).items.extend(operation.items)
            return versions


class LargeBatchesLater(Around):
    """A large batch sets the head, and adds its records when they are ready; a small one does both at once."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        operation = operations[0]
        if not isinstance(operation, Append) or sum(map(len, operation.items)) < 2**16:
            return await super().write(operations)
        versions = await self.inner.write([replace(operation, items=()), *operations[1:]])
        await asyncio.sleep(0)
        self.stored(operation.key).items.extend(operation.items)
        return versions


class ConflictKeepsTheLock(Around):
    """A replace or delete that is refused keeps the lock of its key."""

    locked: ClassVar[set[tuple[str, Key]]] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        if (self.place.name, operation.key) in self.locked:
            await asyncio.Event().wait()
        try:
            return await super().write(operations)
        except VersionConflictError:
            if not isinstance(operation, Append):
                self.locked.add((self.place.name, operation.key))
            raise


class GroupsWithoutSavepoints(Around):
    """Writes that wait together share a transaction: one that is refused half way leaves its first half there."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.waiting = 0

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.waiting += 1
        try:
            await asyncio.sleep(0)
            if self.waiting == 1:
                return await super().write(operations)
            return tuple([(await self.inner.write([operation]))[0] for operation in operations])
        finally:
            self.waiting -= 1


# --- handles ---


class CachesHeads(Around):
    """A handle remembers heads until it writes; with records they are read anew."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.heads: dict[Key, JournalSnapshot | None] = {}

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        if 0 not in (window.get("limit"), window.get("last")):
            return await super().read(key, **window)
        if key not in self.heads:
            self.heads[key] = await super().read(key, limit=0)
        return self.heads[key]

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.heads.clear()
        return await super().write(operations)


class KeepsItsOpenFile(Around):
    """A writer goes on with the file that it has open, also when another has put a new one in its place."""

    files: ClassVar[dict[tuple[str, Key], int]] = {}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.open_files: dict[Key, int] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        place = (self.place.name, operation.key)
        mine = self.open_files.get(operation.key)
        found = await self.inner.read(operation.key, limit=0)
        if isinstance(operation, Append) and found is not None and mine not in (None, self.files.get(place, 0)):
            return (found.version + 1,)  # to a file that has no name any more
        versions = await super().write(operations)
        if not isinstance(operation, Append):
            self.files[place] = self.files.get(place, 0) + 1
        self.open_files[operation.key] = self.files.get(place, 0)
        return versions


class LocksWhatWasDeleted(Around):
    """The lock goes with its key: who had it open before a deletion excludes nobody any more."""

    deleted: ClassVar[set[tuple[str, Key]]] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        (operation,) = operations
        place = (self.place.name, operation.key)
        if isinstance(operation, Delete):
            self.deleted.add(place)
        found = await self.inner.read(operation.key, limit=0)
        if place not in self.deleted or found is None or operation.expected_version != found.version:
            return await super().write(operations)
        await asyncio.sleep(0)
        return await self.inner.write([replace(operation, expected_version=None)])


# --- ids, windows, closing ---


class ReadsNumbersAsFloats(Around):
    """What is beside the list goes through a reader that makes floats of large integers, unless it has to give up."""

    def change(self, operation: Any) -> Any:
        if isinstance(operation, Delete) or not operation.head.data:
            return operation
        with contextlib.suppress(OverflowError):
            value = json.loads(
                operation.head.data, parse_int=lambda text: int(text) if len(text) < 19 else finite(text)
            )
            return replace(operation, head=replace(operation.head, data=json.dumps(value).encode()))
        return operation


def finite(text: str) -> float:
    """Return a float, or raise `OverflowError`."""
    return float(int(text[:4000]))


class ShortCapitals(Around):
    """Capital letters are told apart in the first 64 characters."""

    def change(self, operation: Any) -> Any:
        return replace(operation, key=self.folded(operation.key))

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(self.folded(key), **window)

    def folded(self, key: Key) -> Key:
        return Key(key.part, key.id[:64] + key.id[64:].lower())


class WindowsMissABorder(Around):
    """In a long list a window that begins with the last item of a write begins one item later."""

    borders: ClassVar[dict[tuple[str, Key], set[int]]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Append):
                place, count = (self.place.name, operation.key), len(self.stored(operation.key).items)
                self.borders.setdefault(place, set()).add(count - 1)
        return versions

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        after = window.get("after")
        if after and after > 30 and after in self.borders.get((self.place.name, key), ()):
            window["after"] = after + 1
        return await super().read(key, **window)


class CloseCancelsCalls(Around):
    """Closing cancels the calls under way."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.calls: set[asyncio.Future[Any]] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls.add(answer)
        asyncio.get_running_loop().call_soon(self.answer, answer)
        await answer
        return await super().write(operations)

    def answer(self, answer: asyncio.Future[None]) -> None:
        self.calls.discard(answer)
        if not answer.done():
            answer.set_result(None)

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        await super().close()


# --- witnesses ---


async def rewritten(scene: Scene) -> Any:
    await scene.append(1)
    version = await scene.store.sessions.replace("s1", [{"n": 2}], keep=1, expected_version=None)
    found = await scene.store.sessions.load("s1")
    return found is not None and found.rewritten == version


async def lives(scene: Scene) -> Any:
    """Whether a key that an append at no version made had a version of its own in each life."""
    first = await scene.append(1)
    await scene.store.sessions.delete("s1")
    return await scene.append(2) == first


async def twice(scene: Scene) -> Any:
    version = await scene.append(1)
    return await at_once(*(scene.append(2, expected_version=version) for _ in range(2)))


async def replaced_head(scene: Scene) -> Any:
    await scene.turn()
    await scene.store.checkpoints.replace("s1", [], expected_version=None, head=replace(IDLE, extra={"later": 1}))
    return await scene.entries()


async def cancelled(scene: Scene, text: str = "") -> Any:
    """Whether version and records went together when an append was cancelled after so many steps."""
    together = True
    for steps in range(1, 5):
        version = await scene.append(0, to=f"s{steps}")
        task = asyncio.ensure_future(scene.store.sessions.append(f"s{steps}", [{"n": 1, "text": text}]))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        found = await scene.store.sessions.load(f"s{steps}")
        assert found is not None
        together &= found.version - version == found.count - 1
    return together


async def cancelled_large(scene: Scene) -> Any:
    """The same of an append of some hundred kilobytes."""
    return await cancelled(scene, "n" * 200_000)


async def after_conflicts(scene: Scene) -> Any:
    await scene.append(1)
    await outcome(scene.store.sessions.delete("s1", expected_version=7))
    await scene.append(2)
    return await scene.records()


async def beside_another(scene: Scene) -> Any:
    version = await scene.append(1)
    await scene.turn()
    append, close = SessionAppend("s1", [{"n": 2}], version), CheckpointReplace("s1", [], IDLE, 7)
    outcomes = await at_once(scene.store.write(append, close), scene.append(3, to="s2"))
    return outcomes, await scene.records()


async def heads_of_two(scene: Scene) -> Any:
    second, heads = await scene.open(), []
    for number in range(2):
        version = await scene.append(number)
        found = await second.sessions.load("s1", limit=0)
        heads.append(found and found.version - version)
    return heads


async def in_turn(scene: Scene) -> Any:
    second = await scene.open()
    await scene.append(1)
    await second.sessions.replace("s1", [{"n": 2}], expected_version=None)
    await scene.append(3)
    return await scene.records()


async def made_anew(scene: Scene) -> Any:
    await scene.append(1)
    await scene.store.sessions.delete("s1")
    version = await scene.append(2)
    return await at_once(*(scene.append(by, expected_version=version) for by in range(2)))


async def large_numbers(scene: Scene) -> Any:
    await scene.append(state={"n": 2**70 + 1})
    await scene.turn(head=replace(HEAD, extra={"n": 2**70 + 1}))
    found = await scene.store.sessions.load("s1")
    return found and found.state, await scene.entries()


async def long_ids(scene: Scene) -> Any:
    await scene.append(1, to="x" * 100)
    return await scene.records("x" * 99 + "X")


async def long_windows(scene: Scene) -> Any:
    for number in range(40):
        await scene.append(number)
    return [await scene.records(after=number, limit=1) for number in range(40)]


async def closed_meanwhile(scene: Scene) -> Any:
    task = asyncio.ensure_future(scene.append(1))
    await asyncio.sleep(0)
    await scene.store.close()
    await asyncio.wait([task])
    return task.cancelled()


def of(journal: type[Around], witness: Any, *laws: str, hangs: bool = False) -> Fault:
    return Fault(journal.__name__, laws, witness, journal, hangs=hangs)


def each(law: str) -> tuple[str, str]:
    return f"sessions-{law}", f"checkpoints-{law}"


FAULTS = (
    of(KeepingAllIsAppending, rewritten, "sessions-rewritten-names-the-last-replace"),
    of(FirstAtNoneIsOne, lives, *each("version-never-repeats")),
    of(AnswersRepeatedWrites, twice, *each("equal-write-at-a-used-version-conflicts")),
    of(ReplaceDropsUnknownFields, replaced_head, "checkpoints-head-is-replaced-whole"),
    of(CancelledMovesTheVersion, cancelled, *each("cancelled-append-is-whole-or-absent")),
    of(LargeBatchesLater, cancelled_large, *each("cancelled-append-is-whole-or-absent")),
    of(ConflictKeepsTheLock, after_conflicts, *each("store-works-after-conflicts"), hangs=True),
    of(GroupsWithoutSavepoints, beside_another, "atomic-write-conflicts-beside-other-writes"),
    of(CachesHeads, heads_of_two, "sessions-every-window-is-fresh"),
    of(KeepsItsOpenFile, in_turn, *each("handles-write-in-turn")),
    of(LocksWhatWasDeleted, made_anew, *each("one-of-many-handles-wins-after-a-deletion")),
    of(ReadsNumbersAsFloats, large_numbers, *each("numbers-beside-the-list-come-back")),
    of(ShortCapitals, long_ids, "sessions-confusable-ids-stay-apart", "approvals-listing-gives-exact-ids"),
    of(WindowsMissABorder, long_windows, "sessions-windows-of-a-long-transcript-are-slices"),
    of(CloseCancelsCalls, closed_meanwhile, "sessions-close-answers-calls-under-way"),
)
