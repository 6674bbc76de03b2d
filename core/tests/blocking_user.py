"""A user's script without an event loop: run by `test_blocking.py`, and read by the type checkers, which `make check` runs.

Each `assert_type` fails the check if the stub is less precise, and each ignore if the stub takes anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import assert_type

from perdure import Message, PendingTurn, PruneReport, ToolCall, TurnResult, blocking, tool
from perdure.contracts.approvals import Approval
from perdure.contracts.sessions import Transcript
from perdure.events import RunEvent
from perdure.models import ScriptedModel


@tool(needs_approval=True)
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


def main(url: str) -> None:
    """Hold a conversation."""
    with blocking.open_store(url) as store:
        assert_type(store, blocking.AgentStore)
        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "Paid.", "You are welcome.", "Bye."])
        agent = blocking.Agent(model=model, tools=[pay], store=store)
        session = agent.session("user-42")
        assert_type(session, blocking.Session)
        assert_type(session.id, str)
        assert_type(session.store, blocking.AgentStore)

        waiting = session.send("Pay ann")
        assert_type(waiting, TurnResult)
        assert_type(agent.pending(), list[PendingTurn])
        assert_type(store.approvals.get(waiting.approval_ids[0]), Approval | None)
        print(waiting.finish_reason)
        print(agent.approvals.resolve(waiting.approval_ids[0], approved=True).text)

        heard: list[str] = []
        stop = session.on(lambda event: heard.append(event.type))
        assert_type(stop, Callable[[], None])
        with session.stream("Thank you") as run:
            assert_type(run, blocking.RunStream)
            for event in run:
                assert_type(event, RunEvent)
        stop()
        assert_type(run.result, TurnResult)
        print(run.result.text)

        assert_type(session.resume(), TurnResult | None)
        assert_type(session.messages, Sequence[Message])
        assert_type(store.sessions.load(session.id), Transcript | None)
        assert_type(store.prune(older_than=timedelta(days=1)), PruneReport)
        print(len(session.load()), "sessions" in store)


def mistaken(agent: blocking.Agent, store: blocking.AgentStore) -> None:
    """Make calls that a type checker must refuse."""
    agent.session("s").send(7)  # type: ignore[arg-type]  # reason: it must be refused
    agent.session("s").sent("Hi")  # type: ignore[attr-defined]  # reason: the same
    store.close(now=True)  # type: ignore[call-arg]  # reason: the same


if __name__ == "__main__":
    main(sys.argv[1])
