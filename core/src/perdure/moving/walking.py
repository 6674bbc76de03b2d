"""Which conversations a store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.archives import archive_of, readable_archives_of
from perdure.conversation import noted_archives
from perdure.moving.snapshots import load_turn
from perdure.paging import walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.bundle import AgentStore
    from perdure.contracts.sessions import SessionInfo


async def keys(store: AgentStore) -> AsyncIterator[str]:
    """Yield the key of each conversation: sessions first, and then what has none. An archive goes with its conversation."""
    if "sessions" in store:
        async for info in walk(store.sessions.list):
            if not await _is_held(store, info):
                yield info.session_id
    if "checkpoints" in store:
        async for head in walk(store.checkpoints.list):
            if await _without_session(store, head.key):
                yield head.key


async def count(store: AgentStore) -> int:
    """Return how many conversations there are, from the heads alone; what has neither session nor `.run` is not counted."""
    number = 0
    if "sessions" in store:
        async for info in walk(store.sessions.list):
            number += archive_of(info) is None
    if "checkpoints" in store:
        async for head in walk(store.checkpoints.list):
            number += head.key.endswith(".run")
    return number


async def _is_held(store: AgentStore, info: SessionInfo) -> bool:
    """Whether a session is an archive that its conversation stands for, or is about to; one that nothing names is not."""
    owner = archive_of(info)
    if owner is None:
        return False
    noted = noted_archives(await load_turn(store, owner))
    return info.session_id in noted or info.session_id in await readable_archives_of(store, owner)


async def _without_session(store: AgentStore, key: str) -> bool:
    return key.endswith(".run") or "sessions" not in store or await store.sessions.load(key, limit=0) is None
