"""Models: a stream that is left early is closed by whoever leaves it, all the way down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.lowlevel
import pytest

from perdure.models import FunctionModel, ModelEvent, ModelRequest, ModelResponse, TextDelta, respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


async def test_the_generator_of_a_function_is_closed_before_the_error_goes_on() -> None:
    seen: list[str] = []

    async def answer(_: ModelRequest) -> AsyncIterator[ModelEvent]:
        try:
            yield TextDelta("on its way")
            yield ModelResponse(text="done")
        finally:
            await anyio.lowlevel.checkpoint()
            seen.append("closed")

    def refuse(delta: TextDelta) -> None:
        seen.append(delta.text)
        raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        await respond(FunctionModel(answer), ModelRequest([]), refuse)
    assert seen == ["on its way", "closed"]
