"""Planted stores that are right while things are small: they differ in large records, in large states and in long lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from conformance.tests.faults.planting import Around, Fault, Scene

from perdure.backend import Append, Delete, JournalSnapshot, Key, Replace

INLINE = 65_536
"""How long an item may be to stay in its row."""


class Elsewhere(Around):
    """A right journal that keeps large items in another place, by what is unique of them."""

    kept: ClassVar[dict[tuple[str, tuple[Any, ...]], bytes]] = {}

    def name(self, key: Key, index: int) -> tuple[Any, ...]:
        return self.namespace, key, index

    def put(self, name: tuple[Any, ...], item: bytes) -> None:
        self.kept[self.place.name, name] = item

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Delete):
                first = len(self.stored(operation.key).items) - len(operation.items)
                for index, item in enumerate(operation.items, first):
                    if len(item) > INLINE:
                        self.put(self.name(operation.key, index), item)
        return versions

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, items=[self.whole(key, *one) for one in enumerate(found.items, found.start)])

    def whole(self, key: Key, index: int, item: bytes) -> bytes:
        return self.kept.get((self.place.name, self.name(key, index)), b"{}") if len(item) > INLINE else item


class LargeOfAllNamespaces(Elsewhere):
    """The name of a large item leaves out the namespace."""

    def name(self, key: Key, index: int) -> tuple[Any, ...]:
        return key, index


class LargeOfAllParts(Elsewhere):
    """The name of a large item leaves out the part."""

    def name(self, key: Key, index: int) -> tuple[Any, ...]:
        return self.namespace, key.id, index


class OneLargeOfAKey(Elsewhere):
    """The name of a large item leaves out its index."""

    def name(self, key: Key, index: int) -> tuple[Any, ...]:
        return self.namespace, key


class LargeStaysAsItWas(Elsewhere):
    """A large item is put only where none is."""

    def put(self, name: tuple[Any, ...], item: bytes) -> None:
        self.kept.setdefault((self.place.name, name), item)


class LargeDeletedByPrefix(Elsewhere):
    """A delete removes all large items whose names begin like those of the key."""

    def name(self, key: Key, index: int) -> tuple[Any, ...]:
        return self.namespace, key.id, key.part, index

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if isinstance(operation, Delete):
                for place, name in [*self.kept]:
                    if (place, name[0]) == (self.place.name, self.namespace) and name[1].startswith(operation.key.id):
                        del self.kept[place, name]
        return versions


class LargeHeadsAreLost(Around):
    """A head that is too large for its column is left out of the write."""

    def change(self, operation: Any) -> Any:
        if isinstance(operation, Delete) or len(operation.head.data or b"") <= INLINE:
            return operation
        return replace(operation, head=replace(operation.head, data=None))


class ReplacesKeepWholeBlocks(Around):
    """Items are kept in blocks of 64, and a replace removes those that are behind what it keeps."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace):
            return operation
        entry = self.entries.get((self.namespace, operation.key))
        if entry is None or operation.keep > len(entry.items):
            return operation
        return replace(operation, keep=min(-(-operation.keep // 64) * 64, len(entry.items)))


class RemovesAThousand(Around):
    """One statement removes at most a thousand items, be it of a replace or of a delete, and nobody repeats it."""

    orphans: ClassVar[dict[tuple[str, str, Key], Sequence[bytes]]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        left = {one.key: await self.behind(one) for one in operations}
        versions = await super().write(operations)
        for key, items in left.items():
            entry = self.entries.get((self.namespace, key))
            if entry:
                entry.items += [*items, *self.orphans.pop((self.place.name, self.namespace, key), ())]
            else:
                self.orphans[self.place.name, self.namespace, key] = items
        return versions

    async def behind(self, operation: Any) -> Sequence[bytes]:
        if isinstance(operation, Append):
            return ()
        kept = operation.keep if isinstance(operation, Replace) else 0
        found = await self.inner.read(operation.key, after=kept + 1000)
        return () if found is None else found.items


# --- witnesses ---

LARGE = "x" * INLINE


async def large_ones(scene: Scene) -> Any:
    """Where a large record stays, beside those of another key, part, index and namespace, and in the place of one."""
    sessions, seen = scene.store.sessions, list[Any]()
    other = await scene.open(namespace="other")
    await sessions.append("s1", [{"n": 1, "text": LARGE}, {"n": 2, "text": LARGE}])
    await sessions.append("s10", [{"n": 3, "text": LARGE}])
    for _ in range(2):
        seen.append([record.get("n") for record in await scene.records()])
        await scene.turn({"n": 4, "text": LARGE})
        await other.sessions.append("s1", [{"n": 5, "text": LARGE}])
    await sessions.replace("s1", [{"n": 6, "text": LARGE}], expected_version=None)
    seen.append([record.get("n") for record in await scene.records()])
    await sessions.delete("s1")
    return *seen, [record.get("n") for record in await scene.records("s10")]


async def large_state(scene: Scene) -> Any:
    await scene.append(1, state={"text": LARGE})
    found = await scene.store.sessions.load("s1")
    return found and len(found.state)


async def long_list(scene: Scene) -> Any:
    """The counts after a replace that keeps some, and then others, of many, and after a delete."""
    sessions, counts = scene.store.sessions, list[int]()
    for keep in (100, 1):
        await scene.append(*range(1200))
        await sessions.replace("s1", [], keep=keep, expected_version=None)
        counts.append(len(await scene.records()))
    await scene.append(*range(1200))
    await sessions.delete("s1")
    await scene.append(1)
    return *counts, len(await scene.records())


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def lists(law: str) -> tuple[str, str]:
    return f"sessions-{law}", f"checkpoints-{law}"


FAULTS = (
    of(LargeOfAllNamespaces, large_ones, *lists("namespaces-write-their-own")),
    of(LargeOfAllParts, large_ones, "parts-of-one-id-are-listed-apart"),
    of(OneLargeOfAKey, large_ones, *lists("long-text-comes-back")),
    of(LargeStaysAsItWas, large_ones, *lists("long-text-comes-back")),
    of(LargeDeletedByPrefix, large_ones, *lists("delete-removes-one-id")),
    of(LargeHeadsAreLost, large_state, "sessions-state-is-replaced-whole", "checkpoints-head-is-replaced-whole"),
    of(ReplacesKeepWholeBlocks, long_list, "sessions-replace-keeps-the-first"),
    of(RemovesAThousand, long_list, "sessions-replace-keeps-the-first", "sessions-delete-leaves-nothing"),
)
