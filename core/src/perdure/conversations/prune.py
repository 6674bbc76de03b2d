"""Removing old conversations whole, and in living ones what nobody needs any more."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure.archives import archive_of, archive_versions, archives_of
from perdure.contracts.approvals import is_denied_by_time, touched_at
from perdure.contracts.checkpoints import DELETING, FINISHED, TURN_STATUSES
from perdure.contracts.ids import session_of
from perdure.conversations.behind_damage import each
from perdure.conversations.claims import Claim, approvals_of, journal_of, noted_archives, open_status, session_head
from perdure.conversations.half_copies import is_half_copied
from perdure.errors import InvalidArgumentError, StoreCorruptedError, VersionConflictError
from perdure.ownership.leases import OwnershipLostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Page
    from perdure.contracts.sessions import SessionInfo, Transcript

_LIVE = "a live owner holds it"
_WAITS = "an approval of its turn is undecided"
_DAMAGED = "the transcript that may name it is damaged"
_HALF = "a copy of it was cut short"
_MOVED = "it was written to meanwhile"


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What `prune` removed, or would remove.

    Attributes:
        dry_run: Whether nothing was removed.
        sessions: The ids of the sessions removed.
        runs: The keys of the turn journals removed.
        approvals: The ids of the approvals removed.
        kept: Old conversations that were kept, and why.
        damaged: What cannot be read, and was kept with all that it may belong to: by id, what is wrong.
    """

    dry_run: bool
    sessions: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


async def prune(store: AgentStore, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
    """Remove what is older. See `AgentStore.prune`."""
    if not isinstance(older_than, timedelta):
        raise InvalidArgumentError("older_than", f"must be a timedelta, not {type(older_than).__name__}")
    if older_than < timedelta(0):
        raise InvalidArgumentError("older_than", "must not be negative")
    for part, needed in (("sessions", ("list", "delete")), ("approvals", ("delete",))):
        if part in store:
            for capability in needed:
                getattr(store, part).require(capability)
    try:
        cutoff = store.clock.now() - older_than
    except OverflowError:
        return PruneReport(dry_run)
    return await _Pruning(store, cutoff, dry_run=dry_run).run()


@dataclass(frozen=True, slots=True)
class _Conversation:
    """All parts of a conversation, as they were read."""

    key: str
    journal: Checkpoint | None
    session: Transcript | None
    approvals: list[Approval]
    archives: list[str]

    def ages(self) -> list[datetime]:
        """Return when each part was last written."""
        parts = [part.updated_at for part in (self.journal, self.session) if part is not None]
        return parts + [touched_at(approval) for approval in self.approvals]


class _Pruning:
    """One run of prune: what it has found so far."""

    def __init__(self, store: AgentStore, cutoff: datetime, *, dry_run: bool) -> None:
        self.store = store
        self.cutoff = cutoff
        self.dry_run = dry_run
        self.sessions: list[str] = []
        self.runs: list[str] = []
        self.approvals: list[str] = []
        self.kept: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self.archives: list[SessionInfo | Transcript] = []

    async def run(self) -> PruneReport:
        if "sessions" in self.store:
            async for info in self._sessions():
                with self._noting(info.session_id):
                    await self._consider_session(info)
        if "checkpoints" in self.store:
            # What has no session: runs without one, and what a crash in the middle of a deletion has left.
            async for key in self._journals():
                with self._noting(key):
                    if await session_head(self.store, key) is None:
                        await self._consider(key)
        if "approvals" in self.store:
            await self._walk_approvals()
        for info in self.archives:
            if info.session_id not in self.sessions:
                await self._consider_archive(info)
        removed = tuple(self.sessions), tuple(self.runs), tuple(self.approvals)
        return PruneReport(self.dry_run, *removed, self.kept, self.damaged)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Keep what is damaged, and note it under an id."""
        try:
            yield
        except StoreCorruptedError as error:
            self.damaged[name] = str(error)

    async def _sessions(self) -> AsyncIterator[SessionInfo | Transcript]:
        part = self.store.sessions

        async def load(name: str) -> Transcript | None:
            return await part.load(name, limit=0)

        if not await self._any_old(part.list):
            return
        async for name, info in each(part, part.list, load, lambda item: item.session_id, before=self.cutoff):
            if isinstance(info, StoreCorruptedError):
                self.damaged[name] = str(info)
            else:
                yield info

    async def _journals(self) -> AsyncIterator[str]:
        part = self.store.checkpoints
        if not await self._any_old(part.list):
            return
        async for key, found in each(part, part.list, part.load, lambda item: item.key, before=self.cutoff):
            if isinstance(found, StoreCorruptedError):
                self.damaged[key] = str(found)
            else:
                yield key

    async def _approvals(self) -> AsyncIterator[Approval]:
        part = self.store.approvals
        async for name, found in each(part, part.list, part.get, lambda item: item.id, by_id=False, before=self.cutoff):
            if isinstance(found, StoreCorruptedError):
                self.damaged[name] = str(found)
            else:
                yield found

    async def _any_old(self, listing: Callable[..., Awaitable[Page[Any]]]) -> bool:
        """Whether there may be something to look at: by the order of last writes, where a store need not pass over the young."""
        try:
            page = await listing(before=self.cutoff, order="recent", limit=1)
        except StoreCorruptedError:
            return True
        return bool(page.items) or page.cursor is not None

    async def _consider_session(self, info: SessionInfo | Transcript) -> None:
        if archive_of(info) is not None:
            self.archives.append(info)  # it lives and goes with its conversation
        elif "checkpoints" in self.store:
            await self._consider(info.session_id)
        else:
            await self._remove_alone(info)

    async def _remove_alone(self, info: SessionInfo | Transcript) -> None:
        """Remove a session that has no turn journal beside it, with its archives, unless it was written to meanwhile."""
        archives = await archives_of(self.store, info.session_id)
        try:
            if not self.dry_run:
                await self.store.sessions.delete(info.session_id, expected_version=info.version)
        except VersionConflictError:
            self.kept[info.session_id] = _MOVED
            return
        self.sessions.append(info.session_id)
        for name in reversed(archives):
            if self.dry_run or await self.store.sessions.delete(name):
                self.sessions.append(name)

    async def _consider(self, key: str) -> None:
        """Remove one conversation if all of it is old and nothing keeps it."""
        journal = await self.store.checkpoints.load(key)
        seen = await self._look(key, journal)
        if not seen.ages() or self._young(seen):  # it was deleted since it was listed, or is not old
            return
        if journal is not None and self.store.ownership.is_live(journal):
            self.kept[key] = _LIVE
        elif journal is not None and is_half_copied(journal):
            self.kept[key] = _HALF
        elif self._waits(seen, open_status(journal)):
            self.kept[key] = _WAITS
        elif self.dry_run:
            self._report(seen)
        else:
            await self._remove(seen)

    async def _remove(self, seen: _Conversation) -> None:
        """Claim the conversation at the version read, look at all of it again, and delete it whole."""
        # The claim is written at an old instant, so that it does not itself make the conversation look younger.
        at = max(seen.ages())
        try:
            with await Claim.take(self.store, seen.key, seen.journal, DELETING, at=at) as claim:
                again = await self._look(seen.key, await self.store.checkpoints.load(seen.key))
                if seen.journal is not None and seen.journal.head.status == DELETING:
                    await claim.delete()  # it was begun: what came in since goes, too
                elif (
                    self._young(again)
                    or self._waits(again, open_status(seen.journal))
                    or not await claim.delete_at(again.session)
                ):
                    await claim.let_go()
                    self.kept[seen.key] = _MOVED
                    return
        except (VersionConflictError, OwnershipLostError):
            self.kept[seen.key] = _MOVED
        else:
            self._report(replace(again, journal=seen.journal))

    async def _look(self, key: str, journal: Checkpoint | None) -> _Conversation:
        run_id = None if journal is None else journal.head.run_id
        approvals = await approvals_of(self.store, session_of(key), run_id)
        session = await session_head(self.store, key)
        archives = await archives_of(self.store, key)
        names = [*archives, *(name for name in noted_archives(journal) if name not in archives)]
        there = [name for name, _ in await archive_versions(self.store, key, names)]
        return _Conversation(key, journal, session, approvals, there)

    def _young(self, seen: _Conversation) -> bool:
        return any(age >= self.cutoff for age in seen.ages())

    def _waits(self, seen: _Conversation, status: str) -> bool:
        """Whether an unfinished turn asks for a decision that can still be made."""
        if seen.journal is None or status not in TURN_STATUSES or status == FINISHED:
            return False
        run_id, now = seen.journal.head.run_id, self.store.clock.now()
        return any(
            approval.run_id == run_id and not approval.decided and not is_denied_by_time(approval, now)
            for approval in seen.approvals
        )

    def _report(self, seen: _Conversation) -> None:
        if seen.session is not None:
            self.sessions.append(seen.session.session_id)
        self.sessions.extend(seen.archives)
        if seen.journal is not None:
            self.runs.append(seen.key)
        self.approvals.extend(approval.id for approval in seen.approvals)

    async def _consider_archive(self, info: SessionInfo | Transcript) -> None:
        """Remove an old archive that nothing stands for any more: its conversation is gone, or a crash has left it.

        It was listed first. Whoever wrote it had named it in the turn journal before, and in the transcript before the
        journal was closed; so the journal is looked at first and the transcript second.
        """
        key = archive_of(info) or ""
        try:
            journal = await self.store.checkpoints.load(key) if "checkpoints" in self.store else None
            kept = [*noted_archives(journal), *await archives_of(self.store, key)]
        except StoreCorruptedError as error:
            self.kept[info.session_id] = _DAMAGED
            self.damaged[key] = str(error)
            return
        if info.session_id not in kept:
            with self._noting(info.session_id):
                await self._remove_alone(info)

    async def _walk_approvals(self) -> None:
        """In living conversations, remove old approvals whose run is over or gone."""
        async for approval in self._approvals():
            with self._noting(journal_of(approval)):
                if (
                    approval.id not in self.approvals
                    and touched_at(approval) < self.cutoff
                    and await self._over(approval)
                ):
                    await self._remove_approval(approval)

    async def _remove_approval(self, approval: Approval) -> None:
        with contextlib.suppress(VersionConflictError):  # decided or removed meanwhile: look again next time
            if self.dry_run or await self.store.approvals.delete(approval.id, expected_version=approval.version):
                self.approvals.append(approval.id)

    async def _over(self, approval: Approval) -> bool:
        """Whether the approval's run has ended, in the transcript too, or was dropped. Run ids never come twice."""
        if "checkpoints" not in self.store:
            return approval.decided
        journal = await self.store.checkpoints.load(journal_of(approval))
        if journal is None or journal.head.run_id != approval.run_id:
            return True
        return approval.session_id is None and journal.head.status == FINISHED
