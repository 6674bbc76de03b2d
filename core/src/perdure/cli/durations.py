"""Durations as people write them: `7d`, `12h`, `1d12h`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import typer

_UNITS: Final = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION: Final = re.compile(r"(?:([0-9]{1,9})([wdhms]))")


def duration(text: str) -> timedelta:
    """Return the duration that a text says; the parser of an option.

    Args:
        text: Numbers, each with a unit: `w`, `d`, `h`, `m` (minutes) or `s`; or `0`.
    """
    pieces = _DURATION.findall(text)
    if text == "0":
        return timedelta(0)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise typer.BadParameter(f"{text!r} is no duration. Write 7d, 12h, 30m, 45s, or 1d12h.")
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in pieces), timedelta(0))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.") from None
