"""perdure keeps an agent's conversations alive: transcripts, the turn in progress, and human approvals."""

from perdure.bundle import AgentStore
from perdure.contracts.ids import safe_id
from perdure.opening import open_store

__all__ = ["AgentStore", "open_store", "safe_id"]
