"""The primitive: keyed, versioned, append-only lists of byte strings with compare-and-set writes.

A backend that implements `Journal` gets all three stores from `journal_stores`. Everything that reaches a journal is
settled: ids are checked, records are encoded, times are aware UTC, limits and first versions are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from perdure.contracts.capabilities import Capabilities

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


class Part(StrEnum):
    """Which of the three stores a key belongs to."""

    SESSIONS = "sessions"
    RUNS = "runs"
    APPROVALS = "approvals"


class Key(NamedTuple):
    """Where something is kept: a part and an id within it. All parts of a conversation share the id's first word."""

    part: Part
    id: str


@lru_cache(maxsize=1024)
def session_key(session_id: str) -> Key:
    """Return the key of a session; it is kept, since making one takes as long as the checks of an append."""
    return Key(Part.SESSIONS, session_id)


@lru_cache(maxsize=1024)
def turns_key(key: str) -> Key:
    """Return the key of a turn journal, which is kept like that of a session."""
    return Key(Part.RUNS, key)


@dataclass(frozen=True, slots=True)
class Head:
    """The small part of a key that listings read.

    In a write each field that is `None` keeps what is stored (at creation: nothing, and `b""` for `data`).

    Attributes:
        group: What `scan` filters by, exactly: a session's scope, an approval's conversation, a turn journal's agent.
            `""` is a group like any other.
        status: What `scan` filters by, exactly.
        data: Opaque bytes.
    """

    group: str | None = None
    status: str | None = None
    data: bytes | None = None


# The three operations are not frozen: making a frozen one takes four times as long, and each write makes one.
@dataclass(slots=True)
class Append:
    """Add items behind those that are there, and set the head, in one step.

    Attributes:
        key: Where.
        items: What to add; none only changes the head and raises the version.
        head: The fields to set.
        expected_version: The version that the key must have; 0: it must be absent; `None`: whatever it is.
        at: The instant of the write. `updated_at` becomes the later of it and what is stored.
        first_version: The version that the key gets if, and only if, it is absent.
    """

    key: Key
    items: tuple[bytes, ...]
    head: Head
    expected_version: int | None
    at: datetime
    first_version: int


@dataclass(slots=True)
class Replace:
    """Keep the first `keep` items, put `items` behind them, and set the head, in one step.

    An absent key is a conflict (actual 0). `keep` beyond the number of items is a conflict too, since the writer saw
    another list. The write is remembered as `rewritten` in the snapshot.
    """

    key: Key
    keep: int
    items: tuple[bytes, ...]
    head: Head
    expected_version: int | None
    at: datetime


@dataclass(slots=True)
class Delete:
    """Remove the key with its items and head. An absent key is no error (it answers 0) unless a version is expected."""

    key: Key
    expected_version: int | None


Operation: TypeAlias = Append | Replace | Delete


@dataclass(frozen=True, slots=True)
class JournalInfo:
    """A key's head, without its items."""

    id: str
    version: int
    count: int
    head: Head
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JournalSnapshot(JournalInfo):
    """A key's head and the items that were asked for.

    Attributes:
        items: The items; `DecodableItems` where a backend decodes many together.
        start: The index of the first of them; where there is none, the index it would have.
        rewritten: The version that the last `Replace` made, 0 if there was none.
    """

    items: Sequence[bytes] = field(default=())
    start: int = 0
    rewritten: int = 0


class Position(NamedTuple):
    """Where a page ended: the instant that the order goes by (`None` for order `id`) and the id."""

    at: datetime | None
    id: str


class Journal(ABC):
    """Keyed, versioned, append-only lists of byte strings; one object holds all parts of one namespace.

    A backend implements `open`, `close`, `read`, `write` and `scan`. It raises only perdure's errors where it knows
    the outcome; any other exception of `write` is taken for *outcome unknown*, of `read` and `scan` for *unavailable*.

    Attributes:
        capabilities: `durable`, `shared` and `atomic` as the backend keeps them; the rest is true of every journal.
        namespace: The tenant whose keys this object holds; no method touches another's.
        title: A short name for messages, without secrets.
    """

    capabilities: Capabilities = Capabilities()
    namespace: str = "default"
    title: str = "journal"

    @abstractmethod
    async def open(self) -> None:
        """Connect, create or migrate what is missing, and fail with a typed error if that cannot be done.

        A failed open leaves nothing open behind. Opening an open journal does nothing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Idempotent. Afterwards each call raises `StoreClosedError`."""

    @abstractmethod
    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read a key's head and some of its items, as of one instant.

        Args:
            key: What to read.
            after: How many items to skip from the start.
            limit: How many items at the most; `None`: all. `0`: the head alone.
            last: The newest n items instead; then `after` is 0 and `limit` is `None`.

        Returns:
            The snapshot, or `None` if the key is absent. The cost follows what is returned.
        """

    @abstractmethod
    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Apply operations, all or none, each only if its key has the expected version.

        Args:
            operations: One; or several of one conversation, if the backend declares `atomic`. The keys differ.

        Returns:
            For each operation the new version; for a `Delete` the version removed, 0 if the key was absent.

        Raises:
            VersionConflictError: A key has another version. Nothing was changed.
            OutcomeUnknownError: The write may have happened.
            StoreUnavailableError: Nothing was written.
        """

    @abstractmethod
    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """List heads of a part, without reading items.

        Args:
            part: Which part.
            group: Only heads of exactly this group; `None`: all.
            status: Only heads of exactly this status; `None`: all.
            before: Only heads whose `updated_at` is earlier.
            order: `id` (by code point), `created` (`created_at`, then id), or `recent` (`updated_at`, newest first,
                then id, backwards).
            after: Continue behind this position.
            limit: How many at the most, 1 or more.
        """
