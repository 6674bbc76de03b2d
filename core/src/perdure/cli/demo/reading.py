"""What a process of the demo reads back, from the store and from the shop, and how it tells the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.bundle import AgentStore
from perdure.cli.demo.tools import Shop
from perdure.contracts.approvals import PENDING
from perdure.runtime.turn.state import TurnState

SESSION = "order-7"
OLD_SESSION = "order-1"


@dataclass(frozen=True)
class Reading:
    """Everything that the demo looks at, as one process finds it at one moment.

    Attributes:
        status: Of the turn journal; `none` if there is no such journal.
        calls: For each call of the turn in progress: its tool, and whether its result is stored.
        undecided: The ids of the approvals that nobody has decided.
        messages: The transcript's messages, as they are stored.
        sessions: The ids of all sessions.
        effects: For each tool, the ids of the processes whose effect the shop holds.
        charge_requests: The ids of the processes that asked the bank for the charge.
    """

    status: str
    calls: Sequence[tuple[str, bool]]
    undecided: Sequence[str]
    messages: Sequence[dict[str, Any]]
    sessions: Sequence[str]
    effects: dict[str, list[int]]
    charge_requests: list[int]


@dataclass(frozen=True)
class Report:
    """What one process of the demo tells: what it found, what it did, and what it left.

    Attributes:
        pid: Its id.
        found: What it read before it did anything.
        left: What it read last; for the process that is killed, right before that.
        model_requests: How often it asked the model.
        would_prune: The sessions that a dry run of prune named.
        after_dry_run: The sessions that were there after it.
        pruned: The sessions that prune then named.
    """

    pid: int
    found: Reading
    left: Reading
    model_requests: int = 0
    would_prune: Sequence[str] = field(default=())
    after_dry_run: Sequence[str] = field(default=())
    pruned: Sequence[str] = field(default=())


async def read(store: AgentStore, shop: Shop) -> Reading:
    """Read everything back. Nothing is written and nothing is remembered from before."""
    journal = await store.checkpoints.load(SESSION)
    transcript = await store.sessions.load(SESSION)
    turn = TurnState.of("", () if journal is None else journal.entries)
    return Reading(
        status="none" if journal is None else journal.head.status,
        calls=[(call.call.name, call.result is not None) for step in turn.steps for call in step.calls],
        undecided=[approval.id for approval in (await store.approvals.list(status=PENDING)).items],
        messages=[] if transcript is None else [record["message"] for record in transcript.records],
        sessions=[info.session_id for info in (await store.sessions.list()).items],
        effects=shop.effects(),
        charge_requests=shop.charge_requests(),
    )
