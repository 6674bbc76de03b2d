"""A real process that runs turns on SQLite files, as its parent tells it, one JSON line a command.

Run as `python turn_process.py BARRIER`. A command names a directory: its file `agent.db` is the store, and what a tool does
is a line in its file `effects`. With `"watched": true` it says where it stands before and after each write, and before and
after the effect of its tool, and goes on at the next line. With `"round": n` it first waits until another process has come
to the same round.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import Agent, AgentStore, ToolCall, ToolContext, tool
from perdure.errors import PerdureError
from perdure.journal.stores import journal_stores
from perdure.models import ScriptedModel
from perdure.runtime.results import PendingTurn, TurnResult
from perdure_conformance.interception import Call, InterceptedJournal, Interception
from perdure_sqlite.journal import SqliteJournal

SCRIPT: list[Any] = [[ToolCall(id="c1", name="pay", arguments={"to": "ann"})], "Paid."]
ASKED: list[Any] = [[ToolCall(id="c1", name="wire", arguments={"to": "ann"})], "Wired."]


def say(**facts: Any) -> None:
    """Tell the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


@dataclass
class Worker:
    """What a command works with."""

    store: AgentStore
    effects: Path
    watched: bool

    async def point(self, where: str) -> None:
        """Say where it stands, and wait to be told to go on, or to be killed."""
        if self.watched:
            say(at=where)
            await asyncio.to_thread(sys.stdin.readline)

    def agent(self, command: dict[str, Any]) -> Agent:
        """Make the agent that a command runs."""

        async def act(to: str, context: ToolContext) -> str:
            await self.point("before the effect")
            with self.effects.open("a", encoding="utf-8") as file:  # one short write: whole, at the end of the file
                file.write(f"{context.idempotency_key} {context.attempt} {to}\n")
            await self.point("after the effect")
            return f"paid {to}"

        policy = command.get("policy")
        model = ScriptedModel(ASKED if command.get("asked") else SCRIPT)
        tools = [
            tool(name="pay", in_doubt=policy)(act),
            tool(name="wire", needs_approval=True, in_doubt=policy)(act),
        ]
        return Agent(model=model, tools=tools, store=self.store)

    async def do(self, command: dict[str, Any]) -> Any:
        """Do what the parent says."""
        agent = self.agent(command)
        session = agent.session(command.get("session", "s1"))
        match command["do"]:
            case "send":
                return await session.send("Go.", input_id="i1")
            case "decide":
                return (await self.store.decide(command["id"], **command["decision"])).status
            case "resolve":
                return await agent.approvals.resolve(command["id"], **command["decision"])
            case name:
                return await getattr(session, name)()


def meet(barrier: str, number: int, place: int) -> None:
    """Wait until both processes have come to a round."""
    with Path(barrier).open("r+b") as file, mmap.mmap(file.fileno(), 2) as places:
        places[place] = number
        while min(places[0], places[1]) < number:
            os.sched_yield()


def described(answer: Any) -> Any:
    """Return an answer as JSON."""
    if isinstance(answer, TurnResult):
        return {
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "messages": [message.to_record() for message in answer.messages],
            "approval_ids": list(answer.approval_ids),
        }
    if isinstance(answer, PendingTurn):
        return {"status": answer.status, "owner": answer.owner, "attempts": answer.attempts}
    return answer


async def serve(barrier: str, journals: dict[str, SqliteJournal]) -> None:
    """Serve the parent until it closes the pipe."""
    say(ready=os.getpid())
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        directory = command["directory"]
        if directory not in journals:
            # The process is killed, not the machine.
            journals[directory] = SqliteJournal(Path(directory, "agent.db"), synchronous="normal")
            await journals[directory].open()
        interception = Interception()
        atomic = None if not command.get("steps") else False
        stores = journal_stores(InterceptedJournal(journals[directory], interception, atomic=atomic))
        store = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)
        worker = Worker(store, Path(directory, "effects"), command.get("watched", False))

        async def before(call: Call, worker: Worker = worker) -> None:
            await worker.point(f"before write {call.number}")

        async def after(call: Call, worker: Worker = worker) -> None:
            await worker.point(f"after write {call.number}")

        interception.before, interception.after = before, after
        if "round" in command:
            meet(barrier, command["round"], command["place"])
        try:
            say(answer=described(await worker.do(command)))
        except PerdureError as error:
            say(error=type(error).__name__, says=str(error))


async def main(barrier: str) -> None:
    """Serve, and close what was opened."""
    journals: dict[str, SqliteJournal] = {}
    try:
        await serve(barrier, journals)
    finally:
        for journal in journals.values():
            await journal.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
