"""A model behind the messages API of Anthropic."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx
from provider_http import ProviderError, decoded_arguments, streamed

from perdure import Message, ToolCall, Usage
from perdure.models import ModelEvent, ModelRequest, ModelResponse, TextDelta


class AnthropicMessages:
    """A model of a server that speaks `POST /v1/messages`.

    The client is the caller's: it has the base URL, the key and the timeouts, and the caller closes it.

        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        async with httpx.AsyncClient(base_url="https://api.anthropic.com", headers=headers, timeout=60) as client:
            agent = Agent(model=AnthropicMessages("claude-sonnet-4-5", client), store=store)
    """

    provider = "anthropic"

    def __init__(
        self,
        name: str,
        client: httpx.AsyncClient,
        *,
        max_tokens: int = 4096,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the name of a model, a client, and further fields of the request, such as `temperature`."""
        self.name = name
        self._client = client
        self._options = {"max_tokens": max_tokens, **(options or {})}

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer a request."""
        answer = _Answer()
        # Closed here: a stream that is left early would otherwise keep its connection until the collector comes.
        async with aclosing(streamed(self._client, "/v1/messages", self._body(request), self.provider)) as events:
            async for event in events:
                if text := answer.take(event):
                    yield TextDelta(text)
        yield answer.response(self.provider)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": _given(request.messages),
            "stream": True,
            **self._options,
            **request.settings,
        }
        if request.instructions:
            body["system"] = request.instructions
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        return body


@dataclass
class _Block:
    """A piece of an answer: text, or a call with its arguments as they are written."""

    type: str
    id: str = ""
    name: str = ""
    written: str = ""


@dataclass
class _Answer:
    """What has come of an answer so far."""

    blocks: dict[int, _Block] = field(default_factory=dict)
    stop_reason: str | None = None
    stopped: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> str:
        """Add an event; return the text in it. Kinds that are not known are passed over, as the API asks."""
        kind = event.get("type")
        if kind == "message_start":
            message = event["message"]
            self.facts |= {name: message[name] for name in ("id", "model") if message.get(name)}
            self._count(message.get("usage"))
        elif kind == "content_block_start":
            block = event["content_block"]
            made = _Block(block["type"], block.get("id", ""), block.get("name", ""), block.get("text", ""))
            self.blocks[event["index"]] = made
            return made.written
        elif kind == "content_block_delta":
            return self._add(self.blocks[event["index"]], event["delta"])
        elif kind == "message_delta":
            self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self.stopped = True
        return ""

    def _add(self, block: _Block, delta: dict[str, Any]) -> str:
        if delta["type"] == "text_delta":
            block.written += delta["text"]
            return str(delta["text"])
        if delta["type"] == "input_json_delta":
            block.written += delta["partial_json"]
        return ""

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Keep the newest counts: those at the end are of the whole answer."""
        self.usage |= {name: count for name, count in (usage or {}).items() if count is not None}

    def response(self, provider: str) -> ModelResponse:
        """Return the whole answer, or raise: half a one is none."""
        if not self.stopped:
            raise ProviderError(provider, None, "the answer ended in the middle", True)
        blocks = [block for _, block in sorted(self.blocks.items())]
        calls = [block for block in blocks if block.type == "tool_use"]
        if self.stop_reason == "max_tokens" and calls:
            raise ProviderError(provider, None, "max_tokens cut a call of a tool off", False)
        read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return ModelResponse(
            text="".join(block.written for block in blocks if block.type == "text"),
            tool_calls=[ToolCall(call.id, call.name, decoded_arguments(call.written)) for call in calls],
            usage=Usage(
                input_tokens=sum(self.usage.get(name, 0) for name in read),
                output_tokens=self.usage.get("output_tokens", 0),
                requests=1,
            ),
            metadata={**self.facts, "stop_reason": self.stop_reason},
        )


def _given(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as the API takes them: results of tools are the user's, and roles take turns."""
    given: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:  # an assistant who said nothing: the API takes no empty message
            continue
        if given and given[-1]["role"] == role:
            given[-1]["content"] += blocks
        else:
            given.append({"role": role, "content": blocks})
    return given


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text}
        return [{**result, "is_error": True} if message.is_error else result]
    if isinstance(message.content, str):
        parts = [{"type": "text", "text": message.content}] if message.content.strip() else []
    else:
        parts = [_part(part) for part in message.content]
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in message.tool_calls
    ]
    return parts + calls


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image" and isinstance(part.get("data"), bytes):
        data = base64.b64encode(part["data"]).decode("ascii")
        return {"type": "image", "source": {"type": "base64", "media_type": part["media_type"], "data": data}}
    raise ProviderError("anthropic", None, f"a part of the type {part.get('type')!r} cannot be sent", False)
