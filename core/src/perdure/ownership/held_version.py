"""The version of a turn journal at which its owner writes: what is known of it when a write may have landed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.contracts.plain import changed
from perdure.errors import OutcomeUnknownError, StoreUnavailableError, VersionConflictError
from perdure.ownership.leases import TICK, OwnershipLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime, timedelta

    from perdure.contracts.checkpoints import CheckpointHead, CheckpointStore
    from perdure.contracts.records import Record
    from perdure.ownership.leases import Ownership

Made: TypeAlias = "tuple[Callable[[], Awaitable[object]], CheckpointHead]"
"""A write at the version held, and the head that it sets, by which one that landed is known."""


class HeldVersion:
    """The version of a turn journal that its owner holds. Whoever writes sees to it that no two writes go out at once.

    A write whose outcome is unknown is repeated at the same version, so that at most one lands. A conflict means that
    the journal is no longer ours.

    Attributes:
        number: The version.
        head: The head that goes out with the next write.
    """

    def __init__(
        self,
        ownership: Ownership,
        checkpoints: CheckpointStore,
        key: str,
        number: int,
        head: CheckpointHead,
        landed_late: Callable[[list[Record]], object],
    ) -> None:
        """Hold a version.

        Args:
            ownership: Of the bundle.
            checkpoints: Where.
            key: Which turn journal.
            number: The version.
            head: The head at that version.
            landed_late: Told of the entries of a doubtful append that turns out to have landed.
        """
        self.number = number
        self.head = head
        self._ownership = ownership
        self._checkpoints = checkpoints
        self._key = key
        self._landed_late = landed_late
        self._doubtful: list[tuple[CheckpointHead, list[Record], dict[str, Any]]] = []
        self._renewed = ownership.clock.monotonic()
        self._young = min(ownership.lease.length, ownership.lease.heartbeat) / 10
        self._noted: dict[str, Any] = {}  # since the last write began
        self._lost = False

    def require_ours(self) -> None:
        """Raise `OwnershipLostError` once somebody else was found to have written."""
        if self._lost:
            raise OwnershipLostError(self._key)

    def lose(self) -> OwnershipLostError:
        """Take note that somebody else has written; return what to raise."""
        self._lost = True
        return OwnershipLostError(self._key)

    def idle_for(self, length: timedelta) -> bool:
        """Whether no write has renewed the lease for so long, on our own clock."""
        return self._ownership.clock.monotonic() - self._renewed >= length.total_seconds()

    def note(self, changes: dict[str, Any]) -> None:
        """Change fields of the head, to go out with the next write; one that is on its way does not undo that."""
        self._noted |= changes
        self.head = changed(self.head, changes)

    def next_head(self, changes: dict[str, Any], now: datetime) -> CheckpointHead:
        """Return the head for a write that began now, with changes; its lease runs from then, or is still young.

        Behind a write of unknown outcome it is not the same as that one's, since it is by their heads that the two are told
        apart, also under a clock that stands still.
        """
        if not (changes or self._doubtful or self.idle_for(self._young)):
            return self.head
        head = renewed(self._ownership, self.head, now, **changes)
        while head.lease is not None and any(head == doubtful for doubtful, *_ in self._doubtful):
            head = changed(head, {"lease": head.lease + TICK})
        return head

    def doubt(self, head: CheckpointHead, entries: list[Record], changes: dict[str, Any]) -> None:
        """Remember an append of unknown outcome: its head, its entries, and what it changes of the head."""
        self._doubtful.append((head, entries, changes))

    async def write(self, made: Callable[[int], Made | None]) -> bool:
        """Write what is made, given the version held; made anew if a doubtful append turns out to have moved it.

        Returns:
            Whether there was anything to write.
        """
        self._noted = {}
        # A lease in a new head runs from here, however long the write takes, and however often it is made anew.
        began = self._ownership.clock.monotonic()
        while True:
            before, wanted = self.head, made(self.number)
            if wanted is None:
                return False
            write, head = wanted
            try:
                await self.repeat(write, head)
                break
            except VersionConflictError as error:
                if not await self._doubtful_landed():
                    raise self.lose() from error
        self.number += 1
        self._doubtful.clear()
        if head is not before:
            self.head, self._renewed = changed(head, self._noted), began
        return True

    async def _doubtful_landed(self) -> bool:
        """Whether an append of unknown outcome has moved the version; what comes next goes behind it."""
        written = await self._head_behind() if self._doubtful else None
        for head, entries, changes in self._doubtful:
            if head == written:
                self.number += 1
                self.head = changed(self.head, changes)
                self._doubtful.clear()
                self._landed_late(entries)
                return True
        return False

    async def repeat(self, write: Callable[[], Awaitable[object]], head: CheckpointHead) -> None:
        """Write; after an unknown outcome write once more at the same version, and on a conflict look who won.

        Args:
            write: A write at the version held, which sets the head.
            head: That head, by which a write that landed is known.

        Raises:
            VersionConflictError: Somebody else wrote.
            OutcomeUnknownError: Nobody knows.
        """
        try:
            await write()
        except OutcomeUnknownError as unknown:
            try:
                await self._write_again(write, head, unknown)
            except StoreUnavailableError:
                raise unknown from None  # the first write may have happened, whatever became of the second

    async def _write_again(
        self, write: Callable[[], Awaitable[object]], head: CheckpointHead, unknown: OutcomeUnknownError
    ) -> None:
        try:
            await write()
        except VersionConflictError as conflict:
            if await self._head_behind() != head:
                raise conflict from unknown

    async def _head_behind(self) -> CheckpointHead | None:
        """Return the head that a write at the version held has set; `None` if there was none, or more were behind it."""
        found = await self._checkpoints.load(self._key)
        return None if found is None or found.version != self.number + 1 else found.head


def renewed(ownership: Ownership, head: CheckpointHead, now: datetime, **changes: Any) -> CheckpointHead:
    """Return a head whose lease runs from an instant, and with changes, which may be of the lease, too."""
    length = ownership.lease.length
    return changed(head, {"lease": length, "lease_expires_at": now + length} | changes)
