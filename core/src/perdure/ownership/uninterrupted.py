"""Work that goes on to its end although whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
P = TypeVar("P")


class Work(asyncio.Task[T]):
    """A task that is cancelled by `interrupt`: never within an uninterrupted piece, but behind it.

    So its uninterrupted pieces run in this very task, where a task for each would cost more than a write to memory does.

    Attributes:
        interrupted: Whether `interrupt` was called: else a `CancelledError` in it is none of those who wait for it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], *, in_one_piece: bool = False) -> None:
        self.interrupted = False
        self._within = in_one_piece
        self._abroad = False
        self._due = False
        # Not by the loop's factory: an eager one would begin the work before it is known as such.
        super().__init__(work, loop=asyncio.get_running_loop())

    @staticmethod
    def here() -> Work[Any] | None:
        """Return the work that the current task does, unless it is in the code of others."""
        task = asyncio.current_task()
        return task if isinstance(task, Work) and not task._abroad else None

    def interrupt(self) -> None:
        """Cancel the work, as soon as it can be."""
        self.interrupted = True
        if self._within:
            self._due = True
        else:
            super().cancel()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel what runs now, as the time limits of others do; a loop that ends, and cancels all, interrupts."""
        if self.get_loop().is_running():
            return super().cancel(msg)
        self.interrupt()
        return True

    async def outcome(self) -> T:
        """Wait for the end; a cancellation of whoever waits goes to the work."""
        try:
            await ended(self)
        except asyncio.CancelledError:
            self.interrupt()
            raise
        return self.result()

    async def through(self, piece: Coroutine[Any, Any, P]) -> P:
        """Run a piece of the work that is not to be interrupted."""
        if self._within:
            return await piece
        self._within = True
        try:
            return await piece
        finally:
            self._within = False
            self._come_through()

    async def abroad(self, work: Coroutine[Any, Any, P]) -> P:
        """Await the code of others, see `foreign`; an interruption that had to wait comes first."""
        if self._due:
            work.close()
            self._come_through()
        cancelling, self._abroad = self.cancelling(), True
        try:
            result = await _Apart(work)
        except (Exception, asyncio.CancelledError):
            await self._settle(cancelling)
            raise
        else:
            await self._settle(cancelling)
            return result
        finally:
            self._abroad = False

    def _come_through(self) -> None:
        if self._due:
            self._due = False
            raise asyncio.CancelledError

    async def _settle(self, cancelling: int) -> None:
        """See to what was asked for while the code of others ran: its own cancellations are taken back, all but so many.

        Some libraries end what takes too long by cancelling the task and never say that this is over. An interruption
        that the code has kept to itself comes through behind the next piece, which says what has come of the code.
        """
        if not self.interrupted and self.cancelling() <= cancelling:
            return
        self._within = True
        with contextlib.suppress(asyncio.CancelledError):
            # One that is on its way comes through here, and not in the next write. And if all tasks are cancelled, whoever
            # waits for this one interrupts it meanwhile.
            await asyncio.sleep(0)
        self._within = False
        self._due = self.interrupted
        while not self.interrupted and self.cancelling() > cancelling:
            self.uncancel()


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end also when the caller is cancelled meanwhile; the cancellation follows.

    A second one, of which a cancel scope of anyio has any number, does not wait: the work goes on behind it.
    """
    here = Work.here()
    if here is not None:
        return await here.through(work)
    task = Work(work, in_one_piece=True)
    try:
        await ended(task)
    except asyncio.CancelledError:
        _going_on.add(task)
        task.add_done_callback(_has_ended)
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise asyncio.CancelledError from task.exception()
        raise
    return task.result()


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, however it did; whoever waits may be cancelled, the task is not.

    It is `asyncio.wait([task])` at half its cost.
    """
    waiting = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: None if waiting.done() else waiting.set_result(None))
    await waiting


async def foreign(work: Coroutine[Any, Any, T]) -> T:
    """Await what calls the code of others, which may cancel the task that it runs in, as a timeout does; `apart`.

    What it raises is its own, also a `CancelledError`, unless the work is `interrupted`.
    """
    here = Work.here()
    return await (_Apart(work) if here is None else here.abroad(work))


def interrupted() -> bool:
    """Whether the work that the current task does was interrupted."""
    here = Work.here()
    return here is None or here.interrupted


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """Await work in a context of its own, as that of a task would be: what it sets there does not last longer."""
    return await _Apart(work)


class _Apart(Generator[Any, Any, T]):
    """Makes the steps of a coroutine in one context."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._run = copy_context().run
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        return self._run(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._run(self._work.throw, *error)


_going_on: Final[set[asyncio.Task[Any]]] = set()
"""Work of which the caller may be gone: the event loop alone would not keep it."""


def _has_ended(task: asyncio.Task[Any]) -> None:
    """Take note of its end, and that nobody is left to hear how it failed."""
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()
