"""The tests of the application: no provider, no server, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from shop import Shop

from perdure import AgentStore, ToolCall, open_store
from perdure.models import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeBank:
    """Keeps what it refunded, and can be made to hang right after it has done so."""

    def __init__(self) -> None:
        self.refunds: dict[str, tuple[int, int]] = {}
        self.calls = 0
        self.hangs = False
        self.refunded = asyncio.Event()

    async def refund(self, order: int, euros: int, key: str) -> str:
        self.calls += 1
        self.refunds.setdefault(key, (order, euros))
        self.refunded.set()
        if self.hangs:
            await asyncio.Event().wait()
        return f"receipt {order}"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[AgentStore]:
    async with open_store("memory:", clock=clock) as store:
        yield store


@pytest.fixture
def bank() -> FakeBank:
    return FakeBank()


@pytest.fixture
def shop(bank: FakeBank) -> Shop:
    return Shop(bank, {7: "on its way"})


def refunding(euros: int, *answers: str) -> ScriptedModel:
    return ScriptedModel([[ToolCall("c1", "refund", {"order": 7, "euros": euros})], *(answers or ("Done.",))])


# --- what the model is shown, and what its calls do ---


async def test_the_model_is_told_what_the_order_is(shop: Shop, store: AgentStore) -> None:
    model = ScriptedModel([[ToolCall("c1", "find", {"order": 7})], "It is on its way."])
    result = await shop.agent(model, store).session("ann").send("Where is order 7?")
    assert (result.text, result.finish_reason) == ("It is on its way.", "stop")
    asked = model.calls[-1]
    assert asked.messages[-1].text == '{"order":7,"state":"on its way"}'
    assert [tool.name for tool in asked.tools] == ["find", "refund"]


async def test_the_model_is_told_of_an_order_that_does_not_exist(shop: Shop, store: AgentStore) -> None:
    model = ScriptedModel([[ToolCall("c1", "find", {"order": 8})], "I cannot find it."])
    await shop.agent(model, store).session("ann").send("Where is order 8?")
    told = model.calls[-1].messages[-1]
    assert (told.is_error, told.text) == (True, "LookupError: there is no order 8")


async def test_a_second_question_sees_the_first(shop: Shop, store: AgentStore) -> None:
    model = ScriptedModel(["Hello, Ann!", "Ann."])
    session = shop.agent(model, store).session("ann")
    await session.send("I am Ann.")
    await session.send("Who am I?")
    assert [message.text for message in model.calls[-1].messages] == ["I am Ann.", "Hello, Ann!", "Who am I?"]


# --- approvals ---


async def test_a_small_refund_asks_nobody(shop: Shop, bank: FakeBank, store: AgentStore) -> None:
    result = await shop.agent(refunding(50), store).session("ann").send("Refund order 7")
    assert (result.finish_reason, bank.calls) == ("stop", 1)


async def test_a_large_refund_waits_for_a_human_who_may_change_it(
    shop: Shop, bank: FakeBank, store: AgentStore
) -> None:
    agent = shop.agent(refunding(80), store)
    waiting = await agent.session("ann").send("Refund order 7")
    assert (waiting.finish_reason, bank.calls) == ("awaiting-approval", 0)
    (approval_id,) = waiting.approval_ids
    asked = await agent.approvals.get(approval_id)
    assert asked is not None
    assert (asked.tool_name, asked.arguments) == ("refund", {"order": 7, "euros": 80})

    result = await agent.approvals.resolve(approval_id, approved=True, arguments={"order": 7, "euros": 60})
    assert result.text == "Done."
    assert list(bank.refunds.values()) == [(7, 60)]


async def test_the_model_is_told_why_a_refund_was_rejected(shop: Shop, bank: FakeBank, store: AgentStore) -> None:
    model = refunding(80, "I am sorry.")
    agent = shop.agent(model, store)
    waiting = await agent.session("ann").send("Refund order 7")
    result = await agent.approvals.resolve(waiting.approval_ids[0], approved=False, note="It has arrived.")
    assert (result.text, bank.calls) == ("I am sorry.", 0)
    assert "It has arrived." in model.calls[-1].messages[-1].text


async def test_a_refund_that_nobody_decides_in_a_day_is_rejected(
    shop: Shop, bank: FakeBank, store: AgentStore, clock: Clock
) -> None:
    agent = shop.agent(refunding(80, "Nobody answered."), store)
    await agent.session("ann").send("Refund order 7")
    clock.time += timedelta(days=1)
    result = await agent.session("ann").resume()
    assert result is not None
    assert (result.text, bank.calls) == ("Nobody answered.", 0)


# --- crashes ---


async def test_a_crash_right_after_the_refund_refunds_once(shop: Shop, bank: FakeBank, store: AgentStore) -> None:
    bank.hangs = True
    sending = asyncio.create_task(shop.agent(refunding(20), store).session("ann").send("Refund order 7"))
    await bank.refunded.wait()
    sending.cancel()  # to a turn, that is a crash: the call has begun, and its result is nowhere
    with pytest.raises(asyncio.CancelledError):
        await sending

    bank.hangs = False
    restarted = shop.agent(refunding(20), store)  # a model that answers by place goes on where the other one stopped
    result = await restarted.session("ann").resume()
    assert result is not None
    assert result.text == "Done."
    assert (bank.calls, list(bank.refunds.values())) == (2, [(7, 20)])  # the bank knew the key


async def test_a_provider_that_is_away_loses_nothing(shop: Shop, bank: FakeBank, store: AgentStore) -> None:
    call = [ToolCall("c1", "refund", {"order": 7, "euros": 20})]
    with pytest.raises(ConnectionError):
        await shop.agent(ScriptedModel([call, ConnectionError("away")]), store).session("ann").send("Refund order 7")
    result = await shop.agent(ScriptedModel([call, "Done."]), store).session("ann").resume()
    assert result is not None
    assert (result.text, bank.calls) == ("Done.", 1)  # the refund was recorded, and did not run again


async def test_the_same_input_twice_is_one_turn(shop: Shop, bank: FakeBank, store: AgentStore) -> None:
    agent = shop.agent(refunding(20), store)
    first = await agent.session("ann").send("Refund order 7", input_id="request-1")
    again = await agent.session("ann").send("Refund order 7", input_id="request-1")
    assert (again.run_id, bank.calls) == (first.run_id, 1)
