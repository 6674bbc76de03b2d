"""Planted stores whose files are torn by a write that was cut in the middle: of one line too much, too little or all is read."""

from __future__ import annotations

import os
import pickle
from base64 import b64decode, b64encode
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any
from zlib import crc32

from conformance.tests.faults.planting import HEAD, IDLE, Around, Fault, OnDisk, Scene, outcome

from perdure import codec
from perdure.backend import Append, Capabilities, Delete, Key, OutcomeUnknownError, Part, Replace, StoreCorruptedError
from perdure.contracts.checkpoints import CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure_conformance.target import Place


class Lines(OnDisk):
    """A right journal of one process at a time: a file to which each write adds a line with a check of it."""

    capabilities = Capabilities(durable=True, atomic=True)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.end = 0

    async def open(self) -> None:
        if self.file.exists():
            self.read_lines(self.file.read_bytes().splitlines(keepends=True))

    def read_lines(self, lines: Sequence[bytes]) -> None:
        """Take what is whole; what follows is a torn write, which the next one cuts off."""
        for line in lines:
            if not self.take(line):
                break
            self.end += len(line)

    def take(self, line: bytes) -> bool:
        text, _, check = line.rpartition(b" ")
        if check != b"%08x\n" % crc32(text):
            return False
        for place, entry in pickle.loads(b64decode(text)):
            self.entries.pop(place, None)
            if entry is not None:
                self.entries[place] = entry
        return True

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await Around.write(self, operations)
        self.add(b"".join(self.lines(operations)))
        return versions

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        return [self.line(*(self.kept(operation.key) for operation in operations))]

    def kept(self, key: Key) -> tuple[Any, Any]:
        place = (self.namespace, key)
        return place, self.entries.get(place)

    def line(self, *kept: tuple[Any, Any]) -> bytes:
        text = b64encode(pickle.dumps(kept))
        return b"%s %08x\n" % (text, crc32(text))

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as file:
            file.truncate(self.end)
            file.write(data)
        self.end += len(data)


class AppendsBehindATornLine(Lines):
    """The next line is fused with the torn one, and lost with it."""

    def read_lines(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self.take(line)

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(data)


class TornLineEndsTheLog(Lines):
    """Writes go on in a line of their own, and no opening reads them."""

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(b"\n" + data if file.tell() > self.end else data)
        self.end = self.file.stat().st_size


class TornLineIsDamage(Lines):
    """A torn line is refused as damage, by each opening."""

    def read_lines(self, lines: Sequence[bytes]) -> None:
        super().read_lines(lines)
        if self.end < sum(map(len, lines)):
            raise StoreCorruptedError("data", "a line is torn")


class RecordsAreLines(Lines):
    """A batch is written at once, a line for each of its records; the first lines of a torn batch are read."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        if len(operations) > 1 or not isinstance(operations[0], Append) or not operations[0].items:
            return super().lines(operations)
        place, entry = self.kept(operations[0].key)
        before = len(entry.items) - len(operations[0].items)
        return [self.line((place, shortened(entry, count))) for count in range(before + 1, len(entry.items) + 1)]


def shortened(entry: Any, count: int) -> Any:
    """Return an entry with its first items only."""
    short = copy(entry)
    short.items = entry.items[:count]
    return short


class ReplaceOverwrites(Lines):
    """A replace begins the file anew where it is, in one write."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        if not isinstance(operations[0], Replace):
            return await super().write(operations)
        versions = await Around.write(self, operations)
        data = self.line(*self.entries.items())
        with self.file.open("r+b") as file:
            file.write(data)
            file.truncate()
        self.end = len(data)
        return versions


class KnowsWhatWas(Lines):
    """A right journal that knows, when it makes the lines of a write, what the key held before."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        place, entry = self.kept(operations[0].key)
        self.before = place, entry and shortened(entry, len(entry.items))
        return await super().write(operations)


class EmptiesBeforeItDeletes(KnowsWhatWas):
    """A deletion is written at once, a line that empties the key and one that removes it; the first alone leaves it there."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        whole, (place, entry) = super().lines(operations), self.before
        if entry is None or not isinstance(operations[0], Delete):
            return whole
        return [self.line((place, shortened(entry, 0))), *whole]


class HeadBeforeItsEntries(Lines):
    """An append to a turn journal is written at once, a line with the head alone and one with both; the first alone is read."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        whole, (place, entry) = super().lines(operations), self.kept(operations[0].key)
        if operations[0].key.part != Part.RUNS or not isinstance(operations[0], Append):
            return whole
        before = len(entry.items) - len(operations[0].items)
        return [self.line((place, shortened(entry, before))), *whole]


class ClosesBeforeItEmpties(KnowsWhatWas):
    """A turn is closed at once, by a line with the new head and one without the entries; the first alone leaves them there."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        whole, (place, entry) = super().lines(operations), self.kept(operations[0].key)
        if operations[0].key.part != Part.RUNS or not isinstance(operations[0], Replace):
            return whole
        closed = copy(entry)
        closed.items = self.before[1].items
        return [self.line((place, closed)), *whole]


class DecisionInTwoLines(Lines):
    """A decision is written at once, without its note and then with it; the first line alone is read as a decision."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        whole = super().lines(operations)
        place, entry = self.kept(operations[0].key)
        if operations[0].key.part != Part.APPROVALS or entry is None or entry.head.status == "pending":
            return whole
        half = copy(entry)
        told = codec.decode(entry.head.data)
        told["decision"]["note"] = None
        half.head = replace(entry.head, data=codec.encode(told))
        return [self.line((place, half)), *whole]


class BothInTwoLines(Lines):
    """A session and its turn journal are written at once, a line for each."""

    def lines(self, operations: Sequence[Any]) -> Sequence[bytes]:
        return [self.line(self.kept(operation.key)) for operation in operations]


class TakesAShortWrite(Lines):
    """How much of a write the system took is not looked at."""

    def add(self, data: bytes) -> None:
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(file, self.end)
        os.pwrite(file, data, self.end)
        os.close(file)
        self.end += len(data)


class TellsOfAShortWrite(Lines):
    """A right store that asks how much of a write was taken, writes no more, and tells."""

    def add(self, data: bytes) -> None:
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(file, self.end)
        written = os.pwrite(file, data, self.end)
        os.close(file)
        if written < len(data):
            raise OutcomeUnknownError("write", "data", "the disk is full")
        self.end += written


# --- witnesses ---


async def last_byte_lost(scene: Scene) -> Any:
    """What is found when the last byte of a write is lost, for some writes, and whether the next two are there then."""
    seen: list[Any] = []

    async def look() -> None:
        scene.store = await scene.open()
        turn, asked = await scene.entries("s2"), await scene.store.approvals.get("s1.turn-1.s0.c0")
        seen.append((await scene.records(), await scene.records("s2"), turn and turn[1], asked and asked.decision))

    async def lose() -> None:
        file = scene.place().directory / "data"
        file.write_bytes(file.read_bytes()[:-1])
        await look()
        for number in (8, 9):
            await scene.append(number)
            await look()

    await scene.append(1, 2)
    await lose()
    await scene.append(3, 4, 5)
    await lose()
    await scene.ask()
    await scene.store.approvals.decide("s1.turn-1.s0.c0", approved=True, note="n", decided_by="ann")
    await lose()
    version = await scene.turn({"a": 1}, to="s2", at=0)
    await scene.store.write(SessionAppend("s2", [{"n": 1}], 0), CheckpointReplace("s2", [], IDLE, version))
    await lose()
    return repr(seen)


async def torn(scene: Scene) -> None:
    """Lose the last byte of what was written last, and open the store again."""
    file = scene.place().directory / "data"
    file.write_bytes(file.read_bytes()[:-1])
    scene.store = await scene.open()


async def torn_delete(scene: Scene) -> Any:
    """What is found when the last byte of a deletion is lost."""
    await scene.append(1, 2)
    await scene.store.sessions.delete("s1")
    await torn(scene)
    return await scene.records()


async def torn_turn(scene: Scene) -> Any:
    """What is found when the last byte is lost of what goes on with a turn, and of what closes it."""
    version = await scene.turn({"n": 1}, at=0)
    await scene.turn({"n": 2}, at=version, head=replace(HEAD, attempts=2))
    await torn(scene)
    went_on = await scene.entries()
    await scene.store.checkpoints.replace("s1", [], expected_version=None, head=IDLE)
    await torn(scene)
    return repr((went_on, await scene.entries()))


async def what_was_there(scene: Scene) -> Any:
    """Whether a replace leaves the bytes alone that were in the file."""
    await scene.append(1)
    file = scene.place().directory / "data"
    before = file.read_bytes()
    await scene.store.sessions.replace("s1", [{"new": 1}], expected_version=None)
    return file.read_bytes().startswith(before)


async def on_a_full_disk(scene: Scene) -> Any:
    """What a write comes to of which the system takes the first bytes only."""
    import resource

    await scene.append(1)
    file = scene.place().directory / "data"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 9, before[1]))
    try:
        return isinstance(await outcome(scene.append(2)), str)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def of(journal: type[Lines], law: str, witness: Any = last_byte_lost) -> Fault:
    return Fault(journal.__name__, (law,), witness, journal, beside=Lines)


APPEND = "sessions-append-survives-torn-write"
REPLACE = "sessions-replace-survives-torn-write"
DELETE = "sessions-delete-survives-torn-write"
TURN = "checkpoints-turn-survives-torn-write"
DECISION = "approvals-decision-survives-torn-write"
BOTH = "atomic-write-survives-torn-write"
FAULTS = (
    of(AppendsBehindATornLine, APPEND),
    of(TornLineEndsTheLog, APPEND),
    of(TornLineIsDamage, APPEND),
    of(RecordsAreLines, APPEND),
    of(TakesAShortWrite, APPEND, on_a_full_disk),
    of(ReplaceOverwrites, REPLACE, what_was_there),
    of(EmptiesBeforeItDeletes, DELETE, torn_delete),
    of(HeadBeforeItsEntries, TURN, torn_turn),
    of(ClosesBeforeItEmpties, TURN, torn_turn),
    of(DecisionInTwoLines, DECISION),
    of(BothInTwoLines, BOTH),
)
RIGHT = (
    Fault("Lines", (APPEND, REPLACE, DELETE, TURN, DECISION, BOTH), last_byte_lost, Lines),
    Fault("TellsOfAShortWrite", (APPEND,), last_byte_lost, TellsOfAShortWrite),
)
"""The right store beside them, and one that lives on when a write is cut, with laws that are about them."""
