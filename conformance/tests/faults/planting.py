"""What planted stores are made of: a right journal to change one thing of, and what is known of each fault."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from perdure import AgentStore
from perdure.backend import Capabilities, Delete, Journal, JournalInfo, JournalSnapshot, Key, Part
from perdure.clock import SYSTEM_CLOCK, Clock
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure.contracts.ids import check_namespace
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions
from perdure_conformance.manual_clock import ManualClock
from perdure_conformance.parts import request
from perdure_conformance.target import Place, Target
from perdure_memory.journal import MemoryJournal
from perdure_memory.kept import Kept

MANY = 10**6
HEAD = CheckpointHead("in-progress")
IDLE = CheckpointHead("idle")


class Entries(MutableMapping[tuple[str, Key], Any]):
    """What a memory journal holds, as one mapping from namespace and key to what is kept of it."""

    def __init__(self, parts: MutableMapping[tuple[str, Part], Kept]) -> None:
        self.parts = parts

    def __getitem__(self, place: tuple[str, Key], /) -> Any:
        namespace, key = place
        return self.parts[namespace, key.part].entries[key.id]

    def __setitem__(self, place: tuple[str, Key], entry: Any, /) -> None:
        namespace, key = place
        self.parts[namespace, key.part].put(key.id, entry)

    def __delitem__(self, place: tuple[str, Key], /) -> None:
        namespace, key = place
        self.parts[namespace, key.part].remove(key.id)

    def __iter__(self) -> Iterator[tuple[str, Key]]:
        found = [(space, Key(part, name)) for (space, part), kept in self.parts.items() for name in kept.entries]
        return iter(found)

    def __len__(self) -> int:
        return sum(len(kept.entries) for kept in self.parts.values())


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

    def stored(self, key: Key) -> Any:
        """Return what the memory journal holds of a key, for a fault that changes it behind its back."""
        return self.entries[self.namespace, key]

    @property
    def entries(self) -> Entries:
        """What the memory journal holds, by namespace and key."""
        return Entries(self.inner._data.parts)


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
            self.inner._data.parts = pickle.loads(self.file.read_bytes())

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        self.writes += 1
        if self.writes % self.every == 0:
            self.save()
        return versions

    def save(self) -> None:
        fresh = self.file.with_name(f"fresh-{os.getpid()}")
        fresh.write_bytes(pickle.dumps(self.inner._data.parts))
        fresh.replace(self.file)

    async def close(self) -> None:
        if self.writes % self.every:
            self.save()
        await super().close()


# --- faults ---


@dataclass
class Scene:
    """Where a witness looks: one store at a fresh place, and whatever else it opens."""

    fault: Fault
    directory: Path
    number: int
    clock: ManualClock = field(default_factory=ManualClock)
    store: AgentStore = field(init=False)

    async def start(self) -> None:
        self.store = await self.open()

    def place(self, **changes: Any) -> Place:
        return replace(Place(f"scene{os.getpid()}n{self.number}", self.directory), **changes)

    async def open(self, **changes: Any) -> AgentStore:
        return await self.fault.open(self.place(**changes), self.clock)

    # What witnesses say in few words.

    async def records(self, session_id: str = "s1", **window: Any) -> Any:
        found = await self.store.sessions.load(session_id, **window)
        return None if found is None else list(found.records)

    async def entries(self, key: str = "s1") -> Any:
        found = await self.store.checkpoints.load(key)
        return None if found is None else (found.head, list(found.entries))

    async def append(self, *numbers: int, to: str = "s1", **options: Any) -> int:
        return await self.store.sessions.append(to, [{"n": number} for number in numbers], **options)

    async def turn(self, *entries: Any, to: str = "s1", head: CheckpointHead = HEAD, at: int | None = None) -> int:
        return await self.store.checkpoints.append(to, list(entries), expected_version=at, head=head)

    async def ask(self, call: int = 0, **changes: Any) -> Approval:
        return await self.store.approvals.create(request(f"s1.turn-1.s0.c{call}", **changes))

    async def ids(self, part: str = "sessions", **filters: Any) -> list[str]:
        page = await getattr(self.store, part).list(**filters)
        names = {"sessions": "session_id", "checkpoints": "key", "approvals": "id"}
        return [str(getattr(item, names[part])) for item in page.items]


Witness: TypeAlias = Callable[[Scene], Awaitable[Any]]


async def outcome(work: Awaitable[Any]) -> Any:
    """Return what a call answers, or the class of what it raises."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001  # reason: what it raises is what a witness shows
        return type(error).__name__


async def at_once(*calls: Awaitable[Any]) -> list[str]:
    """Await calls at once, and return what each came to, in short and sorted."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return sorted(type(one).__name__ if isinstance(one, BaseException) else "answered" for one in outcomes)


@dataclass(frozen=True)
class Fault:
    """A broken store, the laws of which each one catches it, and a few calls that show it.

    Attributes:
        name: Its name, for the fault.
        laws: Each of them catches it.
        witness: A few calls whose answer differs from that of a right store.
        journal: Its journal.
        sessions: Its session store.
        checkpoints: Its checkpoint store.
        approvals: Its approval store.
        bundle: Its bundle.
        closes: Whether closing does anything.
        options: What its target tells beside the opener, by the names of a target's attributes.
        hangs: Whether its laws are to be cut short, since it never answers.
        beside: The right journal to compare its witness with; `None`: the plain one.
    """

    name: str
    laws: tuple[str, ...]
    witness: Witness
    journal: type[Around] = Around
    sessions: type[JournalSessions] = JournalSessions
    checkpoints: type[JournalCheckpoints] = JournalCheckpoints
    approvals: type[JournalApprovals] = JournalApprovals
    bundle: type[AgentStore] = AgentStore
    closes: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    hangs: bool = False
    beside: type[Around] | None = None

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
        return self.bundle(
            sessions=sessions, checkpoints=checkpoints, approvals=approvals, clock=clock, closing=closing
        )

    def target(self) -> Target:
        durable = issubclass(self.journal, OnDisk)
        return Target(self.name, self.open, url=self.url if durable else None, **self.options)

    def right(self) -> Fault:
        """Return the right store beside it."""
        journal = self.beside or (OnDisk if issubclass(self.journal, OnDisk) else Around)
        return Fault("right", (), self.witness, journal)

    def url(self, place: Place) -> str:
        opener = Path(__file__).with_name("every.py")
        return f"python:{opener}:open_by_name:{self.name}|{place.name}|{place.directory}"

    async def open_elsewhere(self, place: str, directory: str) -> AgentStore:
        """Open it in another process."""
        return await self.open(Place(place, Path(directory)), SYSTEM_CLOCK)
