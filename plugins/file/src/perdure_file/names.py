"""Ids as file names: different on every file system, and readable back.

An id is written in lower case. Where it has upper-case letters, a comma and a number follow that say which they are: one
bit for each character, five bits a digit (0-9, a-v), the first character in the lowest bit, so that `A`, `a` and their
kind stay apart where a file system takes them for one. Where its first word is the name of a device on Windows, which
no extension changes, a comma goes before it. No id has a comma, a space or a character that is not ASCII, so nothing
else can go wrong; a suffix always follows, so no name ends with a dot; and 200 characters become 247 at the most. No id
begins with a dot, as what some systems put beside a file does.
"""

from __future__ import annotations

import re
from functools import lru_cache

DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789")}
)

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9_.-]*")
_NAME = re.compile(r",?([a-z0-9_-][a-z0-9_.-]*)(?:,([0-9a-v]+))?")


@lru_cache(maxsize=1024)
def to_name(id: str) -> str:
    """Return the file name of an id, without a suffix."""
    lower = id.lower()
    name = f",{lower}" if lower.partition(".")[0] in DEVICES else lower
    if id == lower:
        return name
    capitals = sum(1 << place for place, character in enumerate(id) if character.isupper())
    return f"{name},{_digits(capitals)}"


def to_id(name: str) -> str | None:
    """Return the id of a file name without its suffix, or `None` if no id has this name."""
    if _PLAIN.fullmatch(name) and name.partition(".")[0] not in DEVICES:
        return name
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    lower, digits = found.groups()
    capitals = sum(_DIGITS.index(digit) << 5 * place for place, digit in enumerate(digits or ""))
    known = "".join(letter.upper() if capitals >> place & 1 else letter for place, letter in enumerate(lower))
    return known if to_name(known) == name else None


def _digits(number: int) -> str:
    digits = ""
    while number:
        digits += _DIGITS[number & 31]
        number >>= 5
    return digits
