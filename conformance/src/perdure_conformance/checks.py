"""What a law says when it is broken: the place, the expected value and the one that came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

SHOWN = 160
"""How many characters of a value a message shows."""


class LawBrokenError(AssertionError):
    """The store does not keep the law; the message says what was expected and what came."""


class NotClaimedError(Exception):
    """The store does not declare what the law is about."""


class NotRunError(Exception):
    """The law cannot be tried on this target; the message says why."""


def broken(message: str) -> LawBrokenError:
    """Return the failure of a law, for `raise`."""
    return LawBrokenError(message)


def show(value: object) -> str:
    """Return a value as text of limited length, with its type where the text alone does not tell."""
    text = f"<{type(value).__name__}>"
    for write in (json.dumps, repr) if isinstance(value, (dict, list)) else (repr,):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            text = write(value)
            break
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def equal(got: object, expected: object, what: str) -> None:
    """Demand that two values are equal and of the same types all the way down."""
    found = difference(got, expected, "")
    if found is not None:
        raise broken(f"{what}{found}")


def holds(condition: object, message: str) -> None:
    """Demand that something holds; the message says what was expected and what came."""
    if not condition:
        raise broken(message)


def difference(got: Any, expected: Any, where: str) -> str | None:
    """Return the first difference as ` at .path: expected ..., got ...`, or `None`.

    Types count (`True` is not `1`, `1` is not `1.0`), the sign of zero counts, and so does the order of keys. Tuples and
    lists are both sequences.
    """
    left = [(got, expected, where)]
    while left:
        got, expected, where = left.pop()
        found, inner = _compare(got, expected, where)
        if found is not None:
            return found
        left.extend(reversed(inner))
    return None


def _compare(got: Any, expected: Any, where: str) -> tuple[str | None, list[tuple[Any, Any, str]]]:
    """Return a difference, or else what is left to compare inside."""
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(got) != len(expected):
            return f"{_at(where)}: expected {len(expected)} items {show(expected)}, got {len(got)}: {show(got)}", []
        pairs = enumerate(zip(got, expected, strict=True))
        return None, [(one, other, f"{where}[{index}]") for index, (one, other) in pairs]
    if type(got) is not type(expected):
        return _message(got, expected, where, types=True), []
    if isinstance(expected, dict):
        if list(got) != list(expected):
            return f"{_at(where)}: expected the keys {show(list(expected))} in this order, got {show(list(got))}", []
        return None, [(got[key], expected[key], f"{where}.{key[:SHOWN]!a}") for key in expected]
    if is_dataclass(expected) and not isinstance(expected, type):
        names = [item.name for item in fields(expected)]
        return None, [(getattr(got, name), getattr(expected, name), f"{where}.{name}") for name in names]
    same = got == expected and (not isinstance(expected, float) or math.copysign(1, got) == math.copysign(1, expected))
    return None if same else _message(got, expected, where), []


def _message(got: object, expected: object, where: str, *, types: bool = False) -> str:
    if types:
        wanted, came = f"{type(expected).__name__} {show(expected)}", f"{type(got).__name__} {show(got)}"
        return f"{_at(where)}: expected {wanted}, got {came}"
    if isinstance(expected, str) and len(expected) > SHOWN and isinstance(got, str):
        return f"{_at(where)}: expected a text of {len(expected)} characters, got {_text_difference(got, expected)}"
    return f"{_at(where)}: expected {show(expected)}, got {show(got)}"


def _text_difference(got: str, expected: str) -> str:
    pairs = zip(got, expected, strict=False)
    place = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(got), len(expected)))
    return f"one of {len(got)} that differs from character {place} on"


def _at(where: str) -> str:
    return f" at {where}" if where else ""


async def raises(
    kind: type[E], what: str, method: Callable[..., Awaitable[object]], *arguments: Any, **options: Any
) -> E:
    """Demand that a call raises this kind of error, and return the error.

    Args:
        kind: The error's class.
        what: The call in words, the subject of the message.
        method: What to call; a refusal before the first await counts as well.
        *arguments: For the method.
        **options: For the method.
    """
    try:
        answer = await method(*arguments, **options)
    except kind as error:
        return error
    except Exception as error:
        came = f"{type(error).__name__} ({str(error)[:SHOWN]})"
        raise broken(f"{what}: expected {kind.__name__}, got {came}") from error
    raise broken(f"{what}: expected {kind.__name__}, but the call answered {show(answer)}")


async def all_of(calls: list[Awaitable[Any]]) -> list[Any]:
    """Await calls at once, and return their answers and errors in order."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


def only(kind: type[Exception], outcomes: list[Any], what: str) -> list[Any]:
    """Return the answers among outcomes; demand that each error is of one kind."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, kind):
            came = f"{type(outcome).__name__} ({str(outcome)[:SHOWN]})"
            raise broken(f"{what}: expected an answer or {kind.__name__}, got {came}") from outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
