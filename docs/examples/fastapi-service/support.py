"""The agent: the web processes and the workers import it. It needs no provider; put a model of one in the place of `answer`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from perdure import Agent, ToolCall, ToolContext, tool
from perdure.models import FunctionModel, ModelEvent, ModelRequest, ModelResponse, TextDelta

PACE = float(os.environ.get("PACE", "0.02"))
"""How long a word takes, in seconds."""


@tool(idempotent=True, needs_approval=True)
async def refund(order: int, euros: int, context: ToolContext) -> str:
    """Refund an order; the bank carries each key out once."""
    return f"order {order}: {euros} euros were refunded"


async def answer(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """Refund what it is told to `refund`, `count` as far as it is asked to, and repeat everything else."""
    last = request.messages[-1]
    words = last.text.split(" ")
    if last.role == "user" and words[0] == "refund" and len(words) == 3:
        arguments = {"order": int(words[1]), "euros": int(words[2])}
        number = sum(message.role == "user" for message in request.messages)
        yield ModelResponse(tool_calls=[ToolCall(f"refund-{number}", "refund", arguments)])
        return
    if last.role == "user" and words[0] == "count" and len(words) == 2:
        words = [str(number) for number in range(1, int(words[1]) + 1)]
    elif last.role == "user":
        words = ["You", "said:", *words]
    for place, word in enumerate(words):
        await asyncio.sleep(PACE)
        yield TextDelta(word if place == 0 else f" {word}")
    yield ModelResponse(text=" ".join(words))


agent = Agent(model=FunctionModel(answer, name="parrot"), tools=[refund], name="support")
