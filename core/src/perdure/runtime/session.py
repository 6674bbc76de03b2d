"""One conversation with an agent."""

from __future__ import annotations

import contextlib
import inspect
import uuid
import weakref
from datetime import timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, get_args

from perdure import codec
from perdure.contracts.ids import check_name, check_run_id, check_session_id
from perdure.contracts.records import check_text, encode_object
from perdure.errors import (
    InvalidArgumentError,
    VersionConflictError,
)
from perdure.runtime.clearing import clear
from perdure.runtime.dialogue import Dialogue
from perdure.runtime.discarding import discard
from perdure.runtime.messages import Message, as_messages
from perdure.runtime.results import PendingTurn, result_of
from perdure.runtime.stream import RunStream
from perdure.runtime.transcript.compaction import CompactionResult, compact
from perdure.runtime.transcript.compaction_policy import CompactionOptions, Summarize, check_compaction
from perdure.runtime.transcript.history import fork, forked, whole_history
from perdure.runtime.transcript.reading import TranscriptView
from perdure.runtime.turn.limits import check_limits
from perdure.runtime.turns import TurnPolicy, Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.runtime.agent import Agent
    from perdure.runtime.inputs import Call
    from perdure.runtime.messages import Given
    from perdure.runtime.results import TurnResult
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.turn.limits import Limits


class Session:
    """One conversation: make it with `agent.session(id)`. Nothing that matters is kept in this object.

    Calls on one session id are served one after another, in call order, within one bundle of stores; across bundles and
    processes the turn journal decides, and the loser waits for `busy_timeout`, or gets `SessionBusyError`.

    Attributes:
        id: The session id.
        agent: Whose conversation.
        store: Where it is kept.
        scope: What a new session is created for.
    """

    def __init__(
        self,
        agent: Agent,
        store: AgentStore,
        session_id: str,
        scope: str | None = None,
        *,
        turn_policy: TurnPolicy = "wait",
        busy_timeout: timedelta | None = None,
        limits: Limits | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        self.id = check_session_id(session_id)
        self.agent = agent
        self.store = store
        self.scope = None if scope is None else check_text(scope, "scope")
        if turn_policy not in get_args(TurnPolicy):
            raise InvalidArgumentError("turn_policy", f"must be one of {', '.join(get_args(TurnPolicy))}")
        if busy_timeout is not None and (type(busy_timeout) is not timedelta or busy_timeout < timedelta(0)):
            raise InvalidArgumentError("busy_timeout", "must be a timedelta of 0 or more, or None")
        check_limits(limits)
        check_compaction(store, compaction)
        self._options: dict[str, Any] = {
            "turn_policy": turn_policy,
            "busy_timeout": busy_timeout,
            "limits": limits,
            "compaction": compaction,
        }
        seen = store.transcripts
        self._view: TranscriptView = seen.of(
            session_id, lambda: TranscriptView(store.sessions, session_id, keep=weakref.WeakMethod(seen.keep))
        )
        self._old_news: int = self._view.news
        self._channel = store.channels.of(session_id, session_id, store.clock)
        dialogue = Dialogue(agent, store, session_id, self._channel, self._view, limits, compaction)
        self._turns = Turns(dialogue, self._view, self.scope, turn_policy, busy_timeout)
        self._journal = self._turns.journal

    @property
    def messages(self) -> Sequence[Message]:
        """The messages as they were read or saved last since this object was made, as a snapshot; `load` reads what is new."""
        view = self._view
        return tuple([one.for_others() for one in (*view.read.messages, *view.saved)]) if self._is_known else ()

    @property
    def state(self) -> Record:
        """The user's own object beside the transcript, as read last."""
        head = self._view.head
        return {} if head is None or not self._is_known else dict(codec.copied(head.state))

    @property
    def _is_known(self) -> bool:
        """Whether the transcript, of this object's scope, was read since this was made; what others knew before is old."""
        head = self._view.head
        same_scope = head is None or self.scope in (None, head.scope)
        return same_scope and self._view.news > self._old_news

    async def _read(self) -> None:
        self._journal.require_scope(await self._view.refresh())

    async def load(self) -> Sequence[Message]:
        """Read what is new of the transcript, and return all of its messages. Reading never creates anything.

        Raises:
            InvalidArgumentError: The session has another scope.
        """
        await self._read()
        return self.messages

    def on(self, listener: Callable[[Any], Awaitable[None] | None]) -> Callable[[], None]:
        """Have a function hear of the events of this conversation in this process, from whichever object they come.

        Of a conversation of another scope it hears nothing but, in a process that begins, that a turn is taken up again.

        Args:
            listener: Takes a `perdure.events.RunEvent`. An async function is awaited in the loop, a plain one is called in a
                thread; one event after another, in order, and without holding the turn up. What it raises is logged.

        Returns:
            A function that ends it. It lasts as long as this object does, or a turn that it started.
        """
        if not callable(listener):
            raise InvalidArgumentError("listener", f"must be a function, not a {type(listener).__name__}")
        return self._channel.on(listener, self.scope)

    async def send(self, given: Given, /, *, input_id: str | None = None) -> TurnResult:
        """Run a turn on an input; a turn that is pending is finished first.

        Args:
            given: Text, a message, messages, or the parts of one message.
            input_id: Names the input: sent again with the same id, it gives the pending turn, or one of the last 100
                turns, that it belongs to, and is not taken twice. One that says something else is refused, unless a
                summary stands for the first.

        Returns:
            The result; `finish_reason="awaiting-approval"` if the turn waits for decisions. With the turn policies `queue`
            and `steer`, that of the turn which the input joined.

        Raises:
            InvalidArgumentError: The input is none of these, its `input_id` is that of another one, or the session has another
                scope; nothing was written.
            NotJsonError, RecordTooLargeError: The input cannot be stored; nothing was.
            LimitExceededError: The conversation has spent its limit; nothing was written.
            SessionAwaitingApprovalError: A pending turn waits for decisions; the input was not taken.
            TurnFailedError: A pending turn failed in a way that a retry does not mend, and this agent, by its fingerprint,
                was the one that tried it last; the input was not taken.
            SessionBusyError: Somebody else runs the conversation; the input was not taken.
            SessionConflictError: Other records came into the transcript; the turn stays pending.
            Exception: What the model or a `PropagatingToolError` raises; the turn stays pending.
        """
        try:
            return await self._turns.take(self._call(given, input_id))
        finally:
            await self._channel.catch_up()

    def stream(self, given: Given, /, *, input_id: str | None = None) -> RunStream:
        """Run a turn on an input as `send` does, and show its events as they come.

            async with session.stream("Refund order 7") as run:
                async for event in run: ...
            result = run.result

        Leaving the block before the end, by `break`, `return` or an exception of its own, aborts the turn and drops it.
        Leaving it by a cancellation, `KeyboardInterrupt` or `GeneratorExit` is a crash: the turn stays pending.
        `run.detach()` lets it go on. A turn that was pending is finished first and shown, each event marked `resumed`; it
        stays pending if the block is left meanwhile, and the input is not taken. A stream whose input joins a running
        turn (see `turn_policy`) shows only that turn's `run.done`.

        Args:
            given: As for `send`.
            input_id: As for `send`.

        Returns:
            The stream. Its iteration ends after `run.done` or `error`, or where the turn waits for approvals; the block
            raises what `send` would.
        """
        call = self._call(given, input_id)
        return RunStream(call, self._turns, self._channel, self.store.channels)

    async def submit(self, given: Given, /, *, input_id: str | None = None) -> str:
        """Record an input and return its run id, without running anything: a worker takes it, or `resume`.

        Of an input that waits in the journal of a turn which runs here (see `turn_policy`), it is that turn's run id; if the
        turn ends before it takes the input, the input opens the next turn, and submitted again gives the run id of that.

        Args:
            given: As for `send`.
            input_id: As for `send`.

        Raises:
            SessionBusyError: A turn of the conversation has not ended; the input was not taken.
            LimitExceededError: The conversation has spent its limit; nothing was written.
            OutcomeUnknownError: The input may have been taken; submit it again with the same `input_id`.
        """
        return await self._turns.submit(self._call(given, input_id))

    def _call(self, given: Given, input_id: str | None) -> Call:
        name = uuid.uuid4().hex if input_id is None else check_name(input_id, "input_id")
        return self._turns.checked(as_messages(given), name, named=input_id is not None)

    async def resume(self, *, rebase: bool = False) -> TurnResult | None:
        """Finish the pending turn.

        Args:
            rebase: Append the turn behind records that came in since it began, instead of raising.

        Returns:
            The turn's result, or `None` if none is pending.

        Raises:
            InvalidArgumentError: The session has another scope.
            SessionAwaitingApprovalError: It waits for decisions.
            SessionBusyError: Somebody else runs it.
            SessionConflictError: Other records came in, and `rebase` is False.
        """
        async with self._journal.calls.served():
            await self._journal.require_own_scope()
            while (found := await self._journal.pending()) is not None:
                await self._journal.require_decided(found)
                result = await self._journal.resume(found, rebase=rebase)
                if result is not None:
                    return result
            return None

    async def pending(self) -> PendingTurn | None:
        """Return what is known of a turn that has not ended, or `None`; one that is only to be saved is saved.

        Raises:
            InvalidArgumentError: The session has another scope.
        """
        await self._journal.require_own_scope()
        return await self._journal.shown()

    async def result(self, run_id: str) -> TurnResult | None:
        """Return the result of a turn of this session that is in the transcript, or `None`.

        Raises:
            InvalidArgumentError: The session has another scope.
        """
        check_run_id(run_id)
        await self._read()
        return result_of(self._view.read, run_id)

    async def discard_pending(self, *, force: bool = False) -> bool:
        """Drop the pending turn; its open approvals become `cancelled`. One that has finished is saved instead.

        Args:
            force: Fence off a live owner instead of raising `SessionBusyError`.

        Returns:
            Whether a turn was dropped.

        Raises:
            InvalidArgumentError: The session has another scope; nothing was changed.
        """
        async with self._journal.calls.served():
            await self._journal.require_own_scope()
            return await discard(self._journal, self._channel, force=force)

    async def abort(self) -> bool:
        """Stop the turn that this process runs or is opening, and drop it; its `send` returns `finish_reason="aborted"`.

        A turn that runs elsewhere, or nowhere, is discarded as by `discard_pending`.

        Returns:
            Whether there was a turn, and it is over: dropped, or saved if it was about to be.

        Raises:
            InvalidArgumentError: The session has another scope; nothing was stopped.
            AgentChangedError: It is another agent's; nothing was stopped.
            SessionBusyError: Somebody else runs it.
            StoreUnavailableError, OutcomeUnknownError: It is stopped, and may not be dropped: it may still be pending.
        """
        self._journal.calls.enter()
        runner = self.store.ownership.running.get(self.id)
        if runner is None:
            async with self._journal.calls.in_line() as place:
                runner = await place.next_runner()
                if runner is None:
                    async with place.served():
                        await self._journal.require_own_scope()
                        return await discard(self._journal, self._channel, force=False)
        if runner.base is None:  # else the turn has read it, and nobody needs the store for this
            await self._journal.require_own_scope()
        self._journal.require_scope(runner.base)
        self._journal.require_own(runner.journal)
        await runner.abort()
        if isinstance(runner.failure, Exception):
            raise runner.failure
        return runner.failure is None

    async def clear(self) -> None:
        """Empty the transcript; a turn that nobody runs is dropped. The `state` stays, it is the user's.

        Raises:
            InvalidArgumentError: The session has another scope; nothing was changed.
            SessionAwaitingApprovalError: A turn waits for decisions; nothing was changed.
            SessionBusyError: Somebody else runs the conversation; nothing was changed.
            SessionConflictError: Somebody else took the clearing over, and had not finished it.
            UnsupportedOperationError: The session store cannot replace; nothing was changed.
        """
        async with self._journal.calls.served():
            await self._journal.require_own_scope()
            await clear(self._journal, self._view, self._channel)

    async def compact(
        self, *, keep: int = 2, summarize: Summarize | None = None, archive: bool = False
    ) -> CompactionResult:
        """Put a summary in the place of all but the newest turns of the transcript.

        What is somebody else's in the transcript stays, behind the summary. A turn whose records the summary stands for
        is still known to have ended, by its run id and its inputs' ids; of the last 100.

        Args:
            keep: How many of the newest turns stay as they are, 0 or more.
            summarize: From the messages to the text of their summary, async or not; `None`: the agent's model is asked.
            archive: Whether to keep the full transcript, in a session that the summary names and `history` reads.

        Returns:
            What was done; `replaced == 0` if there was nothing to replace, and nothing was changed.

        Raises:
            InvalidArgumentError: An option is wrong, or the session has another scope; nothing was changed.
            SummaryError: The summary is empty, or no text; nothing was changed.
            SessionAwaitingApprovalError: A turn waits for decisions; nothing was changed.
            SessionBusyError: A turn is pending, or somebody else runs the conversation; nothing was changed.
            SessionConflictError: The transcript was rewritten meanwhile, and stays so; or somebody took this over.
            SessionDeletedError: The session was deleted meanwhile.
            UnsupportedOperationError: The session store cannot replace, or not delete, which `archive` needs.
            Exception: What `summarize` raises; nothing was changed.
        """
        options = CompactionOptions(keep=keep, summarize=summarize, archive=archive)
        try:
            async with self._journal.calls.served():
                await self._journal.require_own_scope()
                return await compact(self._journal, self._view, self._channel, options)
        finally:
            await self._channel.catch_up()

    async def compact_if_due(self) -> None:
        """Compact as `compaction` says, if that is due and no turn is open; workers do, behind the turns that they finish."""
        try:
            await self._turns.compact_if_due()
        finally:
            await self._channel.catch_up()

    async def history(self) -> Sequence[Message]:
        """Return all messages of the conversation, also those of which archives were kept when it was compacted.

        Raises:
            InvalidArgumentError: The session has another scope.
        """
        await self._read()
        return await whole_history(self.store, self.id, self._view.read)

    async def fork(
        self, session_id: str | None = None, *, at: int | None = None, scope: str | EllipsisType | None = ...
    ) -> Session:
        """Copy the transcript, or the first of its records, into a new session; the pending turn is not part of it.

        The state is copied; what was spent, the inputs' ids, and the archive that a summary stands for are not.

        Args:
            session_id: The new session's id; `None`: a new UUID.
            at: How many records to copy; `None`: all.
            scope: The new session's scope; left out: the same.

        Returns:
            The new session.

        Raises:
            InvalidIdError: The id breaks its rule; nothing was changed.
            InvalidArgumentError: There is nothing to copy, the session has another scope, or `at` is no place to cut; nothing was
                changed.
            SessionExistsError: The id is taken; nothing was changed.
            OutcomeUnknownError: The new session may exist, whole.
        """
        whole = TranscriptView(self.store.sessions, self.id, whole=True)
        source = await whole.refresh()
        self._journal.require_scope(source)
        if source is None:
            raise InvalidArgumentError("session", f"{self.id} does not exist: there is nothing to copy")
        records = forked(whole.read.records, at)
        same = source.scope if isinstance(scope, EllipsisType) else scope
        made_id = uuid.uuid4().hex if session_id is None else session_id
        made = Session(self.agent, self.store, made_id, same, **self._options)
        await fork(self.store, source, records, made.id, same)
        return made

    async def update_state(self, function: Callable[[Record], Record | Awaitable[Record]]) -> Record:
        """Change the user's own object beside the transcript: read, apply, write at the version read, and repeat.

        Args:
            function: From the present state to the new one; it may be called several times.

        Returns:
            The state as written.

        Raises:
            NotJsonError, RecordTooLargeError: The new state is no JSON object, or is too large; nothing was written.
            InvalidArgumentError: The session has another scope, or it is no function; nothing was written.
        """
        if not callable(function):
            raise InvalidArgumentError("function", f"must be one from state to state, not a {type(function).__name__}")
        while True:
            found = await self.store.sessions.load(self.id, limit=0)
            self._journal.require_scope(found)
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
        return await self._journal.continue_run(run_id, approval_id, lambda: self.result(run_id))
