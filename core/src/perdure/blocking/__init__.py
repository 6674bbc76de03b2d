"""The same names without `await`: for scripts and web frameworks that have no event loop.

    from perdure import blocking

    with blocking.open_store("sqlite:agent.db") as store:
        agent = blocking.Agent(model=model, tools=[pay], store=store)
        result = agent.session("user-42").send("Refund order 7")

Every class stands for the class of the same name in `perdure`, and has its methods: what is awaited there waits here.
All of them work in one event loop, in one daemon thread of the process, and may be shared among threads. The types are
in `__init__.pyi`, which is made of the async classes.
"""

from __future__ import annotations

from typing import Any

from perdure import bundle, opening
from perdure.blocking.facade import facade_of, waiting
from perdure.blocking.loop import BlockingCallError
from perdure.contracts import approvals, checkpoints, sessions
from perdure.runtime import agent, session, stream
from perdure.runtime.workers import worker

AgentStore: Any = facade_of(bundle.AgentStore)
SessionStore: Any = facade_of(sessions.SessionStore)
CheckpointStore: Any = facade_of(checkpoints.CheckpointStore)
ApprovalStore: Any = facade_of(approvals.ApprovalStore)
Agent: Any = facade_of(agent.Agent)
AgentApprovals: Any = facade_of(agent.AgentApprovals)
Session: Any = facade_of(session.Session)
RunStream: Any = facade_of(stream.RunStream)
Worker: Any = facade_of(worker.Worker)

open_store: Any = waiting(opening.open_store)

__all__ = [
    "Agent",
    "AgentApprovals",
    "AgentStore",
    "ApprovalStore",
    "BlockingCallError",
    "CheckpointStore",
    "RunStream",
    "Session",
    "SessionStore",
    "Worker",
    "open_store",
]
