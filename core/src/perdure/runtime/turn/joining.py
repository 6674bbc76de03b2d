"""Inputs that join a turn while it runs, and what those who gave them are told of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.ownership.leases import OwnershipLostError
from perdure.runtime.messages import stamp
from perdure.runtime.results import ABORTED, AWAITING, TurnResult
from perdure.runtime.turn.state import entry

if TYPE_CHECKING:
    from perdure.contracts.records import Record
    from perdure.runtime.turn.runner import Runner


class Joining:
    """The inputs that have joined one run of a turn, each with those who wait for what becomes of it.

    What runs the turn is given with each call: it has this, and what has each other goes only when the collector comes.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[TurnResult | None]]] = {}
        self._let_go = False
        self._outcome: TurnResult | Exception | None = None

    async def accept(self, runner: Runner, given: Record, *, steer: bool) -> asyncio.Future[TurnResult | None] | None:
        """Take another input into the turn, journaled before this returns.

        Args:
            runner: What runs the turn; it may go on with another journal and state after it has waited.
            given: What its entry says of it.
            steer: Whether it shall be heard as soon as it can be.

        Returns:
            What gives the turn's result; or gives `None` if the input was accepted and this turn ended without it, so that
            the journal must be read again. `None` at once if the turn takes nothing more.

        Raises:
            StoreUnavailableError: It was not taken.
            OutcomeUnknownError: Nobody knows whether it was.
        """
        waiting = asyncio.get_running_loop().create_future()
        others = self._waiting.setdefault(given["input_id"], [])
        others.append(waiting)
        try:
            joined = await self._accepted(runner, given, steer=steer)
        except BaseException:
            others.remove(waiting)
            raise
        if not joined:
            others.remove(waiting)
            return None
        if self._let_go:  # it was over before this call was told that it had begun
            self._tell(runner, waiting, given["input_id"])
        return waiting

    @staticmethod
    async def _accepted(runner: Runner, given: Record, *, steer: bool) -> bool:
        input_id = given["input_id"]
        queued = entry("input-queued", stamp(runner.store.clock.now()), **given)
        entries = [queued | {"steer": True} if steer else queued]

        def unwanted() -> bool:
            return runner.is_closed or runner.state.holds(input_id)  # also if it was given twice at once

        try:
            written = await runner.journal.append_aside(entries, unless=unwanted)
        except OwnershipLostError:
            return False
        return written or (runner.state.holds(input_id) and not runner.is_stopped)

    def let_go(self, runner: Runner, outcome: TurnResult | Exception | None) -> None:
        """Tell those whose input joined what became of the turn; `None`: to look for themselves."""
        self._let_go, self._outcome = True, outcome
        for input_id, others in self._waiting.items():
            for waiting in others:
                self._tell(runner, waiting, input_id)

    def _tell(self, runner: Runner, waiting: asyncio.Future[TurnResult | None], input_id: str) -> None:
        outcome = self._outcome
        if waiting.done():
            return
        if isinstance(outcome, Exception):
            waiting.set_exception(outcome)
            waiting.exception()  # somebody may have stopped waiting
        else:
            whole = outcome is not None and outcome.finish_reason in (AWAITING, ABORTED)
            untaken = any(given.id == input_id for given in runner.state.untaken)
            waiting.set_result(outcome if whole or not untaken else None)
