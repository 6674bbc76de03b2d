"""Dropping the turn that is pending in a conversation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import FINISHED
from perdure.conversations.claims import drop_turn
from perdure.errors import OutcomeUnknownError, PerdureError, VersionConflictError
from perdure.runtime.turn.departure import tell_dropped

if TYPE_CHECKING:
    from perdure.observers.listening import Channel
    from perdure.runtime.pending import PendingTurns


async def discard(journal: PendingTurns, channel: Channel, *, force: bool) -> bool:
    """Drop the pending turn, in a call that is being served; one that has finished is saved instead, if it can be.

    Args:
        journal: The turn journal.
        channel: Is told of the end of the turn.
        force: Fence off a live owner.

    Returns:
        Whether a turn was dropped.

    Raises:
        SessionBusyError: Somebody else runs it.
        PerdureError: What may pass when a finished turn is saved; it is still pending.
    """
    unsaved: str | None = None
    while True:
        found = await journal.pending(force=force)
        if found is None:
            return False
        if found.head.status == FINISHED and found.head.run_id != unsaved:
            try:
                if await journal.resume(found) is not None:
                    return False
            except PerdureError as error:
                if error.retryable or isinstance(error, OutcomeUnknownError):
                    raise
                unsaved = found.head.run_id  # it can never be saved: drop it
            continue  # the attempt has written to it, and somebody else may have come: look again
        with contextlib.suppress(VersionConflictError):  # somebody else was first: look again
            await drop_turn(journal.store, journal.key, found)
            tell_dropped(channel, found)
            return True
