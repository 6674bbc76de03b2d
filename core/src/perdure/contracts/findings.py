"""What a plugin tells of a store that it has examined."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that an examination of a store found.

    Attributes:
        text: What and where, without secrets.
        damaged: Whether something that was written cannot be read, and is not repaired.
        warning: Whether it is no damage, and something to mend all the same: a setting that may lose data, for example.
    """

    text: str
    damaged: bool = False
    warning: bool = False
