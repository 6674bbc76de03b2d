"""What the command needs of its process: nobody who hears of the calls, nothing left in the folder, an end to what it started."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from types import FrameType
from typing import NoReturn

from perdure.observers.plugins import GROUP, SWITCHED_OFF
from perdure_conformance.laws.register import Law
from perdure_conformance.no_exit import no_exit

CACHE = "HYPOTHESIS_STORAGE_DIRECTORY"
"""The environment variable with the folder in which Hypothesis keeps what it knows of Python; examples are not kept at all."""

YOUNG = 5_000
"""How many objects more there are before the collector looks: laws leave few that only it can remove."""


def prepare() -> None:
    """Set the process up for a check; what the environment says already stays."""
    # Whoever observes this installation wants to hear of agents, not of ten thousand calls of laws.
    os.environ.setdefault(SWITCHED_OFF, ",".join(entry.name for entry in metadata.entry_points(group=GROUP)))
    os.environ.setdefault(CACHE, str(Path(_caches(), "perdure-conformance")))
    signal.signal(signal.SIGTERM, _end)


def spare_the_collector(laws: Iterable[Law]) -> None:
    """Have the collector of garbage look not so often, and not through what is imported: that stays.

    Args:
        laws: What is to be tried.
    """
    if any(law.cases is not None for law in laws):
        import_module("hypothesis")  # they need it, and it has everything collected for each of them
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def _caches() -> str:
    """Return the user's folder of caches; a user without a home, as in many containers, has that of temporary files."""
    given, home = os.environ.get("XDG_CACHE_HOME"), os.path.expanduser("~")  # noqa: PTH111  # reason: Path raises without a home
    return given or (str(Path(home, ".cache")) if Path(home).is_absolute() else tempfile.gettempdir())


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End as Ctrl-C does, so that servers and workers end too; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def leave(code: int | str | None) -> NoReturn:
    """End the process, with what is to be done at its end, but without its other threads: one of a store may hang for ever."""
    if isinstance(code, str):
        print(code, file=sys.stderr)  # reason: that is what `sys.exit` does with a text
    with no_exit():
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # what was printed was flushed, or the failure told
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
