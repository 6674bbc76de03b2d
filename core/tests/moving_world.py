"""Conversations of every kind, all that a store holds of them, read by the public methods alone, and damage to it."""

from __future__ import annotations

from typing import Any

from perdure import Agent, AgentStore, ToolCall, codec, tool
from perdure.contracts.approvals import Approval
from perdure.conversations.paging import walk
from perdure.errors import PropagatingToolError
from perdure.journal.contract import Append, Head, Key, Part
from perdure.journal.stores import JournalSessions
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel

RAN: list[str] = []
"""What the tools have done, by name."""

ODD = {"text": "a\x00b \ud800 ℵ", "big": 2**70, "minus": -0.0, "one": 1, "yes": True, "none": None, "empty": {"": []}}


@tool(idempotent=True)
def look(what: str) -> str:
    """Look at something."""
    RAN.append(f"look {what}")
    return f"seen {what}"


@tool(idempotent=True)
def post(what: str) -> str:
    """Post something, which does not work here."""
    RAN.append(f"post {what}")
    raise PropagatingToolError("the post is closed", retryable=True)


@tool(needs_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    RAN.append(f"pay {to}")
    return f"paid {to}"


CALLS: dict[str, list[Any]] = {
    "failed": [[ToolCall("c1", "look", {"what": "a"})], [ToolCall("c2", "post", {"what": "b"})], "All done."],
    "waiting": [[ToolCall("c1", "look", {"what": "x"}), ToolCall("c2", "pay", {"to": "ann"})], "Paid."],
    "decided": [[ToolCall("c1", "pay", {"to": "bob"})], "Paid."],
}


def agent(store: AgentStore, script: list[Any] | None = None) -> Agent:
    """The agent that all conversations have."""
    if script is not None:
        return Agent(model=ScriptedModel(script), tools=[look, post, pay], store=store)

    async def answer(request: ModelRequest) -> ModelResponse:
        return ModelResponse(text=f"heard {request.messages[-1].text}")

    return Agent(model=FunctionModel(answer), tools=[look, post, pay], store=store)


async def fill(store: AgentStore) -> None:
    """Make a conversation of every kind."""
    await store.sessions.append("plain", [{"kind": "else", **ODD}, {"n": 2}], state={"title": "t", **ODD}, scope="acme")
    await store.sessions.append("plain", [{"n": 3}])
    await store.sessions.append("empty", [])
    talker = agent(store)
    for number in range(4):
        await talker.session("talk", scope="").send(f"message {number}")
    for number in range(4):
        await talker.session("long").send(f"message {number}")
        if number % 2:
            await talker.session("long").compact(keep=1, summarize=_summary, archive=True)
    await talker.session("cleared").send("forget me")
    await talker.session("cleared").clear()
    await talker.run("count", run_id="job")
    for name, script in CALLS.items():
        session = agent(store, script).session(name)
        try:
            await session.send("Go.")
        except PropagatingToolError:
            continue
    (asked,) = [a async for a in walk(store.approvals.list, session_id="decided")]
    await store.decide(asked.id, approved=True, note="yes", decided_by="eve", arguments={"to": "carl"})
    at = store.clock.now()
    await store.approvals.create(Approval("gone.run-7.s0.c0", "gone.run-7", "c", "pay", {"to": "nobody"}, at))


async def damage(store: AgentStore, part: Part, name: str) -> None:
    """Replace the data of a head by what no release has written."""
    assert isinstance(store.sessions, JournalSessions)
    journal = store.sessions.journal
    await journal.write([Append(Key(part, name), (), Head(data=b'{"v":'), None, store.clock.now(), 1)])


async def _summary(messages: Any) -> str:
    return f"a summary of {len(messages)}"


async def everything(store: AgentStore, *, turn_versions: bool = True) -> dict[str, Any]:
    """All that a store holds, as plain values; turn journals without the entries of claims."""
    held: dict[str, Any] = {}
    async for info in walk(store.sessions.list):
        transcript = await store.sessions.load(info.session_id)
        assert transcript is not None
        held[f"session {info.session_id}"] = [
            *(transcript.version, transcript.count, transcript.rewritten),
            *(transcript.scope, transcript.created_at, transcript.updated_at),
            codec.encode(transcript.state),
            [codec.encode(record) for record in transcript.records],
        ]
    async for head in walk(store.checkpoints.list):
        found = await store.checkpoints.load(head.key)
        assert found is not None
        entries = [codec.encode(entry) for entry in found.entries if entry.get("kind") != "claim"]
        held[f"turn {head.key}"] = [
            found.version if turn_versions else None,
            found.head,
            found.created_at,
            found.updated_at,
            entries,
        ]
    async for approval in walk(store.approvals.list):
        held[f"approval {approval.id}"] = approval
    return held


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two stores hold different things."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
