"""What a worker remembers of turns between sweeps, and which turns it sets aside."""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import IN_PROGRESS
from perdure.errors import OutcomeUnknownError, VersionConflictError
from perdure.ownership.leases import unowned_head
from perdure.runtime.messages import stamp
from perdure.runtime.turn.state import entry
from perdure.runtime.workers.sweeps import FAILED, HANDED_OVER, POISONED, fruitless_lives, is_mendable

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint, CheckpointInfo


@dataclass(slots=True)
class KnownTurn:
    """What a worker remembers of a turn.

    Attributes:
        run_id: The run that it is about.
        hopeless: The version at which the turn was found to have used up its attempts.
        refused: The version at which taking it failed for good, without a trace in its head.
        tried: The failure, of those that another release of the agent may mend, that it came to here.
        excused: The life that ended here by no fault of the turn, until its journal says so.
        stopped: Whether that was a stop of this worker.
        told: Why it was last logged as set aside.
    """

    run_id: str | None
    hopeless: int | None = None
    refused: int | None = None
    tried: str | None = None
    excused: int | None = None
    stopped: bool = False
    told: str | None = None


class KnownTurns:
    """The turns that a worker has seen, by the key of their journal. Losing all of it costs work, nothing more."""

    def __init__(self, store: AgentStore, max_attempts: int) -> None:
        self._store = store
        self._max_attempts = max_attempts
        self._turns: dict[str, KnownTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def of(self, found: Checkpoint | CheckpointInfo) -> KnownTurn:
        """Return what is remembered of the run in a journal."""
        known = self._turns.get(found.key)
        if known is None or known.run_id != found.head.run_id:
            known = self._turns[found.key] = KnownTurn(found.head.run_id)
        return known

    def forget_but(self, keys: AbstractSet[str]) -> None:
        """Forget the turns that are no longer there."""
        for key in self._turns.keys() - keys:
            del self._turns[key]
            self._store.ownership.forget(key)

    def why_aside(self, found: Checkpoint | CheckpointInfo) -> str | None:
        """Return why a turn is set aside, as far as its head tells; `None` if it is not."""
        known, head = self.of(found), found.head
        if known.hopeless == found.version:
            return POISONED
        # The agent that this worker was started with may have what the one that failed had not: it tries once.
        untried = is_mendable(head) and known.tried != head.last_error
        return FAILED if known.refused == found.version or (head.failed and not untried) else None

    def why_poisoned(self, found: Checkpoint) -> str | None:
        """Return why a turn is set aside, by its entries, which are looked at only when its head gives reason to."""
        if found.head.attempts < self._max_attempts or fruitless_lives(found) < self._max_attempts:
            return None
        self.of(found).hopeless = found.version
        return POISONED

    def note_failure(self, found: Checkpoint, error: Exception) -> None:
        """Remember a failure of which the store holds what is found now."""
        known = self.of(found)
        if found.head.failed:
            known.tried = found.head.last_error
        elif not getattr(error, "retryable", True) and not isinstance(error, OutcomeUnknownError):
            known.refused = found.version

    async def excuse(self, key: str) -> None:
        """Note in a turn's journal that its last life ended by no fault of its own, so that it does not count.

        A store that failed the turn but took the append that gave it up was not away: that life counts.
        """
        found = await self._store.checkpoints.load(key)
        if found is None:
            return
        known = self.of(found)
        if self._is_excusable(found, known):
            note = entry(HANDED_OVER, stamp(self._store.clock.now()))
            head = unowned_head(found.head)
            with contextlib.suppress(VersionConflictError):  # somebody has taken it already
                await self._store.checkpoints.append(key, [note], expected_version=found.version, head=head)
        known.excused = None

    def _is_excusable(self, found: Checkpoint, known: KnownTurn) -> bool:
        head = found.head
        if known.excused != head.attempts or head.status != IN_PROGRESS:
            return False
        return (known.stopped or head.owner is not None) and not self._store.ownership.is_live(found)
