"""Planted stores that keep locks, and that mix up what is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure.backend import (
    JournalInfo,
    JournalSnapshot,
    Key,
    Part,
)
from perdure_conformance.target import Place


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


class LockKeptAfterARead(Around):
    """A read takes the lock, and gives it back only when it found something."""

    locked: ClassVar[set[str]] = set()

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        if found is None and key.part != Part.APPROVALS:
            self.locked.add(self.place.name)
        else:
            self.locked.discard(self.place.name)
        return found

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        if self.place.name in self.locked:
            await asyncio.Event().wait()
        return await super().write(operations)


class LockKeptBetweenPages(Around):
    """A page that is not the last keeps the lock."""

    locked: ClassVar[set[str]] = set()

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        if len(found) == options["limit"]:
            self.locked.add(self.place.name)
        else:
            self.locked.discard(self.place.name)
        return found

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        if self.place.name in self.locked:
            await asyncio.Event().wait()
        return await super().write(operations)


async def slowly(call: Coroutine[Any, Any, Any]) -> Any:
    """Make a call after some turns of the event loop, as one that goes to another thread or host."""
    for _ in range(30):
        await asyncio.sleep(0)
    return await call


async def to_its_end(call: Coroutine[Any, Any, Any]) -> Any:
    """Make a call to its end, whoever is cancelled meanwhile, and keep to oneself that one was."""
    task = asyncio.ensure_future(slowly(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


class FinishesCancelledWrites(Around):
    """A write that is cancelled is made, and answers as if it had not been."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions: tuple[int, ...] = await to_its_end(super().write(operations))
        return versions


class AnswersCancelledReads(Around):
    """A read that is cancelled answers as if it had not been."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found: JournalSnapshot | None = await to_its_end(super().read(key, **window))
        return found


class AnswersCancelledListings(Around):
    """A listing that is cancelled answers as if it had not been."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found: Sequence[JournalInfo] = await to_its_end(super().scan(part, **options))
        return found


async def cancelled_at_once(scene: Scene) -> Any:
    """What calls come to that are cancelled after one turn, and are not over by then."""
    await scene.append(1)
    tasks = [asyncio.ensure_future(work) for work in (scene.append(2), scene.records(), scene.ids())]
    await asyncio.sleep(0)
    under_way = [task for task in tasks if task.cancel()]
    return {type(end).__name__ for end in await asyncio.gather(*under_way, return_exceptions=True)} - {"CancelledError"}


async def cancelled(scene: Scene) -> Any:
    """What cancelled calls leave, and what the next calls get."""
    await scene.append(1)
    await scene.append(9, to="s2")
    seen = []
    for steps in range(3):
        for work in (scene.append(2, 3), scene.store.sessions.load("s2"), scene.store.sessions.delete("s2")):
            task = asyncio.ensure_future(work)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            seen.append(steps == 1 and not isinstance(ended, asyncio.CancelledError))
            seen.append((await scene.records("s2")) in ([{"n": 9}], None))
            seen.append(await scene.records() is not None)
    await asyncio.wait_for(scene.append(4), 0.5)
    return seen


async def absent_then_written(scene: Scene) -> Any:
    await scene.records("absent")
    return await outcome(asyncio.wait_for(scene.append(1), 0.3)) != "TimeoutError"


async def written_between_pages(scene: Scene) -> Any:
    for name in "abc":
        await scene.append(1, to=name)
    await scene.store.sessions.list(limit=1)
    return await outcome(asyncio.wait_for(scene.append(1), 0.3)) != "TimeoutError"


def of(journal: type[Around], witness: Any, *laws: str, **more: Any) -> Fault:
    return Fault(journal.__name__, laws, witness, journal, **more)


def each(law: str) -> tuple[str, ...]:
    return tuple(f"{part}-{law}" for part in ("sessions", "checkpoints", "approvals"))


FAULTS = (
    of(FinishesCancelledWrites, cancelled_at_once, *each("cancelled-call-raises")),
    of(AnswersCancelledReads, cancelled_at_once, *each("cancelled-call-raises")),
    of(AnswersCancelledListings, cancelled_at_once, *each("cancelled-call-raises")),
    of(CancelledKeepsLock, cancelled, "sessions-cancelled-call-holds-no-lock", hangs=True),
    of(RepliesShift, cancelled, "sessions-answers-stay-with-their-calls"),
    of(LockKeptAfterARead, absent_then_written, "sessions-reading-creates-nothing", hangs=True),
    of(LockKeptBetweenPages, written_between_pages, "sessions-listing-holds-no-lock", hangs=True),
)
