"""Workers: they take an agent's turns that nobody runs, from any host, and finish them.

A sweep lists heads and reads the entries of a turn only when it takes it. What a worker remembers between sweeps only
spares it work: whether a turn may be taken is decided by what the store holds, so that any number of workers may run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from perdure.bundle import AgentStore
from perdure.contracts.checkpoints import (
    AWAITING_APPROVAL,
    CLAIM_STATUSES,
    FINISHED,
    IN_PROGRESS,
    READY,
    TURN_STATUSES,
)
from perdure.contracts.store import describe
from perdure.conversation import settle, undecided
from perdure.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    UnsupportedOperationError,
    WrongLoopError,
)
from perdure.runtime.agent import Agent, kind_of
from perdure.runtime.compaction_policy import check_compaction
from perdure.runtime.known_turns import KnownTurn, KnownTurns
from perdure.runtime.limits import check_limits
from perdure.runtime.runs import Run
from perdure.runtime.sweeps import (
    ResumedTurn,
    SetAsideTurn,
    SweepFailure,
    SweepReport,
    fruitless_lives,
    log,
)
from perdure.runtime.turn import AWAITING

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo
    from perdure.runtime.compaction_policy import Compaction
    from perdure.runtime.limits import Limits
    from perdure.runtime.results import TurnResult
    from perdure.runtime.session import Session


LONGEST_BACKOFF: Final = timedelta(seconds=60)
FAST: Final = (READY, IN_PROGRESS)
SLOW: Final = (*CLAIM_STATUSES, *FAST, FINISHED, AWAITING_APPROVAL)
"""What has ended is among them: runs without a session stay so until they are pruned, and may be many."""
_SUSPECT_AFTER: Final = 2


@dataclass(slots=True)
class _Sweep:
    report: SweepReport = field(default_factory=SweepReport)
    seen: set[str] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Worker:
    """Takes an agent's turns that nobody runs, and finishes them, a bounded number at a time.

    It takes turns that were submitted, whose owner is gone, or that are `ready`; in slow sweeps also those that wait
    for approvals and have been decided or have expired. There it also saves finished turns, and finishes claims whose
    owner is gone. Runs without a session are turns like others. Any number of workers, on any hosts, may share a store: each turn is taken by one of them.

    Attributes:
        agent: Whose turns.
        store: Where.
        concurrency: How many turns it runs at a time.
        poll: How long it rests between sweeps.
        slow_poll: How often it also looks at turns that wait for approvals or have finished, and at claims.
        max_attempts: After so many attempts in a row that brought it no further a turn is set aside.
        limits: What a conversation may spend of which the turn was begun without limits.
        compaction: When the transcript is compacted behind a turn that ended here, and how.

    Example:
        >>> worker = Worker(agent, store=store, concurrency=8)  # doctest: +SKIP
        >>> await worker.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        agent: Agent,
        *,
        store: AgentStore | None = None,
        concurrency: int = 4,
        poll: timedelta = timedelta(seconds=1),
        slow_poll: timedelta = timedelta(seconds=10),
        max_attempts: int = 5,
        limits: Limits | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        """Check the arguments; nothing is read yet.

        Args:
            agent: Whose turns to take.
            store: Where; `None`: the agent's own.
            concurrency: How many turns to run at a time, 1 or more.
            poll: How long to rest between sweeps, more than 0.
            slow_poll: The least time between slow sweeps, more than 0.
            max_attempts: How many attempts in a row may bring a turn no further, 1 or more.
            limits: As of `agent.session`, for turns that were begun without; the others keep theirs.
            compaction: As of `agent.session`, but behind each turn that ends here: nobody waits for the summary then.

        Raises:
            InvalidArgumentError: An argument is wrong, or there is no store.
            UnsupportedOperationError: The store keeps no turns, or lacks what the agent's tools, or compaction, need.
        """
        _check(concurrency, max_attempts, poll, slow_poll)
        if not isinstance(agent, Agent):
            raise InvalidArgumentError("agent", f"must be an Agent, not a {kind_of(agent)}")
        given = agent.store if store is None else store
        if isinstance(given, AgentStore) and "checkpoints" not in given:
            raise UnsupportedOperationError("the store", "checkpoints, in which workers find turns")
        self.agent = agent
        self.store = agent.store_of(store)
        check_limits(limits)
        self.limits, self.compaction = limits, check_compaction(self.store, compaction)
        self.concurrency, self.max_attempts = concurrency, max_attempts
        self.poll, self.slow_poll = poll, slow_poll
        self._stopping = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._known = KnownTurns(self.store, max_attempts)
        self._suspect: str | None = None

    async def run(self) -> None:
        """Take turns until `stop` is called. A store that is away delays that, nothing more.

        When it returns, or is cancelled, none of its turns runs here any more, and others may take them at once.

        Raises:
            StoreClosedError, WrongLoopError: The store cannot be used from here at all.
        """
        log(logging.INFO, "worker started", agent=self.agent.name, concurrency=self.concurrency)
        try:
            await self._run()
        finally:
            await _cancelled(self._running.values())
            self._stopping.clear()
            log(logging.INFO, "worker stopped", agent=self.agent.name)

    def stop(self) -> None:
        """Have `run` take no more turns, cancel those that run here, so that they give their leases back, and return.

        Call it in the thread of the event loop, for instance from a signal handler of the loop.
        """
        self._stopping.set()

    async def sweep(self, *, slow: bool = False) -> SweepReport:
        """Pass over the turns once, and return when all that were taken have ended or wait.

        Args:
            slow: Also look at turns that wait for approvals or have finished, and at claims.

        Returns:
            What was found and done. Errors of the store and of turns stand in it, by session.

        Raises:
            StoreClosedError, WrongLoopError: The store cannot be used from here at all.
        """
        sweep = _Sweep()
        try:
            await self._pass(sweep, slow=slow)
            while sweep.tasks:
                await asyncio.wait(sweep.tasks)
        finally:
            await _cancelled(sweep.tasks)
        return sweep.report

    # --- passing over the turns ---

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        slow_at, away = loop.time(), 0
        while not self._stopping.is_set():
            slow = loop.time() >= slow_at
            sweep = _Sweep()
            await self._unless_stopped(self._pass(sweep, slow=slow))
            unlisted = any(failure.session_id is None for failure in sweep.report.failed)
            away = away + 1 if unlisted else 0
            if slow and not unlisted:
                slow_at = loop.time() + self.slow_poll.total_seconds()
            rest = _backoff(self.poll, 2, away, self.slow_poll)
            await self._unless_stopped(asyncio.sleep(rest.total_seconds()))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something, to its end or until the worker is stopped."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled([task, stop])
        if not task.cancelled():
            task.result()

    async def _pass(self, sweep: _Sweep, *, slow: bool) -> None:
        """Look at every turn once, and take those that may be taken, as slots become free."""
        complete = slow
        for status in SLOW if slow else FAST:
            try:
                await self._look_at(status, sweep)
            except (StoreClosedError, WrongLoopError):
                raise
            except StoreError as error:
                complete = False
                self._fail(sweep.report, None, None, error)
        if complete:
            self._known.forget_but(sweep.seen | self._running.keys())

    async def _look_at(self, status: str, sweep: _Sweep) -> None:
        """Look at every turn of a status."""
        try:
            await self._page_through(status, sweep, order="id", limit=100)
        except StoreCorruptedError:
            # A damaged head ends the listing: look at what stands before it, one by one, and at what was written since.
            for order in ("id", "recent"):
                with contextlib.suppress(StoreCorruptedError):
                    await self._page_through(status, sweep, order=order, limit=1)
            raise

    async def _page_through(self, status: str, sweep: _Sweep, *, order: str, limit: int) -> None:
        """Look at turns a page at a time, so that what is taken was listed lately."""
        agent = None if status in CLAIM_STATUSES else self.agent.name  # no agent is needed to finish a claim
        cursor: str | None = None
        while True:
            page = await self.store.checkpoints.list(
                status=status, agent=agent, order=order, cursor=cursor, limit=limit
            )
            for info in random.sample(page.items, len(page.items)):  # workers that begin at once are soon apart
                if info.key not in sweep.seen and not _is_kept(info):
                    sweep.seen.add(info.key)
                    await self._consider(info, sweep)
            cursor = page.cursor
            if cursor is None:
                return

    async def _consider(self, info: CheckpointInfo, sweep: _Sweep) -> None:
        """Decide by its head what to do with a turn."""
        known = self._known.of(info)
        if info.key in self._running or self._is_run(info):
            sweep.report.busy.append(info.key)
        elif info.head.status in CLAIM_STATUSES:
            await self._start(self._settle(info, sweep.report), info.key, sweep)
        elif (reason := self._known.why_aside(info)) is not None:
            self._set_aside(info, known, reason, sweep.report)
        elif self._rests(info) or await self._waits(info, sweep.report):
            sweep.report.waiting.append(info.key)
        else:
            await self._start(self._take(info, known, sweep.report), info.key, sweep)

    async def _start(self, work: Coroutine[Any, Any, None], key: str, sweep: _Sweep) -> None:
        """Start a task when a slot is free."""
        try:
            while len(self._running) >= self.concurrency:
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.close()
            raise
        if key in self._running:  # another sweep of this worker was first
            work.close()
            sweep.report.busy.append(key)
            return
        task = self._running[key] = asyncio.create_task(work)
        sweep.tasks.add(task)
        task.add_done_callback(lambda _: self._running.pop(key))
        task.add_done_callback(sweep.tasks.discard)

    def _is_run(self, found: Checkpoint | CheckpointInfo) -> bool:
        """Whether somebody runs a turn; this process's own is never taken, whatever its lease says."""
        ownership = self.store.ownership
        if ownership.line(found.key):  # a call of this process is served, which resumes what is pending
            return True
        return found.head.owner in ownership.process.held or ownership.is_live(found)

    def _rests(self, found: Checkpoint | CheckpointInfo) -> bool:
        """Whether a turn failed so lately that it is not yet tried again; all workers read that from its head."""
        head = found.head
        if head.owner is not None or head.failed or head.last_error is None:
            return False
        if head.status not in (IN_PROGRESS, FINISHED):
            return False
        rest = _backoff(self.poll, 4, head.attempts - 1, LONGEST_BACKOFF)
        return found.updated_at <= self.store.clock.now() < found.updated_at + rest

    async def _waits(self, info: CheckpointInfo, report: SweepReport) -> bool:
        """Whether a turn waits for decisions; what is wrong with one turn's approvals keeps no other waiting."""
        if info.head.status != AWAITING_APPROVAL:
            return False
        try:
            return bool(await undecided(self.store, info.head))
        except StoreError as error:
            if error.retryable or isinstance(error, (StoreClosedError, WrongLoopError)):
                raise
            self._fail(report, info.key, info.head.run_id, error)
            return True

    # --- what stands in the way of a turn ---

    def _set_aside(
        self, found: Checkpoint | CheckpointInfo, known: KnownTurn, reason: str, report: SweepReport
    ) -> None:
        head = found.head
        turn = SetAsideTurn(found.key, head.run_id, head.attempts, head.last_error, reason)
        report.set_aside.append(turn)
        why = f"{reason} {head.last_error}"
        if known.told != why:  # once, not in every sweep
            known.told = why
            facts = {"attempts": turn.attempts, "last_error": turn.last_error, "reason": reason}
            log(logging.WARNING, "turn set aside", session_id=turn.session_id, run_id=turn.run_id, **facts)

    def _fail(self, report: SweepReport, key: str | None, run_id: str | None, error: Exception) -> None:
        report.failed.append(SweepFailure(key, run_id, error))
        event = "turns cannot be listed" if key is None else "turn failed"
        log(logging.WARNING, event, session_id=key, run_id=run_id, error=describe(error))

    # --- one turn ---

    async def _settle(self, info: CheckpointInfo, report: SweepReport) -> None:
        """Finish or undo a claim whose owner is gone."""
        try:
            async with self.store.ownership.line(info.key).served():
                await settle(self.store, info.key)
        except SessionBusyError:
            report.busy.append(info.key)
        except Exception as error:  # noqa: BLE001  # reason: whatever is wrong with one conversation stops no other
            self._fail(report, info.key, info.head.run_id, error)
        else:
            report.settled.append(info.key)
            log(logging.INFO, "claim settled", session_id=info.key, claim=info.head.status)

    async def _take(self, info: CheckpointInfo, known: KnownTurn, report: SweepReport) -> None:
        """Take a turn, if it still may be taken: it was listed before a slot became free."""
        key = info.key
        try:
            if known.excused is not None:
                await self._known.excuse(key)
            found = await self.store.checkpoints.load(key)
            if found is None or not self._is_ours(found, known) or self._is_run(found):
                report.busy.append(key)
            elif (reason := self._known.why_aside(found) or self._known.why_poisoned(found)) is not None:
                self._set_aside(found, known, reason, report)
            elif self._rests(found) or not self._is_safe(found):
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
        enough = max(1, min(_SUSPECT_AFTER, self.max_attempts - 1))
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
                await self._known.excuse(found.key)
            raise
        if result is None:
            report.busy.append(found.key)
        else:
            report.resumed.append(_ended(found.key, result))
            if head.session_id is not None and result.finish_reason != AWAITING:
                await self._compact(found.key, report)

    def _session(self, key: str) -> Session:
        return self.agent.session(key, store=self.store, limits=self.limits, compaction=self.compaction)

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
            self._fail(report, key, known.run_id, error)
            return
        if found is None or not self._is_ours(found, known):
            report.busy.append(key)  # it was dropped, deleted or finished by somebody else
            return
        self._fail(report, key, known.run_id, error)
        self._known.note_failure(found, error)
        reason = self._known.why_aside(found) or self._known.why_poisoned(found)
        if reason is not None:
            self._set_aside(found, known, reason, report)


def _is_kept(info: CheckpointInfo) -> bool:
    """Whether it is a run without a session that has ended: its journal keeps its result."""
    return info.head.status == FINISHED and info.head.session_id is None


def _ended(key: str, result: TurnResult) -> ResumedTurn:
    turn = ResumedTurn(key, result.run_id, result.finish_reason)
    event = "turn waits" if turn.finish_reason == AWAITING else "turn finished"
    log(logging.INFO, event, session_id=key, run_id=turn.run_id, finish_reason=turn.finish_reason)
    return turn


def _backoff(first: timedelta, factor: int, times: int, longest: timedelta) -> timedelta:
    """Return how long to rest after so many failures: the first rest, times a factor for each, up to a limit."""
    if first >= longest:
        return first
    return timedelta(seconds=min(first.total_seconds() * factor ** min(max(times, 0), 64), longest.total_seconds()))


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when they have ended."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


def _check(concurrency: object, max_attempts: object, poll: object, slow_poll: object) -> None:
    for name, number in (("concurrency", concurrency), ("max_attempts", max_attempts)):
        if type(number) is not int or number < 1:
            raise InvalidArgumentError(name, "must be a whole number of 1 or more")
    for name, duration in (("poll", poll), ("slow_poll", slow_poll)):
        if not isinstance(duration, timedelta) or duration <= timedelta(0):
            raise InvalidArgumentError(name, "must be a timedelta of more than 0")
