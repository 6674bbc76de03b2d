"""An agent, and a store full of what it left behind, for the tests of the command line.

A copy of this file in the working directory is the module that `perdure resume cli_world:agent` loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from perdure import Agent, ToolCall, open_store, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse

EVIL = "\x1b]0;owned\x07\x1b[31mred\u202eback"
"""A title, a colour and a turn of direction that no terminal must get."""


@tool
async def lookup(order: int) -> str:
    """Look an order up."""
    return f"order {order} {EVIL}"


@tool(needs_approval=True, in_doubt="rerun")
def pay(amount: int) -> str:
    """Pay."""
    if file := os.environ.get("PAID"):
        with Path(file).open("a", encoding="utf-8") as paid:
            paid.write(f"{amount}\n")
    return f"paid {amount}"


@tool
async def hang() -> str:
    """Wait until the turn is stopped."""
    await asyncio.Event().wait()
    return "never"


@tool(in_doubt="ask")
def die() -> str:
    """End the process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


async def _answer(request: ModelRequest) -> ModelResponse:
    last = max(place for place, message in enumerate(request.messages) if message.role == "user")
    asked = request.messages[last].text
    if asked == "boom" and "MENDED" not in os.environ:
        raise RuntimeError("the model is away")
    if asked in ("hang", "die") and len(request.messages) == last + 1:
        return ModelResponse(tool_calls=[ToolCall("c1", asked, {})])
    if not asked.startswith("refund"):
        return ModelResponse(text=f"You said {asked}.\nAnd that {EVIL}")
    if any(message.role == "tool" for message in request.messages[last:]):
        return ModelResponse(text="Done.")
    return ModelResponse(
        text="Let me see.", tool_calls=[ToolCall("c1", "lookup", {"order": 7}), ToolCall("c2", "pay", {"amount": 5})]
    )


agent = Agent(model=FunctionModel(_answer), tools=[lookup, pay, hang, die], name="shop")
changed = Agent(model=FunctionModel(_answer), name="shop")
another = Agent(model=FunctionModel(_answer), name="another")


def broken() -> Agent:
    """Fail."""
    raise RuntimeError("it cannot be made")


async def with_store() -> Agent:
    """Return the agent with a store of its own."""
    return agent.using(await open_store("sqlite:a.db"))


async def fill(url: str) -> None:
    """Leave one conversation of each kind in a store."""
    async with open_store(url) as store:
        shop = agent.using(store)
        await shop.session("user-1", scope="acme").send("hello")
        await store.sessions.append("user-1", [{"note": EVIL}], state={"title": EVIL})
        await shop.session("user-2").send("hello again")
        await shop.session("order-7").send("refund order 7")
        with contextlib.suppress(RuntimeError):
            await shop.session("broken").send("boom")
        await shop.session("queued").submit("later")
        await shop.run("refund nightly", run_id="nightly")


async def say(url: str, session_id: str, text: str) -> None:
    """Send one input."""
    async with open_store(url) as store:
        await agent.session(session_id, store=store).send(text)


if __name__ == "__main__":
    asyncio.run(say(*sys.argv[1:]))
