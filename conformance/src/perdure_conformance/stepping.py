"""A "process" that goes on only when it is told to: one store call at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.backend import Journal

COUNTED: Final = ("read", "write", "scan")
PATIENCE: Final = 30.0
"""After how many seconds a process that neither calls its store nor ends is taken for stuck; nothing waits for it else."""


class SteppedProcess:
    """One coroutine over a journal of its own, stopped before each of its store calls.

    Attributes:
        name: What messages call it.
        journal: The process's way to the data.
        calls: The calls that it has made or stands before.
    """

    def __init__(
        self, name: str, inner: Journal, *, atomic: bool | None = None, counted: tuple[str, ...] = COUNTED
    ) -> None:
        """Make a process over a backend's journal.

        Args:
            name: What messages call it.
            inner: The backend's journal, or a wrapper of it.
            atomic: Declare `atomic` or not; `None`: as the backend does.
            counted: Before which kinds of calls it stops.
        """
        self.name = name
        self.interception = Interception(counted=counted, before=self._stop)
        self.journal = InterceptedJournal(inner, self.interception, atomic=atomic)
        self._free = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls so far, the one that it stands before included."""
        return self.interception.calls

    @property
    def ended(self) -> bool:
        """Whether its program has returned, raised or died."""
        return self._task is not None and self._task.done()

    @property
    def died(self) -> bool:
        """Whether it was killed."""
        return self.interception.dead

    async def start(self, program: Coroutine[Any, Any, Any]) -> None:
        """Begin the program, and go on up to its first call."""
        self._task = asyncio.create_task(program)
        self._task.add_done_callback(self._end)
        await self._arrive()

    async def step(self) -> None:
        """Make the call that it stands before, and go on up to the next one or to the end."""
        self._moved.clear()
        self._release()
        await self._arrive()

    async def until(self, number: int) -> bool:
        """Go on until it stands before its call of this number, from 1; False if it ends sooner."""
        while not self.ended and len(self.calls) < number:
            await self.step()
        return not self.ended

    async def finish(self) -> Any:
        """Go on to the end without stopping; return what the program returns, raise what it raises."""
        self._free = True
        while self._waiting:
            self._release()
        return await self._program()

    async def kill(self) -> None:
        """Kill it where it stands: it makes no call any more."""
        self.interception.dead = self._free = True
        while self._waiting:
            self._release()
        await asyncio.wait([self._program()], timeout=PATIENCE)

    def outcome(self) -> Any:
        """Return what the ended program returned, or the exception that it raised."""
        task = self._program()
        if task.cancelled():
            return asyncio.CancelledError()
        error = task.exception()
        return task.result() if error is None else error

    async def _stop(self, _: Call) -> None:
        if self._free:
            return
        gate = asyncio.get_running_loop().create_future()
        self._waiting.append(gate)
        self._moved.set()
        try:
            await gate
        finally:
            if gate in self._waiting:
                self._waiting.remove(gate)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._moved.set()
        if not task.cancelled():
            task.exception()  # seen: a process that was killed is not an error that nobody looked at

    def _release(self) -> None:
        while self._waiting:
            gate = self._waiting.popleft()
            if not gate.done():
                gate.set_result(None)
                return

    async def _arrive(self) -> None:
        """Wait until it stands before a call or has ended."""
        for _ in range(100):  # within one loop nothing but the loop has to turn
            if self._waiting or self.ended:
                return
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            while not self._waiting and not self.ended:
                self._moved.clear()
                await self._moved.wait()

    def _program(self) -> asyncio.Task[Any]:
        if self._task is None:
            raise RuntimeError(f"process {self.name} was not started")
        return self._task


def has_died(outcome: object) -> bool:
    """Whether an outcome is that of a process that was killed."""
    return isinstance(outcome, Died)
