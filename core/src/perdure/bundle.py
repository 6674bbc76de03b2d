"""`AgentStore`: the three stores of an application as one object, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace as dataclass_replace
from typing import TYPE_CHECKING, Final, Self

from perdure import observers
from perdure.absent import AbsentApprovals, AbsentCheckpoints, AbsentSessions
from perdure.clock import SYSTEM_CLOCK
from perdure.contracts.checkpoints import AWAITING_APPROVAL, READY, CheckpointReplace
from perdure.contracts.records import check_count
from perdure.contracts.sessions import SessionAppend
from perdure.contracts.store import Store
from perdure.conversations.claims import delete_session, journal_of, undecided
from perdure.conversations.prune import prune
from perdure.errors import (
    ApprovalExpiredError,
    PerdureError,
    StoreError,
    UnsupportedOperationError,
)
from perdure.journal.stores import JournalCheckpoints, JournalSessions
from perdure.observers.event_log import is_logged, log_event
from perdure.observers.listening import Channels
from perdure.ownership.leases import Lease, Ownership, Process
from perdure.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Any

    from perdure.clock import Clock
    from perdure.contracts.approvals import Approval, ApprovalStore
    from perdure.contracts.checkpoints import CheckpointStore
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionStore
    from perdure.conversations.prune import PruneReport
    from perdure.events import Event, RunEvent

TRANSCRIPT_CACHE: Final = 32 * 1024 * 1024
"""How many bytes of memory the transcripts take at the most that no session object holds any more, unless it is said."""


async def close_after(error: BaseException | None, close: Callable[[], Awaitable[None]]) -> None:
    """Close, and let a failure to do so not hide the error that came first."""
    try:
        await close()
    except PerdureError as later:
        if error is None:
            raise
        error.add_note(f"then closing failed: {later}")


class AgentStore:
    """Bundles a session store, a checkpoint store and an approval store; each may come from a different backend.

    A part that is absent raises `UnsupportedOperationError` when it is used; `"approvals" in store` asks.

    Attributes:
        sessions: The transcripts.
        checkpoints: The turn journals.
        approvals: The requests for human decisions.
        clock: What all instants and leases of this bundle go by.
        ownership: Who this process is to other owners, and the lease that it takes.
        channels: Who hears of the events of which conversation, and what runs in the background.
        transcripts: What session objects have read, for those to come.

    Example:
        >>> async with perdure.open_store("sqlite:agent.db") as store:  # doctest: +SKIP
        ...     await store.prune(older_than=timedelta(days=7), dry_run=True)
    """

    def __init__(
        self,
        *,
        sessions: SessionStore | None = None,
        checkpoints: CheckpointStore | None = None,
        approvals: ApprovalStore | None = None,
        clock: Clock | None = None,
        lease: Lease | None = None,
        process: Process | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
        transcript_cache: int = TRANSCRIPT_CACHE,
    ) -> None:
        """Bundle stores that are open already.

        Args:
            sessions: The session store; `None`: absent.
            checkpoints: The checkpoint store; `None`: absent.
            approvals: The approval store; `None`: absent.
            clock: The clock that the bundle and its stores go by; `None`: the system's.
            lease: The lease that owners take; `None`: 30 s, renewed every 10 s.
            process: The identity of owners; `None`: this process.
            closing: What `close` calls, once; `open_store` closes here what it opened.
            transcript_cache: How many bytes of memory the transcripts may take that no session object holds any more, so
                that the next object for one of them reads only what is new; 0: none is kept.
        """
        self.sessions: SessionStore = AbsentSessions() if sessions is None else sessions
        self.checkpoints: CheckpointStore = AbsentCheckpoints() if checkpoints is None else checkpoints
        self.approvals: ApprovalStore = AbsentApprovals() if approvals is None else approvals
        self.clock: Clock = SYSTEM_CLOCK if clock is None else clock
        self.ownership = Ownership(self.clock, process, lease)
        self.channels = Channels(_sent, _is_observed)
        self.transcripts: Recent[Any] = Recent(check_count(transcript_cache, "transcript_cache"))
        self._closing = closing
        self._in_turn = asyncio.Lock()
        self._closer: asyncio.Task[object] | None = None
        if clock is not None:
            for part in (self.sessions, self.checkpoints, self.approvals):
                part.bind(clock=clock)
        for name, sink in observers.STORE_CALLS.items():
            if name in self and isinstance(part := getattr(self, name), Store):
                part.bind(sink=sink)

    def __contains__(self, part: str) -> bool:
        """Whether a part (`sessions`, `checkpoints`, `approvals`) is there."""
        store = getattr(self, part, None) if part in ("sessions", "checkpoints", "approvals") else None
        return store is not None and not isinstance(store, (AbsentSessions, AbsentCheckpoints, AbsentApprovals))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    async def close(self) -> None:
        """Close what this bundle opened. Idempotent; stores that were handed in stay open.

        Detached turns end as by a crash first: they stay pending, and have no owner. At last it waits, for a few seconds
        at most, until the observers have heard of what was sent.
        """
        await self.channels.close()
        self.transcripts.clear()
        if self._closer is asyncio.current_task():
            return  # it closes itself, as an exit stack does that is called to close it and holds it
        async with self._in_turn:  # whoever closes at the same time returns when it is closed, too
            self._closer = asyncio.current_task()
            closing, self._closing = self._closing, None
            if closing is not None:
                await closing()
        await observers.catch_up()

    @property
    def atomic(self) -> bool:
        """Whether the session and the turn journal of a conversation can be written in one step."""
        sessions, checkpoints = self.sessions, self.checkpoints
        return (
            isinstance(sessions, JournalSessions)
            and isinstance(checkpoints, JournalCheckpoints)
            and sessions.journal is checkpoints.journal
            and sessions.journal.capabilities.atomic
        )

    async def write(self, append: SessionAppend, replace: CheckpointReplace) -> tuple[int, int]:
        """Append to a transcript and replace the turn journal of the same conversation, both or neither.

        Args:
            append: The append to the session.
            replace: The replace of the turn journal.

        Returns:
            The new version of the session, and that of the turn journal.

        Raises:
            UnsupportedOperationError: The two are not parts of one journal that declares `atomic`.
            VersionConflictError: One of the two has another version; nothing was written.
            StoreUnavailableError: Nothing was written.
            OutcomeUnknownError: Both may be written; never one of them.

        Laws: atomic-write-conflicts-beside-other-writes, atomic-write-cut-anywhere-is-both-or-none,
            atomic-write-is-all-or-none, atomic-write-is-seen-whole, atomic-write-survives-torn-write,
            atomic-write-writes-both, undeclared-atomic-write-refuses
        """
        sessions, checkpoints = self.sessions, self.checkpoints
        if (
            not isinstance(sessions, JournalSessions)
            or not isinstance(checkpoints, JournalCheckpoints)
            or not self.atomic
        ):
            raise UnsupportedOperationError("this bundle", "write (one journal that declares atomic)")
        operations = (sessions.operation(append), checkpoints.operation(replace))
        first, second = await checkpoints.write_together(replace.key, operations)
        return first, second

    async def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Approval:
        """Decide an approval, and mark its turn `ready` when that was the last decision it waits for.

        It needs no agent, no session and no lock; call it from any process. Arguments, result and errors are those of
        `ApprovalStore.decide`. Losing the mark is harmless: whoever resumes looks at the approvals themselves.

        Laws: decide-again-is-as-the-first-time, decide-marks-a-run-without-a-session, decide-marks-no-other-turn,
            decide-marks-the-turn-ready, decide-of-an-expired-one-marks-too, decide-stands-without-its-mark,
            decide-stores-the-decision-first
        """
        try:
            approval = await self.approvals.decide(
                approval_id, approved=approved, note=note, arguments=arguments, decided_by=decided_by, at=at
            )
        except ApprovalExpiredError as error:  # that it is rejected is recorded, and may be what its turn waited for
            await self._mark_ready(error.approval)
            raise
        await self._mark_ready(approval)
        return approval

    async def _mark_ready(self, approval: Approval) -> None:
        """Mark the turn of a decided approval; the decision stands if that fails, the mark only saves workers a look."""
        if "checkpoints" not in self:
            return
        key = journal_of(approval)
        with contextlib.suppress(StoreError):  # damage, too, is for whoever resumes the turn
            found = await self.checkpoints.load(key)
            if found is None or found.head.status != AWAITING_APPROVAL or found.head.run_id != approval.run_id:
                return
            if not await undecided(self, found.head):
                head = dataclass_replace(found.head, status=READY)
                await self.checkpoints.append(key, [], expected_version=found.version, head=head)

    async def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        """Delete a conversation whole: its session, its approvals, and its turn journal last.

        Args:
            session_id: Which conversation.
            force: Fence a live owner off instead of raising.

        Returns:
            Whether there was anything. Afterwards nothing of the id is left in any part, and an owner that sleeps
            through it is refused.

        Raises:
            InvalidIdError: The id breaks its rule.
            SessionBusyError: A live owner runs a turn.
            UnsupportedOperationError: A part cannot delete; nothing was removed.

        Laws: delete-session-cut-anywhere-can-be-repeated, delete-session-cut-short-keeps-its-journal-to-the-end,
            delete-session-has-no-cap, delete-session-leaves-nothing, delete-session-refuses-a-bad-id,
            delete-session-refuses-the-sleeper, delete-session-respects-a-live-owner,
            delete-session-tells-whether-there-was-anything
        """
        try:
            return await delete_session(self, session_id, force=force)
        finally:
            self.transcripts.forget(session_id)

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        """Remove conversations of which every part is older, each whole or not at all.

        Kept however old: an undecided, unexpired approval of an unfinished turn, with its conversation; whatever has a
        live owner. In living conversations, old approvals whose run is over are removed too.

        Args:
            older_than: The age, 0 or more; a part written exactly so long ago stays.
            dry_run: Report what would be removed, and remove nothing.

        Returns:
            The ids removed from each part, what was kept and why, and what is damaged: its conversation is kept too.

        Raises:
            StoreCorruptedError: The damage does not tell where to go on.
            InvalidArgumentError: The age is negative or not a timedelta.
            UnsupportedOperationError: A part cannot list or delete; nothing was removed.

        Laws: prune-a-second-time-does-nothing, prune-cut-anywhere-leaves-no-half,
            prune-drops-no-write-that-comes-in-between, prune-dry-run-removes-nothing, prune-goes-by-instants,
            prune-has-no-cap, prune-keeps-a-decision-that-is-not-applied, prune-keeps-a-live-owner,
            prune-keeps-an-undecided-approval, prune-keeps-what-is-as-old-as-the-limit, prune-newest-part-decides,
            prune-of-zero-removes-all-but-the-newest, prune-refuses-bad-ages, prune-removes-old-conversations-whole,
            prune-removes-what-nothing-refers-to, prune-reports-exactly-what-is-gone,
            prune-separates-no-session-from-its-run, prune-stays-in-its-namespace,
            prune-under-a-clock-that-went-back-removes-nothing
        """
        try:
            report = await prune(self, older_than=older_than, dry_run=dry_run)
        except BaseException:
            self.transcripts.clear()  # nobody has said what was removed by now
            raise
        for session_id in () if dry_run else report.sessions:
            self.transcripts.forget(session_id)
        return report


def _is_observed(kind: type[Event]) -> bool:
    """Whether the log or an observer wants events of a kind."""
    return observers.wanted() or is_logged(kind)


def _sent(event: RunEvent) -> None:
    """Log an event that was sent, and tell the observers of it."""
    log_event(event)
    observers.observe(event)
