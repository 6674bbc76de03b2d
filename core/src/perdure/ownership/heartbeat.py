"""The heartbeat of whoever owns a turn journal: the lease is renewed in the background."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.errors import StoreError
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.uninterrupted import ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta
    from types import TracebackType


class Heartbeat:
    """Renews a lease again and again while a block lasts. Until it is due for the first time there is a timer, and no task."""

    def __init__(self, every: timedelta, renew: Callable[[], Awaitable[None]], lost: Callable[[], object]) -> None:
        """Take what to do.

        Args:
            every: The time between two beats.
            renew: Renews the lease.
            lost: Called once, when what is leased is no longer ours.
        """
        self._seconds = every.total_seconds()
        self._renew = renew
        self._lost = lost
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        task = self._task
        if task is not None:
            task.cancel()
            await ended(task)  # not the task itself: its end must not be taken for that of whoever waits
            if not task.cancelled():
                task.result()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            try:
                await self._renew()
            except OwnershipLostError:
                self._lost()
                return
            except StoreError:
                pass  # the store is away; whoever needs the lease renews it before it acts
            await asyncio.sleep(self._seconds)
