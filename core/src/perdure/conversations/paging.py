"""Listings from their first page to their last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from perdure.contracts.records import Page

T = TypeVar("T")


async def walk(listing: Callable[..., Awaitable[Page[T]]], **filters: Any) -> AsyncIterator[T]:
    """Yield all that a listing has, a page at a time."""
    cursor: str | None = None
    while True:
        page = await listing(cursor=cursor, **filters)
        for item in page.items:
            yield item
        if page.cursor is None:
            return
        cursor = page.cursor
