"""Saving a turn: its messages go to the transcript once, and its journal is closed, wherever a crash may fall.

On one atomic journal a single write does both; it is proof and commit. Elsewhere the order of writes does: `finished`
in the turn journal proves that the turn is still ours, then the transcript is appended to at the version that the turn
was made from, then the journal is closed. Whoever comes later finds the run id in the transcript, or the turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import FINISHED, IN_PROGRESS, CheckpointReplace
from perdure.contracts.ids import turn_run_id
from perdure.contracts.sessions import SessionAppend
from perdure.conversations.claims import idle_head
from perdure.errors import OutcomeUnknownError, SessionConflictError, VersionConflictError
from perdure.runtime.messages import is_own, stamp
from perdure.runtime.results import holds_run
from perdure.runtime.turn.limits import Spent
from perdure.runtime.turn.state import TurnState, entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import CheckpointHead
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.ownership.owned_journal import OwnedJournal


class Commit:
    """Saves one turn that has ended."""

    def __init__(
        self, store: AgentStore, journal: OwnedJournal, state: TurnState, records: list[Record], *, rebase: bool
    ) -> None:
        self.store = store
        self.journal = journal
        self.state = state
        self.records = records
        self.rebase = rebase

    async def run(self) -> None:
        """Save the turn.

        Raises:
            OwnershipLostError: The turn is another's; look into the transcript for the run id.
            SessionConflictError: Other records came in. The turn stays, and the user decides.
        """
        if self.journal.head.status != FINISHED:
            if self.store.atomic and await self._in_one_write():
                return
            await self.journal.append([self._finished()], status=FINISHED)
        await self._append()
        await self.journal.close(self._next)

    async def keep(self) -> None:
        """Keep a turn without a session as finished, in its journal."""
        last = [] if self.journal.head.status == FINISHED else [self._finished()]
        await self.journal.give_up(last, status=FINISHED)

    def _next(self, version: int) -> tuple[list[Record], CheckpointHead]:
        """Return what the journal holds next: nothing; or a turn of the inputs that were accepted and not taken.

        Args:
            version: The version that the journal will have.
        """
        head = idle_head(self.journal.head)
        left = self.state.untaken
        if not left:
            return [], head
        kinds = ["input", *["input-queued"] * (len(left) - 1)]
        entries = [given.entry(kind) for kind, given in zip(kinds, left, strict=True)]
        run_id = turn_run_id(self.journal.key, version)
        return entries, replace(
            head, status=IN_PROGRESS, run_id=run_id, fingerprint=self.journal.head.fingerprint, attempts=0
        )

    def _finished(self) -> Record:
        return entry("finished", stamp(self.store.clock.now()), finish_reason=self.state.finish_reason)

    async def _in_one_write(self) -> bool:
        """Append to the transcript and close the journal at once; False if one of the two has another version."""
        append = SessionAppend(self.journal.key, self.records, expected_version=self.journal.head.base_version)

        async def write(version: int) -> None:
            entries, head = self._next(version + 1)
            close = CheckpointReplace(self.journal.key, entries, head, expected_version=version)
            # Only this write makes an idle journal of the next version: others claim first.
            await self.journal.repeat(lambda: self.store.write(append, close), head)

        try:
            await self.journal.exclusively(write)
        except VersionConflictError:
            return False
        return True

    async def _append(self) -> None:
        """Append to the transcript at the version that the turn was made from, unless it holds the turn already."""
        head = self.journal.head
        expected, count = head.base_version, head.base_count or 0
        repeated = False
        while True:
            try:
                await self.store.sessions.append(self.journal.key, self.records, expected_version=expected)
                return
            except (VersionConflictError, OutcomeUnknownError) as error:
                seen = await self.store.sessions.load(self.journal.key)
                if seen is not None and holds_run(seen.records, self.state.run_id):
                    return
                await self.journal.append()  # prove: a turn that is another's has no conflict, and nothing to repeat
                if seen is None:
                    raise self._conflict("the session was deleted") from error
                if isinstance(error, OutcomeUnknownError) and seen.version == expected:
                    if repeated:
                        raise
                    repeated = True  # at the same version: at most one lands
                    continue
                if not self.rebase and not _only_the_head_changed(seen, count, head.base_version or 0):
                    raise self._conflict("other records came in") from error
                expected = seen.version
                self.records[-1]["spent"] = (_spent_in(seen.records) + self.state.spent).to_record()

    def _conflict(self, problem: str) -> SessionConflictError:
        return SessionConflictError(self.journal.key, self.state.run_id, problem)


def _only_the_head_changed(seen: Transcript, base_count: int, base_version: int) -> bool:
    return seen.count == base_count and seen.rewritten <= base_version


def _spent_in(records: Sequence[Record]) -> Spent:
    """Return what the conversation has spent, as the last record says that tells it."""
    told = (record["spent"] for record in reversed(records) if is_own(record) and "spent" in record)
    return Spent.from_record(next(told, {}))
