"""Planted stores behind a server that can be killed: what they acknowledged, or told of a call under way, is not so."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from conformance.tests.faults.planting import Around, Entries, Fault, Scene, outcome

from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    JournalInfo,
    JournalSnapshot,
    Key,
    OutcomeUnknownError,
    Part,
    Replace,
    StoreUnavailableError,
)
from perdure_conformance.target import Place
from perdure_memory.journal import MemoryJournal
from perdure_memory.kept import Kept

STEPS = 8
"""How many steps of the event loop an answer is under way at most, the first one: each takes another time."""


class Server:
    """A server in this process: what it has in memory is gone when it is killed, what it saved is not."""

    def __init__(self) -> None:
        self.data: defaultdict[tuple[str, Part], Kept] = defaultdict(Kept)
        self.saved = pickle.dumps(self.data)
        self.life = 0
        self.writes = 0
        self.lock = threading.Lock()
        self.unsaved: dict[Any, int] = {}

    def save(self) -> None:
        """Save all, but for so many of the last items of a key as are `unsaved`: none, unless there is a fault."""
        saved = pickle.loads(pickle.dumps(self.data)) if self.unsaved else self.data
        for key, count in self.unsaved.items():
            del Entries(saved)[key].items[-count:]
        self.saved = pickle.dumps(saved)

    def kill(self) -> None:
        """Die and start again, in whatever thread."""
        with self.lock:
            self.data = pickle.loads(self.saved)
            self.unsaved.clear()
            self.life += 1


SERVERS: dict[str, Server] = {}


class Served(Around):
    """A right journal: its server saves before it acknowledges, and its client tells what it does not know."""

    capabilities = Capabilities(durable=True)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.inner = MemoryJournal(namespace=place.namespace)
        self.server = SERVERS.setdefault(place.name, Server())
        self.life = self.server.life

    def connect(self) -> None:
        """See, before anything is sent, that the connection is lost, and make a new one."""
        self.life = self.server.life

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """What the server does in one piece."""
        with self.server.lock:
            self.inner._data.parts = self.server.data
            yield

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        self.connect()
        with self.serving():
            return await self.inner.read(key, **window)

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        self.connect()
        with self.serving():
            return await self.inner.scan(part, **options)

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.connect()
        life = self.life
        await asyncio.sleep(0)
        versions = await self.apply(operations, life)
        self.server.writes += 1
        for _ in range(STEPS - self.server.writes % STEPS):
            await asyncio.sleep(0)
        if self.server.life != life:
            return await self.lost(operations)
        return versions

    async def apply(self, operations: Sequence[Any], life: int) -> tuple[int, ...]:
        """Serve a request, unless the server that it was sent to is dead."""
        with self.serving():
            if self.server.life != life:
                return ()
            versions = await self.inner.write(operations)
            self.save(operations)
            return versions

    def save(self, operations: Sequence[Any]) -> None:
        self.server.save()

    async def lost(self, operations: Sequence[Any]) -> tuple[int, ...]:
        """What becomes of a call whose answer never comes."""
        raise OutcomeUnknownError("write", operations[0].key.id, "the connection was lost")


class AcknowledgesFromABuffer(Served):
    """The server saves every fourth write."""

    def save(self, operations: Sequence[Any]) -> None:
        if self.server.writes % 4 == 3:
            self.server.save()


class DeletedComesBack(Served):
    """The server keeps in memory what was deleted."""

    def save(self, operations: Sequence[Any]) -> None:
        if not isinstance(operations[0], Delete):
            self.server.save()


class ReplacedComesBack(Served):
    """The server keeps in memory what was replaced."""

    def save(self, operations: Sequence[Any]) -> None:
        if not isinstance(operations[0], Replace):
            self.server.save()


class VersionsLiveInTheServer(Served):
    """The server counts versions in memory, from one on."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        self.recount()
        return await super().read(key, **window)

    async def apply(self, operations: Sequence[Any], life: int) -> tuple[int, ...]:
        self.recount()
        return await super().apply(operations, life)

    def recount(self) -> None:
        with self.serving():
            if getattr(self.server, "counted", 0) != self.server.life:
                self.server.counted = self.server.life  # type: ignore[attr-defined]  # reason: the fault's own mark
                for entry in self.entries.values():
                    entry.version = 1


class HeadsAreSavedLater(Served):
    """The head of a turn journal is saved with the next write."""

    def save(self, operations: Sequence[Any]) -> None:
        key = (self.namespace, operations[0].key)
        entry = self.entries.get(key)
        before = Entries(pickle.loads(self.server.saved)).get(key)
        if entry is None or before is None or operations[0].key.part != Part.RUNS:
            return self.server.save()
        head, entry.head = entry.head, before.head
        self.server.save()
        entry.head = head
        return None


class DecisionsStayInMemory(Served):
    """The server saves requests, and no decision."""

    def save(self, operations: Sequence[Any]) -> None:
        if operations[0].key.part != Part.APPROVALS or operations[0].expected_version == 0:
            self.server.save()


class SendsAgain(Served):
    """A call whose answer does not come is sent once more, whatever became of it."""

    async def lost(self, operations: Sequence[Any]) -> tuple[int, ...]:
        return await self.write(operations)


class LostIsUnavailable(Served):
    """A call whose answer does not come is told as one that was not served."""

    async def lost(self, operations: Sequence[Any]) -> tuple[int, ...]:
        raise StoreUnavailableError("write", operations[0].key.id, "the connection was lost")


class TornByAKill(Served):
    """The server saves the first record of a batch, and the others with what it saves next of that key."""

    async def apply(self, operations: Sequence[Any], life: int) -> tuple[int, ...]:
        versions = await super().apply(operations, life)
        for _ in range(STEPS):
            await asyncio.sleep(0)
        with self.serving():
            if self.server.life == life:
                self.server.unsaved.pop((self.namespace, operations[0].key), None)
                self.server.save()
        return versions

    def save(self, operations: Sequence[Any]) -> None:
        (operation,) = operations
        if isinstance(operation, Append) and len(operation.items) > 1:
            self.server.unsaved[self.namespace, operation.key] = len(operation.items) - 1
        self.server.save()


class StaysDisconnected(Served):
    """A client that lost its connection makes no new one."""

    def connect(self) -> None:
        if self.server.life != self.life:
            raise StoreUnavailableError("read", "any", "the connection was lost")


class AbsentWhenDisconnected(Served):
    """A read on a lost connection answers that there is nothing."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        lost = self.server.life != self.life
        found = await super().read(key, **window)
        return None if lost else found


def kill_server(place: Place) -> None:
    """Kill the server of a place."""
    SERVERS[place.name].kill()


# --- witnesses ---


async def killed_behind_each(scene: Scene) -> Any:
    """What is there after each of several writes, when the server was killed behind it."""
    seen: list[Any] = []

    async def look() -> None:
        kill_server(scene.place())
        turn = await scene.entries()
        asked = await scene.store.approvals.get("s1.turn-1.s0.c0")
        seen.append((await scene.records(), turn and (turn[0].attempts, turn[1]), asked and asked.status))

    version = await scene.append(1, 2)
    await look()
    seen.append(await outcome(scene.append(expected_version=version)) == version + 1)
    await scene.store.sessions.replace("s1", [{"new": 1}], expected_version=None)
    await look()
    await scene.turn({"a": 1}, at=0)
    found = await scene.store.checkpoints.load("s1")
    assert found is not None
    await scene.turn({"b": 1}, head=replace(found.head, attempts=7))
    await look()
    await scene.ask()
    await scene.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    await look()
    await scene.store.sessions.delete("s1")
    await look()
    return seen


async def killed_under_a_write(scene: Scene) -> Any:
    """What a write is told, and what is there, for a kill at each step of it."""
    seen = []
    for step in range(STEPS + 4):
        write = asyncio.create_task(outcome(scene.append(step, step, step)))
        for _ in range(step):
            await asyncio.sleep(0)
        kill_server(scene.place())
        told = await write
        seen.append((isinstance(told, int) or told, len(await scene.records() or ())))
    return seen


async def used_again(scene: Scene) -> Any:
    """What a client reads that was open when its server was killed."""
    await scene.append(1)
    kill_server(scene.place())
    return await outcome(scene.records()), await outcome(scene.records())


def of(journal: type[Served], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal, options={"kill_server": kill_server}, beside=Served)


FAULTS = (
    of(AcknowledgesFromABuffer, killed_behind_each, "sessions-append-survives-server-kill"),
    of(VersionsLiveInTheServer, killed_behind_each, "sessions-append-survives-server-kill"),
    of(ReplacedComesBack, killed_behind_each, "sessions-replace-survives-server-kill"),
    of(DeletedComesBack, killed_behind_each, "sessions-delete-survives-server-kill"),
    of(HeadsAreSavedLater, killed_behind_each, "checkpoints-turn-survives-server-kill"),
    of(DecisionsStayInMemory, killed_behind_each, "approvals-decision-survives-server-kill"),
    of(
        SendsAgain,
        killed_under_a_write,
        "sessions-answers-hold-through-server-kill",
        "checkpoints-answers-hold-through-server-kill",
    ),
    of(LostIsUnavailable, killed_under_a_write, "sessions-answers-hold-through-server-kill"),
    of(TornByAKill, killed_under_a_write, "sessions-answers-hold-through-server-kill"),
    of(StaysDisconnected, used_again, "sessions-client-outlives-server-kill"),
    of(AbsentWhenDisconnected, used_again, "sessions-client-outlives-server-kill"),
)
RIGHT = Fault(
    "Served",
    tuple(dict.fromkeys(law for one in FAULTS for law in one.laws)),
    killed_behind_each,
    Served,
    options={"kill_server": kill_server},
)
"""The right store beside them, with all laws that are about it."""
