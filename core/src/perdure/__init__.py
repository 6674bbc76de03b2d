"""perdure keeps an agent's conversations alive: transcripts, the turn in progress, and human approvals.

The names below are loaded when they are first used, so that a plugin, which needs only `perdure.backend`, and a command
line that only lists what is installed start fast.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.ids import safe_id
    from perdure.conversations.prune import PruneReport
    from perdure.opening import open_store
    from perdure.ownership.leases import Lease
    from perdure.runtime.agent import Agent
    from perdure.runtime.messages import Message, ToolCall, Usage
    from perdure.runtime.results import PendingTurn, TurnResult
    from perdure.runtime.session import Session
    from perdure.runtime.stream import RunStream
    from perdure.runtime.tools import Tool, ToolContext, ToolDidNotRun, ToolRan, tool
    from perdure.runtime.transcript.compaction import CompactionResult
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.turn.limits import Limits
    from perdure.runtime.workers.worker import Worker

_PLACES = {
    "Agent": "runtime.agent",
    "AgentStore": "bundle",
    "Compaction": "runtime.transcript.compaction_policy",
    "CompactionResult": "runtime.transcript.compaction",
    "Lease": "ownership.leases",
    "Limits": "runtime.turn.limits",
    "Message": "runtime.messages",
    "PendingTurn": "runtime.results",
    "PruneReport": "conversations.prune",
    "RunStream": "runtime.stream",
    "Session": "runtime.session",
    "Tool": "runtime.tools",
    "ToolCall": "runtime.messages",
    "ToolContext": "runtime.tools",
    "ToolDidNotRun": "runtime.tools",
    "ToolRan": "runtime.tools",
    "TurnResult": "runtime.results",
    "Usage": "runtime.messages",
    "Worker": "runtime.workers.worker",
    "open_store": "opening",
    "safe_id": "contracts.ids",
    "tool": "runtime.tools",
}


# Without a handler Python would print the warnings of an application that has not set logging up.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Agent",
    "AgentStore",
    "Compaction",
    "CompactionResult",
    "Lease",
    "Limits",
    "Message",
    "PendingTurn",
    "PruneReport",
    "RunStream",
    "Session",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDidNotRun",
    "ToolRan",
    "TurnResult",
    "Usage",
    "Worker",
    "open_store",
    "safe_id",
    "tool",
]
