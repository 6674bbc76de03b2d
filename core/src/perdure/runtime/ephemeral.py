"""Turn journals for a bundle without a checkpoint store: a turn lives in this process, and is saved when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perdure.bundle import AgentStore
from perdure.contracts.checkpoints import IDLE, CheckpointStore, SettledHead, StoredCheckpoint
from perdure.contracts.records import Page
from perdure.errors import VersionConflictError

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(slots=True)
class _Turn:
    version: int
    entries: tuple[bytes, ...]
    head: SettledHead
    created_at: datetime
    updated_at: datetime


class EphemeralCheckpoints(CheckpointStore):
    """Turn journals in a dictionary, for one bundle in one process."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    async def _load(self, key: str) -> StoredCheckpoint | None:
        turn = self._turns.get(key)
        if turn is None:
            return None
        count = len(turn.entries)
        return StoredCheckpoint(
            key, turn.version, count, turn.head.data, turn.created_at, turn.updated_at, turn.entries
        )

    async def _append(
        self,
        key: str,
        entries: tuple[bytes, ...],
        *,
        expected_version: int | None,
        head: SettledHead,
        at: datetime,
        first_version: int,
    ) -> int:
        turn = self._expect(key, expected_version)
        if turn is None:
            turn = self._turns[key] = _Turn(first_version, entries, head, at, at)
        else:
            self._change(turn, turn.entries + entries, head, at)
        return turn.version

    async def _replace(
        self, key: str, entries: tuple[bytes, ...], *, expected_version: int | None, head: SettledHead, at: datetime
    ) -> int:
        turn = self._expect(key, expected_version)
        if turn is None:
            raise VersionConflictError(key, expected_version, 0)
        self._change(turn, entries, head, at)
        if head.status == IDLE and not entries:
            del self._turns[key]  # nothing is left to tell, and a process may serve any number of sessions
        return turn.version

    async def _delete(self, key: str, *, expected_version: int | None) -> bool:
        self._expect(key, expected_version)
        return self._turns.pop(key, None) is not None

    async def _list(
        self,
        *,
        status: str | None,
        agent: str | None,
        before: datetime | None,
        order: str,
        cursor: str | None,
        limit: int,
    ) -> Page[StoredCheckpoint]:
        # One page: what is held here are the turns of one process. Only the runtime lists, by status and agent.
        return Page(
            tuple(
                StoredCheckpoint(key, turn.version, len(turn.entries), turn.head.data, turn.created_at, turn.updated_at)
                for key, turn in sorted(self._turns.items(), key=lambda item: item[0])
                if status in (None, turn.head.status) and agent in (None, turn.head.agent)
            )
        )

    def _expect(self, key: str, expected_version: int | None) -> _Turn | None:
        turn = self._turns.get(key)
        actual = 0 if turn is None else turn.version
        if expected_version not in (None, actual):
            raise VersionConflictError(key, expected_version, actual)
        return turn

    @staticmethod
    def _change(turn: _Turn, entries: tuple[bytes, ...], head: SettledHead, at: datetime) -> None:
        turn.version += 1
        turn.entries, turn.head, turn.updated_at = entries, head, max(turn.updated_at, at)


_bundles: WeakKeyDictionary[AgentStore, AgentStore] = WeakKeyDictionary()


def with_turns(store: AgentStore) -> AgentStore:
    """Return the bundle itself, or one with the same parts and turn journals that live in this process."""
    if "checkpoints" in store:
        return store
    made = _bundles.get(store)
    if made is None:
        made = _bundles[store] = AgentStore(
            sessions=store.sessions, checkpoints=EphemeralCheckpoints(), approvals=store.approvals
        )
        made.clock, made.ownership, made.channels = store.clock, store.ownership, store.channels
        made.transcripts = store.transcripts
        made.checkpoints.bind(clock=store.clock)
    return made
