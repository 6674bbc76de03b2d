"""What a caller is told of common mistakes: what is wrong, and what to write instead."""

from typing import Any

import pytest

from perdure import Agent, open_store
from perdure.errors import InvalidArgumentError, PerdureError, StoreURLError, UnknownSchemeError
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
