"""The bench that a law works at: stores at a place, handles, clocks, and other processes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure_conformance.checks import NotClaimedError, NotRunError
from perdure_conformance.effort import Effort
from perdure_conformance.laws.tapped import all_journals
from perdure_conformance.manual_clock import ManualClock
from perdure_conformance.places import Places
from perdure_conformance.processes import Worker
from perdure_conformance.recording import CallLog, record
from perdure_conformance.target import Place, Target

if TYPE_CHECKING:
    from perdure.contracts.capabilities import Capabilities
    from perdure_conformance.parts import Stores


class Bench:
    """What a law gets: a store that is open at a fresh, empty place, and the means to open more.

    Attributes:
        target: The store under test.
        place: The fresh place.
        clock: The clock of every store that the bench opens.
        store: The store at the place, open.
        log: What was asked of the stores so far, and what came.
        effort: How much of a sweep is tried.
    """

    store: Stores

    def __init__(self, target: Target, places: Places, effort: Effort | None = None) -> None:
        """Choose a fresh place."""
        self.target = target
        self.effort = Effort() if effort is None else effort
        self.clock = ManualClock()
        self._places = places
        self._open: list[Stores] = []
        self._workers: list[Worker] = []
        self._opened = 0
        self.log = CallLog()
        self.place = self.another_place()

    # --- places and handles ---

    def another_place(self) -> Place:
        """Return a place that nothing was ever opened at."""
        return self._places.fresh()

    async def start(self) -> None:
        """Open the store at the place."""
        self.store = await self.open()

    async def open(self, place: Place | None = None, **changes: Any) -> Stores:
        """Open one more store: at the law's own place unless another is given.

        Args:
            place: Where; `None`: at the law's own place, once more.
            **changes: `namespace`, `max_record`: what differs from the place.
        """
        if place is None and self._open and not changes:
            self.needs_reopening()
        if "namespace" in changes and not self.target.namespaces:
            raise NotClaimedError("the target keeps no namespaces apart")
        if "max_record" in changes and not self.target.limits:
            raise NotRunError("the target takes no limit of a record")
        located = replace(place or self.place, clock=self.clock, **changes)
        self._opened += 1
        name = "store" if self._opened == 1 else f"store{self._opened}"
        noted = self.log.begin(f"{name} = open({_differs(located, self.place)})")
        try:
            with self.log.timed(noted):
                opened = await self.target.opener(located, self.clock)
        except BaseException as error:
            noted.failed(error)
            raise
        noted.says("opened")
        self._open.append(opened)
        record(opened, name, self.log)
        return opened

    async def reopen(self) -> Stores:
        """Close every handle, and open the store at its place again; it becomes `store`."""
        self.needs_reopening()
        await self.close()
        self.store = await self.open()
        return self.store

    async def handles(self, count: int) -> list[Stores]:
        """Return so many handles of the place, the first of them `store`."""
        return [self.store, *[await self.open() for _ in range(count - 1)]]

    async def close(self) -> None:
        """Close every handle that is open."""
        while self._open:
            await self._open.pop().close()

    async def finish(self) -> None:
        """Close what is left, after a failure too."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                await worker.kill()
        await self.close()

    # --- other processes ---

    def url(self, place: Place) -> str:
        """Return what another process opens a place by."""
        if self.target.url is None:
            raise NotRunError("the target names no URL by which another process can open the place")
        return self.target.url(place)

    async def workers(self, count: int, place: Place | None = None) -> list[Worker]:
        """Start processes that each hold a bundle of stores of their own at the place, not yet open."""
        url = self.url(place or self.place)
        started = list(await asyncio.gather(*(Worker.start(url) for _ in range(count))))
        for worker in started:
            self._workers.append(worker)
            worker.log, worker.name = self.log, f"process{len(self._workers)}"
        return started

    async def worker(self) -> Worker:
        """Start one process."""
        return (await self.workers(1))[0]

    # --- what the target and the store can do ---

    def needs_reopening(self) -> None:
        """Leave the law unrun where a place cannot be opened twice."""
        if not self.target.reopens:
            raise NotRunError("the target cannot open a place a second time")

    def demand(self, parts: tuple[str, ...], needs: tuple[str, ...]) -> None:
        """Leave the law unclaimed where a part is absent or does not declare a capability."""
        for part in parts:
            if part not in self.store:
                raise NotClaimedError(f"the store has no {part}")
            missing = [name for name in needs if not getattr(self.capabilities(part), name)]
            if missing:
                raise NotClaimedError(f"{part} does not declare {', '.join(missing)}")

    def capabilities(self, part: str) -> Capabilities:
        """Return what a part declares; parts of different journals are not written in one step, whatever each declares."""
        declared: Capabilities = getattr(self.store, part).capabilities
        behind = {id(journal) for journal in all_journals(self.store)[:2] if journal is not None}
        return replace(declared, atomic=False) if len(behind) > 1 else declared


def _differs(place: Place, own: Place) -> str:
    """Say how a place differs from the law's own, as the arguments of an opening."""
    said = [] if place.name == own.name else [f"place={place.name!r}"]
    said += [
        f"{name}={getattr(place, name)!r}"
        for name in ("namespace", "max_record")
        if getattr(place, name) != getattr(own, name)
    ]
    return ", ".join(said)
