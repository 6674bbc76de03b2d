"""Agents on transcripts alone: the turn is saved at its end.

Run it: `python use.py`.
"""

import asyncio

from json_lines_sessions import JsonLinesSessions

from perdure import Agent, open_store, tool
from perdure.errors import UnsupportedOperationError
from perdure.models import ScriptedModel


@tool(needs_approval=True)
def refund(order: int, euros: int) -> str:
    """Refund an order."""
    return f"{euros} EUR refunded"


async def main() -> None:
    async with open_store(sessions=JsonLinesSessions("chats")) as store:
        session = Agent(model=ScriptedModel(["Good morning.", "Good night."]), store=store).session("user-42")
        for question in ("Hello", "And now?"):
            print((await session.send(question)).text)
        transcript = await store.sessions.load("user-42")
        print(transcript.count, "records")
        try:
            await Agent(model=ScriptedModel([]), tools=[refund], store=store).session("user-43").send("Refund order 7")
        except UnsupportedOperationError as error:
            print(error)
        try:
            await store.sessions.delete("user-42")
        except UnsupportedOperationError as error:
            print(error)


asyncio.run(main())
