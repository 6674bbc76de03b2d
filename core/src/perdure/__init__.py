"""perdure keeps an agent's conversations alive: transcripts, the turn in progress, and human approvals."""

from perdure.bundle import AgentStore
from perdure.contracts.ids import safe_id
from perdure.opening import open_store
from perdure.ownership import Lease
from perdure.runtime.agent import Agent, Limits
from perdure.runtime.messages import Message, ToolCall, Usage
from perdure.runtime.results import PendingTurn, TurnResult
from perdure.runtime.session import Session
from perdure.runtime.tools import Tool, ToolContext, tool

__all__ = [
    "Agent",
    "AgentStore",
    "Lease",
    "Limits",
    "Message",
    "PendingTurn",
    "Session",
    "Tool",
    "ToolCall",
    "ToolContext",
    "TurnResult",
    "Usage",
    "open_store",
    "safe_id",
    "tool",
]
