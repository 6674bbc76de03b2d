"""Models: what the runtime asks of one, and two that need no provider."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.errors import InvalidArgumentError, RunError
from perdure.runtime.messages import Message, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from perdure.contracts.records import Record


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What a model is told of a tool: its name, what it does, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Record


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        messages: The conversation so far, the turn in progress included.
        tools: What the model may call.
        instructions: What the agent is told to be.
        settings: For the provider.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    instructions: str | None = None
    settings: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """What a model answers: text, calls of tools, or both.

    Attributes:
        text: The text.
        tool_calls: The calls; none ends the turn.
        usage: What the request cost.
        metadata: Kept with the message; JSON.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = field(default_factory=Usage)
    metadata: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of text on its way."""

    text: str


ModelEvent: TypeAlias = TextDelta | ModelResponse


class Model(Protocol):
    """One async method from a request to a stream of events that ends in a `ModelResponse`.

    A model may have an attribute `provider` too, a text that names who offers it, for telemetry.
    """

    @property
    def name(self) -> str:
        """The model's name, part of the agent's fingerprint."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer a request by events, the last of which is the response."""
        ...


async def respond(
    model: Model, request: ModelRequest, on_delta: Callable[[TextDelta], object] | None = None
) -> ModelResponse:
    """Return a model's response to a request; `on_delta` is called with each piece of text that comes before it."""
    response: ModelResponse | None = None
    events = model.stream(request)
    try:
        async for event in events:
            if isinstance(event, ModelResponse):
                response = event
            elif on_delta is not None and isinstance(event, TextDelta):
                on_delta(event)
    finally:
        await _close(events)
    if response is None:
        raise ModelError(f"the model {model.name} ended its stream without a response")
    text: object = response.text
    if text is None:  # what providers give beside calls
        response = replace(response, text="")
    if (problem := _problem(response)) is not None:
        raise ModelError(f"the model {model.name} gave a response whose {problem}")
    return response


async def _close(events: object) -> None:
    """Close a stream, which may have been left early, here and not by the collector."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()


def _problem(response: ModelResponse) -> str | None:
    """Return what no turn could go on with: stored, it would stop the turn for good."""
    calls: object = response.tool_calls
    if not isinstance(calls, Sequence) or not all(isinstance(call, ToolCall) for call in calls):
        return "tool_calls is no list of ToolCall"
    for place, call in enumerate(response.tool_calls):
        if type(call.arguments) is not dict:
            kind = type(call.arguments).__name__
            return (
                f"tool_calls[{place}].arguments is a {kind}, where an object (dict) is needed; decode JSON text first"
            )
        if type(call.id) is not str or type(call.name) is not str:
            return f"tool_calls[{place}] has an id or a name that is no text"
    for name in ("input_tokens", "output_tokens", "requests", "cost_usd"):
        used = getattr(response.usage, name, None)
        if not isinstance(used, (int, float, Decimal)):
            return f"usage.{name} is no number"
        if used < 0:
            return f"usage.{name} is less than 0"
    return None


class ModelError(RunError):
    """A model broke its own rules. The turn stays pending."""

    hint = "Correct the model and resume, or discard the turn."


class FunctionModel:
    """A model made of a function: an async one that returns a `ModelResponse`, or an async generator of events.

    Example:
        >>> async def answer(request: ModelRequest) -> ModelResponse:
        ...     return ModelResponse(text=f"You said {request.messages[-1].text}")
        >>> model = FunctionModel(answer)
    """

    def __init__(
        self,
        function: Callable[[ModelRequest], Awaitable[ModelResponse]] | Callable[[ModelRequest], AsyncIterator[Any]],
        *,
        name: str = "function",
    ) -> None:
        if not callable(function):
            raise InvalidArgumentError("function", f"must be an async function, not {function!r}")
        self.name = name
        self._function = function

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the function."""
        answer = self._function(request)
        if inspect.isawaitable(answer):
            response = await answer
            if not isinstance(response, ModelResponse):
                raise ModelError(f"the model function returned a {type(response).__name__}, not a ModelResponse")
            yield response
            return
        if not hasattr(answer, "__aiter__"):
            raise ModelError(f"the model function is not async: it returned a {type(answer).__name__}")
        try:
            async for event in answer:
                yield event
        finally:
            await _close(answer)


class ScriptedModel:
    """A model that answers by place: the n-th assistant message of a conversation is its n-th entry.

    So a fresh process goes on where the old one stopped. For tests and demonstrations.

    Attributes:
        calls: The requests it has seen, to count.

    Example:
        >>> model = ScriptedModel([[ToolCall(id="c1", name="pay", arguments={"to": "ann"})], "Paid."])
    """

    def __init__(
        self,
        script: Sequence[str | Sequence[ToolCall] | ModelResponse | BaseException],
        *,
        name: str = "scripted",
    ) -> None:
        """Take the script: for each response its text, its calls, both, or an exception to raise."""
        if isinstance(script, str):
            raise InvalidArgumentError("script", "must be a list of responses, not one text")
        entries: Sequence[object] = script
        for place, entry in enumerate(entries):
            if not isinstance(entry, (str, Sequence, ModelResponse, BaseException)):
                needed = "text, a list of calls, a ModelResponse, or an exception to raise"
                raise InvalidArgumentError(f"script[{place}]", f"must be {needed}; not a {type(entry).__name__}")
        self.name = name
        self.calls: list[ModelRequest] = []
        self._script = list(script)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer with the entry whose turn it is."""
        self.calls.append(request)
        place = sum(message.role == "assistant" for message in request.messages)
        if place >= len(self._script):
            raise ModelError(
                f"the script has {len(self._script)} responses, and response {place + 1} of the conversation was asked"
                " for (those in the store count too)"
            )
        entry = self._script[place]
        if isinstance(entry, BaseException):
            raise entry
        if isinstance(entry, str):
            yield ModelResponse(text=entry, usage=Usage(requests=1))
        elif isinstance(entry, ModelResponse):
            yield entry
        else:
            yield ModelResponse(tool_calls=tuple(entry), usage=Usage(requests=1))


__all__ = [
    "FunctionModel",
    "Message",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "ModelResponse",
    "ScriptedModel",
    "TextDelta",
    "ToolCall",
    "ToolSchema",
    "Usage",
    "respond",
]
