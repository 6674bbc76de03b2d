"""Who writes a key next: in the event loop the calls queue, and in a thread one of them waits for the lock."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from perdure.backend import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure_file.directory import Place

Queue: TypeAlias = tuple[asyncio.AbstractEventLoop, str]
"""The queue of a key in a loop, by its name."""


class Patience:
    """How long somebody waits for a lock, who may be told to give up sooner.

    Attributes:
        operation: What for.
    """

    def __init__(self, seconds: float, operation: str = "write") -> None:
        """Begin to wait."""
        self.operation = operation
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, or 0."""
        return max(self._deadline - time.monotonic(), 0)

    def give_up(self) -> None:
        """Wait no longer."""
        self._deadline = 0

    def wait(self, take: Callable[[], bool], place: Place) -> None:
        """Wait in a thread until a lock of a key is taken. It is asked for again and again, so that `give_up` ends it."""
        pause = 0.0005
        while not take():
            if not self.left:
                raise _busy(place, self)
            time.sleep(pause)  # the kernel has no lock that waits for a limited time
            pause = min(pause * 2, 0.01)


class Queues:
    """The writers of each key in the order of their calls. They wait in the event loop: one at the most takes a thread."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._waiting: dict[Queue, deque[asyncio.Future[None]]] = {}  # behind the one whose turn it is

    async def join(self, place: Place, patience: Patience) -> Queue:
        """Wait for those who came before. Return the queue, which is to be left when the write has ended."""
        queue = (asyncio.get_running_loop(), place.path)
        if queue not in self._waiting:
            self._waiting[queue] = deque()
            return queue
        try:
            async with asyncio.timeout(patience.left):
                await self._turn(queue)
        except TimeoutError:
            raise _busy(place, patience) from None
        return queue

    def leave(self, queue: Queue) -> None:
        """Give the turn to the next one."""
        waiting = self._waiting[queue]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[queue]

    async def end(self) -> None:
        """Wait for all who are in a queue of this loop now."""
        loop = asyncio.get_running_loop()
        queues = list(self._waiting)  # other loops may add theirs meanwhile
        for queue in [queue for queue in queues if queue[0] is loop]:
            if queue in self._waiting:
                await self._turn(queue)
                self.leave(queue)

    async def _turn(self, queue: Queue) -> None:
        turn = queue[0].create_future()
        self._waiting[queue].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just been given
                self.leave(queue)
            raise


def _busy(place: Place, patience: Patience) -> StoreUnavailableError:
    return StoreUnavailableError(patience.operation, place.key.id, "another writer holds its lock for too long")
