"""One run of a turn in this process: it holds the journal, keeps its lease, and ends in a result or a typed error."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.contracts.checkpoints import AWAITING_APPROVAL, FINISHED, IN_PROGRESS
from perdure.contracts.store import describe
from perdure.conversations.claims import undecided
from perdure.errors import (
    OutcomeUnknownError,
    SessionConflictError,
    SessionDeletedError,
    StoreError,
    VersionConflictError,
)
from perdure.events import RunDone, RunFailed, RunResumed, RunStarted
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.owned_journal import OwnedJournal
from perdure.ownership.uninterrupted import Work, ended, uninterrupted
from perdure.place import running
from perdure.runtime.messages import stamp
from perdure.runtime.results import ABORTED, AWAITING, STOP, TurnResult
from perdure.runtime.turn.answers import storable
from perdure.runtime.turn.commit import Commit
from perdure.runtime.turn.departure import Departure
from perdure.runtime.turn.joining import Joining
from perdure.runtime.turn.limits import Spent
from perdure.runtime.turn.loop import Turn
from perdure.runtime.turn.state import TurnState, entry
from perdure.runtime.turn.telling import Teller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.runtime.dialogue import Dialogue
    from perdure.runtime.messages import Message

Sink: TypeAlias = "Callable[[Any], object]"
"""Takes the events that a stream shows."""


class Runner:
    """Runs one turn that this task owns.

    Attributes:
        base: The transcript as this run has read it, without its records; `None`: not yet.
        joining: The inputs that join the turn while it runs.
        done: The event that said how the turn ended, once it has.
        failure: What ended this run before the turn had ended, if something did.
    """

    def __init__(
        self,
        dialogue: Dialogue,
        journal: OwnedJournal,
        state: TurnState,
        sink: Sink | None = None,
        *,
        resumed: int = 0,
        rebase: bool = False,
        agent_changed: bool = False,
    ) -> None:
        """Take a turn that is owned already.

        Args:
            dialogue: What it runs on.
            journal: Its journal.
            state: What its entries say.
            sink: The stream that shows it.
            resumed: How often it has been taken up; 0: it begins.
            rebase: Append it behind records that came in since it began.
            agent_changed: Whether the agent is not what it was when the turn began.
        """
        self.dialogue = dialogue
        self.agent, self.store = dialogue.agent, dialogue.store
        self.base: Transcript | None = None
        self.rebase = rebase
        self.done: RunDone | None = None
        self.failure: BaseException | None = None
        self._take(journal, Teller(dialogue.channel, state, sink, resumed=resumed > 0))
        self._opening = (resumed, agent_changed)
        self._turn: Turn | None = None
        self._work: Work[str] | None = None
        self.joining = Joining()
        self._ended = asyncio.Event()
        self._aborted = False
        self._lost = False
        self._committing = state.finish_reason is not None  # one that has finished is only to be saved
        self._waiting_for: tuple[str, ...] = ()
        self._committed: TurnResult | None = None  # what was saved here
        self._saved: TurnResult | None = None  # what another has saved

    @classmethod
    async def resume(
        cls, dialogue: Dialogue, found: Checkpoint, sink: Sink | None = None, *, rebase: bool = False
    ) -> Runner:
        """Take over a turn that nobody runs, at the version read, or raise `VersionConflictError`."""
        head, store = found.head, dialogue.store
        changed = dialogue.agent.changed_since(head)
        begins = head.attempts == 0  # it was submitted, or came after another: this is its start
        # At the start, too: the time in which the input waited is not one in which the turn ran.
        resumed = [_resumption(head, dialogue.agent.fingerprint, stamp(store.clock.now()))]
        state = TurnState.of(head.run_id or "", [*found.entries, *resumed])  # first: a damaged turn is not taken
        journal = await OwnedJournal.take(
            *(store.ownership, store.checkpoints, found.key, found, lambda _: resumed),
            lambda _: _resumed(head, dialogue.agent.fingerprint),
        )
        attempt = 0 if begins else head.attempts + 1
        return cls(dialogue, journal, state, sink, resumed=attempt, rebase=rebase, agent_changed=changed)

    def _take(self, journal: OwnedJournal, teller: Teller) -> None:
        self.journal, self.teller, self.state = journal, teller, teller.state
        journal.on_written = self._written

    async def run(self) -> TurnResult:
        """Run the turn to its end, or up to where it waits for decisions."""
        head = self.journal.head
        with running(self.state.run_id, head.session_id, self.agent.name, self.store.clock) as leaving:
            result = await self._run_owned()
            leaving.finish_reason = result.finish_reason
            return result

    async def _run_owned(self) -> TurnResult:
        key = self.journal.key
        self.store.ownership.run(key, self)
        try:
            self._tell_begin()
            result = await self._run()
            if result.finish_reason != AWAITING:
                self._tell_end(result)
        except Exception as error:
            self.failure = error
            self.teller.tell(RunFailed, error=error)
            self.joining.let_go(self, error)
            raise
        except BaseException as interruption:
            self.failure = interruption
            if self._committed is not None:
                self._tell_end(self._committed)
            self.joining.let_go(self, None)
            raise
        else:
            self.joining.let_go(self, result)
            return result
        finally:
            if self.store.ownership.running.get(key) is self:
                del self.store.ownership.running[key]
            self.journal.forget()
            self._ended.set()
            if self._work is None or self._work.done():  # else it goes on behind a cancellation
                # What has each other goes when the collector comes; a transcript that nobody else has shall go at once.
                self.journal.on_written = lambda _: None

    async def _run(self) -> TurnResult:
        while True:
            reason = await self._drive()
            if reason == AWAITING and await self._decided_meanwhile() and not self._aborted:
                continue
            if reason == AWAITING and self._aborted:
                reason = await self._drop()
            return self._result(reason)

    def _tell_begin(self) -> None:
        attempt, changed = self._opening
        if attempt:
            self.teller.tell(RunResumed, attempt=attempt, agent_changed=changed)
        else:
            self.teller.tell(RunStarted)

    def _tell_end(self, result: TurnResult) -> None:
        if self.done is None:
            self.done = self.teller.send(RunDone, result=result)

    def refuse(self) -> None:
        """Have the turn be dropped, before it runs; one that is only to be saved is saved."""
        self._aborted = not self._committing

    async def abort(self) -> None:
        """Stop the turn and drop it; one that is being saved is saved."""
        if not self._committing and self._work is not None:
            self._aborted = True
            self._work.interrupt()
        await self._ended.wait()

    @property
    def is_closed(self) -> bool:
        """Whether the turn takes no more inputs here."""
        return self._committing or self.is_stopped or self._ended.is_set()

    @property
    def is_stopped(self) -> bool:
        """Whether the turn comes to no result of its own here."""
        return self._aborted or self._lost

    # --- holding the turn ---

    def _written(self, entries: Sequence[Record]) -> None:
        self.teller.written(entries)
        if self.journal.head.last_error is not None and any(item["kind"] in ("model", "tool") for item in entries):
            self.journal.note(last_error=None)  # the turn has got over it; said with the next append
        for item in entries:
            if "steer" in item and self._turn is not None:
                self._turn.steer()

    async def _drive(self) -> str:
        """Hold the lease while the turn goes on; tell a loss or an abort from a cancellation of the caller."""
        if self._is_aborted():
            return await self._drop()
        is_cancelled = _cancellation_of_caller()
        self._work = work = Work(self._advance())
        try:
            async with self.journal.heartbeat(self._on_lost):
                return await work.outcome()
        except OwnershipLostError:
            return await self._after_loss()
        except asyncio.CancelledError:
            return await uninterrupted(self._stopped(work, is_cancelled))

    async def _stopped(self, work: Work[str], is_cancelled: Callable[[], bool]) -> str:
        """See to the turn once its work has ended: drop it, if that is wanted, or let others have it."""
        await ended(work)
        if self._lost and not is_cancelled():
            return await self._after_loss()
        if self._is_aborted() and not is_cancelled():
            return await self._drop()
        if not self._lost:
            await self._give_up()  # the work has not, if it was cancelled before its first step, or aborted
        raise asyncio.CancelledError

    def _is_aborted(self) -> bool:
        return self._aborted

    def _on_lost(self) -> None:
        self._lost = True
        if self._work is not None:
            self._work.interrupt()

    async def _advance(self) -> str:
        """Go on with the turn; whatever stops it gives the journal up in the same append that says why."""
        try:
            await self._load_base()
            if self.state.finish_reason is None:
                self._turn = self._new_turn()
                reason = await self._turn.advance()
                while reason == AWAITING:
                    self._waiting_for = self._turn.calls.waiting_for
                    approval_ids = list(self._waiting_for)
                    # An input that came in at the last moment may ask for the opposite of waiting.
                    if await self.journal.give_up(
                        unless=self._turn.calls.is_urged, status=AWAITING_APPROVAL, approval_ids=approval_ids
                    ):
                        return AWAITING
                    reason = await self._turn.advance()
                self.state.finish(reason, self.store.clock.now())
            self._committing = True
            await uninterrupted(self._commit())
        except OwnershipLostError:
            raise
        except asyncio.CancelledError:
            if not self._lost and not self._aborted:
                await self._give_up()
            raise
        except Exception as error:
            await self._give_up(last_error=storable(describe(error)), failed=not _may_pass(error))
            raise
        finally:
            self._turn = None
        assert self.state.finish_reason is not None
        return self.state.finish_reason

    def _new_turn(self) -> Turn:
        limits = [(self.agent.limits, Spent())]
        begun_with = self.state.limits
        of_all = self.dialogue.limits if begun_with is None else begun_with
        if of_all is not None:
            limits.append((of_all, self._spent_before()))
        return Turn(self.agent, self.store, self.journal, self.teller, self._history(), limits)

    def _spent_before(self) -> Spent:
        view = self.dialogue.view
        return Spent() if view is None else view.read.spent(self.journal.head.base_count or 0)

    async def _commit(self) -> None:
        view = self.dialogue.view
        if view is None:
            await Commit(self.store, self.journal, self.state, [], rebase=False).keep()
        else:
            records, base_count = self.state.records(self._spent_before()), self.journal.head.base_count or 0
            await Commit(self.store, self.journal, self.state, records, rebase=self.rebase).run()
            self.journal.forget()
            view.add_saved(records, base_count)
        self._committed = self.state.result(self.state.finish_reason or STOP)
        if self._ended.is_set():  # it went on behind a cancellation
            self._tell_end(self._committed)

    async def _give_up(self, **changes: Any) -> None:
        # What goes wrong here adds nothing: the turn is pending, and its owner is known to be gone.
        with contextlib.suppress(StoreError, OwnershipLostError):
            await self.journal.give_up(**changes)

    # --- the transcript that the turn was made from ---

    async def _load_base(self) -> None:
        """Read the transcript; the first time it becomes the base, later it must still begin with the base."""
        if self.dialogue.view is None:
            return
        transcript = await self.dialogue.view.refresh()
        head = self.journal.head
        if transcript is None and head.base_version is None:
            # Deleted between the look at the session and the opening: nothing has run, and a turn without its session could
            # never be saved.
            await self.journal.delete()
            raise SessionDeletedError(self.journal.key)
        if transcript is None:
            raise self._conflict("the session was deleted")
        self.base, self.dialogue.channel.scope = transcript, transcript.scope
        gone = head.base_version is not None and transcript.rewritten > head.base_version
        if head.base_version is None or (gone and self.rebase):
            self.journal.note(base_version=transcript.version, base_count=transcript.count)
        elif gone and self.state.finish_reason is None:
            raise self._conflict("the transcript that it was made from was rewritten")

    def _history(self) -> list[Message]:
        """Return the messages of the base: what came in since is not part of this turn."""
        view, count = self.dialogue.view, self.journal.head.base_count
        if view is None:
            return []
        if count is None or count == view.read.count:
            return view.read.messages
        return view.read.messages[: view.read.messages_in(count)]

    def _conflict(self, problem: str) -> SessionConflictError:
        return SessionConflictError(self.journal.key, self.state.run_id, problem)

    # --- waiting ---

    async def _decided_meanwhile(self) -> bool:
        """Look at the approvals once more after the turn was set to wait; take it up again if all are decided.

        A resolver stores its decision first and looks at the turn second: so one of the two sees the other.
        """
        while True:
            found = await self.store.checkpoints.load(self.journal.key)
            if found is None or found.head.run_id != self.state.run_id or found.head.owner is not None:
                return False
            if await undecided(self.store, found.head):
                return False
            with contextlib.suppress(VersionConflictError):  # it was marked ready, or somebody took it: look again
                other = await Runner.resume(self.dialogue, found, self.teller.sink, rebase=self.rebase)
                other.teller.resumed = self.teller.resumed  # whoever hears it has heard how it began
                self._take(other.journal, other.teller)
                return True

    # --- a turn that is not ours any more ---

    async def _drop(self) -> str:
        self._saved = await uninterrupted(Departure(self.dialogue, self.journal, self.state).drop())
        return ABORTED if self._saved is None else self._saved.finish_reason

    async def _after_loss(self) -> str:
        self._saved = await Departure(self.dialogue, self.journal, self.state).after_loss()
        return self._saved.finish_reason

    def _result(self, reason: str) -> TurnResult:
        known = self._saved or self._committed
        return known or self.state.result(reason, self._waiting_for if reason == AWAITING else ())


def _resumed(head: CheckpointHead, fingerprint: str) -> CheckpointHead:
    return replace(
        head,
        fingerprint=head.fingerprint if head.attempts else fingerprint,  # one that begins now, begins with this agent
        status=FINISHED if head.status == FINISHED else IN_PROGRESS,
        attempts=head.attempts + 1,
        failed=False,
        approval_ids=[],
    )


def _resumption(head: CheckpointHead, fingerprint: str, at: str) -> Record:
    """Return the entry of another life; it names the agent that lives it, if that is not the one of the head."""
    said = entry("resumed", at, attempt=head.attempts + 1)
    return said if fingerprint == head.fingerprint or head.attempts == 0 else said | {"fingerprint": fingerprint}


def _may_pass(error: Exception) -> bool:
    """Whether the same turn may succeed when it is tried again: an exception that does not say otherwise may."""
    # After a write of unknown outcome its caller must look at what is stored, which is what resuming a turn does.
    return bool(getattr(error, "retryable", True)) or isinstance(error, OutcomeUnknownError)


def _cancellation_of_caller() -> Callable[[], bool]:
    """Return what tells whether the current task was cancelled since: it may have kept earlier ones to itself."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    return lambda: task is not None and task.cancelling() > before
