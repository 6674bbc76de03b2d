"""What has been checked of the files that were read last: a piece that was checked write by write is known again whole."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

KEPT: Final = 256
"""Of how many files what was checked is remembered."""


class Checked(NamedTuple):
    """A piece of a file whose writes have been checked, each by its commit.

    Attributes:
        start: Where it begins in the file.
        checksum: The CRC-32 of its bytes. Bytes that have it are those that were checked.
        items: How many items it has.
        total: How many the file has up to its end.
    """

    start: int
    checksum: int
    items: int
    total: int


class Known:
    """The pieces that have been checked, for each file by where they end."""

    def __init__(self) -> None:
        """Know nothing."""
        self._files: dict[str, dict[int, Checked]] = {}
        self._lock = threading.Lock()

    def of(self, where: str) -> dict[int, Checked]:
        """Return what is known of a file, for whoever reads it to use and to add to."""
        with self._lock:
            pieces = self._files.pop(where, {})
            self._files[where] = pieces  # at the end: it was used last
            if len(self._files) > KEPT:
                del self._files[next(iter(self._files))]
            return pieces
