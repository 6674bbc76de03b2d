"""What this process last saw of the journals it uses, so that a server that lost writes in a failover is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.backend import Key

LIMIT = 10_000


class LastSeen:
    """Birth and version of the journals that were used last; those used long ago are forgotten."""

    def __init__(self, limit: int = LIMIT) -> None:
        """Remember so many journals at the most."""
        self._limit = limit
        self._known: dict[Key, tuple[bytes, int]] = {}

    def note(self, key: Key, birth: bytes, version: int) -> None:
        """Remember what a journal is at; an older version of the same journal, from a reply that was late, is not news."""
        known = self._known.pop(key, None)
        if known is not None and known[0] == birth:
            version = max(version, known[1])
        self._known[key] = birth, version
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]

    def forget(self, key: Key) -> None:
        """Forget a journal that was deleted."""
        self._known.pop(key, None)

    def of(self, key: Key) -> bytes:
        """Return what is known, as `write.lua` takes it."""
        known = self._known.get(key)
        return b"" if known is None else b"%s %d" % known


def newer(known: bytes, birth: bytes, version: int) -> int | None:
    """Return the version that a journal had before a call, if that is higher than what the call found.

    Args:
        known: What `LastSeen.of` returned before the call was sent; what came to be known meanwhile proves nothing.
        birth: Which journal was found.
        version: What it is at.
    """
    known_birth, _, before = known.rpartition(b" ")
    return int(before) if known_birth == birth and int(before) > version else None
