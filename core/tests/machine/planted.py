"""Faults planted into the runtime, to see that the machine finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from perdure.contracts.checkpoints import AWAITING_APPROVAL
from perdure.conversations import claims as conversation
from perdure.conversations.claims import Claim, idle_head
from perdure.conversations.prune import _Pruning
from perdure.ownership.leases import Ownership
from perdure.runtime.tools import Tool
from perdure.runtime.turn.calls import Calls
from perdure.runtime.turn.commit import Commit
from perdure.runtime.turn.runner import Runner
from perdure.runtime.turn.state import CallState, TurnState
from perdure.runtime.turns import Turns

Patch = pytest.MonkeyPatch


def commit_appends_twice(patch: Patch) -> None:
    once = Commit._append

    async def twice(self: Commit) -> None:
        await once(self)
        await self.store.sessions.append(self.journal.key, self.records, expected_version=None)

    patch.setattr(Commit, "_append", twice)


def tool_runs_twice(patch: Patch) -> None:
    once = Tool.call

    async def twice(self: Tool, values: dict[str, Any], context: Any) -> str:
        await once(self, dict(values), context)
        return await once(self, values, context)

    patch.setattr(Tool, "call", twice)


def discard_leaves_approvals(patch: Patch) -> None:
    patch.setattr(Claim, "drop_turn", Claim.close)


def commit_drops_queued_inputs(patch: Patch) -> None:
    patch.setattr(Commit, "_next", lambda self, _: ([], idle_head(self.journal.head)))


def resume_forgets_results(patch: Patch) -> None:
    def of(run_id: str, entries: Sequence[dict[str, Any]]) -> TurnState:
        state = TurnState(run_id)
        kinds = {item["kind"] for item in entries}
        state.apply(item for item in entries if item["kind"] != "tool" or "resumed" not in kinds)
        return state

    patch.setattr(TurnState, "of", of)


def doubt_is_no_obstacle(patch: Patch) -> None:
    patch.setattr(Calls, "_require_policy", lambda *_: None)


def gate_answers_doubt(patch: Patch) -> None:
    patch.setattr(CallState, "doubt_id", property(lambda self: self.id))


def gates_stand_open(patch: Patch) -> None:
    patch.setattr(Tool, "is_gated", lambda *_: False)


def edits_are_lost(patch: Patch) -> None:
    patch.setattr("perdure.contracts.approvals.Approval.effective_arguments", property(lambda self: self.arguments))


def delete_leaves_approvals(patch: Patch) -> None:
    async def none(*_: object) -> list[Any]:
        return []

    patch.setattr(conversation, "approvals_of", none)


def leases_are_ignored(patch: Patch) -> None:
    patch.setattr(Ownership, "is_live", lambda *_: False)


def prune_takes_what_waits(patch: Patch) -> None:
    patch.setattr(_Pruning, "_waits", lambda *_: False)


def abort_keeps_the_turn(patch: Patch) -> None:
    async def kept(self: Runner) -> str:
        await self.journal.give_up()
        return "aborted"

    patch.setattr(Runner, "_drop", kept)


def input_is_taken_again(patch: Patch) -> None:
    async def never(*_: object) -> None:
        return None

    patch.setattr(Turns, "_ended", never)


def waiting_turn_is_not_marked(patch: Patch) -> None:
    async def given_up(self: Any, *, status: str | None = None, **changes: Any) -> None:
        if status != AWAITING_APPROVAL:
            changes["status"] = status

    patch.setattr("perdure.ownership.owned_journal.OwnedJournal.give_up", given_up)


@dataclass(frozen=True)
class Planted:
    """A fault, and where it shows.

    Attributes:
        plant: Plants it.
        atomic: Whether the journal declares `atomic`.
        quick: Whether few examples find it.
    """

    plant: Callable[[Patch], None]
    atomic: bool = True
    quick: bool = False

    def __str__(self) -> str:
        return self.plant.__name__


PLANTED: Final = (
    Planted(commit_appends_twice, atomic=False, quick=True),
    Planted(tool_runs_twice, quick=True),
    Planted(discard_leaves_approvals),
    Planted(commit_drops_queued_inputs),
    Planted(resume_forgets_results),
    Planted(doubt_is_no_obstacle),
    Planted(gate_answers_doubt),
    Planted(gates_stand_open, quick=True),
    Planted(edits_are_lost),
    Planted(delete_leaves_approvals),
    Planted(leases_are_ignored),
    Planted(prune_takes_what_waits),
    Planted(abort_keeps_the_turn),
    Planted(input_is_taken_again, quick=True),
    Planted(waiting_turn_is_not_marked),
)
