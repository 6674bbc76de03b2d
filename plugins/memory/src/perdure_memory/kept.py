"""What a part of a namespace has, kept in the orders in which it is listed, so that a page costs what it returns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from perdure.backend import Head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from perdure.backend import Position


@dataclass(slots=True)
class Entry:
    """What is kept of a key."""

    version: int
    created_at: datetime
    updated_at: datetime
    head: Head = field(default_factory=lambda: Head(data=b""))
    items: list[bytes] = field(default_factory=list)
    rewritten: int = 0


@dataclass(slots=True)
class Kept:
    """A part of a namespace, in the order of each listing.

    Attributes:
        entries: What there is, the last written last, if `in_order`.
        by_id: The ids in order.
        by_created: The same by creation, then id.
        latest: The place of the last one in the order of the last writes.
        in_order: Whether instants have come in order; else the next listing by the last write sorts.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    by_id: list[str] = field(default_factory=list)
    by_created: list[tuple[datetime, str]] = field(default_factory=list)
    latest: tuple[datetime, str] | None = None
    in_order: bool = True

    def put(self, name: str, entry: Entry) -> None:
        """Put an entry last that has just been written, or made; the one that was written last is there already."""
        if self.latest is None or self.latest[1] != name or name not in self.entries:
            if self.entries.pop(name, None) is None:
                insort(self.by_id, name)
                insort(self.by_created, (entry.created_at, name))
            self.entries[name] = entry
        place = (entry.updated_at, name)
        self.in_order = self.in_order and (self.latest is None or self.latest <= place)
        self.latest = place

    def remove(self, name: str) -> int:
        """Remove an entry, and return its version; 0: there is none."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return 0
        del self.by_id[bisect_left(self.by_id, name)]
        del self.by_created[bisect_left(self.by_created, (entry.created_at, name))]
        return entry.version

    def ids(self, order: str, after: Position | None) -> Iterator[str]:
        """Go through the ids behind a position."""
        if order == "recent":
            yield from self._recent(after)
        elif order == "id":
            yield from islice(self.by_id, 0 if after is None else bisect_right(self.by_id, after.id), None)
        else:
            start = 0 if after is None or after.at is None else bisect_right(self.by_created, (after.at, after.id))
            for _, name in islice(self.by_created, start, None):
                yield name

    def _recent(self, after: Position | None) -> Iterator[str]:
        if not self.in_order:
            self.entries = dict(sorted(self.entries.items(), key=lambda one: (one[1].updated_at, one[0])))
            self.in_order = True
            last = next(reversed(self.entries), None)
            self.latest = None if last is None else (self.entries[last].updated_at, last)
        for name, entry in reversed(self.entries.items()):
            if after is None or after.at is None or (entry.updated_at, name) < (after.at, after.id):
                yield name
