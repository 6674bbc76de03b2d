"""Bundles over the data of the store under test whose calls a law counts, stops, kills or lies about."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.journal.stores import JournalStore
from perdure.ownership.leases import Process
from perdure_conformance.checks import NotClaimedError
from perdure_conformance.interception import InterceptedJournal, Interception
from perdure_conformance.laws.stopping import stopped
from perdure_conformance.parts import PARTS, Stores

if TYPE_CHECKING:
    from perdure.backend import Journal, JournalSnapshot, Key

ELSEWHERE = Process("elsewhere", "boot", "1", 4711, "1")
"""A process of another machine: whether it lives cannot be known from here."""


def journal_behind(part: object) -> Journal | None:
    """Return the journal that a store is made of, or `None`."""
    return part.journal if isinstance(part, JournalStore) else None


def over(
    stores: Stores,
    journals: Mapping[int, Journal],
    interceptions: Sequence[Interception],
    process: Process | None = None,
    *,
    clock: Any = None,
) -> Stores:
    """Return a bundle over the same data, as another process has it.

    Args:
        stores: The bundle under test.
        journals: What stands for a journal that parts are made of, by the journal's `id`.
        interceptions: What the calls of every other part pass, the outermost first.
        process: Who it is; `None`: this process.
        clock: What it goes by; `None`: as the bundle under test.
    """
    parts: dict[str, Any] = {}
    for one in PARTS:
        if one.name in stores:
            part = getattr(stores, one.name)
            instead = journals.get(id(journal_behind(part)))
            if instead is None:
                parts[one.name] = stopped(part, one.name, interceptions)
            else:
                parts[one.name] = _copied(part)
                parts[one.name].journal = instead
    return type(stores)(**parts, clock=clock or stores.clock, process=process)


def _copied(part: Any) -> Any:
    """Copy a store, but not what the kit has put around its methods: that leads to the store itself."""
    fresh = copy.copy(part)
    for name, value in list(vars(fresh).items()):
        if hasattr(value, "recorded_by_the_kit"):
            delattr(fresh, name)
    return fresh


def tapped(stores: Stores, interception: Interception | None = None, *, process: Process | None = None) -> Stores:
    """Return a bundle over the same data, as another process has it, whose calls pass an interception.

    Args:
        stores: The bundle under test.
        interception: What happens at calls of the journal, or of the store itself if it is made of none; `None`: nothing.
        process: Who it is; `None`: this process.
    """
    passed = interception or Interception()
    return over(stores, _each_journal(stores, lambda journal: InterceptedJournal(journal, passed)), [passed], process)


def _each_journal(stores: Stores, wrap: Callable[[Journal], Journal]) -> dict[int, Journal]:
    """Return what is put around each journal that parts are made of, by the journal's `id`."""
    return {id(journal): wrap(journal) for journal in all_journals(stores) if journal is not None}


def all_journals(stores: Stores) -> list[Journal | None]:
    """Return the journal that each part of a bundle is made of, `None` for a part that is made of none."""
    return [journal_behind(getattr(stores, part.name)) for part in PARTS if part.name in stores]


@dataclass
class Cost:
    """What calls cost a backend: how often it was called, and how many items went in and out."""

    calls: list[str] = field(default_factory=list)
    read: int = 0
    written: int = 0

    def forget(self) -> None:
        """Start anew."""
        self.calls.clear()
        self.read = self.written = 0


class _CountingJournal(InterceptedJournal):
    """Counts items."""

    def __init__(self, inner: Journal, cost: Cost) -> None:
        super().__init__(inner, Interception())
        self._cost = cost

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        found = await super().read(key, after=after, limit=limit, last=last)
        self._cost.calls.append("read")
        self._cost.read += 0 if found is None else len(found.items)
        return found

    async def write(self, operations: Any, /) -> tuple[int, ...]:
        self._cost.calls.append("write")
        self._cost.written += sum(len(getattr(operation, "items", ())) for operation in operations)
        return await super().write(operations)


def counted(stores: Stores, cost: Cost) -> Stores:
    """Return a bundle over the same data whose costs are counted.

    Raises:
        NotClaimedError: A part is made of no journal, at whose calls items could be counted.
    """
    if None in all_journals(stores):
        raise NotClaimedError("what a call costs is counted at a journal, and the store is made of none")
    return over(stores, _each_journal(stores, lambda journal: _CountingJournal(journal, cost)), [])
