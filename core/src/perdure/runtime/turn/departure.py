"""What becomes of a turn that this task gives up for good: one that is aborted, or that somebody else has taken over."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import DELETING, FINISHED, IDLE, TURN_STATUSES
from perdure.contracts.store import in_one_life
from perdure.conversations.claims import drop_turn
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    OutcomeUnknownError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    VersionConflictError,
)
from perdure.events import RunDone
from perdure.runtime.messages import Usage
from perdure.runtime.results import ABORTED, TurnResult, result_of
from perdure.runtime.turn.state import kept_result

if TYPE_CHECKING:
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.observers.listening import Channel
    from perdure.ownership.owned_journal import OwnedJournal
    from perdure.runtime.dialogue import Dialogue
    from perdure.runtime.turn.state import TurnState


def tell_dropped(channel: Channel, found: Checkpoint) -> None:
    """Tell of the end of a turn that was dropped, if there was one: without what it held, which may not be readable."""
    if found.head.run_id is not None:
        dropped = TurnResult("", ABORTED, (), Usage(), found.head.run_id)
        channel.emit(RunDone, dropped.run_id, resumed=True, result=dropped)


class Departure:
    """Parts with one turn."""

    def __init__(self, dialogue: Dialogue, journal: OwnedJournal, state: TurnState) -> None:
        self.dialogue = dialogue
        self.store = dialogue.store
        self.journal = journal
        self.state = state

    async def drop(self) -> TurnResult | None:
        """Drop the aborted turn; return its result if it was saved just before, here or by whoever took it."""
        self.journal.forget()
        while True:
            found = await self.store.checkpoints.load(self.journal.key)
            if found is None or found.head.run_id != self.state.run_id:
                return await self._in_transcript()
            if found.head.owner != self.journal.owner and self.store.ownership.is_live(found):
                return await self.after_loss()
            with contextlib.suppress(VersionConflictError):  # it was marked ready, or somebody took it: look again
                await drop_turn(self.store, self.journal.key, found)
                return None

    async def after_loss(self) -> TurnResult:
        """Return the result of the turn that somebody else took over, without writing to it.

        Raises:
            SessionBusyError: Somebody else runs it, or does something to the conversation.
            SessionDeletedError: The conversation is gone.
            SessionConflictError: The turn was dropped.
        """
        key, run_id = self.journal.key, self.state.run_id
        result = await self._in_transcript()
        found = await self.store.checkpoints.load(key)
        if result is not None:
            await self._clean_up(found)
            # Whoever took the turn over may have gone further than this task has seen: the transcript says what it came to.
            return result
        if found is not None and found.head.run_id == run_id and found.head.status in TURN_STATUSES:
            raise SessionBusyError(key, found.head.owner, found.head.lease_expires_at)
        await self._clean_up(found)
        if found is None:
            raise SessionDeletedError(key)
        if found.head.run_id == run_id and found.head.status != IDLE:
            raise SessionBusyError(key, found.head.owner, found.head.lease_expires_at)
        raise SessionConflictError(key, run_id, "it was dropped")

    async def _clean_up(self, found: Checkpoint | None) -> None:
        """Take back approvals that were asked for after the turn was over: its run id never comes again.

        Whoever dropped or deleted the turn has seen to those that it could find. In a conversation that is deleted, or
        being so, none may stay; a dropped turn's stay as cancelled, if anybody can have heard of them.
        """
        if "approvals" not in self.store:
            return
        deleted = found is None or found.head.status == DELETING or not in_one_life(self.journal.version, found.version)
        for call in (call for step in self.state.steps for call in step.calls):
            questions = [call.id] * call.gated + [call.doubt_id] * (call.attempts > 0)
            for approval_id in questions:
                late = await self.store.approvals.get(approval_id)
                # A decided one is no question any more: whoever deletes has found it, and who lets go needs it.
                if late is not None and (found is None or not late.decided):
                    await self._take_back(late, unheard=deleted or approval_id not in call.asked)

    async def _take_back(self, late: Approval, *, unheard: bool) -> None:
        with contextlib.suppress(
            ApprovalAlreadyResolvedError, ApprovalNotFoundError, OutcomeUnknownError, VersionConflictError
        ):
            if unheard and self.store.approvals.capabilities.delete:
                await self.store.approvals.delete(late.id, expected_version=late.version)
            else:
                await self.store.approvals.cancel(late.id, reason="the turn was dropped")

    async def _in_transcript(self) -> TurnResult | None:
        """Return the result of the turn if somebody has saved it."""
        view = self.dialogue.view
        if view is None:
            found = await self.store.checkpoints.load(self.journal.key)
            kept = found is not None and found.head.run_id == self.state.run_id and found.head.status == FINISHED
            return kept_result(found) if found is not None and kept else None
        await view.refresh()
        return result_of(view.read, self.state.run_id)
