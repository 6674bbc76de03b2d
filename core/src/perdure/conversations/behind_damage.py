"""Listings that go on behind what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from perdure.contracts.ids import conversation_of
from perdure.conversations.paging import walk
from perdure.errors import StoreCorruptedError
from perdure.journal.walking import journal_of
from perdure.journal.walking import walk as walk_journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from datetime import datetime

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.records import Page
    from perdure.contracts.store import Store

T = TypeVar("T")
U = TypeVar("U")


async def each(
    store: Store,
    listing: Callable[..., Awaitable[Page[T]]],
    load: Callable[[str], Awaitable[U | None]],
    id_of: Callable[[T], str],
    *,
    by_id: bool = True,
    status: str | None = None,
    before: datetime | None = None,
) -> AsyncIterator[tuple[str, T | U | StoreCorruptedError]]:
    """Yield each id of a store with what it stands for, or with what is wrong with that.

    Args:
        store: One of the three stores.
        listing: Its listing.
        load: Reads what an id stands for: one by one, from where the listing cannot go on.
        id_of: The id of what is listed.
        by_id: Whether the listing is in the order of ids.
        status: Only what has this status, by a listing that knows of one.
        before: Only what was last written earlier, and what is so damaged that nobody knows when that was.

    Raises:
        StoreCorruptedError: There is no way around the damage, as in a store that is made of no journal.
    """
    last: str | None = None
    seen: set[str] = set()  # where the last id does not tell what was listed
    try:
        async for item in walk(listing, before=before, **({} if status is None else {"status": status})):
            name = id_of(item)
            yield name, item
            if by_id:
                last = name
            else:
                seen.add(name)
    except StoreCorruptedError as error:
        journal, part = journal_of(error, store)
    else:
        return
    unreadable: list[StoreCorruptedError] = []
    async for name in walk_journal(journal, part, unreadable, after=last, status=status, before=before):
        if name in seen:
            continue
        try:
            found = await load(name)
        except StoreCorruptedError as error:
            yield name, error
        else:
            if found is not None:  # else it was deleted meanwhile
                yield name, found
    for damage in unreadable:
        yield str(damage.id), damage


async def list_approvals(store: AgentStore, **filters: Any) -> list[Approval]:
    """List all approvals of a session, or of a run; what is damaged in another conversation does not stop it.

    Raises:
        StoreCorruptedError: One of this conversation is damaged.
    """
    try:
        return [approval async for approval in walk(store.approvals.list, **filters)]
    except StoreCorruptedError as error:
        return await _sound_approvals(store, error, **filters)


async def _sound_approvals(
    store: AgentStore, error: StoreCorruptedError, *, session_id: str | None = None, run_id: str | None = None
) -> list[Approval]:
    journal, part = journal_of(error, store.approvals)
    conversation = conversation_of(session_id or run_id or "")
    damaged: list[StoreCorruptedError] = []
    names = [name async for name in walk_journal(journal, part, damaged, group=conversation)]
    for damage in damaged:
        if conversation_of(str(damage.id)) == conversation:
            raise damage
    read = [await store.approvals.get(name) for name in names]
    found = [one for one in read if one is not None and session_id in (None, one.session_id)]
    return sorted(
        (one for one in found if run_id in (None, one.run_id)), key=lambda approval: (approval.created_at, approval.id)
    )
