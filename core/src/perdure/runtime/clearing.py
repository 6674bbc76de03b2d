"""Emptying the transcript of a conversation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import CLEARING, FINISHED, IDLE
from perdure.conversations.claims import Claim
from perdure.errors import SessionConflictError, VersionConflictError
from perdure.events import ContextCleared
from perdure.ownership.leases import OwnershipLostError
from perdure.runtime.turn.departure import tell_dropped

if TYPE_CHECKING:
    from perdure.observers.listening import Channel
    from perdure.runtime.pending import PendingTurns
    from perdure.runtime.transcript.reading import TranscriptView


async def clear(journal: PendingTurns, view: TranscriptView, channel: Channel) -> None:
    """Empty the transcript of a conversation whose calls are served one after another; see `Session.clear`."""
    store, key = journal.store, journal.key
    store.sessions.require("replace")
    while True:
        found = await journal.settled_in_scope()
        if found is not None and found.head.status != IDLE:
            journal.require_own(found)
            if found.head.status == FINISHED:
                await journal.finish(found)
                continue
            await journal.require_decided(found)
        if found is None and await store.sessions.load(key, limit=0) is None:
            return
        with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
            with await Claim.take(store, key, found, CLEARING) as claim:
                await _emptied(claim, view)
            if found is not None:
                tell_dropped(channel, found)
            channel.emit(ContextCleared, None)
            return


async def _emptied(claim: Claim, view: TranscriptView) -> None:
    """Empty the transcript; never a second time, when what stands there now may have come later."""
    try:
        await claim.clear()
    except OwnershipLostError as error:
        session = await view.refresh()
        if session is not None and session.rewritten <= claim.note["session_version"]:
            problem = "another owner took the clearing over"
            key = claim.journal.key
            raise SessionConflictError(key, claim.journal.head.run_id or key, problem) from error
    await view.refresh_if_possible()
