"""Work that goes on to its end although whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
P = TypeVar("P")


class Work(Generic[T]):
    """Work in a task of its own that is cancelled by `interrupt`: never within an uninterrupted piece, but behind it.

    So its uninterrupted pieces run in this very task, where a task for each would cost more than a write to memory does.

    Attributes:
        task: The task.
        interrupted: Whether `interrupt` was called.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        # Not by the loop's factory: an eager one would begin the work before it is known as such.
        self.task = asyncio.Task(work, loop=asyncio.get_running_loop())
        self.interrupted = False
        self._within = False
        self._interrupted = False
        _at_work[self.task] = self
        self.task.add_done_callback(_at_work.pop)

    def interrupt(self) -> None:
        """Cancel the work, as soon as it can be."""
        self.interrupted = True
        if self._within:
            self._interrupted = True
        else:
            self.task.cancel()

    async def result(self) -> T:
        """Wait for the end; a cancellation of whoever waits goes to the work."""
        try:
            await ended(self.task)
        except asyncio.CancelledError:
            self.interrupt()
            raise
        return self.task.result()

    async def through(self, piece: Coroutine[Any, Any, P]) -> P:
        """Run a piece of the work that is not to be interrupted."""
        if self._within:
            return await piece
        self._within = True
        try:
            return await piece
        finally:
            self._within = False
            if self._interrupted:
                self._interrupted = False
                self.task.cancel()
                await asyncio.sleep(0)  # here it comes through

    async def forget_cancellations(self, but: int) -> None:
        """Take back the cancellations that the code of others has asked for and kept to itself, `but` so many before it.

        Some libraries end what takes too long by cancelling the task and never say that this is over.
        """
        if self.interrupted or self.task.cancelling() <= but:
            return
        self._within = True
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # one that is on its way comes through here, and not in the next write
        self._within = False
        while self.task.cancelling() > but:
            self.task.uncancel()


_at_work: Final[dict[asyncio.Task[Any], Work[Any]]] = {}
"""The tasks that nobody but their `Work` cancels at the moment."""


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end also when the caller is cancelled meanwhile; the cancellation follows.

    A second one, of which a cancel scope of anyio has any number, does not wait: the work goes on behind it.
    """
    here = _at_work.get(asyncio.current_task())  # type: ignore[arg-type]  # reason: whoever awaits is in a task
    if here is not None:
        return await here.through(work)
    task = asyncio.create_task(work)
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
    """Await what calls the code of others, which may cancel the task that it runs in, as a timeout does; `apart`."""
    task = asyncio.current_task()
    here = _at_work.pop(task, None)  # type: ignore[arg-type]  # reason: whoever awaits is in a task
    if here is None:
        return await _Apart(work)
    cancelling = here.task.cancelling()
    try:
        result = await _Apart(work)
    except asyncio.CancelledError:
        raise
    except BaseException:
        await here.forget_cancellations(cancelling)
        raise
    else:
        await here.forget_cancellations(cancelling)
        return result
    finally:
        _at_work[here.task] = here


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
