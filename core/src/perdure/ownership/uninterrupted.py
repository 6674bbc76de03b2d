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
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        _going_on.add(task)
        task.add_done_callback(_has_ended)
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise asyncio.CancelledError from task.exception()
        raise
    return task.result()


_going_on: Final[set[asyncio.Task[Any]]] = set()
"""Work of which the caller may be gone: the event loop alone would not keep it."""


def _has_ended(task: asyncio.Task[Any]) -> None:
    """Take note of its end, and that nobody is left to hear how it failed."""
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()
