"""The bench of a generated test: what `Bench` offers within one process, in few lines and without the rest of the kit."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perdure import AgentStore
from perdure.backend import Capabilities
from perdure_conformance.effort import Effort
from perdure_conformance.manual_clock import ManualClock
from perdure_conformance.target import Place


class Bench:
    """A store that is open at a fresh, empty place, and the means to open more."""

    store: AgentStore

    def __init__(self, opener: Callable[[Place], Awaitable[AgentStore]], directory: Path, name: str) -> None:
        """Choose a fresh place."""
        self.target = SimpleNamespace(reopens=True, namespaces=True, limits=True, damage=None, url=None)
        self.clock = ManualClock()
        self.effort = Effort()
        self._opener, self._directory, self._name = opener, directory, name
        self._numbers = itertools.count()
        self._open: list[AgentStore] = []
        self.place = self.another_place()

    def another_place(self) -> Place:
        """Return a place that nothing was ever opened at."""
        name = f"{self._name}n{next(self._numbers)}"
        return Place(name, self._directory / name, clock=self.clock)

    async def start(self) -> None:
        """Open the store at the place."""
        self.store = await self.open()

    async def open(self, place: Place | None = None, **changes: Any) -> AgentStore:
        """Open one more store, at the test's own place unless another is given."""
        opened = await self._opener(replace(place or self.place, **changes))
        self._open.append(opened)
        return opened

    async def reopen(self) -> AgentStore:
        """Close every handle, and open the store at its place again."""
        await self.close()
        self.store = await self.open()
        return self.store

    async def handles(self, count: int) -> list[AgentStore]:
        """Return so many handles of the place, the first of them `store`."""
        return [self.store, *[await self.open() for _ in range(count - 1)]]

    async def close(self) -> None:
        """Close every handle that is open."""
        while self._open:
            await self._open.pop().close()

    def needs_reopening(self) -> None:
        """The place of a generated test can be opened again."""

    def capabilities(self, part: str) -> Capabilities:
        """Return what a part declares."""
        declared: Capabilities = getattr(self.store, part).capabilities
        return declared
