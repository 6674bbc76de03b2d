"""Runs without a session: each is one turn with a journal of its own, which keeps its result until it is pruned."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import IDLE, IN_PROGRESS, CheckpointHead
from perdure.contracts.ids import RUN_SUFFIX, check_session_id, conversation_of
from perdure.contracts.records import decode_records, encode_object, encode_records
from perdure.conversations.claims import drop_turn, undecided
from perdure.errors import OutcomeUnknownError, VersionConflictError
from perdure.ownership.owned_journal import OwnedJournal
from perdure.runtime.dialogue import Dialogue
from perdure.runtime.messages import as_messages, stamp
from perdure.runtime.pending import PendingTurns, is_kept, waiting_result
from perdure.runtime.turn.departure import tell_dropped
from perdure.runtime.turn.runner import Runner
from perdure.runtime.turn.state import TurnState, entry, kept_result

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record
    from perdure.runtime.agent import Agent
    from perdure.runtime.messages import Given
    from perdure.runtime.results import TurnResult


class Run:
    """One run of an agent without a session."""

    def __init__(self, agent: Agent, store: AgentStore, name: str) -> None:
        self.agent, self.store = agent, store
        self.name = check_session_id(name)
        self.key = self.name + RUN_SUFFIX
        self._dialogue = Dialogue(agent, store, self.key, store.channels.of(self.key, None, store.clock))
        self._journal = PendingTurns(self._dialogue)

    @classmethod
    def of(cls, agent: Agent, store: AgentStore, run_id: str) -> Run:
        """Return the run that a run id, or the key of its journal, names."""
        return cls(agent, store, conversation_of(run_id))

    async def run(self, given: Given) -> TurnResult:
        """Run the input, unless the name has a run already: then finish that one, or return its result."""
        opening = self._opening(given)
        async with self._journal.calls.served():
            while True:
                found = await self._journal.settled()
                result = await self._open(found, opening) if _is_free(found) else await self._go_on(found)
                if result is not None:
                    return result

    async def resume(self) -> TurnResult | None:
        """Finish the run, or return its result; `None` if there is none."""
        async with self._journal.calls.served():
            while True:
                found = await self._journal.settled()
                if _is_free(found):
                    return None
                result = await self._go_on(found)
                if result is not None:
                    return result

    async def discard(self, *, force: bool = False) -> bool:
        """Drop the run, unless it has ended; return whether there was one."""
        async with self._journal.calls.served():
            while True:
                found = await self._journal.settled(force=force)
                if found is None or _is_free(found) or is_kept(found):
                    return False
                self._journal.require_own(found)
                with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
                    await drop_turn(self.store, self.key, found)
                    tell_dropped(self._dialogue.channel, found)
                    return True

    async def continue_run(self, run_id: str, approval_id: str) -> TurnResult:
        """Go on with the run of a decided approval; see `approvals.resolve`."""

        async def ended() -> TurnResult | None:
            found = await self.store.checkpoints.load(self.key)
            return kept_result(found) if found is not None and found.head.run_id == run_id and is_kept(found) else None

        return await ended() or await self._journal.continue_run(run_id, approval_id, ended)

    def _opening(self, given: Given) -> Record:
        """Return the entry that opens the run, or raise before any write."""
        messages = [message.to_record(f"input[{place}]") for place, message in enumerate(as_messages(given))]
        limit = self.store.checkpoints.max_record
        records = list(decode_records(encode_records(messages, "input", limit), "input"))
        opening = entry("input", stamp(self.store.clock.now()), messages=records, input_id=uuid.uuid4().hex)
        encode_object(opening, "input", limit)
        return opening

    async def _open(self, found: Checkpoint | None, opening: Record) -> TurnResult | None:
        """Open the run; `None` if it may be there now, and the journal must be read again."""

        def head(version: int) -> CheckpointHead:
            return CheckpointHead(
                status=IN_PROGRESS,
                run_id=f"{self.key}-{version}",
                agent=self.agent.name,
                fingerprint=self.agent.fingerprint,
                attempts=1,
            )

        ownership, checkpoints = self.store.ownership, self.store.checkpoints
        try:
            journal = await OwnedJournal.take(ownership, checkpoints, self.key, found, lambda _: [opening], head)
        except VersionConflictError:
            return None
        except OutcomeUnknownError:
            # A run of this name is what was asked for, whoever opened it. One that is not there is not opened twice.
            if _is_free(await self.store.checkpoints.load(self.key)):
                raise
            return None
        state = TurnState.of(journal.head.run_id or "", [opening])
        return await Runner(self._dialogue, journal, state).run()

    async def _go_on(self, found: Checkpoint | None) -> TurnResult | None:
        """Bring a run to its result; `None` if somebody else was first, and the journal must be read again."""
        assert found is not None
        self._journal.require_own(found)
        if is_kept(found):
            return kept_result(found)
        left = await undecided(self.store, found.head)
        return waiting_result(found, left) if left else await self._journal.resume(found)


def _is_free(found: Checkpoint | None) -> bool:
    return found is None or found.head.status == IDLE
