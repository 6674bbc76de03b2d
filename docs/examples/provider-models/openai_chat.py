"""A model behind the chat completions API of OpenAI, which many other servers speak, too."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx
from provider_http import ProviderError, decoded_arguments, streamed

from perdure import Message, ToolCall, Usage
from perdure.models import ModelEvent, ModelRequest, ModelResponse, TextDelta


class OpenAIChat:
    """A model of a server that speaks `POST /chat/completions`.

    The client is the caller's: it has the base URL, the key and the timeouts, and the caller closes it.

        async with httpx.AsyncClient(
            base_url="https://api.openai.com/v1", headers={"Authorization": f"Bearer {key}"}, timeout=60
        ) as client:
            agent = Agent(model=OpenAIChat("gpt-5-mini", client), store=store)
    """

    provider = "openai"

    def __init__(self, name: str, client: httpx.AsyncClient, options: Mapping[str, Any] | None = None) -> None:
        """Take the name of a model, a client, and further fields of the request, such as `temperature`."""
        self.name = name
        self._client = client
        self._options = dict(options or {})

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer a request."""
        answer = _Answer()
        # Closed here: a stream that is left early would otherwise keep its connection until the collector comes.
        async with aclosing(streamed(self._client, "/chat/completions", self._body(request), self.provider)) as chunks:
            async for chunk in chunks:
                if text := answer.take(chunk):
                    yield TextDelta(text)
        yield answer.response(self.provider)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        system = [{"role": "system", "content": request.instructions}] if request.instructions else []
        body: dict[str, Any] = {
            "model": self.name,
            "messages": system + [_given(message) for message in request.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
            **request.settings,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        return body


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class _Answer:
    """What has come of an answer so far."""

    text: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def take(self, chunk: dict[str, Any]) -> str:
        """Add a chunk; return the text in it."""
        self.usage = chunk.get("usage") or self.usage
        self.facts |= {name: chunk[name] for name in ("id", "model") if chunk.get(name)}
        for choice in chunk.get("choices") or ():  # the chunk with the usage has none
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            for piece in delta.get("tool_calls") or ():
                self._take_call(piece)
            text = delta.get("content") or ""
            self.text += text
            return str(text)
        return ""

    def _take_call(self, piece: dict[str, Any]) -> None:
        call = self.calls.setdefault(piece.get("index", len(self.calls)), _Call())
        function = piece.get("function") or {}
        call.id = piece.get("id") or call.id
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""

    def response(self, provider: str) -> ModelResponse:
        """Return the whole answer, or raise: half a one is none."""
        if self.finish_reason is None:
            raise ProviderError(provider, None, "the answer ended in the middle", True)
        if self.finish_reason == "length" and self.calls:
            raise ProviderError(provider, None, "the limit of tokens cut a call of a tool off", False)
        return ModelResponse(
            text=self.text,
            tool_calls=[
                # Some servers name no call; the name comes back with the result, so it must be there.
                ToolCall(call.id or f"call_{uuid.uuid4().hex}", call.name, decoded_arguments(call.arguments))
                for _, call in sorted(self.calls.items())
            ],
            usage=Usage(
                input_tokens=self.usage.get("prompt_tokens") or 0,
                output_tokens=self.usage.get("completion_tokens") or 0,
                requests=1,
            ),
            metadata={**self.facts, "finish_reason": self.finish_reason},
        )


def _given(message: Message) -> dict[str, Any]:
    """Return a message as the API takes it."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    if message.role == "assistant":
        said: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        if message.tool_calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in message.tool_calls
            ]
        return said
    content = message.content if isinstance(message.content, str) else [_part(part) for part in message.content]
    return {"role": message.role, "content": content}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image" and isinstance(part.get("data"), bytes):
        data = base64.b64encode(part["data"]).decode("ascii")
        return {"type": "image_url", "image_url": {"url": f"data:{part['media_type']};base64,{data}"}}
    raise ProviderError("openai", None, f"a part of the type {part.get('type')!r} cannot be sent", False)
