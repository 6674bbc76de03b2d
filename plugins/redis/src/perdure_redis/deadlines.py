"""A time limit for each call, with one timer for all calls: one for each, as `asyncio.timeout` has it, costs a tenth of a write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import TracebackType


class Deadlines:
    """Gives each of many blocks the same time. One that takes longer is cancelled, and raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        """Give each block so many seconds."""
        self.seconds = seconds
        self.running: dict[Deadline, None] = {}  # the oldest first, which is the first to end
        self.timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Cancel what is late, and look again when the oldest of the others is."""
        loop = asyncio.get_running_loop()
        now, self.timer = loop.time(), None
        for block in list(self.running):
            if block.at > now:
                self.timer = loop.call_at(block.at, self.look)
                break
            block.cancel()


class Deadline:
    """A block that has a time limit: `asyncio.timeout` without a timer of its own."""

    __slots__ = ("_all", "_cancelled", "_cancelling", "_task", "at")
    _cancelling: int
    _task: asyncio.Task[object]
    at: float

    def __init__(self, deadlines: Deadlines) -> None:
        """Have as long as others, which belong to the same event loop."""
        self._all, self._cancelled = deadlines, False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[object]", asyncio.current_task(loop))
        self._cancelling = self._task.cancelling()
        self.at = loop.time() + self._all.seconds
        self._all.running[self] = None
        if self._all.timer is None:
            self._all.timer = loop.call_at(self.at, self._all.look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.running.pop(self, None)
        # If somebody else has cancelled the task too, it stays cancelled.
        if self._cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def cancel(self) -> None:
        """Cancel the block: its time is over."""
        del self._all.running[self]
        self._cancelled = True
        self._task.cancel()
