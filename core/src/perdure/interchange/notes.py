"""What a conversion could not carry over as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

KEPT: Final = "kept"
"""It is in the transcript, where no model sees it, and goes out again in an export of the same format."""
CHANGED: Final = "changed"
"""It is there in another form."""
REPAIRED: Final = "repaired"
"""A call had no result, or a result no call."""
LEFT_OUT: Final = "left-out"
"""The other format has no place for it."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that is not as it was.

    Attributes:
        where: Its place, such as `messages[3]` or `line 12`.
        outcome: `kept`, `changed`, `repaired` or `left-out`.
        what: What it is, and what became of it.
    """

    where: str
    outcome: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Converted(Generic[T]):
    """What a conversion made.

    Attributes:
        value: The result.
        notes: All that is not as it was; empty: nothing was lost or changed.
    """

    value: T
    notes: tuple[Note, ...] = ()
