"""Asking a model, so that the observers hear how long it took and how it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from perdure.events import ModelCalled
from perdure.models import respond
from perdure.observers import observe, wanted
from perdure.runtime.messages import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.clock import Clock
    from perdure.models import Model, ModelRequest, ModelResponse, TextDelta


_NONE_USED: Final = Usage()


async def ask(
    model: Model, request: ModelRequest, clock: Clock, on_delta: Callable[[TextDelta], object] | None = None
) -> ModelResponse:
    """Return a model's response as `respond` does, and send `model.called`, also if it raised or was cancelled."""
    started = clock.monotonic()
    first: timedelta | None = None
    usage, outcome = _NONE_USED, "ok"

    def heard(delta: TextDelta) -> None:
        nonlocal first
        if first is None:
            first = timedelta(seconds=clock.monotonic() - started)
        if on_delta is not None:
            on_delta(delta)

    try:
        response = await respond(model, request, heard)
        usage = response.usage
    except BaseException as error:
        outcome = type(error).__name__
        raise
    else:
        return response
    finally:
        if wanted():
            observe(
                ModelCalled(
                    model=model.name,
                    provider=getattr(model, "provider", None),
                    duration=timedelta(seconds=clock.monotonic() - started),
                    first_text=first,
                    outcome=outcome,
                    usage=usage,
                    at=clock.now(),
                )
            )
