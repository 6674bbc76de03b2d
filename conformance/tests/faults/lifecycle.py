"""Planted stores that close, leak and declare wrongly."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure import AgentStore
from perdure.backend import (
    Capabilities,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from perdure.journal.stores import JournalApprovals, JournalSessions
from perdure_memory.journal import MemoryJournal


class DeclaresWhatItCannot(JournalSessions):
    async def _replace(self, *_: Any, **__: Any) -> int:
        raise UnsupportedOperationError(self.title, "replace")


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


class HangsInASecondLoop(JournalSessions):
    """A call from another event loop waits for ever."""

    async def load(self, session_id: str, **window: Any) -> Any:  # type: ignore[misc]  # reason: the fault
        if self._home is not None and self._home[1] is not asyncio.get_running_loop():
            await asyncio.Event().wait()
        return await JournalSessions.load(self, session_id, **window)


async def from_another_loop(scene: Scene) -> Any:
    """What a call from another loop comes to."""
    await scene.records()
    asking = asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(_asked(scene))), 5)
    return await outcome(asking)


async def _asked(scene: Scene) -> str:
    return str(await outcome(asyncio.wait_for(scene.store.sessions.load("s1"), 0.2)))


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
    of_sessions(HangsInASecondLoop, from_another_loop, "sessions-other-loop-is-refused"),
    Fault("SecondCloseRaises", ("sessions-close-twice-is-fine",), closing, bundle=SecondCloseRaises),
    of(ClosesAllHandles, closing, "sessions-closing-one-handle-leaves-the-other"),
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
    Fault(
        "CloseDoesNothing", ("sessions-closed-store-refuses", "approvals-close-ends-all-parts"), closing, closes=False
    ),
)
