"""How a transcript is written so that it ends at the version that it has: which writes, from which version on.

The plan follows from the transcript alone. So a copy that was cut short finds, by the version that it meets, how far it
had come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from perdure import codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript

_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_RECORDS: Final = 1_000
_EXACT: Final = 100
"""How many writes may have come since a transcript was rewritten for that version to be kept exactly."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write to a session: an append, or a replace of everything."""

    records: Sequence[Record]
    at: datetime
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of one transcript.

    Attributes:
        transcript: What is written.
        writes: In order; the first one creates the session.
        done: How many of them are done.
    """

    transcript: Transcript
    writes: Sequence[Write] = field(repr=False)
    done: int = 0

    @property
    def first_version(self) -> int:
        """The version that the session starts at."""
        return self.transcript.version - len(self.writes) + 1

    def count_after(self, done: int) -> int:
        """Return how many records are there after some of the writes."""
        return sum(len(write.records) for write in self.writes[:done])


def plan(transcript: Transcript, *, open_since: int | None, can_replace: bool, claimed: bool) -> Plan:
    """Plan the writes of a transcript.

    Args:
        transcript: All of it.
        open_since: The version that the turn in progress was made from; `None` if there is none.
        can_replace: Whether the target can replace; without that nobody there asks when a transcript was rewritten.
        claimed: Whether a claim tells of a half. Without one, what was written at one instant is written at once.
    """
    parts = list(_parts(transcript.records))
    rewritten = _rewritten(transcript, open_since, len(parts)) if can_replace else 0
    if rewritten == 0:
        return Plan(transcript, _appended(transcript, parts, claimed=claimed))
    behind = transcript.version - rewritten
    first, *rest = _at_most(parts, behind + 1) or [[]]
    rest += [[] for _ in range(behind - len(rest))]
    writes = [Write((), transcript.created_at), Write(first, transcript.updated_at, replaces=True)]
    return Plan(transcript, [*writes, *(Write(part, transcript.updated_at) for part in rest)])


def _appended(transcript: Transcript, parts: list[Sequence[Record]], *, claimed: bool) -> Sequence[Write]:
    begun, ended = transcript.created_at, transcript.updated_at
    if transcript.version == 1 or (begun == ended and not claimed):  # one write has one instant
        return [Write(transcript.records, begun)]
    later = _at_most(parts, transcript.version - 1) or ([[]] if ended != begun else [])
    return [Write((), begun), *(Write(part, ended) for part in later)]


def _rewritten(transcript: Transcript, open_since: int | None, parts: int) -> int:
    """Return the version at which the copy is rewritten; 0 if it is not.

    Exactly that of the original, unless many writes came since. Then a later one, so that there are fewer writes to
    make, but none that the turn in progress would take for a rewriting since it began. Who goes by it reads the
    transcript again, at worst.
    """
    version, rewritten = transcript.version, transcript.rewritten
    if rewritten == 0 or version - rewritten <= _EXACT:
        return rewritten
    return max(rewritten, min(version if open_since is None else open_since, version - max(parts - 1, 0)))


def _parts(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    begin = size = 0
    for place, record in enumerate(records):
        size += len(codec.encode(record))
        if size >= _MOST_BYTES or place - begin + 1 == _MOST_RECORDS:
            yield records[begin : place + 1]
            begin, size = place + 1, 0
    if begin < len(records):
        yield records[begin:]


def _at_most(parts: list[Sequence[Record]], number: int) -> list[Sequence[Record]]:
    """Join the last of some parts, so that there are no more than a number."""
    if len(parts) <= number:
        return parts
    return [*parts[: number - 1], [record for part in parts[number - 1 :] for record in part]]
