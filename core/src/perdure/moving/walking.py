"""Which conversations a store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.archives import archive_of, readable_archives_of
from perdure.contracts.ids import is_run
from perdure.conversations.behind_damage import each
from perdure.conversations.claims import journal_of, noted_archives, session_head
from perdure.errors import StoreCorruptedError
from perdure.moving.snapshots import load_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.sessions import SessionInfo, Transcript


async def keys(store: AgentStore) -> AsyncIterator[str]:
    """Yield the key of each conversation: sessions first, and then what has none. An archive goes with its conversation.

    What is damaged comes with the others: whoever reads it is told.
    """
    if "sessions" in store:
        async for name, info in _sessions(store):
            if isinstance(info, StoreCorruptedError) or not await _is_held(store, info):
                yield name
    if "checkpoints" in store:
        async for key in _journals(store):
            if await _without_session(store, key):
                yield key


async def count(store: AgentStore) -> int:
    """Return how many conversations there are, from the heads alone; what has neither session nor `.run` is not counted."""
    number = 0
    if "sessions" in store:
        async for _, info in _sessions(store):
            number += isinstance(info, StoreCorruptedError) or archive_of(info) is None
    if "checkpoints" in store:
        async for key in _journals(store):
            number += is_run(key)
    return number


async def approvals(store: AgentStore) -> AsyncIterator[tuple[str, Approval | StoreCorruptedError]]:
    """Yield the id of each approval, and the approval, or what is wrong with it."""
    async for found in each(
        store.approvals, store.approvals.list, store.approvals.get, lambda item: item.id, by_id=False
    ):
        yield found


async def is_alone(store: AgentStore, approval: Approval) -> bool:
    """Whether an approval belongs to no conversation that is there."""
    key = journal_of(approval)
    if approval.session_id is not None:
        held = "sessions" in store and await store.sessions.load(key, limit=0) is not None
        return not held and await load_turn(store, key) is None
    turn = await load_turn(store, key)
    return turn is None or turn.head.run_id != approval.run_id


async def _sessions(store: AgentStore) -> AsyncIterator[tuple[str, SessionInfo | Transcript | StoreCorruptedError]]:
    async def load(name: str) -> Transcript | None:
        return await store.sessions.load(name, limit=0)

    async for found in each(store.sessions, store.sessions.list, load, lambda item: item.session_id):
        yield found


async def _journals(store: AgentStore) -> AsyncIterator[str]:
    async for key, _ in each(store.checkpoints, store.checkpoints.list, store.checkpoints.load, lambda item: item.key):
        yield key


async def _is_held(store: AgentStore, info: SessionInfo | Transcript) -> bool:
    """Whether a session is an archive that its conversation stands for, or is about to; one that nothing names is not."""
    owner = archive_of(info)
    if owner is None:
        return False
    noted = noted_archives(await load_turn(store, owner))
    return info.session_id in noted or info.session_id in await readable_archives_of(store, owner)


async def _without_session(store: AgentStore, key: str) -> bool:
    try:
        return await session_head(store, key) is None
    except StoreCorruptedError:
        return False
