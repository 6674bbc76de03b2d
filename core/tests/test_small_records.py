"""A turn whose store takes only small records: what is said of a call is cut to what fits, and no turn is stuck for it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from perdure import Agent, AgentStore, ToolCall, TurnResult, open_store, tool
from perdure.errors import RecordTooLargeError, TurnFailedError
from perdure.models import ScriptedModel

pytestmark = pytest.mark.anyio

WRONG = dict.fromkeys(("second", "third", "fourth", "fifth"), "no")
LARGE = 'é"\n' * 2_000


@tool(idempotent=True)
def tell() -> str:
    """Say more than can be kept."""
    return LARGE


@tool(idempotent=True)
def fail() -> str:
    """Fail with more than can be kept."""
    raise ValueError(LARGE)


@tool(idempotent=True)
def book(first: int, second: int, third: int, fourth: int, fifth: int) -> str:
    """Take arguments of which each may be wrong."""
    return "booked"


@tool(idempotent=True, needs_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


class Small:
    """An agent on stores of which one takes only small records."""

    def __init__(self, store: AgentStore, *script: Any) -> None:
        self.agent = Agent(model=ScriptedModel(list(script)), tools=[tell, fail, book, pay], store=store)

    async def send(self) -> TurnResult:
        return await self.agent.session("s").send("go")


@pytest.fixture(params=["checkpoints", "sessions"])
async def small(request: pytest.FixtureRequest) -> Any:
    name = uuid4().hex
    urls: Any = dict.fromkeys(("sessions", "checkpoints", "approvals"), f"memory:{name}")
    urls[request.param] += f"?max_record={520 if request.param == 'checkpoints' else 900}"
    async with open_store(**urls) as store:
        yield store


def told(result: TurnResult) -> str:
    (text,) = [message.text for message in result.messages if message.role == "tool"]
    return text


@pytest.mark.parametrize(
    ("call", "begins"),
    [
        (ToolCall("c1", "tell"), "the tool ran, but what it said cannot be stored: the result of tell is"),
        (ToolCall("c1", "fail"), "the tool ran, but what it said cannot be stored: the result of fail is"),
        (
            ToolCall("c1", "book", {"first": "no" * 80, **WRONG}),
            "the arguments do not fit: first: Input should be a valid integer",
        ),
        (ToolCall("c1", "n" * 150), "there is no tool 'nnn"),
    ],
)
async def test_what_is_told_of_a_call_is_cut(small: AgentStore, call: ToolCall, begins: str) -> None:
    result = await Small(small, [call], "done").send()
    assert (result.finish_reason, result.text) == ("stop", "done")
    assert told(result).startswith(begins)
    saved = await small.sessions.load("s")
    assert saved is not None
    assert saved.count == 4


async def test_a_note_that_no_journal_holds_is_left_out(small: AgentStore) -> None:
    of = Small(small, [ToolCall("c1", "pay", {"to": "ann"})], "done")
    (approval_id,) = (await of.send()).approval_ids
    result = await of.agent.approvals.resolve(approval_id, approved=False, note=LARGE)
    assert result.text == "done"
    assert told(result) == '{"status": "rejected", "tool": "pay", "note": "(too large to be stored)"}'
    kept = await small.approvals.get(approval_id)
    assert kept is not None
    assert kept.decision is not None
    assert kept.decision.note == LARGE  # the decision itself is whole


async def test_a_note_is_told_as_it_was_written(store: AgentStore) -> None:
    of = Small(store, [ToolCall("c1", "pay", {"to": "ann"})], "done")
    (approval_id,) = (await of.send()).approval_ids
    result = await of.agent.approvals.resolve(approval_id, approved=False, note="später, 明日")
    assert told(result) == '{"status": "rejected", "tool": "pay", "note": "später, 明日"}'


async def test_an_edit_that_no_journal_holds_does_not_run() -> None:
    """A resume could not know it; the call as the model made it is not what was approved."""
    name = uuid4().hex
    urls: Any = {
        "sessions": f"memory:{name}",
        "approvals": f"memory:{name}",
        "checkpoints": f"memory:{name}?max_record=500",
    }
    async with open_store(**urls) as store:
        of = Small(store, [ToolCall("c1", "pay", {"to": "ann"})], "done")
        (approval_id,) = (await of.send()).approval_ids
        result = await of.agent.approvals.resolve(approval_id, approved=True, arguments={"to": LARGE})
        assert result.text == "done"
        assert told(result) == "not run: it was approved with other arguments, which are too large to be stored"


async def test_a_response_that_is_too_large_stops_the_turn_which_can_be_dropped(small: AgentStore) -> None:
    of = Small(small, LARGE, "done")
    with pytest.raises(RecordTooLargeError, match=r"^response is"):
        await of.send()
    with pytest.raises(TurnFailedError, match="response is"):
        await of.send()
    assert await of.agent.discard("s")
    assert await small.checkpoints.load("s") is not None
    assert await of.agent.pending() == []
