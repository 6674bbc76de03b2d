"""Copying every conversation of one store to another, each whole, at the versions that it has.

For each conversation: claim it at the source, read it, claim it at the target, write it, read it again, see that the
source has not moved, release the source, release the target. The two turn journals go in step, the target's never
ahead, so that both end at one version. Killed anywhere, the same copy run again goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from perdure.contracts.checkpoints import COPYING
from perdure.conversations.behind_damage import each
from perdure.conversations.claims import Claim, busy, journal_of, settle
from perdure.conversations.half_copies import is_half_copied
from perdure.errors import (
    InvalidArgumentError,
    PerdureError,
    SessionBusyError,
    SessionHalfCopiedError,
    StoreCorruptedError,
    StoreError,
    UnsupportedOperationError,
    VersionConflictError,
)
from perdure.moving.arriving import Arrival, DifferentError, nothing
from perdure.moving.bringing import DAMAGE, bring_alone
from perdure.moving.comparing import difference
from perdure.moving.reports import CopyReport
from perdure.moving.snapshots import has_stayed, read_snapshot, read_unclaimed
from perdure.moving.walking import approvals, count, is_alone, keys
from perdure.ownership.leases import OwnershipLostError

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.moving.snapshots import Snapshot

_PAUSE: Final = timedelta(seconds=0.5)
"""How long to wait before a conversation is tried again that somebody else owns."""

_HALF_THERE: Final = "the target has the half of it, of a copy that was cut short, and the source has it no longer"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        done: How many conversations were looked at.
        total: How many there were when it began; more may have come since.
        key: The last one.
        outcome: `copied`, `present`, `not-copied`, or `waiting` for its owner.
    """

    done: int
    total: int
    key: str
    outcome: str


OnProgress: TypeAlias = Callable[[Progress], object]


async def copy_conversations(
    source: AgentStore,
    target: AgentStore,
    *,
    wait: timedelta = timedelta(seconds=60),
    progress: OnProgress | None = None,
) -> CopyReport:
    """Copy every conversation, with its archives, its pending turn and its approvals, at the versions that they have.

    It can be repeated, also after a crash: what is at the target already, the same, is left alone. What differs there
    is never overwritten. Of a conversation that changes while it is copied nothing is mixed: it is copied again.

    Args:
        source: Where they are. Each is claimed while it is copied, so that no turn can begin meanwhile.
        target: Where they go. A conversation can be used there as soon as it is complete.
        wait: How long to wait, in all, for conversations that somebody else owns; 0: not at all.
        progress: Called after each conversation.

    Returns:
        What was copied, and what was not, and why.

    Raises:
        InvalidArgumentError: The two are one store, or `wait` is no duration of 0 or more.
        UnsupportedOperationError: The target lacks a part that the source has, or the source cannot list.
        StoreUnavailableError, OutcomeUnknownError: A store is away. Run it again.
    """
    if type(wait) is not timedelta or wait < timedelta(0):
        raise InvalidArgumentError("wait", "must be a timedelta of 0 or more")
    if source is target:
        raise InvalidArgumentError("target", "is the source")
    for part in ("sessions", "checkpoints", "approvals"):
        if part in source and part not in target:
            raise UnsupportedOperationError("the target", part)
    return await _Copying(source, target, wait, progress).run()


class _Copying:
    """One run of a copy."""

    def __init__(self, source: AgentStore, target: AgentStore, wait: timedelta, progress: OnProgress | None) -> None:
        self.source = source
        self.target = target
        self.report = CopyReport()
        self._wait = wait.total_seconds()
        self._progress = progress
        self._done = self._total = 0
        self._waiting: dict[str, str] = {}

    async def run(self) -> CopyReport:
        self._total = await count(self.source)
        async for key in keys(self.source):
            await self._look_at(key)
        await self._wait_for_owners()
        await self._lone_approvals()
        await self._left_halves()
        return self.report

    async def _look_at(self, key: str) -> None:
        """Copy a conversation, or note why not."""
        try:
            outcome = await self._one(key)
        except (DifferentError, SessionHalfCopiedError, *DAMAGE) as error:
            self.report.not_copied[key] = str(error)
            outcome = "not-copied"
        except (SessionBusyError, VersionConflictError, OwnershipLostError) as error:
            self._waiting[key] = _why(error)
            outcome = "waiting"
        if outcome != "waiting":
            self._done += 1
        if self._progress is not None and outcome != "gone":
            self._progress(Progress(self._done, max(self._total, self._done), key, outcome))

    async def _wait_for_owners(self) -> None:
        """Try again what somebody else owned, until the time is over."""
        clock = self.source.clock
        until = clock.monotonic() + self._wait
        while self._waiting and (left := until - clock.monotonic()) > 0:
            await asyncio.sleep(min(_PAUSE.total_seconds(), left))
            waiting, self._waiting = self._waiting, {}
            for key in waiting:
                await self._look_at(key)
        self.report.not_copied |= self._waiting

    async def _one(self, key: str) -> str:
        """Copy one conversation, or find that it is there; return what came of it."""
        found = await self._settled(self.source, key)
        there = await self._settled(self.target, key)
        if there is None or there.head.status != COPYING:
            known = await self._compared(key, there is not None)
            if known is not None:
                return known
        if "checkpoints" not in self.source:
            return await self._copied(await read_snapshot(self.source, key, None), None)
        if found is not None and self.source.ownership.is_live(found):
            raise busy(found)
        at = None if found is None else found.updated_at  # a copy makes nothing look younger
        with await Claim.take(self.source, key, found, COPYING, at=at) as claim:
            try:
                return await self._copied(await read_snapshot(self.source, key, found), claim)
            except BaseException:
                if not claim.journal.is_given_up:
                    with contextlib.suppress(StoreError, OwnershipLostError):  # who has taken it over sees to the rest
                        await claim.let_go()
                raise

    async def _settled(self, store: AgentStore, key: str) -> Checkpoint | None:
        if "checkpoints" not in store:
            return None
        return await settle(store, key, half=store is self.target)

    async def _compared(self, key: str, occupied: bool) -> str | None:
        """Return what is known without claiming anything: it is gone, or at the target already; `None`: it is to be copied.

        Raises:
            DifferentError: The target has another conversation.
        """
        there = await read_unclaimed(self.target, key)
        if there.empty:
            return None
        wanted = await read_unclaimed(self.source, key)
        if wanted.empty:
            return "gone"
        problem = difference(wanted, there)
        if problem is None:
            self.report.present += 1
            return "present"
        if occupied:
            raise DifferentError(problem)
        return None

    async def _copied(self, snapshot: Snapshot, claim: Claim | None) -> str:
        """Write a conversation at the target; release it here first, which proves that it was ours, and then there."""
        if snapshot.empty:
            if claim is not None:
                await claim.let_go()
            return "gone"
        affirm = nothing if claim is None else claim.affirm
        first = None if claim is None else claim.journal.version
        async with await Arrival.at(self.target, snapshot, version=first, also=affirm) as arrival:
            try:
                await arrival.write()
                if not await has_stayed(self.source, snapshot):
                    raise SessionBusyError(snapshot.key)
                if claim is not None:
                    await arrival.catch_up(claim.journal.version)
                    await claim.let_go()
                await arrival.release()
            except (DifferentError, *DAMAGE):
                await arrival.undo()
                raise
        self.report.copied += 1
        self.report.records += sum(transcript.count for transcript in snapshot.sessions)
        self.report.approvals += len(snapshot.approvals)
        return "copied"

    async def _lone_approvals(self) -> None:
        """Copy approvals of runs that are over, of which no conversation knows any more.

        One of a conversation that has come or gone on since it was looked at waits for the next copy, which brings both.
        """
        if "approvals" not in self.source:
            return
        async for name, approval in approvals(self.source):
            if isinstance(approval, StoreCorruptedError):
                if str(approval) not in self.report.not_copied.values():  # else its conversation says so
                    self.report.not_copied[name] = str(approval)
            elif journal_of(approval) not in self.report.not_copied and await is_alone(self.source, approval):
                await bring_alone(self.target, approval, self.report)

    async def _left_halves(self) -> None:
        """Report what copies that were cut short have left of conversations that the source has no longer."""
        if "checkpoints" not in self.target:
            return
        store = self.target.checkpoints
        async for key, info in each(store, store.list, store.load, lambda item: item.key, status=COPYING):
            try:
                if isinstance(info, StoreCorruptedError):
                    raise info
                found = await store.load(key)
            except StoreCorruptedError as error:
                self.report.not_copied.setdefault(key, f"at the target {error}")
                continue
            if found is not None and is_half_copied(found) and not self.target.ownership.is_live(found):
                self.report.not_copied.setdefault(key, _HALF_THERE)


def _why(error: PerdureError) -> str:
    """Return why a conversation waits, as it stands in the report."""
    if isinstance(error, SessionBusyError) and error.owner is not None:
        return f"a live owner holds it: {error}"
    return "it was written to all the while"
