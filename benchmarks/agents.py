"""Agents that cost nothing themselves: the model answers at once, with messages of 1 KiB, and a tool returns 4 KiB."""

from itertools import count

from benchmarks.messages import KIB, message

from perdure import Agent, AgentStore, ToolCall, tool
from perdure.models import FunctionModel, ModelRequest, ModelResponse

TEXT: str = message()["content"]
RESULT: str = message(4 * KIB)["content"]
NUMBERS = count()


@tool(idempotent=True)
async def look_up(order: int) -> str:
    """Look an order up."""
    return RESULT


def agent_of(store: AgentStore, *, calls: int = 0, needs_approval: bool = False) -> Agent:
    """Return an agent whose turns have so many steps that call a tool, and then an answer."""

    async def answer(request: ModelRequest) -> ModelResponse:
        done = 0
        while request.messages[-1 - 2 * done].role == "tool":
            done += 1
        asked = [ToolCall(f"call-{next(NUMBERS)}", "ask" if needs_approval else "look_up", {"order": 7})]
        return ModelResponse(text=TEXT, tool_calls=asked if done < calls else [])

    @tool(idempotent=True, needs_approval=True)
    async def ask(order: int) -> str:
        """Look an order up when somebody has agreed."""
        return RESULT

    return Agent(model=FunctionModel(answer), tools=[ask if needs_approval else look_up], store=store)
