"""What a caller is told of common mistakes: what is wrong, and what to write instead."""

from typing import Any

import pytest

from perdure import Agent, AgentStore, Limits, Message, ToolCall, Usage, Worker, blocking, open_store, tool
from perdure.errors import (
    InvalidArgumentError,
    NotJsonError,
    PerdureError,
    StoreURLError,
    UnknownSchemeError,
    UnsupportedOperationError,
)
from perdure.models import FunctionModel, ModelError, ModelRequest, ModelResponse, ScriptedModel

pytestmark = pytest.mark.anyio


async def answer(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=request.messages[-1].text)


@pytest.mark.parametrize("given", ["sqlite:agent.db", open_store("memory:"), {}])
def test_an_agent_wants_an_open_store(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"open AgentStore, .* not a {type(given).__name__}"):
        Agent(model=FunctionModel(answer), store=given)


def test_a_function_is_no_model_yet() -> None:
    model: Any = answer
    with pytest.raises(InvalidArgumentError, match="not a function; FunctionModel makes one of a function"):
        Agent(model=model)


async def test_a_message_is_no_dict() -> None:
    async with open_store("memory:") as store:
        session = Agent(model=FunctionModel(answer), store=store).session("s")
        with pytest.raises(InvalidArgumentError, match="give Message"):
            await session.send([{"role": "user", "content": "hello"}])
        assert (await session.send([{"type": "text", "text": "hello"}])).text == "hello"


def sync(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text="too early")


async def text_alone(request: ModelRequest) -> str:
    return "hello"


@pytest.mark.parametrize(
    ("function", "problem"),
    [(sync, "is not async: it returned a ModelResponse"), (text_alone, "returned a str, not a ModelResponse")],
)
async def test_a_model_function_of_another_kind(function: Any, problem: str) -> None:
    async with open_store("memory:") as store:
        with pytest.raises(ModelError, match=problem):
            await Agent(model=FunctionModel(function), store=store).session("s").send("hello")


async def test_a_script_that_is_over_says_that_stored_responses_count() -> None:
    async with open_store("memory:") as store:
        await Agent(model=ScriptedModel(["one"]), store=store).session("s").send("hello")
        with pytest.raises(PerdureError, match=r"has 1 responses, and response 2 .* in the store count too"):
            await Agent(model=ScriptedModel(["one"]), store=store).session("s").send("hello")


async def test_an_empty_url_is_named() -> None:
    with pytest.raises(StoreURLError, match=r"^the empty URL: has no scheme"):
        await open_store("")


async def test_no_extra_is_advised_that_there_is_not() -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        await open_store("postgres://host")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:", "file:"])
async def test_a_path_is_not_left_out(url: str) -> None:
    with pytest.raises(StoreURLError, match="names no"):
        await open_store(url)


def refund(order: int) -> str:
    """Refund an order."""
    return "refunded"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limits": 5}, "limits must be Limits, not a int"),
        ({"tools": refund}, "tools must be a list of tools, not one tool"),
        ({"tools": tool(refund)}, "tools must be a list of tools, not one tool"),
        ({"tools": [5]}, "function must be a function, not a int"),
    ],
)
def test_an_agent_says_which_argument_is_wrong(options: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        Agent(model=FunctionModel(answer), **options)


@pytest.mark.parametrize("options", [{"limits": 5}, {"compaction": 5}])
async def test_a_session_and_a_worker_say_which_argument_is_wrong(options: Any) -> None:
    async with open_store("memory:") as store:
        agent = Agent(model=FunctionModel(answer), store=store)
        for make in (lambda: agent.session("s", **options), lambda: Worker(agent, **options)):
            with pytest.raises(InvalidArgumentError, match=f"^{next(iter(options))} must be"):
                make()


async def test_a_listener_is_a_function_and_a_pending_id_is_text() -> None:
    wrong: Any = 5
    async with open_store("memory:") as store:
        agent = Agent(model=FunctionModel(answer), store=store)
        with pytest.raises(InvalidArgumentError, match=r"^listener must be a function"):
            agent.session("s").on(wrong)
        with pytest.raises(InvalidArgumentError, match=r"^pending_id must be a str"):
            await agent.resume(wrong)


def test_a_worker_wants_an_agent_and_an_open_store() -> None:
    wrong: Any = "memory:"
    with pytest.raises(InvalidArgumentError, match=r"^agent must be an Agent"):
        Worker(wrong)
    with pytest.raises(InvalidArgumentError, match=r"^store must be an open AgentStore"):
        Worker(Agent(model=FunctionModel(answer)), store=wrong)


def test_the_blocking_names_are_told_apart() -> None:
    with blocking.open_store("memory:") as store:
        wrong: Any = store
        with pytest.raises(InvalidArgumentError, match=r"open AgentStore, .* not a perdure\.blocking\.AgentStore"):
            Agent(model=FunctionModel(answer), store=wrong)
        wrong = blocking.Agent(model=FunctionModel(answer), store=store)
        with pytest.raises(InvalidArgumentError, match=r"not a perdure\.blocking\.Agent"):
            Worker(wrong)


@pytest.mark.parametrize(
    ("script", "problem"),
    [("hello", "^script must be a list"), ([ToolCall("1", "pay")], r"^script\[0\] must be .* not a ToolCall")],
)
def test_a_script_is_a_list(script: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        ScriptedModel(script)


def test_a_model_is_made_of_a_function() -> None:
    wrong: Any = 5
    with pytest.raises(InvalidArgumentError, match=r"^function must be an async function"):
        FunctionModel(wrong)


NONE: Any = None


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"usage": Usage(input_tokens=NONE)}, "usage.input_tokens is no number"),
        ({"usage": Usage(cost_usd=NONE)}, "usage.cost_usd is no number"),
        ({"usage": {"input_tokens": 5}}, "usage.input_tokens is no number"),
        ({"usage": Usage(output_tokens=-1)}, "usage.output_tokens is less than 0"),
        ({"tool_calls": None}, "tool_calls is no list of ToolCall"),
        ({"tool_calls": [{"name": "refund"}]}, "tool_calls is no list of ToolCall"),
    ],
)
async def test_a_response_that_no_turn_can_use_is_not_stored(wrong: Any, problem: str) -> None:
    responses = [ModelResponse(text="hello", **wrong), ModelResponse(text="hello")]

    async def careless(request: ModelRequest) -> ModelResponse:
        return responses.pop(0)

    async with open_store("memory:") as store:
        session = Agent(model=FunctionModel(careless), store=store).session("s")
        with pytest.raises(ModelError, match=problem):
            await session.send("hi")
        result = await session.resume()
        assert result is not None
        assert result.text == "hello"


@pytest.mark.parametrize("arguments", ['{"to": "ann"}', None, [1]])
async def test_arguments_of_a_call_that_are_no_object_are_the_models_mistake(
    any_store: AgentStore, arguments: Any
) -> None:
    answers = [ModelResponse(tool_calls=[ToolCall("c1", "pay", arguments)]), ModelResponse(text="mended")]
    session = Agent(model=FunctionModel(_one_by_one(answers)), store=any_store).session("s")
    with pytest.raises(ModelError, match=r"tool_calls\[0\].arguments is a .*, where an object"):
        await session.send("go")
    result = await session.resume()
    assert result is not None
    assert result.text == "mended"


async def test_no_text_beside_calls_is_empty_text(any_store: AgentStore) -> None:
    answers: list[ModelResponse] = [ModelResponse(text=None)]  # type: ignore[arg-type]  # reason: as providers give it
    result = await Agent(model=FunctionModel(_one_by_one(answers)), store=any_store).session("s").send("go")
    assert (result.text, result.messages[-1].content) == ("", "")


def _one_by_one(answers: list[ModelResponse]) -> Any:
    async def answer(_: ModelRequest) -> ModelResponse:
        return answers.pop(0)

    return answer


async def test_an_agent_without_a_store_is_used_on_one(any_store: AgentStore) -> None:
    bare = Agent(model=ScriptedModel(["done"]))
    with pytest.raises(InvalidArgumentError, match=r"agent\.using\(store\)"):
        await bare.pending()
    agent = bare.using(any_store)
    result = await agent.run("go", run_id="job")
    assert await agent.resume(result.run_id) == result
    assert await agent.pending() == []
    assert bare.store is None
    with pytest.raises(InvalidArgumentError, match="instructions must be text"):
        Agent(model=ScriptedModel([]), instructions=5)  # type: ignore[arg-type]  # reason: a user's mistake


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([{}], r"^input\[0\] has no type"),
        ([{"type": "text", "text": "hi"}, {"type": ""}], r"^input\[1\] has no type"),
        ([{"type": 5, "text": "hi"}], r"^input\[0\] has no type"),
        ([{"type": "text"}], r"^input\[0\] is of the type text, and has no text"),
        ([{"type": "text", "text": None}], r"^input\[0\] is of the type text, and has no text"),
        ([Message("user", "hi"), Message("user", [{}])], r"^input\[1\].content\[0\] has no type"),
    ],
)
async def test_a_part_says_what_it_is(store: AgentStore, given: Any, problem: str) -> None:
    session = Agent(model=FunctionModel(answer), store=store).session("s")
    calls: list[Any] = [session.send, session.submit, session.stream, session.agent.run]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=problem):
            await call(given)
    assert (await store.checkpoints.list()).items == ()
    empty: list[dict[str, Any]] = [{"type": "text", "text": ""}, {"type": "image", "data": b""}]
    assert (await session.send(empty)).messages[0].content == empty


async def test_what_names_something_is_not_empty(store: AgentStore) -> None:
    agent = Agent(model=FunctionModel(answer), store=store)
    session = agent.session("s")
    for name, call in (
        ("input_id", lambda: session.send("hi", input_id="")),
        ("input_id", lambda: session.submit("hi", input_id="")),
        ("pending_id", lambda: agent.resume("")),
        ("pending_id", lambda: agent.discard("")),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{name} is empty"):
            await call()
    with pytest.raises(InvalidArgumentError, match=r"^name is empty"):
        Agent(model=FunctionModel(answer), name="")
    assert (await store.checkpoints.list()).items == ()


@pytest.mark.parametrize("name", ["a b", "", "a.b", "größe", "a\n", "n" * 65, 5])
def test_a_tool_has_a_name_that_providers_take(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^name of a tool must be 1 to 64 characters"):
        tool(name=name)(refund)
    assert tool(name="n" * 64)(refund).name == "n" * 64
    assert tool(name="2-a_B")(refund).name == "2-a_B"


def test_a_tool_without_a_name_of_its_own_needs_one() -> None:
    with pytest.raises(InvalidArgumentError, match="not '<lambda>'"):
        tool(lambda order: "refunded")
    assert tool(name="refund")(lambda order: "refunded").name == "refund"


@pytest.mark.parametrize("name", ["max_steps", "max_tokens"])
def test_steps_and_tokens_are_counted_in_whole_numbers(name: str) -> None:
    for wrong in (1.5, 2.0):
        given: Any = {name: wrong}
        with pytest.raises(InvalidArgumentError, match=f"^{name} must be a whole number"):
            Limits(**given)


async def test_a_state_is_changed_by_a_function(store: AgentStore) -> None:
    wrong: Any = 5
    session = Agent(model=FunctionModel(answer), store=store).session("s")
    with pytest.raises(InvalidArgumentError, match=r"^function must be one from state to state, not a int"):
        await session.update_state(wrong)
    assert await store.sessions.load("s") is None


@pytest.mark.parametrize("data", ["!!!", 5, None])
async def test_a_part_that_nobody_could_read_again_is_not_stored(store: AgentStore, data: Any) -> None:
    parts: Any = [{"type": "image", "data": data, "encoding": "base64"}]
    session = Agent(model=ScriptedModel([ModelResponse(parts), "hello"]), store=store).session("s")
    with pytest.raises(NotJsonError, match=r"^input\[0\].content\[0\] is not JSON: `data` that is no base64"):
        await session.send(parts)
    assert await store.sessions.load("s") is None
    with pytest.raises(NotJsonError, match="no base64"):
        await session.send("what the model says is no better")
    found = await store.sessions.load("s")
    assert found is not None
    assert found.records == ()


def test_a_store_is_opened_by_async_with() -> None:
    with pytest.raises(UnsupportedOperationError, match="plain `with`") as caught, open_store("memory:"):
        raise AssertionError("it was entered")
    assert "async with" in caught.value.hint
    assert "perdure.blocking" in caught.value.hint
