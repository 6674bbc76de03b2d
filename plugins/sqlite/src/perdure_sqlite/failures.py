"""What an exception of SQLite means in the words of the contract."""

from __future__ import annotations

import sqlite3

from perdure.backend import OutcomeUnknownError, StoreCorruptedError, StoreError, StoreUnavailableError, describe

# Primary result codes, https://www.sqlite.org/rescode.html; `sqlite3` names them only in newer Pythons.
INTERNAL, BUSY, NOMEM, IOERR, CORRUPT, TOOBIG, NOTADB = 2, 5, 7, 10, 11, 18, 26
UNIQUE = 2067  # an extended one: an item that belongs to no key is where the next one goes
# A ValueError: a name that cannot be.
WRONG_PLACE = FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError, ValueError


def primary_code(error: BaseException) -> int:
    """Return the primary result code of an exception of `sqlite3`, 0 of any other."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def failure(error: Exception, *, operation: str, key: str, where: str, unknown: bool = False) -> StoreError:
    """Return the error of the contract for a call that failed.

    Args:
        error: What was raised.
        operation: The call.
        key: What the call was about.
        where: The path of the file.
        unknown: Whether the call may have written all the same.
    """
    if isinstance(error, StoreError):
        return error
    failed: StoreError
    lacks = operation != "open" and str(error).startswith("no such ")  # a table or a column, which opening has seen to
    if lacks or is_damage(error):
        failed = StoreCorruptedError(where, describe(error))
        if primary_code(error) == NOTADB:
            failed.hint = "If the path is right, restore a backup; if the file is another program's, name another one."
    elif unknown:
        failed = OutcomeUnknownError(operation, key, f"{describe(error)} ({where})")
    else:
        failed = StoreUnavailableError(operation, key, f"{describe(error)} ({where})")
        if isinstance(error, WRONG_PLACE) and operation in {"open", "examine"}:
            failed.retryable, failed.hint = False, "Name a file that can be there, and make sure that it may be used."
        elif primary_code(error) == TOOBIG or isinstance(error, OverflowError):
            failed.retryable, failed.hint = False, "Write fewer or smaller items at a time."
    failed.__cause__ = error
    return failed


def is_damage(error: Exception) -> bool:
    """Say whether an exception tells that the file is damaged."""
    # That a text is no UTF-8 is found by the driver, which has no code for it.
    return (
        primary_code(error) in {CORRUPT, NOTADB}
        or getattr(error, "sqlite_errorcode", 0) == UNIQUE
        or (isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8"))
    )


def in_doubt(error: BaseException) -> bool:
    """Say whether a commit that raised may have happened: if the disk failed, or memory ran out half way."""
    return isinstance(error, MemoryError) or primary_code(error) in {INTERNAL, NOMEM, IOERR}
