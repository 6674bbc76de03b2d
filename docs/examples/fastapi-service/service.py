"""The service: uvicorn service:app --workers 2, beside perdure worker support:agent.

The web processes and the workers share nothing but the store, which PERDURE_STORE names. Who may do what is left to you.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any, TypeAlias

import support
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from problems import answer_problem
from pydantic import BaseModel, Field
from turn_stream import OnLeave, TurnStream

from perdure import Agent, Session, open_store
from perdure.backend import Approval
from perdure.errors import PerdureError

BUSY_TIMEOUT = timedelta(seconds=2)
"""How long an input waits while another process runs its conversation."""

LOOK_AGAIN = 0.2
"""After how many seconds a request that waits for a run looks at the store again."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store for as long as the process serves."""
    async with open_store(os.environ.get("PERDURE_STORE", "sqlite:service.db")) as store:
        app.state.agent = support.agent.using(store)
        app.state.stopping = asyncio.Event()
        with told_of_the_end(app.state.stopping):
            yield


@contextmanager
def told_of_the_end(stopping: asyncio.Event) -> Iterator[None]:
    """Have an event be set when the process is told to stop.

    The server tells the application only when all connections are closed, and those of streams wait for the application.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stopping.set)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


app = FastAPI(title="support", lifespan=lifespan)
app.add_exception_handler(PerdureError, answer_problem)


async def the_agent(request: Request) -> Agent:
    """Return the agent of this process."""
    agent: Agent = request.app.state.agent
    return agent


AnAgent: TypeAlias = Annotated[Agent, Depends(the_agent)]


async def the_session(session_id: str, agent: AnAgent) -> Session:
    """Return the conversation of a path."""
    return agent.session(session_id, busy_timeout=BUSY_TIMEOUT)


ASession: TypeAlias = Annotated[Session, Depends(the_session)]


class Input(BaseModel):
    """What a user says. Sent again with the same `input_id`, after whatever failure, it is taken once."""

    text: str = Field(min_length=1, max_length=100_000)
    input_id: str = Field(min_length=1, max_length=200)


class Verdict(BaseModel):
    """A decision; with `arguments` the call runs with these instead."""

    approved: bool
    note: str | None = None
    arguments: dict[str, Any] | None = None
    decided_by: str


# --- conversations ---


@app.post("/sessions/{session_id}/inputs", status_code=202)
async def submit(given: Input, session: ASession) -> dict[str, str]:
    """Record an input for the workers, and return at once."""
    return {"run_id": await session.submit(given.text, input_id=given.input_id)}


@app.post("/sessions/{session_id}/stream", response_class=TurnStream)
async def stream(given: Input, session: ASession, request: Request, on_leave: OnLeave = "hand-over") -> TurnStream:
    """Run a turn here, and send its events as they come."""
    run = session.stream(given.text, input_id=given.input_id)
    return TurnStream(run, on_leave, request.app.state.stopping)


@app.get("/sessions/{session_id}/messages")
async def messages(session: ASession) -> list[dict[str, Any]]:
    """Return what was said."""
    return [{"role": message.role, "text": message.text} for message in await session.load()]


@app.get("/sessions/{session_id}/runs/{run_id}")
async def run(run_id: str, session: ASession, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, Any]:
    """Return how a run stands; with `wait`, as soon as it has ended or needs a decision, or after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        standing = await _standing(session, run_id)
        if standing["status"] in ("done", "awaiting-approval") or loop.time() >= until:
            return standing
        await asyncio.sleep(LOOK_AGAIN)


async def _standing(session: Session, run_id: str) -> dict[str, Any]:
    # The transcript is read last: a turn that has just ended is there when nothing is pending any more.
    pending = await session.pending()
    result = await session.result(run_id)
    if result is not None:
        return {"status": "done", "finish_reason": result.finish_reason, "text": result.text}
    if pending is None or pending.run_id != run_id:
        raise HTTPException(404, f"there is no run {run_id}")
    facts = {"approval_ids": list(pending.approval_ids), "attempts": pending.attempts, "last_error": pending.last_error}
    return {"status": pending.status, **facts}


@app.delete("/sessions/{session_id}/pending", status_code=204)
async def drop(session: ASession) -> None:
    """Stop and drop the pending turn: the way out where it failed for good."""
    await session.abort()


@app.delete("/sessions/{session_id}", status_code=204)
async def delete(session_id: str, agent: AnAgent) -> None:
    """Delete a conversation, with all that belongs to it."""
    await agent.store_of(None).delete_session(session_id)


# --- approvals ---


@app.get("/approvals")
async def approvals(agent: AnAgent, session_id: str | None = None, cursor: str | None = None) -> dict[str, Any]:
    """Return what waits for a decision, a page at a time."""
    page = await agent.approvals.list(session_id=session_id, status="pending", cursor=cursor)
    return {"approvals": [_shown(approval) for approval in page.items], "cursor": page.cursor}


@app.post("/approvals/{approval_id}")
async def decide(approval_id: str, verdict: Verdict, agent: AnAgent) -> dict[str, Any]:
    """Decide; a worker goes on with the turn. Whoever decides the same again gets the same answer."""
    return _shown(await agent.approvals.decide(approval_id, **verdict.model_dump()))


def _shown(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "session_id": approval.session_id,
        "run_id": approval.run_id,
        "tool": approval.tool_name,
        "arguments": approval.effective_arguments,
        "status": approval.status,
    }


@app.get("/health")
async def health(agent: AnAgent) -> dict[str, str]:
    """Say whether the store answers; 503 if it does not."""
    await agent.store_of(None).sessions.list(limit=1)
    return {"status": "ok"}
