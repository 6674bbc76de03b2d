"""The turns of one session: open one, find one, take one up, or let an input join the one that runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from perdure.contracts.checkpoints import FINISHED, IDLE, IN_PROGRESS, TURN_STATUSES, CheckpointHead
from perdure.contracts.ids import turn_run_id
from perdure.contracts.records import MAX_VERSION, decode_records, encode_object, encode_records
from perdure.conversations.claims import busy, undecided
from perdure.errors import (
    LimitExceededError,
    OutcomeUnknownError,
    SessionBusyError,
    SessionConflictError,
    StoreError,
    TurnFailedError,
    VersionConflictError,
)
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.owned_journal import OwnedJournal
from perdure.runtime.inputs import Call
from perdure.runtime.messages import stamp
from perdure.runtime.pending import PendingTurns, waiting_result
from perdure.runtime.results import ABORTED, AWAITING, TurnResult, result_of, run_of_input, said_by
from perdure.runtime.transcript.compaction import compact_if_due
from perdure.runtime.turn.limits import Spent
from perdure.runtime.turn.runner import Runner
from perdure.runtime.turn.state import TurnState, entry, given_input

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record
    from perdure.runtime.dialogue import Dialogue
    from perdure.runtime.messages import Message
    from perdure.runtime.serving import Place
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.transcript.reading import TranscriptView
    from perdure.runtime.turn.runner import Sink

TurnPolicy: TypeAlias = Literal["wait", "queue", "steer"]

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
"""How long to wait between two looks at a conversation that somebody else runs, in seconds: first, and at most."""


class Turns:
    """The turns of one session, as this process may start and finish them."""

    def __init__(
        self,
        dialogue: Dialogue,
        view: TranscriptView,
        scope: str | None,
        policy: TurnPolicy,
        busy_timeout: timedelta | None,
    ) -> None:
        self.dialogue = dialogue
        self.agent, self.store, self.key = dialogue.agent, dialogue.store, dialogue.key
        self.journal = PendingTurns(dialogue, scope)
        self.view = view
        self.scope = scope
        self._policy = policy
        self._busy_timeout = busy_timeout

    # --- an input ---

    def checked(self, messages: Sequence[Message], input_id: str, *, named: bool) -> Call:
        """Return an input as it will be stored in the turn journal and the transcript, or raise before any write."""
        given = [message.to_record(f"input[{place}]") for place, message in enumerate(messages)]
        # Of bytes, not of the caller's objects, which may change while the turn runs.
        records = list(decode_records(encode_records(given, "input", self.store.sessions.max_record), "input"))
        opening = self._input(records, input_id)
        encode_object(opening, "input", self.store.checkpoints.max_record)
        sample = TurnState.of(turn_run_id(self.key, MAX_VERSION), [opening])
        encode_records(sample.records(Spent()), "input", self.store.sessions.max_record)
        return Call(records, input_id, named)

    async def take(self, call: Call) -> TurnResult:
        """Run a turn on an input, or let it join one that runs here; see `Session.send`.

        It stands in line from the first moment, also while a turn runs that it has joined: whatever becomes of it then, no
        later call comes in between.
        """
        async with self.journal.calls.in_line() as place:
            joined = None if self._policy == "wait" else await self._join(call, place)
            if isinstance(joined, TurnResult):
                return joined
            async with place.served():
                earlier = await self._earlier(call) if call.named or joined is not None else None
                if earlier is not None:
                    return earlier
                if joined is not None:
                    problem = "the turn that the input had joined was dropped"
                    raise SessionConflictError(self.key, joined.state.run_id, problem)
                return await self._start(call)

    async def submit(self, call: Call) -> str:
        """Record an input for whoever takes it, and return the run id; see `Session.submit`."""
        async with self.journal.calls.served():
            await self.journal.require_own_scope()
            while True:
                try:
                    found = await self._none_open()
                except SessionBusyError:
                    known = await self._known(call) if call.named else None
                    if known is None:
                        raise
                    return known
                if found is None or found.head.status == IDLE:
                    break
                if call.named and _holds(found, call):
                    return found.head.run_id or ""
                await self._finish(found)  # it is only to be saved; inputs that it has not taken open the next turn
            ended = await self._ended(call) if call.named else None
            if ended is not None:
                return ended.run_id
            await self._require_unspent()
            await self._create()
            try:
                journal = await self._open(found, self._input(call.messages, call.input_id), attempts=0)
            except VersionConflictError as error:
                raise SessionBusyError(self.key) from error
            # The input is taken, whatever becomes of this: whoever takes it up then finds an owner that is known to be gone.
            with contextlib.suppress(StoreError, OwnershipLostError):
                await journal.give_up()
            return journal.head.run_id or ""

    async def _join(self, call: Call, place: Place) -> TurnResult | Runner | None:
        """Let an input join a turn that runs here while it stands in line.

        Returns:
            The result of that turn, or of an earlier one that has the input. When it is the call's own turn to be served:
            what ran the turn that has accepted the input and ended without it, or `None` if none has.
        """
        accepted_by: Runner | None = None
        while (runner := await place.next_runner()) is not None:
            if runner.agent.name != self.agent.name:
                continue
            await self.journal.require_own_scope()
            if not runner.state.holds(call.input_id):
                if accepted_by is not None:
                    continue  # it is in no journal any more, and is not given a second time
                ended = await self._ended(call) if call.named else None
                if ended is not None:
                    return ended
            given = given_input(call.messages, call.input_id, self.dialogue.limits)
            waiting = await runner.joining.accept(runner, given, steer=self._policy == "steer")
            if waiting is None:
                continue
            call.require_same(runner.state.said_by(call.input_id))
            result = await waiting
            if result is not None:
                if call.sink is not None and runner.done is not None:
                    call.sink(runner.done)
                return result.for_others()  # it is that of whoever began the turn, too
            accepted_by = runner  # it opened the next turn, in the journal; or somebody has dropped it
        return accepted_by

    # --- starting a turn ---

    async def _start(self, call: Call) -> TurnResult:
        looked = False
        while True:
            if call.aborted:
                raise asyncio.CancelledError  # whoever gave the input has left, and waits for no turn of a rival
            found = await self._finished_first(call)
            if call.named:
                # Looked for after the journal was read, which is then opened at that version: nobody can have run it between.
                ended = await self._ended(call)
                if ended is not None:
                    return ended
            await self._require_unspent()
            if not looked and self.dialogue.compaction is not None:
                looked = True
                if await self._compacted(found, self.dialogue.compaction, call.sink):
                    continue
            call.opening = True
            try:
                await self._create()
                opening = self._input(call.messages, call.input_id)
                journal = await self._open(found, opening)
            except VersionConflictError:
                continue  # somebody opened a turn meanwhile: finish it first, or say who runs it
            except OutcomeUnknownError as unknown:
                return await self._landed(call, unknown)
            finally:
                call.opening = False
            state = TurnState.of(journal.head.run_id or "", [opening])
            runner = Runner(self.dialogue, journal, state, call.sink)
            call.runs(runner)
            return await runner.run()

    async def compact_if_due(self) -> None:
        """Compact the conversation, in which no turn is open, if its policy asks for it."""
        policy = self.dialogue.compaction
        if policy is None:
            return
        async with self.journal.calls.served():
            await self.journal.require_own_scope()
            found = await self.journal.settled()
            if found is None or found.head.status == IDLE:
                await self._compacted(found, policy, None)

    async def _compacted(self, found: Checkpoint | None, policy: Compaction, sink: Sink | None) -> bool:
        """Compact the conversation if that is due; return whether the journal must be read again."""
        self.journal.require_scope(await self.view.refresh())
        return await compact_if_due(self.journal, self.view, self.dialogue.channel, found, policy, sink)

    async def _landed(self, call: Call, unknown: OutcomeUnknownError) -> TurnResult:
        """Look for a turn whose opening may have been written; it is never opened a second time."""
        try:
            landed = await self._earlier(call)
        except SessionBusyError:
            raise unknown from None
        if landed is None:
            raise unknown
        return landed

    async def _finished_first(self, call: Call) -> Checkpoint | None:
        """Finish what is pending, and return the idle turn journal; `None` if there is none."""
        while True:
            found = await self._not_busy(call)
            if found is None or found.head.status == IDLE:
                return found
            await self.journal.require_own_scope()
            self.journal.require_own(found)
            if found.head.failed and found.head.status != FINISHED and self._has_tried(found):
                raise TurnFailedError(
                    self.key, found.head.run_id or "", found.head.attempts, found.head.last_error or "unknown"
                )
            await self.journal.require_decided(found)
            await self._finish(found, call.sink)

    async def _none_open(self) -> Checkpoint | None:
        """Read the turn journal, of which the turn may have finished; raise if it has not."""
        found = await self.journal.settled()
        if found is not None and found.head.status not in (IDLE, FINISHED):
            raise busy(found)
        return found

    async def _finish(self, found: Checkpoint, sink: Sink | None = None) -> None:
        """Finish a turn of this agent before an input is taken."""
        self.journal.require_own(found)
        try:
            await self.journal.finish(found, sink)
        except Exception as error:
            error.add_note(f"The pending run {found.head.run_id} raised this; the new input was not taken.")
            raise

    def _has_tried(self, found: Checkpoint) -> bool:
        """Whether this agent was the last to run a turn; another one may have what the turn has failed for lack of."""
        lives = (item for item in reversed(found.entries) if item.get("kind") == "resumed")
        tried: object = next(lives, {}).get("fingerprint", found.head.fingerprint)
        return tried == self.agent.fingerprint

    async def _not_busy(self, call: Call) -> Checkpoint | None:
        """Read the turn journal; wait for a while, once for each input, if somebody else runs the conversation."""
        clock, pause = self.store.clock, FIRST_PAUSE
        if call.until is None:
            call.until = clock.monotonic() + (0.0 if self._busy_timeout is None else self._busy_timeout.total_seconds())
        while True:
            try:
                return await self.journal.settled()
            except SessionBusyError:
                left = call.until - clock.monotonic()
                if left <= 0:
                    raise
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _require_unspent(self) -> None:
        """Refuse an input of a conversation that has spent its limits, before anything is written."""
        limits = self.dialogue.limits
        if limits is None:
            return
        self.journal.require_scope(await self.view.refresh())
        met = limits.met(self.view.read.spent(self.view.read.count))
        if met is not None:
            raise LimitExceededError(self.key, *met)

    async def _create(self) -> None:
        """Create the session if it is absent, before its turn journal is opened: a commit never creates one."""
        found = await self.store.sessions.load(self.key, limit=0)
        if found is None:
            try:
                await self.store.sessions.append(self.key, [], expected_version=0, scope=self.scope)
            except VersionConflictError:  # somebody else has made it, perhaps for another scope
                found = await self.store.sessions.load(self.key, limit=0)
        self.journal.require_scope(found)
        self.dialogue.channel.scope = self.scope if found is None else found.scope

    async def _open(self, found: Checkpoint | None, opening: Record, *, attempts: int = 1) -> OwnedJournal:
        def head(version: int) -> CheckpointHead:
            return CheckpointHead(
                status=IN_PROGRESS,
                run_id=turn_run_id(self.key, version),
                session_id=self.key,
                agent=self.agent.name,
                fingerprint=self.agent.fingerprint,
                attempts=attempts,
                extra={} if found is None else found.head.extra,
            )

        return await OwnedJournal.take(
            self.store.ownership, self.store.checkpoints, self.key, found, lambda _: [opening], head
        )

    def _input(self, messages: Sequence[Record], input_id: str) -> Record:
        return entry("input", stamp(self.store.clock.now()), **given_input(messages, input_id, self.dialogue.limits))

    # --- turns that are there ---

    async def _earlier(self, call: Call) -> TurnResult | None:
        """Return the result of the turn that an input belongs to; a pending one is finished first."""
        while True:
            found = await self._not_busy(call)
            if found is None or not _holds(found, call):
                return await self._ended(call)
            await self.journal.require_own_scope()
            self.journal.require_own(found)
            left = await undecided(self.store, found.head)
            if left:
                return waiting_result(found, left)
            result = await self.journal.resume(found, call.sink, taken=call.runs)
            if result is not None and await self._took(result, call):
                return result

    async def _known(self, call: Call) -> str | None:
        """Return the run that has an input already, also while somebody else runs it; `None` if none has."""
        found = await self.store.checkpoints.load(self.key)
        if found is not None and found.head.status in TURN_STATUSES and _holds(found, call):
            await self.journal.require_own_scope()
            return found.head.run_id
        ended = await self._ended(call)
        return None if ended is None else ended.run_id

    async def _took(self, result: TurnResult, call: Call) -> bool:
        """Whether a turn that has run took an input; else it ended before, and the input has opened the next one."""
        if result.finish_reason in (AWAITING, ABORTED):
            return True
        found = await self.store.checkpoints.load(self.key)
        return found is None or not _holds(found, call) or found.head.run_id == result.run_id

    async def _ended(self, call: Call) -> TurnResult | None:
        """Return the result of the turn in the transcript that an input belongs to, or `None`."""
        self.journal.require_scope(await self.view.refresh())
        run_id = run_of_input(self.view.read, call.input_id)
        if run_id is None:
            return None
        said = said_by(self.view.read, call.input_id)
        if said:  # it is followed by what was answered; of one that a summary stands for, nothing is known
            call.require_same([message.to_record() for message in said[: len(call.messages)]])
        return result_of(self.view.read, run_id)


def _holds(found: Checkpoint, call: Call) -> bool:
    """Whether a turn journal has an input; raise if another one has its name."""
    named = next((item for item in found.entries if item.get("input_id") == call.input_id), None)
    if named is not None:
        call.require_same(named.get("messages", ()))
    return named is not None
