"""Listings that go on behind what is damaged, and tell of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from perdure.contracts.store import Store
from perdure.errors import StoreCorruptedError
from perdure.journal.contract import Journal, JournalInfo, Part, Position
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions

T = TypeVar("T")

_PAGE = 100


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
    filters: dict[str, Any] = {"group": group, "status": status, "before": before}
    async for info in _heads(error, *_journal_of(error, store), found.damaged, filters):
        try:
            item = await load(info.id)
        except StoreCorruptedError as damage:
            found.damaged.append(str(damage))
        else:
            found.items.extend([] if item is None else [item])
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


async def _heads(
    first: StoreCorruptedError, journal: Journal, part: Part, damaged: list[str], filters: dict[str, Any]
) -> AsyncIterator[JournalInfo]:
    """Walk the heads of a part; a page that cannot be read is read head by head, and what is damaged is passed over."""
    after: Position | None = None
    limit = _PAGE
    while True:
        try:
            page = await journal.scan(part, order="id", after=after, limit=limit, **filters)
        except StoreCorruptedError as error:
            if limit > 1:
                limit = 1
                continue
            if error.id is None:
                raise first from error  # it does not say where to go on
            damaged.append(str(error))
            after, limit = Position(None, error.id), _PAGE
            continue
        for info in page:
            yield info
        if len(page) < limit:
            return
        after, limit = Position(None, page[-1].id), _PAGE
