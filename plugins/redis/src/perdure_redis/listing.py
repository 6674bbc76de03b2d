"""Listing: one page out of the indexes.

A single server has one index for each part; on a cluster there is one for each hash tag, and their pages are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure_redis.heads import digits, given, read_head
from perdure_redis.routes import Call, answered
from perdure_redis.scripts import SCAN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.backend import JournalInfo, Part, Position
    from perdure_redis.keys import Keys
    from perdure_redis.routes import Route

BUDGET = 2_000
"""How many members of an index one script looks at: a filter that fits few must not hold up the server."""

DIGITS = 18
"""How long the instant in a position is."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is listed.

    Attributes:
        part: The part.
        group: Only heads of this group; `None`: all.
        status: Only heads of this status; `None`: all.
        before: Only heads that were last written earlier; `None`: all.
        order: `id`, `created` or `recent`.
    """

    part: Part
    group: str | None
    status: str | None
    before: datetime | None
    order: str

    def place(self, at: datetime | None, name: str) -> bytes:
        """Return a position as the index has it."""
        return digits(at) + name.encode()

    def id_at(self, place: bytes) -> str:
        """Return the id of a position."""
        return place[0 if self.order == "id" else DIGITS :].decode()

    def arguments(self, prefix: str, behind: bytes, limit: int) -> list[bytes]:
        """Return the arguments of `scan.lua`."""
        place = (prefix.encode(), self.part.encode(), self.order[0].encode())
        filters = (given(self.group), given(self.status), digits(self.before))
        return [*place, *filters, behind, b"%d" % limit, b"%d" % BUDGET]


@dataclass(slots=True)
class _Source:
    """One index: the positions and heads that it gave and that were not taken yet, and where it goes on (`None`: it has ended)."""

    index: bytes
    behind: bytes | None
    found: list[tuple[bytes, bytes]] = field(default_factory=list)


class Pages:
    """Reads one page from all indexes of a part."""

    def __init__(self, route: Route, keys: Keys, listing: Listing, call: Call) -> None:
        """Remember whom to ask, and what for."""
        self._route, self._keys, self._listing, self._call = route, keys, listing, call

    async def read(self, after: Position | None, limit: int) -> list[JournalInfo]:
        """Return the heads behind a position. One that cannot be read raises when the page comes to it, not when it is fetched.

        Raises:
            SchemaVersionError: A newer release wrote a head of the page.
            StoreCorruptedError: A head of the page cannot be read.
        """
        behind = b"" if after is None else self._listing.place(after.at, after.id)
        sources = [_Source(self._keys.index(self._listing.part, tag), behind) for tag in self._keys.tags]
        page: list[JournalInfo] = []
        step = limit if len(sources) == 1 else 2 + 2 * limit // len(sources)
        newest_first = self._listing.order == "recent"
        while len(page) < limit:
            # Whoever has nothing left but has not ended may have what comes next.
            await self._fill([source for source in sources if not source.found and source.behind is not None], step)
            ready = [source for source in sources if source.found]
            if any(not source.found and source.behind is not None for source in sources):
                continue
            if not ready:
                break
            source = (max if newest_first else min)(ready, key=lambda one: one.found[0][0])
            page.append(self._info(*source.found.pop(0)))
        return page

    def _info(self, place: bytes, text: bytes) -> JournalInfo:
        name = self._listing.id_at(place)
        return read_head(name, text, f"{self._call.where}: {self._listing.part} {name}").info

    async def _fill(self, sources: Sequence[_Source], step: int) -> None:
        if not sources:
            return
        requests = [
            (source.index, self._listing.arguments(self._keys.prefix, source.behind or b"", step)) for source in sources
        ]
        for source, reply in zip(sources, await SCAN.run_each(self._route, self._call, requests), strict=True):
            behind, *rows = answered(reply, self._call)
            source.behind = behind or None
            source.found += zip(rows[::2], rows[1::2], strict=True)
