"""Tools: what the model is told of them, how their arguments and results pass, and what a failing one does."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field

from perdure import Agent, AgentStore, Message, Tool, ToolCall, ToolContext, TurnResult, tool
from perdure.errors import InvalidArgumentError, PropagatingToolError
from perdure.models import ScriptedModel

pytestmark = pytest.mark.anyio


async def use(
    store: AgentStore, *tools: Tool | Callable[..., Any], calls: list[ToolCall] | None = None, **arguments: Any
) -> TurnResult:
    """Let a model call tools once, then end."""
    made = calls or [ToolCall("c1", Agent(model=ScriptedModel([]), tools=tools).tools.copy().popitem()[0], arguments)]
    return await Agent(model=ScriptedModel([made, "done"]), tools=tools, store=store).session("s").send("go")


def answers(result: TurnResult) -> list[Message]:
    return [message for message in result.messages if message.role == "tool"]


# --- what the model is told ---


def test_schema_from_hints_and_docstring() -> None:
    @tool
    def book(room: str, nights: Annotated[int, Field(gt=0, description="how many")] = 1, *, view: bool = False) -> str:
        """Book a room."""
        return room

    assert (book.name, book.description) == ("book", "Book a room.")
    assert book.parameters["required"] == ["room"]
    assert book.parameters["additionalProperties"] is False
    assert book.parameters["properties"]["nights"] == {
        "default": 1,
        "description": "how many",
        "exclusiveMinimum": 0,
        "title": "Nights",
        "type": "integer",
    }


def test_the_context_is_not_in_the_schema() -> None:
    @tool
    def plain(x: int, context: ToolContext) -> int:
        return x

    @tool
    def optional(x: int, where: ToolContext | None = None) -> int:
        return x

    assert set(plain.parameters["properties"]) == set(optional.parameters["properties"]) == {"x"}


def test_names_that_a_pydantic_model_has_itself() -> None:
    @tool
    def odd(json: int, copy: str, _hidden: int = 0, model_config: int = 1) -> str:
        return f"{json}{copy}{_hidden}{model_config}"

    assert set(odd.parameters["properties"]) == {"json", "copy", "_hidden", "model_config"}
    assert odd.check({"json": 1, "copy": "a"}) == {"json": 1, "copy": "a", "_hidden": 0, "model_config": 1}


def test_no_hints_and_no_docstring() -> None:
    def bare(x):  # type: ignore[no-untyped-def]  # reason: such functions are given
        return x

    made = tool(bare)
    assert made.description == ""
    assert made.check({"x": [1]}) == {"x": [1]}


def test_partial_method_and_callable_object() -> None:
    class Desk:
        def book(self, room: str) -> str:
            return room

        def __call__(self, room: int) -> int:
            return room

    assert tool(Desk().book).parameters["required"] == ["room"]
    assert tool(Desk()).name == "Desk"
    assert tool(name="half")(functools.partial(Desk().book)).parameters["properties"]["room"]["type"] == "string"


@pytest.mark.parametrize(
    "options",
    [
        {"in_doubt": "maybe"},
        {"on_expiry": "allow"},
        {"timeout": 30},
        {"timeout": timedelta(seconds=-1)},
        {"approval_timeout": 30},
        {"approval_timeout": timedelta.max},
        {"needs_approval": "yes"},
        {"needs_approval": None},
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        tool(name="pay", **options)(lambda: None)


def test_an_async_predicate_is_refused() -> None:
    async def dangerous(arguments: dict[str, Any]) -> bool:
        return True

    with pytest.raises(InvalidArgumentError, match="needs_approval"):
        tool(name="pay", needs_approval=dangerous)(lambda: None)  # type: ignore[arg-type]  # reason: a wrong value on purpose


def test_arguments_without_a_name_are_refused() -> None:
    for function in (lambda *rest: None, lambda **more: None, lambda x, /: None):
        with pytest.raises(InvalidArgumentError, match="named arguments only"):
            tool(name="f")(function)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="two tools"):
        Agent(model=ScriptedModel([]), tools=[tool(name="a")(lambda: 1), tool(name="a")(lambda: 2)])


# --- arguments ---


class Colour(Enum):
    RED = "red"


class Guest(BaseModel):
    name: str
    born: date


async def test_arguments_come_as_their_types(store: AgentStore) -> None:
    seen: list[Any] = []

    @tool
    def take(guest: Guest, when: datetime, price: Decimal, colour: Colour, key: UUID, kind: Literal["a"]) -> None:
        seen.extend([guest, when, price, colour, key, kind])

    key = "12345678-1234-5678-1234-567812345678"
    result = await use(
        store,
        take,
        guest={"name": "Ann", "born": "2001-02-03"},
        when="2031-01-01T00:00:00Z",
        price="1.10",
        colour="red",
        key=key,
        kind="a",
    )
    assert not answers(result)[0].is_error
    born, instant = date(2001, 2, 3), datetime(2031, 1, 1, tzinfo=UTC)
    assert seen == [Guest(name="Ann", born=born), instant, Decimal("1.10"), Colour.RED, UUID(key), "a"]


@pytest.mark.parametrize("arguments", [{}, {"x": "no number"}, {"x": 1, "y": 2}, {"x": None}])
async def test_arguments_that_do_not_fit_go_back_to_the_model(store: AgentStore, arguments: dict[str, Any]) -> None:
    ran: list[int] = []

    @tool(needs_approval=True)
    def f(x: int) -> None:
        ran.append(x)

    result = await use(store, f, **arguments)
    assert (result.finish_reason, ran) == ("stop", [])  # nobody is asked to approve a call that cannot run
    assert answers(result)[0].is_error
    assert answers(result)[0].text.startswith("the arguments do not fit: ")


async def test_a_validator_that_raises_anything_else_is_an_answer_too(store: AgentStore) -> None:
    """Else each attempt at the turn would ask the model anew, and fail in the same way."""

    @tool
    def f(room: Annotated[str, AfterValidator({"a": 1}.__getitem__)]) -> str:
        return f"room {room}"

    result = await use(store, f, calls=[ToolCall("c1", "f", {"room": name}) for name in "ab"])
    assert [answer.text for answer in answers(result)] == ["room 1", "the arguments cannot be checked: KeyError: 'b'"]


async def test_an_unknown_tool_goes_back_to_the_model(store: AgentStore) -> None:
    result = await use(store, calls=[ToolCall("c1", "nobody", {})])
    assert answers(result) == [Message("tool", "there is no tool 'nobody'", tool_call_id="c1", is_error=True)]


async def test_surrogates_in_arguments_and_results_are_kept(any_store: AgentStore) -> None:
    """B049: half of a surrogate pair is stored without loss, and the session goes on."""

    @tool
    def echo(k: Any) -> Any:
        return k

    model = ScriptedModel([[ToolCall("c1", "echo", {"k": "\udfff"})], "ok \ud800 end", "and on"])
    session = Agent(model=model, tools=[echo], store=any_store).session("s")
    await session.send("cut \ud83d")
    await session.send("next")
    assert [message.text for message in await session.load()] == [
        *("cut \ud83d", "", "\udfff", "ok \ud800 end"),
        *("next", "and on"),
    ]


# --- results ---


@dataclass
class Receipt:
    at: datetime
    amount: Decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, "null"),
        (1, "1"),
        ("", ""),
        ([], "[]"),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
        (Receipt(datetime(2031, 1, 1, tzinfo=UTC), Decimal("1.10")), '{"at":"2031-01-01T00:00:00Z","amount":"1.10"}'),
        (Guest(name="Ann", born=date(2001, 2, 3)), '{"name":"Ann","born":"2001-02-03"}'),
        (Colour.RED, '"red"'),
        (b"text", '"text"'),
    ],
)
async def test_results_pass_through_json(store: AgentStore, value: Any, text: str) -> None:
    result = await use(store, tool(name="f")(lambda: value))
    assert (answers(result)[0].text, answers(result)[0].is_error) == (text, False)


def cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize("value", [object(), float("nan"), b"\x80\xc3", {"img": b"\x89PNG"}, cycle(), lambda: 1])
async def test_results_that_are_not_json_say_that_the_tool_ran(store: AgentStore, value: Any) -> None:
    """B055: bytes and other values that JSON cannot say become an error result; the turn goes on."""
    result = await use(store, tool(name="f")(lambda: value))
    assert result.finish_reason == "stop"
    assert answers(result)[0].is_error
    assert answers(result)[0].text.startswith("the tool ran, but")


def shout() -> None:
    raise ValueError("x" * 2_000)


@pytest.mark.parametrize(
    ("function", "limit"),
    [(lambda: "x" * 2_000, 2_000), (shout, 2_000), *((lambda: "\ud83d" + "\ude00", limit) for limit in (2_000, 10**6))],
)
async def test_results_that_cannot_be_stored_say_that_the_tool_ran(
    store: AgentStore, function: Callable[[], Any], limit: int
) -> None:
    """B121: a result over the limit is one typed answer that names the tool, and is not tried again for ever."""
    store.checkpoints.bind(max_record=limit)
    result = await use(store, tool(name="f")(function))
    assert answers(result)[0].text.startswith("the tool ran, but what it said cannot be stored: the result of f")


# --- failures ---


async def test_an_exception_goes_to_the_model(store: AgentStore) -> None:
    @tool
    async def f() -> None:
        raise LookupError("no such guest")

    result = await use(store, f)
    assert answers(result) == [Message("tool", "LookupError: no such guest", tool_call_id="c1", is_error=True)]


async def test_a_plain_function_that_raises_stop_iteration_has_raised(store: AgentStore) -> None:
    """No future takes it: a turn would wait for its thread for ever."""

    @tool
    def f() -> object:
        return next(iter(()))

    result = await use(store, f)
    assert answers(result)[0].text == "RuntimeError: the function raised StopIteration"


async def test_a_tool_that_cancels_itself_is_an_error_result(store: AgentStore) -> None:
    @tool
    async def f() -> None:
        raise asyncio.CancelledError

    result = await use(store, f)
    assert (result.finish_reason, answers(result)[0].text) == ("stop", "the tool cancelled itself")


class MuteError(LookupError):
    """An error whose text fails."""

    def __str__(self) -> str:
        raise OSError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MuteError("guest"), "MuteError"),
        (LookupError("\ud83d" + "\ude00"), r"LookupError: \ud83d\ude00"),
        (LookupError(), "LookupError: "),
    ],
)
async def test_an_exception_without_a_text_that_can_be_stored_goes_to_the_model(
    store: AgentStore, error: Exception, text: str
) -> None:
    @tool
    async def f() -> None:
        raise error

    result = await use(store, f)
    assert (result.finish_reason, answers(result)[0].text) == ("stop", text)


@pytest.mark.parametrize("propagates", [False, True])
async def test_a_turn_that_fails_so_is_given_back(store: AgentStore, propagates: bool) -> None:
    class Failed(PropagatingToolError if propagates else LookupError):  # type: ignore[misc]
        pass

    @tool
    async def f() -> None:
        raise Failed("\ud83d" + "\ude00")

    model: Any = ScriptedModel([[ToolCall("c1", "f", {})] if propagates else Failed("\ud83d" + "\ude00")])
    with pytest.raises(Failed):
        await Agent(model=model, tools=[f], store=store).session("s").send("go")
    found = await store.checkpoints.load("s")
    assert found is not None
    assert (found.head.owner, found.head.last_error) == (None, r"Failed: \ud83d\ude00")
    assert [item["error"] for item in found.entries if item["kind"] == "tool-failed"] == [
        r"Failed: \ud83d\ude00"
    ] * propagates


async def test_a_propagating_error_stops_the_turn_after_its_siblings(store: AgentStore) -> None:
    """B094: a call that stops the turn loses neither its siblings' results nor the calls that wait."""
    fails = [True]
    slow_may_end = asyncio.Event()
    ran: list[str] = []

    @tool(in_doubt="ask")
    async def stop() -> str:
        slow_may_end.set()
        if fails.pop():
            fails.append(False)
            raise PropagatingToolError("the bank is closed", retryable=True)
        return "opened"

    @tool
    async def slow() -> str:
        await slow_may_end.wait()
        ran.append("slow")
        return "slow is done"

    model = ScriptedModel([[ToolCall("c1", "stop"), ToolCall("c2", "slow")], "done"])
    session = Agent(model=model, tools=[stop, slow], store=store).session("s")
    with pytest.raises(PropagatingToolError, match="the bank is closed"):
        await session.send("go")
    pending = await session.pending()
    assert pending is not None
    assert pending.last_error == "PropagatingToolError: the bank is closed"
    result = await session.resume()
    assert result is not None
    assert [message.text for message in answers(result)] == ["opened", "slow is done"]
    assert (ran, len(model.calls)) == (["slow"], 2)


async def test_a_timeout_goes_to_the_model(store: AgentStore) -> None:
    @tool(timeout=timedelta(0))
    async def f() -> None:
        await asyncio.Event().wait()

    result = await use(store, f)
    assert answers(result)[0].is_error
    assert "did not end in time; whether it had an effect is not known" in answers(result)[0].text


# --- threads, parallel calls, the context ---


async def test_sync_calls_run_in_threads_at_once(store: AgentStore) -> None:
    together = threading.Barrier(3, timeout=60)
    threads: set[int] = set()

    @tool
    def meet(n: int) -> int:
        threads.add(threading.get_ident())
        together.wait()
        return n

    result = await use(store, meet, calls=[ToolCall(f"c{n}", "meet", {"n": n}) for n in range(3)])
    assert [message.text for message in answers(result)] == ["0", "1", "2"]
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_async_calls_run_at_once_and_results_keep_the_order_of_the_calls(store: AgentStore) -> None:
    """B034: results that come in any order stand behind their own calls, in the calls' order."""
    reached = [asyncio.Event() for _ in range(3)]

    @tool
    async def wait(n: int) -> int:
        reached[n].set()
        await reached[(n + 1) % 3].wait()
        if n < 2:
            await reached[2].wait()
        return n

    result = await use(store, wait, calls=[ToolCall(f"c{n}", "wait", {"n": n}) for n in range(3)])
    assert [(m.tool_call_id, m.text) for m in answers(result)] == [("c0", "0"), ("c1", "1"), ("c2", "2")]


async def test_the_context_names_the_call(store: AgentStore) -> None:
    contexts: list[ToolContext] = []

    @tool
    async def f(context: ToolContext) -> None:
        contexts.append(context)

    result = await use(store, f)
    run_id = result.run_id
    assert contexts == [ToolContext("s", run_id, "c1", attempt=1, idempotency_key=f"{run_id}.s0.c0")]
    assert json.loads(answers(result)[0].text) is None
