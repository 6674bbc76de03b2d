"""What went wrong, in the words of the contract."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis import exceptions

from perdure.backend import OutcomeUnknownError, StoreCorruptedError, StoreError, StoreUnavailableError, describe

if TYPE_CHECKING:
    from perdure_redis.routes import Call

# What a server answers instead of doing anything. Older servers put these words inside the message of a script's error; a
# script's first write is where they check, so that a script that got them has written nothing.
REFUSED = re.compile(
    r"\b(BUSY|CLUSTERDOWN|CROSSSLOT|LOADING|MASTERDOWN|MISCONF|NOAUTH|NOPERM|NOREPLICAS|OOM|READONLY|TRYAGAIN|WRONGPASS)\b"
    r"|unknown command|max number of clients"
)
REFUSALS = (
    exceptions.AskError,
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.ClusterCrossSlotError,
    exceptions.MovedError,
    exceptions.NoPermissionError,
    exceptions.NoScriptError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)
LASTING = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)


def refused(error: BaseException) -> bool:
    """Say whether an error is the server's word that it did nothing."""
    if isinstance(error, REFUSALS) or isinstance(error.__context__, exceptions.ReadOnlyError):
        return True  # the client of Sentinel makes a lost connection of a READONLY
    return isinstance(error, exceptions.ResponseError) and REFUSED.search(str(error)) is not None


def is_replica(error: exceptions.ResponseError) -> bool:
    """Say whether a server refused a write because it is a replica; an older one says so inside the error of a script."""
    return isinstance(error, exceptions.ReadOnlyError) or "READONLY" in str(error)


def failure(error: Exception, call: Call, *, sent: bool) -> StoreError:
    """Return the contract's error for what was raised or answered.

    Args:
        error: What it was.
        call: The call that failed.
        sent: Whether the command may have reached the server.
    """
    if isinstance(error, StoreError):
        return error
    failed: StoreError
    if isinstance(error, exceptions.ResponseError) and "WRONGTYPE" in str(error):
        failed = StoreCorruptedError(f"{call.where}: {call.key}", "one of its keys holds something of another program")
    elif call.writes and sent and not refused(error):
        failed = OutcomeUnknownError(call.operation, call.key, f"{describe(error)} ({call.where})")
    else:
        failed = StoreUnavailableError(call.operation, call.key, f"{describe(error)} ({call.where})")
        if isinstance(error, LASTING):
            failed.retryable = False
            failed.hint = "Correct the user name and the password, or what the server allows the user."
    failed.__cause__ = error
    return failed
