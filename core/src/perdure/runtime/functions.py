"""Calling the functions of applications: an async one is awaited here, a plain one is called in a thread."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


async def called(function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Call a function, in a thread if it is not async, and await what it gives to be awaited."""
    if inspect.iscoroutinefunction(function):
        return await function(*given, **named)
    return await called_in_thread(function, *given, **named)


async def called_in_thread(function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Call a plain function in a thread, and await what it gives to be awaited."""
    answer = await asyncio.to_thread(_answer, function, given, named)
    return await answer if inspect.isawaitable(answer) else answer


def _answer(function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    try:
        return function(*given, **named)
    except StopIteration as error:  # no future takes it: whoever awaited the thread would wait for ever
        raise RuntimeError("the function raised StopIteration") from error
