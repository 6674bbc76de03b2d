"""Work that goes on to its end although whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end also when the caller is cancelled meanwhile; the cancellation follows.

    A second one, of which a cancel scope of anyio has any number, does not wait: the work goes on behind it.
    """
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

    It is `asyncio.wait([task])` at half its cost, which counts: each write of a turn waits so.
    """
    waiting = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: None if waiting.done() else waiting.set_result(None))
    await waiting


_going_on: Final[set[asyncio.Task[Any]]] = set()
"""Work of which the caller may be gone: the event loop alone would not keep it."""


def _has_ended(task: asyncio.Task[Any]) -> None:
    """Take note of its end, and that nobody is left to hear how it failed."""
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()
