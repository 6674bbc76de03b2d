"""What a fork means to SQLite, and what is done about it.

A child has none of its parent's locks on a file, but it inherits SQLite's own record of them. What it opened to the same file
would rely on locks that are not there: once the parent has closed, the next process to close the file takes itself for the
last one, and removes the log that the child goes on writing to. So a child closes at once what it has inherited, while the
parent's locks still keep it from touching the file; and a fork waits until no thread is within SQLite, since what is locked
there in memory would stay so in the child.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from threading import Lock, local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Seat:
    """What forks know of a thread that owns a connection.

    Attributes:
        connection: What it has open.
        within: Held by the thread while it is within SQLite.
        process: Whose thread it is.
    """

    def __init__(self) -> None:
        """Begin without a connection."""
        self.connection: sqlite3.Connection | None = None
        self.within = Lock()
        self.process = os.getpid()


_seats: list[Seat] = []
_changing = Lock()
"""Held by a fork, and while the list changes."""


@contextlib.contextmanager
def seat() -> Iterator[Seat]:
    """Be known to forks, from before there is a connection until it is closed."""
    taken = Seat()
    with _changing:
        _close_inherited()  # a server that forks in C, such as uWSGI, does not call what Python calls in a child
        _seats.append(taken)
    try:
        yield taken
    finally:
        with _changing:
            _seats.remove(taken)


class _Held(local):
    """What a thread holds while it forks."""

    def __init__(self) -> None:
        self.locks: list[Lock] = []


_held = _Held()


def _wait() -> None:
    """Let no thread be within SQLite, as far as it goes: a signal's handler may end the waiting, or fork during it."""
    _hold(_changing)
    for each in _seats:
        _hold(each.within)


def _hold(lock: Lock) -> None:
    if lock not in _held.locks:
        lock.acquire()
        _held.locks.append(lock)


def _go_on() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _go_on_in_child() -> None:
    _go_on()
    _close_inherited()


def _close_inherited() -> None:
    """Close what is the parent's. What a thread was within at the fork cannot be closed."""
    for each in [each for each in _seats if each.process != os.getpid()]:
        _seats.remove(each)
        if each.connection is not None and each.within.acquire(blocking=False):
            with contextlib.suppress(sqlite3.Error):
                each.connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_go_on_in_child)
