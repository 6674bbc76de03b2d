"""A turn journal that this task owns, and the one queue through which all of its appends go."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.contracts.store import draw_version
from perdure.errors import OutcomeUnknownError, StoreError, VersionConflictError
from perdure.ownership.heartbeat import Heartbeat
from perdure.ownership.held_version import HeldVersion, renewed
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from datetime import datetime

    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead, CheckpointInfo, CheckpointStore
    from perdure.contracts.records import Record
    from perdure.ownership.held_version import Made
    from perdure.ownership.leases import Ownership

T = TypeVar("T")


def _never() -> bool:
    return False


class OwnedJournal:
    """A turn journal that this task owns, and the one queue through which all of its appends go.

    The queue holds the version. A conflict means that the journal is no longer ours.
    """

    def __init__(
        self, ownership: Ownership, checkpoints: CheckpointStore, key: str, *, version: int, head: CheckpointHead
    ) -> None:
        self.key = key
        self.owner = head.owner or ""
        self._ownership = ownership
        self._checkpoints = checkpoints
        self._queue = asyncio.Lock()
        self._held = HeldVersion(ownership, checkpoints, key, version, head, self._written)
        self._left: list[Record] = []
        self.on_written: Callable[[Sequence[Record]], object] = _nobody_asks
        self._released = False  # nobody holds it here any more
        self._given_up = False  # and no owner stands in its head

    @property
    def version(self) -> int:
        """The version that is held."""
        return self._held.number

    @property
    def head(self) -> CheckpointHead:
        """The head as it was written last, with what `note` has changed since."""
        return self._held.head

    @classmethod
    async def take(
        cls,
        ownership: Ownership,
        checkpoints: CheckpointStore,
        key: str,
        found: Checkpoint | CheckpointInfo | None,
        entries: Callable[[int], Sequence[Record]],
        head: Callable[[int], CheckpointHead],
        *,
        at: datetime | None = None,
        version: int | None = None,
    ) -> OwnedJournal:
        """Become the owner, by an append at the version that was read.

        Args:
            ownership: Of the bundle.
            checkpoints: Where.
            key: Which turn journal.
            found: What was read; `None` if it was absent.
            entries: Makes the entries, given the version that the journal will have.
            head: Makes the head, given that version; owner and lease are set here.
            at: The instant of the write; `None`: now.
            version: The version that an absent journal starts at; `None`: drawn at random.

        Raises:
            VersionConflictError: Somebody else was first; read again.
            OutcomeUnknownError: It may be ours now. An absent journal is never opened twice.
        """
        owner = ownership.process.new_owner()
        if found is not None:
            version = found.version + 1
        elif version is None:
            version = draw_version()
        full = renewed(ownership, head(version), ownership.clock.now(), owner=owner)
        owned = cls(ownership, checkpoints, key, version=version - 1, head=full)
        ownership.process.held.add(owner)
        wanted = True

        async def opened() -> None:
            await owned._open(found, list(entries(version)), version, at)
            if not wanted:
                await owned._give_back()

        try:
            await uninterrupted(opened())
        except asyncio.CancelledError:
            wanted = False
            if owned.version == version:  # it was written: nobody shall have to wait for a lease that nobody keeps
                await owned._give_back()
            ownership.process.held.discard(owner)
            raise
        except BaseException as error:
            ownership.process.held.discard(owner)
            if isinstance(error, VersionConflictError) and isinstance(error.__cause__, OutcomeUnknownError):
                # It may have landed, been run and been closed by another; only the caller can look for its work.
                raise error.__cause__ from None
            raise
        ownership.forget(key)
        return owned

    def append(
        self,
        entries: Sequence[Record] = (),
        *,
        at: datetime | None = None,
        unless: Callable[[], bool] = _never,
        **changes: Any,
    ) -> Coroutine[Any, Any, bool]:
        """Append entries and change fields of the head; renews the lease, unless it is still young.

        Args:
            entries: What to append.
            at: The instant of the write; `None`: now.
            unless: Asked when nothing else can come in any more: True: nothing is written.
            changes: Of the head.

        Returns:
            Whether it was written.
        """
        return uninterrupted(self._append(entries, at, unless, changes))

    async def append_aside(self, entries: Sequence[Record], *, unless: Callable[[], bool]) -> bool:
        """Append entries on behalf of somebody else, as `append` does.

        Whoever runs the turn goes on whatever becomes of this append. If its outcome is unknown and it landed after all,
        the next append finds that out, and asks `unless` again before it writes.
        """

        async def run() -> bool:
            async with self._queue:
                if self._released:
                    return False
                return await self._append_in_turn(entries, None, unless, {}, aside=True)

        return await uninterrupted(run())

    async def replace(self, entries: Sequence[Record], head: CheckpointHead, *, at: datetime | None = None) -> None:
        """Put entries in the place of all, set the head as given, and give the journal up."""
        await uninterrupted(self._replace(lambda _: (entries, head), at))

    async def close(self, last: Callable[[int], tuple[Sequence[Record], CheckpointHead]]) -> None:
        """Replace by what `last` makes, given the version that the journal will have, when nothing else can come in."""
        await uninterrupted(self._replace(last, None))

    async def delete(self) -> None:
        """Delete the journal, the last step of deleting a conversation."""
        await uninterrupted(self._delete())

    async def give_up(
        self,
        entries: Sequence[Record] = (),
        *,
        at: datetime | None = None,
        unless: Callable[[], bool] = _never,
        **changes: Any,
    ) -> bool:
        """Append, and own it no longer, unless; one that was released already is left alone. Return whether it is not owned."""
        if self._given_up:
            return True
        changes |= {"owner": None, "lease": None, "lease_expires_at": None}
        kept = False
        try:
            kept = not await self.append(entries, at=at, unless=unless, **changes)
        except asyncio.CancelledError:
            kept = unless is not _never  # it may be ours still: whoever is cancelled gives it up without a condition
            raise
        finally:
            if not kept:
                self.forget()
        return not kept

    async def _give_back(self) -> None:
        """Give up what was taken and is not wanted; what goes wrong here adds nothing."""
        with contextlib.suppress(StoreError, OwnershipLostError):
            await self.give_up()

    def forget(self) -> None:
        """Stop holding it without writing anything, so that this process may take it again at once."""
        self._released = True
        self._ownership.process.held.discard(self.owner)

    def _end(self) -> None:
        self._given_up = True
        self.forget()

    def note(self, **changes: Any) -> None:
        """Change fields of the head, to be written with the next append."""
        self._held.note(changes)

    def leave(self, entries: Sequence[Record]) -> None:
        """Have entries that tell of something that happened, and could not be written, go out with the next append."""
        self._left.extend(entries)

    async def renew_if_lapsed(self) -> None:
        """Renew the lease if it ran out on our own clock; called right before a tool is."""
        if self._held.idle_for(self._ownership.lease.length):
            await self.append()

    def heartbeat(self, lost: Callable[[], object]) -> Heartbeat:
        """Return a block in which the lease is renewed in the background; it calls `lost` once when the journal is lost."""
        return Heartbeat(self._ownership.lease.heartbeat, self.beat, lost)

    @property
    def is_given_up(self) -> bool:
        """Whether it was given up or closed: no owner of this task stands in its head any more."""
        return self._given_up

    def is_due(self) -> bool:
        """Whether no append has renewed the lease for the time of a heartbeat."""
        return self._held.idle_for(self._ownership.lease.heartbeat)

    async def beat(self) -> None:
        """Renew the lease, unless another append did so lately."""
        if self.is_due():
            await uninterrupted(self._beat_in_turn())

    async def exclusively(self, action: Callable[[int], Awaitable[T]]) -> T:
        """Run an action that closes the journal at the version given to it, while no append goes out, to its end."""

        async def run() -> T:
            async with self._queue:
                self._held.require_ours()
                result = await action(self.version)
                self._end()
                return result

        return await uninterrupted(run())

    async def repeat(self, write: Callable[[], Awaitable[object]], head: CheckpointHead) -> None:
        """Write at the version held, as `HeldVersion.repeat` does."""
        await self._held.repeat(write, head)

    async def _open(
        self, found: Checkpoint | CheckpointInfo | None, entries: list[Record], version: int, at: datetime | None
    ) -> None:
        """Write the append by which the journal becomes ours."""
        key, head = self.key, self.head
        if found is None:
            await self._checkpoints.append(key, entries, expected_version=0, head=head, at=at, version=version)
        else:
            await self._held.repeat(
                lambda: self._checkpoints.append(key, entries, expected_version=found.version, head=head, at=at), head
            )
        self._held.number = version

    async def _append(
        self, entries: Sequence[Record], at: datetime | None, unless: Callable[[], bool], changes: dict[str, Any]
    ) -> bool:
        async with self._queue:
            appended = await self._append_in_turn(entries, at, unless, changes)
            if self._held.head.owner is None:
                self._end()
            return appended

    async def _beat_in_turn(self) -> None:
        async with self._queue:
            # While this one waited, another append may have gone out, or have given the journal up.
            if not self._released and self._held.idle_for(self._ownership.lease.heartbeat):
                await self._append_in_turn((), None, _never, {}, aside=True)

    async def _append_in_turn(
        self,
        entries: Sequence[Record],
        at: datetime | None,
        unless: Callable[[], bool],
        changes: dict[str, Any],
        *,
        aside: bool = False,
    ) -> bool:
        """Append at the version held; `aside`, as a heartbeat is: the turn goes on if nobody knows whether it landed."""
        self._held.require_ours()
        began, head, items = self._ownership.clock.now(), self.head, list[Any]()

        def made(version: int) -> Made | None:
            nonlocal head, items
            if unless():
                return None
            head, items = self._held.next_head(changes, began), [*(() if aside else self._left), *entries]
            return partial(self._checkpoints.append, self.key, items, expected_version=version, head=head, at=at), head

        try:
            if not await self._held.write(made):
                return False
        except OutcomeUnknownError:
            self._held.doubt(head, items, changes)
            raise
        self._written(items)
        return True

    async def _replace(
        self, last: Callable[[int], tuple[Sequence[Record], CheckpointHead]], at: datetime | None
    ) -> None:
        async with self._queue:
            self._held.require_ours()

            def made(version: int) -> Made:
                entries, head = last(version + 1)
                return partial(
                    self._checkpoints.replace, self.key, entries, expected_version=version, head=head, at=at
                ), head

            await self._held.write(made)
            self._end()

    async def _delete(self) -> None:
        async with self._queue:
            self._held.require_ours()
            try:
                await self._checkpoints.delete(self.key, expected_version=self.version)
            except VersionConflictError as error:
                raise self._held.lose() from error
            finally:
                self._end()

    def _written(self, items: list[Record]) -> None:
        """Tell of entries in the order in which they stand, before the next append goes out."""
        self._left = [left for left in self._left if not any(left is item for item in items)]
        if items:
            self.on_written(items)


def _nobody_asks(_: Sequence[Record]) -> None:
    """Take no note of what was written."""
