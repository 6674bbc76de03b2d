"""Copies that were cut short: until its claim is released, a conversation that is half there is known as such.

A copy claims the conversation at the target, sees that nothing else is there, names in the claim what it is about to
make, and only then makes it. Whoever meets such a claim without an owner leaves it: what is there is no conversation
yet, and the same copy, run again, goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perdure.contracts.checkpoints import COPYING
from perdure.contracts.plain import is_texts
from perdure.errors import StoreCorruptedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record

_MAKING: Final = "making"


@dataclass(frozen=True, slots=True)
class Making:
    """What copies were about to make at the target.

    Attributes:
        sessions: The ids of sessions.
        approvals: The ids of approvals.
    """

    sessions: frozenset[str] = frozenset()
    approvals: frozenset[str] = frozenset()

    def note(self) -> Record:
        """Return what a claim notes of it."""
        return {_MAKING: {"sessions": sorted(self.sessions), "approvals": sorted(self.approvals)}}


def is_half_copied(found: Checkpoint) -> bool:
    """Whether a turn journal is that of a conversation of which some may be there, and some not."""
    return found.head.status == COPYING and any(True for _ in _noted(found))


def begun(found: Checkpoint | None) -> Making:
    """Return all that copies which were cut short may have made of a conversation."""
    notes = list(_noted(found)) if found is not None and found.head.status == COPYING else []
    sessions = frozenset(name for note in notes for name in note["sessions"])
    return Making(sessions, frozenset(name for note in notes for name in note["approvals"]))


def _noted(found: Checkpoint) -> Iterator[Record]:
    for place, entry in enumerate(found.entries):
        if entry.get("kind") == "claim" and _MAKING in entry:
            note = entry[_MAKING]
            if type(note) is not dict or not all(is_texts(note.get(part)) for part in ("sessions", "approvals")):
                raise StoreCorruptedError(
                    f"turn journal {found.key}: entries[{place}]", "what it makes is no list of ids"
                )
            yield note
