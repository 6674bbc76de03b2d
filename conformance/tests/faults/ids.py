"""Planted stores of the chapters on ids, errors and lifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from conformance.tests.faults.planting import HEAD, Around, Fault, Scene, outcome

from perdure import safe_id
from perdure.backend import (
    Append,
    Delete,
    Head,
    JournalInfo,
    JournalSnapshot,
    Key,
    Part,
)
from perdure.journal.stores import JournalSessions
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


class FiltersAllNamespaces(ListsNamespacesByPrefix):
    """A listing that goes by a status or a group has a query of its own, which forgets the namespace."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        if options["status"] is None and options["group"] is None:
            return await self.inner.scan(part, **options)
        found: list[JournalInfo] = []
        for name in self.opened[self.place.name]:
            found += await MemoryJournal(self.place.name, namespace=name).scan(part, **options)
        return found[: options["limit"]]


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
                for place in [place for place in self.entries if place[1] == operation.key]:
                    del self.entries[place]
        return versions


class WritesNamespaceByPrefix(Around):
    """Namespaces that begin alike are one."""

    def __init__(self, place: Place) -> None:
        super().__init__(replace(place, namespace=place.namespace[:3]))


class TakesAnyId(JournalSessions):
    """What is no id is made one, quietly."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        return await JournalSessions.load(self, safe_id(str(session_id).rstrip()), **window)

    async def append(self, session_id: str, records: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        return await JournalSessions.append(self, safe_id(str(session_id).rstrip()), records, **options)


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


async def namespaces(scene: Scene) -> Any:
    """What one namespace shows of another, and what a delete in it leaves there."""
    other = await scene.open(namespace="default2")
    await other.sessions.append("s1", [{"of": "other"}])
    await other.sessions.append("s2", [{"of": "other"}])
    seen, listed = await scene.records(), await scene.ids()
    await scene.store.sessions.delete("s2")
    return seen, listed, await other.sessions.load("s2") is None


async def filtered_namespaces(scene: Scene) -> Any:
    """What one namespace lists by a filter beside another one."""
    other = await scene.open(namespace="default2")
    await other.sessions.append("s1", [], scope="ann")
    await other.checkpoints.append("s1", [], expected_version=0, head=HEAD)
    return await scene.ids(scope="ann"), await scene.ids("checkpoints", status=HEAD.status)


async def reading(scene: Scene) -> Any:
    return await outcome(scene.records()), await scene.ids()


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_sessions(sessions: type[JournalSessions], witness: Any, *laws: str) -> Fault:
    return Fault(sessions.__name__, laws, witness, sessions=sessions)


FAULTS = (
    of(FoldsCase, alike, "sessions-confusable-ids-stay-apart", "approvals-confusable-ids-stay-apart"),
    of_sessions(TakesAnyId, bad_ids, "sessions-bad-ids-are-refused"),
    of(CutsIds, alike, "sessions-confusable-ids-stay-apart"),
    of(UnderscoreIsAnyCharacter, alike, "sessions-confusable-ids-stay-apart"),
    of(LeadingZerosLost, alike, "sessions-confusable-ids-stay-apart"),
    of(ListsLowerIds, alike, "sessions-listing-gives-exact-ids"),
    of(DeletesByPrefix, alike, "sessions-delete-removes-one-id", "checkpoints-delete-removes-one-id"),
    of(ReadingCreates, reading, "sessions-reading-creates-nothing"),
    of(SharesAllNamespaces, namespaces, "sessions-namespaces-share-no-key", "prune-stays-in-its-namespace"),
    of(WritesNamespaceByPrefix, namespaces, "sessions-namespaces-share-no-key"),
    of(ListsNamespacesByPrefix, namespaces, "sessions-namespaces-list-their-own"),
    of(
        FiltersAllNamespaces,
        filtered_namespaces,
        *(f"{part}-namespaces-list-their-own" for part in ("sessions", "checkpoints", "approvals")),
    ),
    of(DeletesAllNamespaces, namespaces, "sessions-namespaces-delete-their-own", "prune-stays-in-its-namespace"),
)
