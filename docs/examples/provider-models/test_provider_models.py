"""Both models, on answers of the shape that the providers give; nothing leaves the process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
from anthropic_messages import AnthropicMessages
from openai_chat import OpenAIChat
from provider_http import ProviderError

from perdure import Agent, Message, ToolCall, open_store, tool
from perdure.models import ModelRequest, ModelResponse, TextDelta, ToolSchema

pytestmark = pytest.mark.anyio
WEATHER = ToolSchema("weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def sse(*events: dict[str, Any] | str) -> bytes:
    """Return events as they come over the wire, with a comment and a name, which readers must pass over."""
    lines = [": keep-alive", ""]
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        lines += [f"event: {event.get('type', 'message')}" if isinstance(event, dict) else "", f"data: {data}", ""]
    return "\n".join(lines).encode()


class Server:
    """Gives prepared answers, in their order, and keeps what it was asked."""

    def __init__(self, *answers: bytes | httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append({"path": request.url.path, **json.loads(request.content)})
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, content=answer, headers={"content-type": "text/event-stream"})

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="https://provider.test")


def openai_text(*pieces: str, finish: str = "stop") -> bytes:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "small-2026"}
    chunks = [{**common, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None}]
    chunks += [
        {**common, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces
    ]
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    end = {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return sse(*chunks, end, {**common, "choices": [], "usage": usage}, "[DONE]")


def openai_calls(*calls: tuple[str, str, str], finish: str = "tool_calls") -> bytes:
    """Return calls as (id, name, arguments), the arguments in two pieces."""
    deltas: list[dict[str, Any]] = []
    for index, (call_id, name, arguments) in enumerate(calls):
        begin = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"role": "assistant", "content": None, "tool_calls": [begin]})
        pieces = (arguments[:4], arguments[4:])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    chunks = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return sse(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, "[DONE]")


def anthropic_answer(*blocks: dict[str, Any], stop: str = "end_turn") -> bytes:
    usage = {"input_tokens": 7, "cache_creation_input_tokens": None, "cache_read_input_tokens": 2, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "small-2026",
        "content": [],
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            begin: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in block["pieces"]]
        else:
            written = block["input"]
            begin = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", written[:4], written[4:])]
        events.append({"type": "content_block_start", "index": index, "content_block": begin})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 15}})
    return sse(*events, {"type": "message_stop"}, {"type": "something_new"})


def text_block(*pieces: str) -> dict[str, Any]:
    return {"type": "text", "pieces": pieces}


def call_block(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


Make = Callable[[httpx.AsyncClient], Any]
OPENAI: Make = lambda client: OpenAIChat("small", client)  # noqa: E731  # reason: the parameter of a test
ANTHROPIC: Make = lambda client: AnthropicMessages("small", client)  # noqa: E731  # reason: the same
BOTH = pytest.mark.parametrize(
    ("make", "text", "calls"),
    [
        (OPENAI, openai_text, openai_calls),
        (
            ANTHROPIC,
            lambda *pieces: anthropic_answer(text_block(*pieces)),
            lambda *calls: anthropic_answer(*(call_block(*call) for call in calls), stop="tool_use"),
        ),
    ],
    ids=["openai", "anthropic"],
)


async def ask(make: Make, server: Server, request: ModelRequest | None = None) -> tuple[list[str], ModelResponse]:
    async with server.client() as client:
        events = [event async for event in make(client).stream(request or ModelRequest([Message("user", "Hi")]))]
    *deltas, response = events
    assert isinstance(response, ModelResponse)
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    return [delta.text for delta in deltas], response


@BOTH
async def test_text_comes_in_pieces_and_then_whole(make: Make, text: Any, calls: Any) -> None:
    pieces, response = await ask(make, Server(text("Hel", "lo ✓")))
    assert (pieces, response.text, response.tool_calls) == (["Hel", "lo ✓"], "Hello ✓", [])
    assert response.usage.requests == 1
    assert (response.metadata["id"] != "", response.metadata["model"]) == (True, "small-2026")


async def test_usage_is_read_where_each_provider_tells_it() -> None:
    _, response = await ask(OPENAI, Server(openai_text("Hi")))
    assert (response.usage.input_tokens, response.usage.output_tokens) == (9, 3)
    _, response = await ask(ANTHROPIC, Server(anthropic_answer(text_block("Hi"))))
    assert (response.usage.input_tokens, response.usage.output_tokens) == (9, 15)  # 7 and 2 from the cache


@BOTH
async def test_calls_are_put_together_from_their_pieces(make: Make, text: Any, calls: Any) -> None:
    asked = calls(("c1", "weather", '{"city": "Oslo"}'), ("c2", "weather", '{"city": "Bern"}'), ("c3", "time", ""))
    _, response = await ask(make, Server(asked))
    assert response.tool_calls == [
        ToolCall("c1", "weather", {"city": "Oslo"}),
        ToolCall("c2", "weather", {"city": "Bern"}),
        ToolCall("c3", "time", {}),
    ]


@BOTH
@pytest.mark.parametrize("written", ['{"city": "Os', '["Oslo"]', '"Oslo"'])
async def test_arguments_that_are_no_object_are_for_the_tool_to_refuse(
    make: Make, text: Any, calls: Any, written: str
) -> None:
    ran: list[str] = []

    @tool(idempotent=True)
    def weather(city: str = "Rome") -> str:
        ran.append(city)
        return "sunny"

    server = Server(calls(("c1", "weather", written)), text("I am sorry."))
    async with server.client() as client, open_store("memory:") as store:
        result = await Agent(model=make(client), tools=[weather], store=store).session("s").send("Weather?")
    assert (result.text, ran) == ("I am sorry.", [])
    assert "do not fit" in json.dumps(server.asked[1]["messages"][-1])


@BOTH
async def test_a_turn_with_parallel_tools_sends_what_the_api_takes(make: Make, text: Any, calls: Any) -> None:
    @tool(idempotent=True)
    def weather(city: str) -> str:
        """Tell the weather."""
        if city == "Bern":
            raise ValueError("no station")
        return "sunny"

    server = Server(calls(("c1", "weather", '{"city": "Oslo"}'), ("c2", "weather", '{"city": "Bern"}')), text("Sunny."))
    async with server.client() as client, open_store("memory:") as store:
        agent = Agent(model=make(client), tools=[weather], instructions="Be brief.", store=store)
        result = await agent.session("s").send("Weather?")
    assert result.text == "Sunny."
    first, second = server.asked
    assert (first["model"], first["stream"]) == ("small", True)
    if make is OPENAI:
        assert first["path"] == "/chat/completions"
        assert first["tools"][0]["function"]["parameters"]["properties"]["city"]["type"] == "string"
        system, user, assistant, *results = second["messages"]
        assert (system, user) == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"})
        assert [json.loads(call["function"]["arguments"])["city"] for call in assistant["tool_calls"]] == [
            "Oslo",
            "Bern",
        ]
        assert assistant["content"] is None
        assert {(said["role"], said["tool_call_id"]) for said in results} == {("tool", "c1"), ("tool", "c2")}
    else:
        assert (first["path"], first["system"], first["max_tokens"]) == ("/v1/messages", "Be brief.", 4096)
        assert first["tools"][0]["input_schema"]["properties"]["city"]["type"] == "string"
        user, assistant, results = second["messages"]  # all results in one message, as the API wants them
        assert [block["input"]["city"] for block in assistant["content"]] == ["Oslo", "Bern"]
        assert {block["tool_use_id"]: block.get("is_error", False) for block in results["content"]} == {
            "c1": False,
            "c2": True,
        }


@BOTH
async def test_pictures_are_sent_and_other_parts_are_refused(make: Make, text: Any, calls: Any) -> None:
    picture = {"type": "image", "media_type": "image/png", "data": b"\x89PNG"}
    server = Server(text("A dot."))
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What is it?"}, picture]
    await ask(make, server, ModelRequest([Message("user", parts)]))
    assert "iVBORw==" in json.dumps(server.asked[0]["messages"])
    with pytest.raises(ProviderError, match="'video'") as raised:
        await ask(make, Server(), ModelRequest([Message("user", [{"type": "video"}])]))
    assert raised.value.retryable is False


async def test_roles_take_turns_and_an_assistant_who_said_nothing_is_left_out() -> None:
    server = Server(anthropic_answer(text_block("Hello")))
    said = [Message("user", "A summary."), Message("user", "Hi"), Message("assistant", ""), Message("user", "Well?")]
    await ask(ANTHROPIC, server, ModelRequest(said))
    (only,) = server.asked[0]["messages"]
    assert [block["text"] for block in only["content"]] == ["A summary.", "Hi", "Well?"]


# --- what goes wrong ---


def refusal(status: int) -> httpx.Response:
    return httpx.Response(status, json={"error": {"type": "some_error", "message": "Not now, please."}})


@BOTH
@pytest.mark.parametrize(
    ("answer", "status", "retryable"),
    [
        (refusal(400), 400, False),
        (refusal(401), 401, False),
        (refusal(404), 404, False),
        (refusal(429), 429, True),
        (refusal(500), 500, True),
        (refusal(529), 529, True),
        (httpx.Response(502, content=b"<html>Bad gateway</html>"), 502, True),
        (httpx.ConnectError("refused"), None, True),
        (httpx.ReadTimeout("too slow"), None, True),
        (sse({"error": {"message": "Overloaded"}}), None, True),
        (sse("{broken"), None, True),
        (sse("[1]"), None, True),
    ],
)
async def test_an_error_says_whether_a_retry_may_help(
    make: Make, text: Any, calls: Any, answer: Any, status: int | None, retryable: bool
) -> None:
    with pytest.raises(ProviderError) as raised:
        await ask(make, Server(answer))
    assert (raised.value.status, raised.value.retryable) == (status, retryable)
    assert raised.value.hint in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def cut(answer: bytes) -> Iterable[bytes]:
    """Return an answer that ends after each of its events but the last that matters."""
    events = answer.split(b"\n\n")
    return [b"\n\n".join(events[:count]) + b"\n\n" for count in range(1, len(events))]


@BOTH
async def test_half_an_answer_is_none(make: Make, text: Any, calls: Any) -> None:
    refused = 0
    for whole in (text("Hel", "lo"), calls(("c1", "weather", '{"city": "Oslo"}'))):
        for half in cut(whole):
            ended = b'"finish_reason": "' in half if make is OPENAI else b"message_stop" in half
            if ended:
                await ask(make, Server(half))
            else:
                with pytest.raises(ProviderError, match="ended in the middle") as raised:
                    await ask(make, Server(half))
                assert raised.value.retryable
                refused += 1
    assert refused >= 6


async def test_a_call_that_the_limit_of_tokens_cut_off_does_not_run() -> None:
    asked = ("c1", "weather", '{"city": "Os')
    with pytest.raises(ProviderError, match="cut a call") as raised:
        await ask(OPENAI, Server(openai_calls(asked, finish="length")))
    assert raised.value.retryable is False
    with pytest.raises(ProviderError, match="cut a call"):
        await ask(ANTHROPIC, Server(anthropic_answer(call_block(*asked), stop="max_tokens")))
    _, response = await ask(OPENAI, Server(openai_text("Once upon", finish="length")))
    assert (response.text, response.metadata["finish_reason"]) == ("Once upon", "length")


async def test_a_server_that_names_no_call_gets_names() -> None:
    _, response = await ask(OPENAI, Server(openai_calls(("", "weather", "{}"), ("", "weather", "{}"))))
    assert len({call.id for call in response.tool_calls} - {""}) == 2


@BOTH
async def test_a_turn_that_a_provider_stopped_is_resumed_where_it_was(make: Make, text: Any, calls: Any) -> None:
    ran: list[str] = []

    @tool(idempotent=True)
    def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    server = Server(calls(("c1", "weather", '{"city": "Oslo"}')), refusal(529), text("Sunny."))
    async with server.client() as client, open_store("memory:") as store:
        session = Agent(model=make(client), tools=[weather], store=store).session("s")
        with pytest.raises(ProviderError):
            await session.send("Weather?")
        result = await session.resume()
    assert (result is not None and result.text, ran) == ("Sunny.", ["Oslo"])


@BOTH
async def test_a_stream_that_is_left_closes_its_connection(make: Make, text: Any, calls: Any) -> None:
    closed: list[bool] = []

    class Answer(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield text("Hel", "lo")

        async def aclose(self) -> None:
            closed.append(True)

    server = Server(httpx.Response(200, stream=Answer()))
    async with server.client() as client:
        events = make(client).stream(ModelRequest([Message("user", "Hi")]))
        await anext(events)
        await events.aclose()
        assert closed == [True]
