"""The process that this is, known without asking the system at each call."""

from __future__ import annotations

import os
from typing import Final


class Process:
    """A process.

    Attributes:
        pid: Its id; a forked child has its own.
    """

    def __init__(self) -> None:
        """Ask the system which one this is."""
        self.renew()

    def renew(self) -> None:
        """Ask again: in a forked child, and where a store is opened."""
        self.pid = os.getpid()


THIS_PROCESS: Final = Process()
"""This process: what a store remembers of it tells later whether it is in a fork."""
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=THIS_PROCESS.renew)
