"""Listings that go on behind what is damaged, and tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from perdure.contracts.store import Store
from perdure.errors import StoreCorruptedError
from perdure.journal.walking import journal_of, walk

T = TypeVar("T")


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
    journal, part = journal_of(error, store)
    async for name in walk(journal, part, unreadable, group=group, status=status, before=before):
        try:
            item = await load(name)
        except StoreCorruptedError as damage:
            unreadable.append(damage)
        else:
            found.items.extend([] if item is None else [item])
    found.damaged = [str(damage) for damage in unreadable]
    return found
