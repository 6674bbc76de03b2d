"""Bundles over the data of the store under test whose calls a law counts, stops, kills or lies about."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions
from perdure.ownership import Process
from perdure_conformance.checks import NotRunError
from perdure_conformance.interception import InterceptedJournal, Interception
from perdure_conformance.parts import PARTS, Stores

if TYPE_CHECKING:
    from perdure.backend import Journal, JournalSnapshot, Key

ELSEWHERE = Process("elsewhere", "boot", "1", 4711, "1")
"""A process of another machine: whether it lives cannot be known from here."""


def journal_behind(part: object) -> Journal:
    """Return the journal that a store is made of.

    Raises:
        NotRunError: It is made of none, so its calls cannot be told apart.
    """
    if not isinstance(part, (JournalSessions, JournalCheckpoints, JournalApprovals)):
        raise NotRunError("the store is made of no journal whose calls could be stopped")
    return part.journal


def over(
    stores: Stores, wrap: dict[int, Journal], process: Process | None = None, *, clock: Any = None, lease: Any = None
) -> Stores:
    """Return a bundle with the store's own parts, each over what stands for its journal, by the journal's `id`."""
    parts: dict[str, Any] = {}
    for one in PARTS:
        if one.name in stores:
            part = _copied(getattr(stores, one.name))
            part.journal = wrap[id(journal_behind(part))]
            parts[one.name] = part
    return type(stores)(**parts, clock=clock or stores.clock, process=process, lease=lease)


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
        interception: What happens at calls; `None`: nothing.
        process: Who it is; `None`: this process.

    Raises:
        NotRunError: A part is made of no journal.
    """
    journals = {id(journal): journal for journal in all_journals(stores)}
    wrapped: dict[int, Journal] = {
        number: InterceptedJournal(journal, interception or Interception()) for number, journal in journals.items()
    }
    return over(stores, wrapped, process)


def all_journals(stores: Stores) -> list[Journal]:
    """Return the journals that a bundle is made of."""
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
        NotRunError: A part is made of no journal.
    """
    return over(stores, {id(journal): _CountingJournal(journal, cost) for journal in all_journals(stores)})
