"""One turn that a worker takes: whether it may be taken now, what is done to it, and what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from perdure.contracts.checkpoints import FINISHED, IN_PROGRESS, TURN_STATUSES
from perdure.contracts.store import describe
from perdure.conversations.claims import settle
from perdure.errors import (
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    StoreError,
    StoreUnavailableError,
)
from perdure.runtime.results import AWAITING
from perdure.runtime.runs import Run
from perdure.runtime.workers.known_turns import KnownTurn, KnownTurns
from perdure.runtime.workers.sweeps import (
    ResumedTurn,
    SetAsideTurn,
    SweepFailure,
    SweepReport,
    backoff,
    fruitless_lives,
    log,
)

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo
    from perdure.runtime.agent import Agent
    from perdure.runtime.results import TurnResult
    from perdure.runtime.session import Session
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.turn.limits import Limits

LONGEST_BACKOFF: Final = timedelta(seconds=60)
_SUSPECT_AFTER: Final = 2


class Taker:
    """Takes the turns that a worker has found, and notes in the report of its sweep what came of each.

    Attributes:
        known: What is known of turns that were found before.
    """

    def __init__(
        self,
        agent: Agent,
        store: AgentStore,
        *,
        poll: timedelta,
        max_attempts: int,
        limits: Limits | None,
        compaction: Compaction | None,
    ) -> None:
        """Take the options of the worker.

        Args:
            agent: Whose turns.
            store: Where.
            poll: The first rest of a turn that failed.
            max_attempts: After so many attempts in a row that brought it no further a turn is set aside.
            limits: For turns that were begun without.
            compaction: When the transcript is compacted behind a turn.
        """
        self.agent, self.store = agent, store
        self.known = KnownTurns(store, max_attempts)
        self._poll, self._max_attempts = poll, max_attempts
        self._limits, self._compaction = limits, compaction
        self._suspect: str | None = None

    def is_run(self, found: Checkpoint | CheckpointInfo) -> bool:
        """Whether somebody runs a turn; this process's own is never taken, whatever its lease says."""
        ownership = self.store.ownership
        if ownership.line(found.key):  # a call of this process is served, which resumes what is pending
            return True
        return found.head.owner in ownership.process.held or ownership.is_live(found)

    def rests(self, found: Checkpoint | CheckpointInfo) -> bool:
        """Whether a turn failed so lately that it is not yet tried again; all workers read that from its head."""
        head = found.head
        if head.owner is not None or head.failed or head.last_error is None:
            return False
        if head.status not in (IN_PROGRESS, FINISHED):
            return False
        rest = backoff(self._poll, 4, head.attempts - 1, LONGEST_BACKOFF)
        return found.updated_at <= self.store.clock.now() < found.updated_at + rest

    # --- what stands in the way of a turn ---

    def set_aside(self, found: Checkpoint | CheckpointInfo, known: KnownTurn, reason: str, report: SweepReport) -> None:
        """Note that a turn is not taken; it is logged once, not in every sweep."""
        head = found.head
        turn = SetAsideTurn(found.key, head.run_id, head.attempts, head.last_error, reason)
        report.set_aside.append(turn)
        why = f"{reason} {head.last_error}"
        if known.told != why:
            known.told = why
            facts = {"attempts": turn.attempts, "last_error": turn.last_error, "reason": reason}
            log(logging.WARNING, "turn set aside", session_id=turn.session_id, run_id=turn.run_id, **facts)

    def fail(self, report: SweepReport, key: str | None, run_id: str | None, error: Exception) -> None:
        """Note what went wrong with a turn, or, without a key, with the listing."""
        report.failed.append(SweepFailure(key, run_id, error))
        event = "turns cannot be listed" if key is None else "turn failed"
        log(logging.WARNING, event, session_id=key, run_id=run_id, error=describe(error))

    # --- one turn ---

    async def settle(self, info: CheckpointInfo, report: SweepReport) -> None:
        """Finish or undo a claim whose owner is gone."""
        try:
            async with self.store.ownership.line(info.key).served():
                await settle(self.store, info.key)
        except SessionBusyError:
            report.busy.append(info.key)
        except Exception as error:  # noqa: BLE001  # reason: whatever is wrong with one conversation stops no other
            self.fail(report, info.key, info.head.run_id, error)
        else:
            report.settled.append(info.key)
            log(logging.INFO, "claim settled", session_id=info.key, claim=info.head.status)

    async def take(self, info: CheckpointInfo, known: KnownTurn, report: SweepReport) -> None:
        """Take a turn, if it still may be taken: it was listed before a slot became free."""
        key = info.key
        try:
            if known.excused is not None:
                await self.known.excuse(key)
            found = await self.store.checkpoints.load(key)
            if found is None or not self._is_ours(found, known) or self.is_run(found):
                report.busy.append(key)
            elif (reason := self.known.why_aside(found) or self.known.why_poisoned(found)) is not None:
                self.set_aside(found, known, reason, report)
            elif self.rests(found) or not self._is_safe(found):
                report.waiting.append(key)
            else:
                await self._resume(found, known, report)
        except SessionBusyError:
            report.busy.append(key)
        except SessionAwaitingApprovalError:
            report.waiting.append(key)
        except Exception as error:  # noqa: BLE001  # reason: whatever one turn raises stops no other
            await self._failed(key, known, error, report)
        finally:
            if self._suspect == key:
                self._suspect = None

    def _is_ours(self, found: Checkpoint, known: KnownTurn) -> bool:
        head = found.head
        return head.status in TURN_STATUSES and head.agent == self.agent.name and head.run_id == known.run_id

    def _is_safe(self, found: Checkpoint) -> bool:
        """Whether a turn may run beside others. One at a time of those under which processes have died before.

        A turn that ends its process takes the others down with it; so they would all use up their attempts.
        """
        # Before it is set aside for what another did, it must have had a life without neighbours.
        enough = max(1, min(_SUSPECT_AFTER, self._max_attempts - 1))
        died = found.head.owner is not None and found.head.attempts >= enough
        if died and fruitless_lives(found) >= enough:
            if self._suspect is not None:
                return False
            self._suspect = found.key
        return True

    async def _resume(self, found: Checkpoint, known: KnownTurn, report: SweepReport) -> None:
        head, life = found.head, found.head.attempts + 1
        log(logging.INFO, "turn taken", session_id=found.key, run_id=head.run_id, attempt=life)
        try:
            if head.session_id is None:
                result = await Run.of(self.agent, self.store, found.key).resume()
            else:
                result = await self._session(found.key).resume()
        except (asyncio.CancelledError, StoreUnavailableError, OutcomeUnknownError) as error:
            known.excused, known.stopped = life, isinstance(error, asyncio.CancelledError)
            with contextlib.suppress(StoreError):  # it is tried again before the turn is
                await self.known.excuse(found.key)
            raise
        if result is None:
            report.busy.append(found.key)
        else:
            report.resumed.append(_ended(found.key, result))
            if head.session_id is not None and result.finish_reason != AWAITING:
                await self._compact(found.key, report)

    def _session(self, key: str) -> Session:
        return self.agent.session(key, store=self.store, limits=self._limits, compaction=self._compaction)

    async def _compact(self, key: str, report: SweepReport) -> None:
        """Compact a conversation behind its turn, if that is due; the turn has ended whatever becomes of this."""
        try:
            await self._session(key).compact_if_due()
        except SessionBusyError:
            pass  # its next turn has begun; whoever ends that one looks again
        except Exception as error:  # noqa: BLE001  # reason: whatever is wrong with one conversation stops no other
            report.failed.append(SweepFailure(key, None, error))
            log(logging.WARNING, "session not compacted", session_id=key, error=describe(error))

    async def _failed(self, key: str, known: KnownTurn, error: Exception, report: SweepReport) -> None:
        """Say what became of a turn that raised, by what the store holds now."""
        try:
            found = await self.store.checkpoints.load(key)
        except StoreError:
            self.fail(report, key, known.run_id, error)
            return
        if found is None or not self._is_ours(found, known):
            report.busy.append(key)  # it was dropped, deleted or finished by somebody else
            return
        self.fail(report, key, known.run_id, error)
        self.known.note_failure(found, error)
        reason = self.known.why_aside(found) or self.known.why_poisoned(found)
        if reason is not None:
            self.set_aside(found, known, reason, report)


def _ended(key: str, result: TurnResult) -> ResumedTurn:
    turn = ResumedTurn(key, result.run_id, result.finish_reason)
    event = "turn waits" if turn.finish_reason == AWAITING else "turn finished"
    log(logging.INFO, event, session_id=key, run_id=turn.run_id, finish_reason=turn.finish_reason)
    return turn
