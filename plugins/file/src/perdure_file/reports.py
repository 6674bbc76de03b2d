"""What the backend tells about damage and about unfinished writes that it found."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.backend import StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger("perdure.file")


@dataclass(frozen=True, slots=True)
class TornWrite:
    """What was left of a write whose process died before it was acknowledged, and has been dropped.

    Attributes:
        where: The path of the file.
        offset: Where it began.
        size: How many bytes there were.
        version: The version of the key, which that write did not reach.
    """

    where: str
    offset: int
    size: int
    version: int


def log_torn_write(torn: TornWrite) -> None:
    """Log a dropped write as a warning."""
    _logger.warning(
        "%s: dropped %d bytes at offset %d, left of a write that was not finished; the key is at version %d",
        *(torn.where, torn.size, torn.offset, torn.version),
    )


def tell(whom: Callable[[TornWrite], None], torn: TornWrite) -> None:
    """Tell of a dropped write. An error of whoever is told is logged: the write that found it goes on, or is done."""
    try:
        whom(torn)
    except Exception:
        _logger.exception("%s: nobody could be told of a write that was not finished", torn.where)


def damage(where: str, problem: str) -> StoreCorruptedError:
    """Return the error of something that is damaged. It names the way out."""
    error = StoreCorruptedError(where, problem)
    error.hint = (
        "Run `perdure doctor file:DIR` to see all that is damaged, and with --salvage to recover what is whole."
    )
    return error
