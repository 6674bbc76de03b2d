"""Agents of the blocking API whose models need no provider."""

from __future__ import annotations

from perdure import ToolCall, blocking
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel


async def echo(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text=f"You said {request.messages[-1].text}.")


def echoing(store: blocking.AgentStore | None) -> blocking.Agent:
    return blocking.Agent(model=FunctionModel(echo), store=store)


def calling(*names: str) -> ScriptedModel:
    """A model that calls tools, all at once, and then says so."""
    return ScriptedModel([[ToolCall(f"c{place}", name, {}) for place, name in enumerate(names)], "Done."])
