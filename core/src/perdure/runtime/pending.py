"""The turn journal of one conversation: who may touch it, what is pending in it, and taking that up."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import AWAITING_APPROVAL, CLAIM_STATUSES, FINISHED, IDLE, READY
from perdure.conversations.claims import busy, settle, undecided
from perdure.errors import (
    AgentChangedError,
    ApprovalOrphanedError,
    InvalidArgumentError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    VersionConflictError,
)
from perdure.runtime.results import AWAITING, PendingTurn, TurnResult, described
from perdure.runtime.serving import Serving
from perdure.runtime.turn.runner import Runner
from perdure.runtime.turn.state import TurnState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo
    from perdure.contracts.sessions import Transcript
    from perdure.ownership.owned_journal import OwnedJournal
    from perdure.runtime.dialogue import Dialogue
    from perdure.runtime.turn.runner import Sink


def _no_matter(_: Runner) -> None:
    """Take no note of what runs a turn."""


def _mark(runner: Runner) -> None:
    """Mark the events of a turn that was there before the input of whoever hears of it."""
    runner.teller.resumed = True


class PendingTurns:
    """What is pending in one turn journal, as this process may see it and take it up."""

    def __init__(self, dialogue: Dialogue, scope: str | None = None) -> None:
        self.dialogue = dialogue
        self.agent, self.store, self.key = dialogue.agent, dialogue.store, dialogue.key
        self._scope = scope
        self.calls = Serving(self.store, self.key)

    async def settled(self, *, force: bool = False) -> Checkpoint | None:
        """Read the turn journal, stale claims finished; raise if somebody else runs the conversation."""
        found = await settle(self.store, self.key, force=force)
        if found is not None and not force and self.store.ownership.is_live(found):
            raise busy(found)
        return found

    async def settled_in_scope(self, *, force: bool = False) -> Checkpoint | None:
        """Read the turn journal as `settled` does, and behind it the scope, which holds for what is written at that version.

        Raise if the session was created for another scope; whoever listens for one hears only what is of it.
        """
        found, channel = await self.settled(force=force), self.dialogue.channel
        if self._scope is not None or channel.is_scoped:
            session = await self.store.sessions.load(self.key, limit=0)
            if session is not None:
                self.require_scope(session)
                channel.scope = session.scope
        return found

    async def pending(self, *, force: bool = False) -> Checkpoint | None:
        """Return the pending turn that this agent may touch, or `None`."""
        found = await self.settled_in_scope(force=force)
        if found is None or found.head.status == IDLE:
            return None
        self.require_own(found)
        return found

    async def resume(
        self,
        found: Checkpoint,
        sink: Sink | None = None,
        *,
        rebase: bool = False,
        taken: Callable[[Runner], object] = _no_matter,
    ) -> TurnResult | None:
        """Take a turn over and run it; `None` if somebody else was first, and the journal must be read again.

        Args:
            found: Its journal.
            sink: The stream that shows it.
            rebase: Append it behind records that came in since it began.
            taken: Is told what runs it.
        """
        try:
            runner = await Runner.resume(self.dialogue, found, sink, rebase=rebase)
        except VersionConflictError:
            return None
        taken(runner)
        return await runner.run()

    async def require_decided(self, found: Checkpoint) -> None:
        """Raise if a turn waits for decisions."""
        if found.head.status in (AWAITING_APPROVAL, READY):
            left = await undecided(self.store, found.head)
            if left:
                raise SessionAwaitingApprovalError(self.key, left)

    async def require_own_scope(self) -> None:
        """Raise if the session was created for another scope, before anything of it is told or changed."""
        if self._scope is not None:
            self.require_scope(await self.store.sessions.load(self.key, limit=0))

    def require_scope(self, found: Transcript | None) -> None:
        """Raise if the session was created for another scope."""
        if found is not None and self._scope is not None and found.scope != self._scope:
            raise InvalidArgumentError("scope", f"cannot change: session {self.key} was created for another one")

    def require_own(self, found: Checkpoint | OwnedJournal) -> None:
        """Raise if a turn is another agent's."""
        if found.head.agent != self.agent.name:
            raise AgentChangedError(
                found.head.run_id or "", f"it belongs to the agent {found.head.agent!r}, not to {self.agent.name!r}"
            )

    async def finish(self, found: Checkpoint, sink: Sink | None = None) -> None:
        """Finish a turn that nobody runs, before something else is done."""
        try:
            result = await self.resume(found, sink, taken=_mark)
        except SessionDeletedError as error:
            if error.session_id != self.key:
                raise
            return  # nothing is pending any more
        if result is not None and result.finish_reason == AWAITING:
            raise SessionAwaitingApprovalError(self.key, result.approval_ids)

    async def shown(self) -> PendingTurn | None:
        """Return what is known of a turn that has not ended, or `None`; one that is only to be saved is saved."""
        found = await self.store.checkpoints.load(self.key)
        if found is None or found.head.status == IDLE:
            return None
        if self.store.ownership.is_live(found):
            return self._described(found)
        if found.head.status in CLAIM_STATUSES or found.head.status == FINISHED:
            try:
                return await self._left_when_settled()
            except SessionBusyError:  # somebody else has taken it just now
                found = await self.store.checkpoints.load(self.key)
                return None if found is None or found.head.status == IDLE else self._described(found)
        return await as_it_stands(self.store, found)

    def _described(self, found: Checkpoint) -> PendingTurn:
        return described(found, self.store.ownership)

    async def _left_when_settled(self) -> PendingTurn | None:
        async with self.calls.served():
            found = await settle(self.store, self.key)
            if found is None or found.head.status == IDLE:
                return None
            if found.head.status == FINISHED and found.head.agent == self.agent.name:
                await self._save(found)
            # Inputs that the turn had not taken may have opened another.
            left = await self.store.checkpoints.load(self.key)
            return None if left is None or left.head.status == IDLE else self._described(left)

    async def _save(self, found: Checkpoint) -> None:
        """Save a finished turn, unless it cannot be, since other records came in."""
        with contextlib.suppress(SessionConflictError):
            await self.resume(found)

    async def continue_run(
        self, run_id: str, approval_id: str, ended: Callable[[], Awaitable[TurnResult | None]]
    ) -> TurnResult:
        """Go on with the turn of a decided approval: its result, or that it still waits; see `approvals.resolve`.

        Args:
            run_id: The run that the approval names.
            approval_id: The approval.
            ended: Returns the result of that run if it has ended.
        """
        async with self.calls.served():
            while True:
                found = await settle(self.store, self.key)
                if found is None or found.head.run_id != run_id or is_kept(found):
                    result = await ended()
                    if result is None:
                        raise ApprovalOrphanedError(approval_id, run_id)
                    return result
                self.require_own(found)
                left = await undecided(self.store, found.head)
                if left or self.store.ownership.is_live(found):
                    return waiting_result(found, left)
                result = await self.resume(found)
                if result is not None:
                    return result


def is_kept(found: Checkpoint | CheckpointInfo) -> bool:
    """Whether it is a run without a session that has ended: its journal keeps its result."""
    return found.head.status == FINISHED and found.head.session_id is None


async def as_it_stands(store: AgentStore, found: Checkpoint | CheckpointInfo) -> PendingTurn:
    """Return what is known of a turn; of one that waits, which approvals are undecided now."""
    if found.head.status not in (AWAITING_APPROVAL, READY):
        return described(found, store.ownership)
    left = await undecided(store, found.head)
    return replace(described(found, store.ownership), status=AWAITING_APPROVAL if left else READY, approval_ids=left)


def waiting_result(found: Checkpoint, left: Sequence[str]) -> TurnResult:
    """Return the result of a turn that waits for decisions, or for the one who runs it."""
    state = TurnState.of(found.head.run_id or "", found.entries)
    return TurnResult("", AWAITING, tuple(state.messages), state.usage, state.run_id, left)
