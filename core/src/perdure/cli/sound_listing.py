"""Listings that go on behind what is damaged, and tell of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from perdure.contracts.store import Store
from perdure.errors import StoreCorruptedError
from perdure.journal.contract import Journal, Part, Position
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions

T = TypeVar("T")

PAGE: Final = 100


@dataclass(slots=True)
class Found(Generic[T]):
    """What a listing found.

    Attributes:
        items: What could be read.
        damaged: What could not: where, and what is wrong.
        cursor: Where it goes on; `None` at the end, and where all was read because something is damaged.
    """

    items: list[T] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    cursor: str | None = None


async def sound(
    error: StoreCorruptedError,
    store: Store,
    load: Callable[[str], Awaitable[T | None]],
    *,
    group: str | None = None,
    status: str | None = None,
    before: datetime | None = None,
) -> Found[T]:
    """Read one by one, in the order of their ids, what a listing could not show because something in it is damaged.

    Args:
        error: What the listing raised; raised again where there is no way around it.
        store: Whose listing.
        load: Reads what an id stands for; `None`: it is not wanted, or gone.
        group: Only heads of this group.
        status: Only heads of this status.
        before: Only heads that were last written earlier.
    """
    found = Found[T]()
    unreadable: list[StoreCorruptedError] = []
    journal, part = _journal_of(error, store)
    async for name in walk(journal, part, unreadable, group=group, status=status, before=before):
        try:
            item = await load(name)
        except StoreCorruptedError as damage:
            unreadable.append(damage)
        else:
            found.items.extend([] if item is None else [item])
    found.damaged = [str(damage) for damage in unreadable]
    return found


def _journal_of(error: StoreCorruptedError, store: Store) -> tuple[Journal, Part]:
    for kind, part in (
        (JournalSessions, Part.SESSIONS),
        (JournalCheckpoints, Part.RUNS),
        (JournalApprovals, Part.APPROVALS),
    ):
        if isinstance(store, kind):
            return store.journal, part
    raise error


async def walk(
    journal: Journal,
    part: Part,
    damaged: list[StoreCorruptedError],
    *,
    group: str | None = None,
    status: str | None = None,
    before: datetime | None = None,
) -> AsyncIterator[str]:
    """Walk the ids of a part in their order. A page that cannot be read is read head by head.

    Args:
        journal: An open journal.
        part: The part.
        damaged: Takes what is damaged, and is passed over.
        group: Only heads of this group.
        status: Only heads of this status.
        before: Only heads that were last written earlier.

    Raises:
        StoreCorruptedError: The damage does not tell where to go on.
    """
    after: Position | None = None
    limit = PAGE
    while True:
        try:
            page = await journal.scan(
                part, group=group, status=status, before=before, order="id", after=after, limit=limit
            )
        except StoreCorruptedError as error:
            if limit > 1:
                limit = 1
                continue
            if error.id is None:
                raise
            damaged.append(error)
            after, limit = Position(None, error.id), PAGE
            continue
        for info in page:
            yield info.id
        if len(page) < limit:
            return
        after, limit = Position(None, page[-1].id), PAGE
