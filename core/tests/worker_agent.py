"""The agent that worker processes run in tests: `perdure worker worker_agent:agent`, in this directory.

What its tools do goes by their idempotency key into the directory that EFFECTS names: a file of that name, made once, and
a line in the file `attempts` for each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

from perdure import Agent, AgentStore, ToolCall, ToolContext, open_store, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse

STEPS = 2


def _happen(context: ToolContext) -> None:
    directory = Path(os.environ["EFFECTS"])
    with (directory / "attempts").open("a", encoding="utf-8") as file:  # one short write: whole, at the end of the file
        file.write(f"{context.idempotency_key}\n")
    with contextlib.suppress(FileExistsError):
        os.close(os.open(directory / context.idempotency_key, os.O_CREAT | os.O_EXCL))


@tool(in_doubt="rerun")
async def pay(context: ToolContext) -> str:
    """Do something once for each key."""
    _happen(context)
    await asyncio.sleep(0)
    return "paid"


@tool(in_doubt="rerun")
async def die(context: ToolContext) -> str:
    """End the process."""
    _happen(context)
    os._exit(1)


@tool(in_doubt="rerun")
async def hang(context: ToolContext) -> str:
    """Wait for ever."""
    _happen(context)
    await asyncio.Event().wait()
    return "never"


@tool(in_doubt="rerun")
def block(context: ToolContext) -> str:
    """Block a thread for ever."""
    _happen(context)
    threading.Event().wait()
    return "never"


async def _answer(request: ModelRequest) -> ModelResponse:
    """Call the tool that the input names, as often as it takes, and end."""
    messages = list(request.messages)
    last = max(place for place, message in enumerate(messages) if message.role == "user")
    done = sum(message.role == "tool" for message in messages[last:])
    if done < STEPS:
        return ModelResponse(tool_calls=[ToolCall(f"c{done}", messages[last].text, {})])
    return ModelResponse(text="done")


def _made(store: AgentStore | None = None) -> Agent:
    return Agent(model=FunctionModel(_answer), tools=[pay, die, hang, block], store=store)


agent = _made()


def make() -> Agent:
    """Return an agent without a store."""
    return _made()


async def with_store() -> Agent:
    """Return an agent with a store of its own."""
    return _made(await open_store(os.environ["STORE"]))


def broken() -> Agent:
    """Fail."""
    raise RuntimeError("it cannot be made")
