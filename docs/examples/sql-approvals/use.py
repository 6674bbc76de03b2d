"""One conversation on two stores: transcript and turn in SQLite, approvals in a table that people look at.

Run it: `python use.py`.
"""

import asyncio
import sqlite3

from sql_approvals import SqlApprovals

from perdure import Agent, ToolCall, open_store, tool
from perdure.models import ScriptedModel


@tool(needs_approval=True)
def refund(order: int, euros: int) -> str:
    """Refund an order."""
    return f"{euros} EUR refunded"


async def main() -> None:
    async with SqlApprovals("approvals.db") as approvals, open_store("sqlite:agent.db", approvals=approvals) as store:
        model = ScriptedModel([[ToolCall("call-1", "refund", {"order": 7, "euros": 50})], "Done."])
        session = Agent(model=model, tools=[refund], store=store).session("user-42")
        result = await session.send("Refund order 7")
        print(result.finish_reason)
        await store.decide(result.approval_ids[0], approved=True, arguments={"order": 7, "euros": 20}, decided_by="ann")
        print((await session.resume()).text)


asyncio.run(main())
for row in sqlite3.connect("approvals.db").execute(
    "SELECT session_id, status, tool, arguments, edited_arguments, decided_by FROM approvals"
):
    print(*row)
