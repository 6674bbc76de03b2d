"""The places at which a process can be killed, counted, so that it dies at the same ones on each machine.

Between two calls that can change something outside of the process nothing can happen that outlasts it. So these calls are
counted: what the standard library writes to files, sockets and databases, and all that is called of extension modules that
are not part of it, since those are drivers. What a driver does inside of one call is not seen.
"""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

CHANGING = {
    **dict.fromkeys(("posix", "nt"), "write pwrite writev pwritev sendfile copy_file_range posix_fallocate fsync"),
    **dict.fromkeys(("io", "_io", "mmap"), "write writelines flush truncate"),
    **dict.fromkeys(("socket", "_socket", "_ssl"), "connect send sendall sendmsg sendto write"),
    **dict.fromkeys(("sqlite3", "_sqlite3"), "connect execute executemany executescript commit rollback close"),
    "fcntl": "flock lockf",
}
"""Calls of the standard library that can change something outside of the process, by module. `open` is asked how it opens."""
NAMES = "fdatasync truncate ftruncate rename replace link symlink unlink remove mkdir rmdir"
CALLS = {(module, name) for module, names in CHANGING.items() for name in names.split()} | {
    (module, name) for module in ("posix", "nt") for name in NAMES.split()
}
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
IN_MEMORY = (io.StringIO, io.BytesIO)
"""Files that are none."""
PURE = {"msgspec", "orjson", "pydantic_core"}
"""Extension modules that the framework itself computes with."""
SAYING: list[object] = []
"""The files by which the process says what was acknowledged."""


def changes_something(called: Any) -> bool:
    """Whether a call of this function, which is not written in Python, can change something outside of the process."""
    owner = getattr(called, "__self__", None)
    if owner is sys.stdout or any(owner is one for one in SAYING):
        return False
    if isinstance(called.__module__, str):
        return _can_change(called.__module__, called.__name__)
    return _method_can_change(type(owner), called.__name__)  # type: ignore[arg-type]  # reason: a class has a hash


@functools.cache
def _method_can_change(kind: type, name: str) -> bool:
    if issubclass(kind, IN_MEMORY):
        return False
    defining = next((one for one in kind.__mro__ if name in vars(one)), kind)
    return _can_change(defining.__module__, name)


@functools.cache
def _can_change(module: str, name: str) -> bool:
    package = module.partition(".")[0]
    return (module, name) in CALLS or (package not in PURE and package not in sys.stdlib_module_names)


class KillPoints:
    """Counts the points at which this process can be killed, and kills it at one of them.

    Attributes:
        counts: How many points were passed in the opening of the store and, after it, in each write so far. The last point
            of a write lies behind all of its calls, before it is acknowledged.
    """

    def __init__(self, kill: tuple[int, int] | None) -> None:
        """Take the write, 0: the opening, and the number of the point in it, from 0 on; `None`: pass them all."""
        self.counts = [0]
        self._kill = kill

    def watch(self) -> None:
        """Count from now on and for good, in all threads that start after this."""
        sys.addaudithook(self._notice_opening)
        threading.setprofile(self._notice)
        sys.setprofile(self._notice)

    def passed(self) -> None:
        """Pass the last point of a write."""
        self._pass()
        self.counts.append(0)

    def _notice(self, frame: FrameType, event: str, argument: Any) -> None:
        # A thread wakes its event loop at a time of its own, and that stays in the process.
        if event == "c_call" and frame.f_code.co_name != "_write_to_self" and changes_something(argument):
            self._pass()

    def _notice_opening(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(flags := arguments[2], int) and flags & OPENS_TO_WRITE:
            self._pass()

    def _pass(self) -> None:
        if (len(self.counts) - 1, self.counts[-1]) == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        self.counts[-1] += 1
