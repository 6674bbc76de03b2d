"""No store ends the process of the kit: a check that did not get to its end would end with whatever the store says, 0 too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def no_exit() -> Iterator[None]:
    """Have `os._exit` raise in this process meanwhile, as `sys.exit` does; a forked child may still end by it."""
    ends, process = os._exit, os.getpid()

    def raises(status: int) -> NoReturn:
        if os.getpid() != process:
            ends(status)
        raise SystemExit(f"os._exit({status}) would have ended the process")

    os._exit = raises
    try:
        yield
    finally:
        os._exit = ends
