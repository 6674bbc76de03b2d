"""Walking a journal from id to id, behind what is damaged in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.contracts.store import unavailable
from perdure.errors import StoreCorruptedError
from perdure.journal.contract import Journal, Part, Position
from perdure.journal.stores import JournalStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from perdure.contracts.store import Store

PAGE: Final = 100


def journal_of(error: StoreCorruptedError, store: Store) -> tuple[Journal, Part]:
    """Return the journal that a store is made of, and its part there; a store that is made of none raises the error."""
    if isinstance(store, JournalStore):
        return store.journal, store.part
    raise error


async def walk(
    journal: Journal,
    part: Part,
    damaged: list[StoreCorruptedError],
    *,
    after: str | None = None,
    group: str | None = None,
    status: str | None = None,
    before: datetime | None = None,
) -> AsyncIterator[str]:
    """Walk the ids of a part in their order. A page that cannot be read is read head by head.

    Args:
        journal: An open journal.
        part: The part.
        damaged: Takes what is damaged, and is passed over.
        after: The id behind which to begin; `None`: at the first.
        group: Only heads of this group.
        status: Only heads of this status.
        before: Only heads that were last written earlier.

    Raises:
        StoreCorruptedError: The damage does not tell where to go on.
        StoreUnavailableError: The journal failed.
    """
    place = None if after is None else Position(None, after)
    limit = PAGE
    while True:
        try:
            with unavailable("scan", part.value):
                page = await journal.scan(
                    part, group=group, status=status, before=before, order="id", after=place, limit=limit
                )
        except StoreCorruptedError as error:
            if limit > 1:
                limit = 1
                continue
            if error.id is None:
                raise
            damaged.append(error)
            place, limit = Position(None, error.id), PAGE
            continue
        for info in page:
            yield info.id
        if len(page) < limit:
            return
        place, limit = Position(None, page[-1].id), PAGE
