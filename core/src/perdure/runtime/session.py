"""One conversation with an agent."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from perdure.contracts.checkpoints import (
    AWAITING_APPROVAL,
    CLAIM_STATUSES,
    FINISHED,
    IDLE,
    IN_PROGRESS,
    READY,
    CheckpointHead,
)
from perdure.contracts.ids import check_run_id, check_session_id
from perdure.contracts.records import MAX_VERSION, check_text, decode_records, encode_object, encode_records
from perdure.conversation import Claim, busy, settle, undecided
from perdure.errors import (
    AgentChangedError,
    ApprovalOrphanedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PerdureError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    TurnFailedError,
    VersionConflictError,
)
from perdure.owned_journal import OwnedJournal, OwnershipLostError
from perdure.runtime.messages import Message, Usage, as_messages, stamp
from perdure.runtime.results import PendingTurn, TurnResult, described, result_of
from perdure.runtime.runner import Runner, inside
from perdure.runtime.transcript import TranscriptView
from perdure.runtime.turn import AWAITING
from perdure.runtime.turn_state import TurnState, entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.runtime.agent import Agent

REMEMBERED_TURNS: Final = 100
"""How many turns back `send` looks for an `input_id`."""


class Session:
    """One conversation: make it with `agent.session(id)`. Nothing that matters is kept in this object.

    Calls on one session id are served one after another, in call order, within one bundle of stores; across bundles and
    processes the turn journal decides, and the loser gets `SessionBusyError`.

    Attributes:
        id: The session id.
        agent: Whose conversation.
        store: Where it is kept.
        scope: What a new session is created for.
    """

    def __init__(self, agent: Agent, store: AgentStore, session_id: str, scope: str | None = None) -> None:
        self.id = check_session_id(session_id)
        self.agent = agent
        self.store = store
        self.scope = None if scope is None else check_text(scope, "scope")
        self._view = TranscriptView(store.sessions, session_id)

    @property
    def messages(self) -> Sequence[Message]:
        """The messages that this object has read or saved last, as a snapshot; `load` reads what is new."""
        return (*self._view.messages, *self._view.saved)

    @property
    def state(self) -> Record:
        """The user's own object beside the transcript, as read last."""
        return {} if self._view.head is None else dict(self._view.head.state)

    async def load(self) -> Sequence[Message]:
        """Read what is new of the transcript, and return all of its messages. Reading never creates anything."""
        await self._view.refresh()
        return self.messages

    async def send(
        self, given: str | Message | Sequence[Message] | Sequence[Record], /, *, input_id: str | None = None
    ) -> TurnResult:
        """Run a turn on an input; a turn that is pending is finished first.

        Args:
            given: Text, a message, messages, or the parts of one message.
            input_id: Names the input: sent again with the same id, it gives the pending turn, or one of the last 100
                turns, that it started, and is not taken twice.

        Returns:
            The result; `finish_reason="awaiting-approval"` if the turn waits for decisions.

        Raises:
            InvalidArgumentError: The input is none of these, or the session has another scope; nothing was written.
            NotJsonError, RecordTooLargeError: The input cannot be stored; nothing was.
            SessionAwaitingApprovalError: A pending turn waits for decisions; the input was not taken.
            TurnFailedError: A pending turn failed in a way that a retry does not mend; the input was not taken.
            SessionBusyError: Somebody else runs the conversation; the input was not taken.
            SessionConflictError: Other records came into the transcript; the turn stays pending.
            Exception: What the model or a `PropagatingToolError` raises; the turn stays pending.
        """
        name = uuid.uuid4().hex if input_id is None else check_text(input_id, "input_id")
        messages = self._checked(as_messages(given), name)
        async with self._served():
            if input_id is not None:
                earlier = await self._earlier(input_id)
                if earlier is not None:
                    return earlier
            return await self._start(messages, name, named=input_id is not None)

    async def resume(self, *, rebase: bool = False) -> TurnResult | None:
        """Finish the pending turn.

        Args:
            rebase: Append the turn behind records that came in since it began, instead of raising.

        Returns:
            The turn's result, or `None` if none is pending.

        Raises:
            SessionAwaitingApprovalError: It waits for decisions.
            SessionBusyError: Somebody else runs it.
            SessionConflictError: Other records came in, and `rebase` is False.
        """
        async with self._served():
            while (found := await self._pending()) is not None:
                await self._require_decided(found)
                result = await self._resume(found, rebase=rebase)
                if result is not None:
                    return result
            return None

    async def pending(self) -> PendingTurn | None:
        """Return what is known of a turn that has not ended, or `None`; one that is only to be saved is saved."""
        found = await self.store.checkpoints.load(self.id)
        if found is None or found.head.status == IDLE:
            return None
        if self.store.ownership.is_live(found):
            return described(found)
        if found.head.status in CLAIM_STATUSES or found.head.status == FINISHED:
            return await self._settled_pending()
        if found.head.status in (AWAITING_APPROVAL, READY):
            left = await undecided(self.store, found.head)
            return replace(described(found), status=AWAITING_APPROVAL if left else READY, approval_ids=left)
        return described(found)

    async def result(self, run_id: str) -> TurnResult | None:
        """Return the result of a turn of this session that is in the transcript, or `None`."""
        check_run_id(run_id)
        await self._view.refresh()
        return result_of(self._view.records, run_id)

    async def discard_pending(self, *, force: bool = False) -> bool:
        """Drop the pending turn; its open approvals become `cancelled`. One that has finished is saved instead.

        Args:
            force: Fence off a live owner instead of raising `SessionBusyError`.

        Returns:
            Whether a turn was dropped.
        """
        unsaved: str | None = None
        async with self._served():
            while True:
                found = await self._pending(force=force)
                if found is None:
                    return False
                if found.head.status == FINISHED and found.head.run_id != unsaved:
                    try:
                        if await self._resume(found) is not None:
                            return False
                    except PerdureError as error:
                        if error.retryable or isinstance(error, OutcomeUnknownError):
                            raise
                        unsaved = found.head.run_id  # it can never be saved: drop it
                    continue  # the attempt has written to it, and somebody else may have come: look again
                with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
                    claim = await Claim.take(self.store, self.id, found, "discarding")
                    # Whoever takes the claim over finishes it; the turn that is there now may be a later one.
                    with claim, contextlib.suppress(OwnershipLostError):
                        await claim.drop_turn()
                    return True

    async def abort(self) -> bool:
        """Stop the turn that this process runs or is opening, and drop it; its `send` returns `finish_reason="aborted"`.

        A turn that runs elsewhere, or nowhere, is discarded as by `discard_pending`.
        """
        self._enter()
        runner = self.store.ownership.running.get(self.id) or await self._about_to_run()
        if runner is None:
            return await self.discard_pending()
        await runner.abort()
        return True

    async def _about_to_run(self) -> Runner | None:
        """Wait for the turn that the call that is being served opens or takes up; `None` if there is none."""
        ownership = self.store.ownership
        if not ownership.lock(self.id).locked():
            return None
        begins = asyncio.create_task(ownership.next_run(self.id))
        ends = asyncio.create_task(self._wait_in_line())
        try:
            await asyncio.wait([begins, ends], return_when=asyncio.FIRST_COMPLETED)
            return begins.result() if begins.done() else None
        finally:
            begins.cancel()
            ends.cancel()

    async def _wait_in_line(self) -> None:
        async with self.store.ownership.lock(self.id):
            pass

    async def clear(self) -> None:
        """Empty the transcript; a turn that nobody runs is dropped. The `state` stays, it is the user's.

        Raises:
            SessionAwaitingApprovalError: A turn waits for decisions; nothing was changed.
            SessionBusyError: Somebody else runs the conversation; nothing was changed.
            SessionConflictError: Somebody else took the clearing over, and had not finished it.
            UnsupportedOperationError: The session store cannot replace; nothing was changed.
        """
        self.store.sessions.require("replace")
        async with self._served():
            while True:
                found = await self._settled()
                if found is not None and found.head.status != IDLE:
                    self._require_own(found)
                    if found.head.status == FINISHED:
                        await self._finish(found)
                        continue
                    await self._require_decided(found)
                if found is None and await self.store.sessions.load(self.id, limit=0) is None:
                    return
                with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
                    with await Claim.take(self.store, self.id, found, "clearing") as claim:
                        await self._clear(claim)
                    return

    async def _clear(self, claim: Claim) -> None:
        """Empty the transcript; never a second time, when what stands there now may have come later."""
        try:
            await claim.clear()
        except OwnershipLostError as error:
            session = await self._view.refresh()
            if session is not None and session.rewritten <= claim.note["session_version"]:
                problem = "another owner took the clearing over"
                raise SessionConflictError(self.id, claim.journal.head.run_id or self.id, problem) from error
        await self._view.refresh()

    async def update_state(self, function: Callable[[Record], Record | Awaitable[Record]]) -> Record:
        """Change the user's own object beside the transcript: read, apply, write at the version read, and repeat.

        Args:
            function: From the present state to the new one; it may be called several times.

        Returns:
            The state as written.

        Raises:
            NotJsonError, RecordTooLargeError: The new state is no JSON object, or is too large; nothing was written.
            InvalidArgumentError: The session has another scope; nothing was written.
        """
        while True:
            found = await self.store.sessions.load(self.id, limit=0)
            self._require_scope(found)
            changed = function({} if found is None else found.state)
            new = await changed if inspect.isawaitable(changed) else changed
            encode_object(new, "state", self.store.sessions.max_record)  # None, too: it would leave the state as it is
            expected = 0 if found is None else found.version
            with contextlib.suppress(VersionConflictError):
                await self.store.sessions.append(
                    self.id, [], expected_version=expected, state=new, scope=self.scope if found is None else None
                )
                return new

    async def continue_run(self, run_id: str, approval_id: str) -> TurnResult:
        """Go on with the turn of a decided approval: its result, or that it still waits; see `approvals.resolve`."""
        async with self._served():
            while True:
                found = await settle(self.store, self.id)
                if found is None or found.head.run_id != run_id:
                    ended = await self.result(run_id)
                    if ended is None:
                        raise ApprovalOrphanedError(approval_id, run_id)
                    return ended
                self._require_own(found)
                left = await undecided(self.store, found.head)
                if left or self.store.ownership.is_live(found):
                    return _waiting(found, left)
                result = await self._resume(found)
                if result is not None:
                    return result

    # --- one call at a time ---

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        self._enter()
        if self.store.ownership.running.get(self.id) in inside.get():
            raise SessionBusyError(self.id, "the turn that makes this call")
        async with self.store.ownership.lock(self.id):
            yield

    def _enter(self) -> None:
        """Refuse another event loop and a closed store as the store itself would, before a lock that would hang there."""
        self.store.checkpoints._enter()

    # --- starting a turn ---

    async def _start(self, messages: Sequence[Record], input_id: str, *, named: bool) -> TurnResult:
        while True:
            found = await self._finished_first()
            if named:
                # Looked for after the journal was read, which is then opened at that version: nobody can have run it between.
                ended = await self._ended(input_id)
                if ended is not None:
                    return ended
            await self._create()
            try:
                journal = await self._open(found, messages, input_id)
            except VersionConflictError:
                continue  # somebody opened a turn meanwhile: finish it first, or say who runs it
            except OutcomeUnknownError as unknown:
                return await self._landed(input_id, unknown)
            state = TurnState.of(journal.head.run_id or "", [self._input(messages, input_id)])
            return await Runner(self.agent, self.store, self._view, journal, state).run()

    async def _landed(self, input_id: str, unknown: OutcomeUnknownError) -> TurnResult:
        """Look for a turn whose opening may have been written; it is never opened a second time."""
        try:
            landed = await self._earlier(input_id)
        except SessionBusyError:
            raise unknown from None
        if landed is None:
            raise unknown
        return landed

    async def _finished_first(self) -> Checkpoint | None:
        """Finish what is pending, and return the idle turn journal; `None` if there is none."""
        while True:
            found = await self._settled()
            if found is None or found.head.status == IDLE:
                return found
            if self.scope is not None:
                self._require_scope(await self.store.sessions.load(self.id, limit=0))
            self._require_own(found)
            if found.head.failed and found.head.status != FINISHED:
                raise TurnFailedError(
                    self.id, found.head.run_id or "", found.head.attempts, found.head.last_error or "unknown"
                )
            await self._require_decided(found)
            try:
                await self._finish(found)
            except Exception as error:
                error.add_note(f"The pending run {found.head.run_id} raised this; the new input was not taken.")
                raise

    async def _finish(self, found: Checkpoint) -> None:
        try:
            result = await self._resume(found)
        except SessionDeletedError as error:
            if error.session_id != self.id:
                raise
            return  # nothing is pending any more
        if result is not None and result.finish_reason == AWAITING:
            raise SessionAwaitingApprovalError(self.id, result.approval_ids)

    async def _create(self) -> None:
        """Create the session if it is absent, before its turn journal is opened: a commit never creates one."""
        found = await self.store.sessions.load(self.id, limit=0)
        if found is None:
            with contextlib.suppress(VersionConflictError):
                await self.store.sessions.append(self.id, [], expected_version=0, scope=self.scope)
        self._require_scope(found)

    def _require_scope(self, found: Transcript | None) -> None:
        if found is not None and self.scope is not None and found.scope != self.scope:
            raise InvalidArgumentError("scope", f"cannot change: session {self.id} was created for another one")

    async def _open(self, found: Checkpoint | None, messages: Sequence[Record], input_id: str) -> OwnedJournal:
        def head(version: int) -> CheckpointHead:
            return CheckpointHead(
                status=IN_PROGRESS,
                run_id=f"{self.id}.turn-{version}",
                session_id=self.id,
                agent=self.agent.name,
                fingerprint=self.agent.fingerprint,
                attempts=1,
                extra={} if found is None else found.head.extra,
            )

        opening = self._input(messages, input_id)
        return await OwnedJournal.take(
            self.store.ownership, self.store.checkpoints, self.id, found, lambda _: [opening], head
        )

    def _checked(self, messages: Sequence[Message], input_id: str) -> list[Record]:
        """Return an input as it will be stored in the turn journal and the transcript, or raise before any write."""
        given = [message.to_record(f"input[{place}]") for place, message in enumerate(messages)]
        # Of bytes, not of the caller's objects, which may change while the turn runs.
        records = list(decode_records(encode_records(given, "input", self.store.sessions.max_record), "input"))
        opening = self._input(records, input_id)
        encode_object(opening, "input", self.store.checkpoints.max_record)
        sample = TurnState.of(f"{self.id}.turn-{MAX_VERSION}", [opening])
        encode_records(sample.records(Usage()), "input", self.store.sessions.max_record)
        return records

    def _input(self, messages: Sequence[Record], input_id: str) -> Record:
        return entry("input", stamp(self.store.clock.now()), messages=list(messages), input_id=input_id)

    async def _earlier(self, input_id: str) -> TurnResult | None:
        """Return the result of the turn that an input started before; a pending one is finished first."""
        found = await self._settled()
        if found is not None and any(item.get("input_id") == input_id for item in found.entries):
            self._require_own(found)
            left = await undecided(self.store, found.head)
            result = _waiting(found, left) if left else await self._resume(found)
            if result is not None:
                return result
        return await self._ended(input_id)

    async def _ended(self, input_id: str) -> TurnResult | None:
        """Return the result of the turn in the transcript that an input started, or `None`."""
        await self._view.refresh()
        runs: dict[Any, None] = {}
        for record in reversed(self._view.records):
            runs.setdefault(record.get("run_id"))
            if len(runs) > REMEMBERED_TURNS:
                return None
            if record.get("input_id") == input_id:
                return result_of(self._view.records, record["run_id"])
        return None

    # --- what is there ---

    async def _settled(self, *, force: bool = False) -> Checkpoint | None:
        """Read the turn journal, stale claims finished; raise if somebody else runs the conversation."""
        found = await settle(self.store, self.id, force=force)
        if found is not None and not force and self.store.ownership.is_live(found):
            raise busy(found)
        return found

    async def _pending(self, *, force: bool = False) -> Checkpoint | None:
        """Return the pending turn that this agent may touch, or `None`."""
        found = await self._settled(force=force)
        if found is None or found.head.status == IDLE:
            return None
        self._require_own(found)
        return found

    async def _settled_pending(self) -> PendingTurn | None:
        async with self._served():
            found = await settle(self.store, self.id)
            if found is None or found.head.status == IDLE:
                return None
            if found.head.status == FINISHED and found.head.agent == self.agent.name and await self._saved(found):
                return None
            found = await self.store.checkpoints.load(self.id) or found
            return None if found.head.status == IDLE else described(found)

    async def _saved(self, found: Checkpoint) -> bool:
        """Save a finished turn; False if it cannot be, since other records came in."""
        try:
            return await self._resume(found) is not None
        except SessionConflictError:
            return False

    async def _resume(self, found: Checkpoint, *, rebase: bool = False) -> TurnResult | None:
        """Take a turn over and run it; `None` if somebody else was first, and the journal must be read again."""
        try:
            runner = await Runner.resume(self.agent, self.store, self._view, found, rebase=rebase)
        except VersionConflictError:
            return None
        return await runner.run()

    async def _require_decided(self, found: Checkpoint) -> None:
        if found.head.status in (AWAITING_APPROVAL, READY):
            left = await undecided(self.store, found.head)
            if left:
                raise SessionAwaitingApprovalError(self.id, left)

    def _require_own(self, found: Checkpoint) -> None:
        if found.head.agent != self.agent.name:
            raise AgentChangedError(
                found.head.run_id or "", f"it belongs to the agent {found.head.agent!r}, not to {self.agent.name!r}"
            )


def _waiting(found: Checkpoint, left: Sequence[str]) -> TurnResult:
    """Return the result of a turn that waits for decisions, or for the one who runs it."""
    state = TurnState.of(found.head.run_id or "", found.entries)
    return TurnResult("", AWAITING, tuple(state.messages), state.usage, state.run_id, left)
