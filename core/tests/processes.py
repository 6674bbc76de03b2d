"""Bundles over one backend that stand for other processes: alive elsewhere, or dead at a write of a test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from perdure import AgentStore, Lease
from perdure.clock import Clock
from perdure.journal.stores import JournalSessions, journal_stores
from perdure.ownership.leases import Process, this_process
from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception, at

_pids = itertools.count(6_000_000)  # no system has pids that high: such a process is certainly dead


def dead() -> Process:
    """A process of this machine that is gone."""
    here = this_process()
    return Process(here.host, here.boot, here.namespace, next(_pids), "1")


def elsewhere() -> Process:
    """A process of another machine: whether it lives cannot be known from here."""
    return Process("elsewhere", "boot", "1", next(_pids), "1")


def another(
    store: AgentStore,
    interception: Interception | None = None,
    *,
    process: Process | None = None,
    atomic: bool | None = None,
    lease: Lease | None = None,
    clock: Clock | None = None,
) -> AgentStore:
    """A bundle of its own over the same data."""
    assert isinstance(store.sessions, JournalSessions)
    journal = InterceptedJournal(store.sessions.journal, interception or Interception(), atomic=atomic)
    stores = journal_stores(journal)
    return AgentStore(
        sessions=stores.sessions,
        checkpoints=stores.checkpoints,
        approvals=stores.approvals,
        clock=clock or store.clock,
        process=process,
        lease=lease,
    )


async def die_at(
    store: AgentStore, number: int, action: Callable[[AgentStore], Awaitable[Any]], *, atomic: bool | None = None
) -> None:
    """Let a process run an action and die right after its n-th write."""
    with contextlib.suppress(Died):
        await action(another(store, at(number, "die-after"), process=dead(), atomic=atomic))
        raise AssertionError(f"the action ended before write {number}")


@contextlib.asynccontextmanager
async def writes_nothing(store: AgentStore) -> AsyncIterator[AgentStore]:
    """A bundle for a block in which nothing may be written."""
    interception = Interception()
    yield another(store, interception)
    assert [str(call) for call in interception.calls] == []


async def everything(store: AgentStore) -> dict[str, list[Any]]:
    """All that the listings of a bundle show."""
    return {
        "sessions": list((await store.sessions.list()).items),
        "runs": list((await store.checkpoints.list()).items),
        "approvals": list((await store.approvals.list()).items),
    }


class Held(Interception):
    """Holds one read of the journal up, before or after it takes effect: the next one, or that behind some others."""

    def __init__(self, place: Literal["before", "after"], *, skip: int = 0) -> None:
        super().__init__(counted=("read",))
        setattr(self, place, self._wait)
        self.held, self.go_on, self.next = asyncio.Event(), asyncio.Event(), False
        self._skip = skip

    async def _wait(self, _: Call) -> None:
        if self.next and self._skip:
            self._skip -= 1
        elif self.next:
            self.next = False
            self.held.set()
            await self.go_on.wait()
