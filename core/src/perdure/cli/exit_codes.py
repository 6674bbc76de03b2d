"""What the exit code of a command says."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from perdure.errors import (
    CodecError,
    InvalidArgumentError,
    InvalidIdError,
    NotJsonError,
    OutcomeUnknownError,
    PluginError,
    RecordTooLargeError,
    SchemaVersionError,
    StoreUnavailableError,
    UnsupportedOperationError,
)


class ExitCode(IntEnum):
    """The exit codes of all commands, the same everywhere."""

    DONE = 0
    """It was done, and nothing is wrong."""
    FOUND = 1
    """Something is wrong, or was refused: damage, an id that is not there, a decision that was made before."""
    CANNOT = 2
    """Wrong use, or the store cannot be looked at; nothing was changed."""
    UNKNOWN = 3
    """A write may or may not have happened."""
    FAULT = 70
    """A fault of perdure or of a plugin, with a traceback."""
    INTERRUPTED = 130
    """Ctrl-C; 143 is SIGTERM."""
    PIPE_CLOSED = 141
    """Whoever read the output went away."""


_CANNOT: Final = (
    CodecError,
    InvalidArgumentError,
    InvalidIdError,
    NotJsonError,
    PluginError,
    RecordTooLargeError,
    SchemaVersionError,
    StoreUnavailableError,
    UnsupportedOperationError,
    OSError,
)


def code_of(error: Exception) -> ExitCode:
    """Return the exit code of a command that ended by an error of ours or of the system."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, ExitCode):
        return own
    if isinstance(error, OutcomeUnknownError):
        return ExitCode.UNKNOWN
    return ExitCode.CANNOT if isinstance(error, _CANNOT) else ExitCode.FOUND
