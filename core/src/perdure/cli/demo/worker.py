"""One process of the demo: `python -m perdure.cli.demo.worker` does one job and prints one line, its report.

The job comes as a line of JSON on the standard input, so that no URL with a secret shows in a list of processes. The
input stays open until the process may end: when the parent is gone, so is whoever waits for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from perdure.bundle import AgentStore
from perdure.cli.demo.reading import OLD_SESSION, SESSION, Report, read
from perdure.cli.demo.tools import REQUEST, Shop, make_agent
from perdure.errors import SessionBusyError
from perdure.models import ScriptedModel
from perdure.opening import open_store
from perdure.ownership.leases import Lease
from perdure.runtime.agent import Agent
from perdure.runtime.tools import ToolContext

WEEK = timedelta(days=7)
MONTH = timedelta(days=30)
SHORT_LEASE = Lease(length=timedelta(seconds=2), heartbeat=timedelta(seconds=0.5))
"""Where the system does not tell that a process is dead, the next one waits for this lease to run out."""


@dataclass(frozen=True)
class Job:
    """What one process shall do.

    Attributes:
        step: Which part of the demo.
        url: Of the store.
        directory: Where the shop keeps its file and its database.
        approval_id: What to answer, for the step `answer`.
    """

    step: Literal["start", "resume", "answer", "prune"]
    url: str
    directory: str
    approval_id: str = ""


class MonthAgo:
    """A clock that is a month behind, for the conversation that prune shall find old."""

    def now(self) -> datetime:
        """Return the instant a month ago."""
        return datetime.now(UTC) - MONTH

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()


async def start(job: Job, shop: Shop) -> None:
    """Start the turn. It is killed after the card was charged and before that is recorded, so it never returns."""
    async with open_store(job.url, clock=MonthAgo()) as store:
        await Agent(model=ScriptedModel(["Order 1 is on its way."]), store=store).session(OLD_SESSION).send("Order 1?")
    async with open_store(job.url) as store:
        store.ownership.lease = SHORT_LEASE
        found = await read(store, shop)

        async def wait_for_the_kill(context: ToolContext) -> None:
            await _until_stored(store, context)
            tell(Report(os.getpid(), found, await read(store, shop), _model_requests(agent)))
            await asyncio.to_thread(sys.stdin.read)
            os._exit(1)  # the parent went away without a kill

        agent = make_agent(store, shop, charged=wait_for_the_kill)
        await agent.session(SESSION).send(REQUEST)


async def _until_stored(store: AgentStore, context: ToolContext) -> None:
    """Wait until the store holds the result of the call that runs beside this one."""
    assert context.session_id is not None
    while True:
        journal = await store.checkpoints.load(context.session_id)
        if journal is not None and any(item["kind"] == "tool" for item in journal.entries):
            return
        await asyncio.sleep(0.005)


async def resume(job: Job, shop: Shop) -> None:
    """Resume the turn that the first process left."""
    async with open_store(job.url) as store:
        found = await read(store, shop)
        agent = make_agent(store, shop)
        while True:
            try:
                await agent.resume(SESSION)
                break
            except SessionBusyError:  # whether its owner is dead cannot be known here: its lease must run out
                await asyncio.sleep(0.1)
        tell(Report(os.getpid(), found, await read(store, shop), _model_requests(agent)))


async def answer(job: Job, shop: Shop) -> None:
    """Answer the approval by its id alone, and go on with whatever turn it belongs to."""
    async with open_store(job.url) as store:
        found = await read(store, shop)
        agent = make_agent(store, shop)
        await agent.approvals.resolve(job.approval_id, approved=True, note="Go ahead.", decided_by="the demo")
        tell(Report(os.getpid(), found, await read(store, shop), _model_requests(agent)))


async def prune(job: Job, shop: Shop) -> None:
    """Remove what is older than a week: first only say so, then do it."""
    async with open_store(job.url) as store:
        found = await read(store, shop)
        dry = await store.prune(older_than=WEEK, dry_run=True)
        after_dry_run = (await read(store, shop)).sessions
        done = await store.prune(older_than=WEEK)
        left = await read(store, shop)
        tell(
            Report(
                os.getpid(),
                found,
                left,
                would_prune=dry.sessions,
                after_dry_run=after_dry_run,
                pruned=done.sessions,
            )
        )


STEPS: dict[str, Callable[[Job, Shop], Awaitable[None]]] = {
    "start": start,
    "resume": resume,
    "answer": answer,
    "prune": prune,
}


def tell(report: Report) -> None:
    """Print a report, in one line."""
    print(TypeAdapter(Report).dump_json(report, ensure_ascii=True).decode("ascii"), flush=True)


def _model_requests(agent: Agent) -> int:
    return len(agent.model.calls) if isinstance(agent.model, ScriptedModel) else 0


async def _work(job: Job) -> None:
    await STEPS[job.step](job, Shop(Path(job.directory)))


def main() -> None:
    """Do the job that stands on the standard input."""
    asyncio.run(_work(TypeAdapter(Job).validate_json(sys.stdin.readline())))


if __name__ == "__main__":
    main()
