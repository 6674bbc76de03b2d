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
from perdure.contracts.checkpoints import AWAITING_APPROVAL, CLAIM_STATUSES, FINISHED, IN_PROGRESS, READY
from perdure.conversations.claims import undecided
from perdure.errors import (
    InvalidArgumentError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    UnsupportedOperationError,
    WrongLoopError,
)
from perdure.runtime.agent import Agent, kind_of
from perdure.runtime.pending import is_kept
from perdure.runtime.transcript.compaction_policy import check_compaction
from perdure.runtime.turn.limits import check_limits
from perdure.runtime.workers.sweeps import SweepReport, backoff, log
from perdure.runtime.workers.taking import Taker

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from perdure.contracts.checkpoints import CheckpointInfo
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.turn.limits import Limits

FAST: Final = (READY, IN_PROGRESS)
SLOW: Final = (*CLAIM_STATUSES, *FAST, FINISHED, AWAITING_APPROVAL)
"""What has ended is among them: runs without a session stay so until they are pruned, and may be many."""


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
        self._taker = Taker(
            agent, self.store, poll=poll, max_attempts=max_attempts, limits=limits, compaction=self.compaction
        )

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
            rest = backoff(self.poll, 2, away, self.slow_poll)
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
                self._taker.fail(sweep.report, None, None, error)
        if complete:
            self._taker.known.forget_but(sweep.seen | self._running.keys())

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
                if info.key not in sweep.seen and not is_kept(info):
                    sweep.seen.add(info.key)
                    await self._consider(info, sweep)
            cursor = page.cursor
            if cursor is None:
                return

    async def _consider(self, info: CheckpointInfo, sweep: _Sweep) -> None:
        """Decide by its head what to do with a turn."""
        known = self._taker.known.of(info)
        if info.key in self._running or self._taker.is_run(info):
            sweep.report.busy.append(info.key)
        elif info.head.status in CLAIM_STATUSES:
            await self._start(self._taker.settle(info, sweep.report), info.key, sweep)
        elif (reason := self._taker.known.why_aside(info)) is not None:
            self._taker.set_aside(info, known, reason, sweep.report)
        elif self._taker.rests(info) or await self._waits(info, sweep.report):
            sweep.report.waiting.append(info.key)
        else:
            await self._start(self._taker.take(info, known, sweep.report), info.key, sweep)

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

    async def _waits(self, info: CheckpointInfo, report: SweepReport) -> bool:
        """Whether a turn waits for decisions; what is wrong with one turn's approvals keeps no other waiting."""
        if info.head.status != AWAITING_APPROVAL:
            return False
        try:
            return bool(await undecided(self.store, info.head))
        except StoreError as error:
            if error.retryable or isinstance(error, (StoreClosedError, WrongLoopError)):
                raise
            self._taker.fail(report, info.key, info.head.run_id, error)
            return True


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
