"""Planted stores whose failures do not tell the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.tests.faults.ids import reading
from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure.backend import (
    Append,
    Page,
    StoreUnavailableError,
    VersionConflictError,
)
from perdure.journal.stores import JournalSessions
from perdure_conformance.target import Place


class ForeignErrorEscapes(JournalSessions):
    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalSessions.load(self, session_id, **window)
        if found is None:
            raise KeyError(session_id)
        return found


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


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_sessions(sessions: type[JournalSessions], witness: Any, *laws: str) -> Fault:
    return Fault(sessions.__name__, laws, witness, sessions=sessions)


FAULTS = (
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
)
