"""Fresh places for the data of laws, in one folder of this process."""

from __future__ import annotations

import atexit
import functools
import itertools
import secrets
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from perdure_conformance.target import Place

_numbers = itertools.count()
_RUN = secrets.token_hex(4)


class Places:
    """The places of one law; when it is over, their directories are removed."""

    def __init__(self) -> None:
        """Begin without places."""
        self._places: list[Place] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for place in self._places:
            if place.path.exists():
                shutil.rmtree(place.path, ignore_errors=True)

    def fresh(self) -> Place:
        """Return a place that nothing was ever opened at."""
        name = f"p{_RUN}n{next(_numbers)}"
        self._places.append(Place(name, _folder() / name))
        return self._places[-1]


@functools.cache
def _folder() -> Path:
    """Return the folder of all places; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="perdure-laws-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
