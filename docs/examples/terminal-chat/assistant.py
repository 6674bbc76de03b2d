"""Who one chats with: a model that needs no provider, and a tool that asks before it writes.

Put a model of a provider in the place of `answer`, and the chat stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from perdure import Agent, AgentStore, ToolCall, tool
from perdure.models import FunctionModel, ModelEvent, ModelRequest, ModelResponse, TextDelta

NOTES = Path("notes.txt")
PACE = 0.02
"""How long a word takes, in seconds."""


@tool(needs_approval=True, in_doubt="ask")
def note(text: str) -> str:
    """Write a line into notes.txt."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return f"noted: {text}"


async def answer(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    """Note what it is told to `note`, `count` as far as it is asked to, and repeat everything else."""
    last = request.messages[-1]
    command, _, rest = last.text.partition(" ")
    if last.role == "user" and command == "note":
        number = sum(message.role == "user" for message in request.messages)
        yield ModelResponse(tool_calls=[ToolCall(f"note-{number}", "note", {"text": rest})])
        return
    if last.role == "user" and command == "count" and rest.isdecimal():
        words = [str(number) for number in range(1, int(rest) + 1)]
    else:
        words = f"You said: {last.text}".split(" ") if last.role == "user" else last.text.split(" ")
    for place, word in enumerate(words):
        await asyncio.sleep(PACE)
        yield TextDelta(word if place == 0 else f" {word}")
    yield ModelResponse(text=" ".join(words))


def make_agent(store: AgentStore) -> Agent:
    """Return the agent."""
    return Agent(model=FunctionModel(answer, name="parrot"), tools=[note], store=store, name="chat")
