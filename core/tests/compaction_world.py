"""Conversations to compact, summaries that say what they stand for, and a look at all that is stored of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure import Agent, AgentStore, Message, Session, ToolCall, Usage, tool
from perdure.archives import archive_of
from perdure.models import FunctionModel, ModelRequest, ModelResponse

COST = Usage(input_tokens=7, output_tokens=3, requests=1, cost_usd=0.5)
"""What each response of the model costs, also a summary."""


def gist(messages: Sequence[Message]) -> str:
    """A summary that says what it stands for, to the letter."""
    return "<" + "|".join(f"{message.role[0]}:{message.text}" for message in messages) + ">"


async def answer(request: ModelRequest) -> ModelResponse:
    """Answer an input; `look ...` and `pay ...` by a call first; a request for a summary by the gist."""
    last = request.messages[-1]
    if last.text.startswith("Summarise"):
        assert not request.tools
        return ModelResponse(text=gist(request.messages[:-1]), usage=COST)
    if last.role == "user" and last.text.startswith(("look ", "pay ")):
        name, _, argument = last.text.partition(" ")
        return ModelResponse(tool_calls=[ToolCall("c1", name, {"what": argument})], usage=COST)
    return ModelResponse(text=f"re: {last.text}", usage=COST)


@tool(idempotent=True)
def look(what: str) -> str:
    return f"seen {what}"


@tool(needs_approval=True, idempotent=True)
def pay(what: str) -> str:
    return f"paid {what}"


def agent(store: AgentStore) -> Agent:
    return Agent(model=FunctionModel(answer), tools=[look, pay], store=store)


def session(store: AgentStore, session_id: str = "s") -> Session:
    return agent(store).session(session_id)


async def lived(store: AgentStore, turns: int = 4, session_id: str = "s") -> Session:
    """A conversation of some turns, with a state and a scope."""
    made = agent(store).session(session_id, scope="acme")
    for n in range(turns):
        await made.send(f"m{n}", input_id=f"i{n}")
    await made.update_state(lambda _: {"title": "kept"})
    return made


def said(count: int) -> list[str]:
    """The first turns of a conversation that has lived."""
    return [text for n in range(count) for text in (f"m{n}", f"re: m{n}")]


async def compacted_with_archives(store: AgentStore, times: int, session_id: str = "s") -> list[str]:
    """A conversation of two turns more than it was compacted; return its archives, the oldest first."""
    live = await lived(store, 2, session_id)
    made = []
    for n in range(times):
        done = await live.compact(keep=1, summarize=gist, archive=True)
        made.append(done.archive_id or "")
        await live.send(f"m{n + 2}")
    return made


async def records(store: AgentStore, session_id: str = "s") -> list[dict[str, Any]]:
    found = await store.sessions.load(session_id)
    assert found is not None
    return list(found.records)


async def texts(store: AgentStore, session_id: str = "s") -> list[str]:
    """What a fresh reader sees of a transcript; foreign records as `?`."""
    return [
        record["message"]["content"] if record.get("kind") in ("message", "summary") else "?"
        for record in await records(store, session_id)
    ]


async def heard(store: AgentStore, session_id: str = "s") -> list[str]:
    """All that can still be read of a conversation."""
    return [message.text for message in await session(store, session_id).history()]


async def archives(store: AgentStore, session_id: str = "s") -> list[str]:
    """All archives of a conversation that exist, named or not."""
    return [info.session_id for info in (await store.sessions.list()).items if archive_of(info) == session_id]


async def status(store: AgentStore, session_id: str = "s") -> str:
    found = await store.checkpoints.load(session_id)
    return "absent" if found is None else found.head.status


class SlowSummary:
    """A summary that is being made until a test says so."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, messages: Sequence[Message]) -> str:
        self.reached.set()
        await self.may_go_on.wait()
        return gist(messages)
