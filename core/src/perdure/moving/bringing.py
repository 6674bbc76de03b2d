"""Bringing conversations that were read from a file into a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.contracts.checkpoints import COPYING
from perdure.conversations.claims import settle
from perdure.errors import (
    InvalidArgumentError,
    InvalidIdError,
    NotJsonError,
    RecordTooLargeError,
    SessionBusyError,
    StoreCorruptedError,
    VersionConflictError,
)
from perdure.moving.arriving import Arrival, DifferentError
from perdure.moving.comparing import approval_facts, difference, first_difference
from perdure.moving.snapshots import read_unclaimed
from perdure.ownership.leases import OwnershipLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.moving.reports import CopyReport
    from perdure.moving.snapshots import Snapshot

DAMAGE = (StoreCorruptedError, RecordTooLargeError, NotJsonError)
"""What is wrong with one conversation, and stops no other."""

_TURN_WRITES = 2
"""How many writes the claim on a conversation takes before it is released."""


async def bring(
    store: AgentStore,
    snapshot: Snapshot,
    report: CopyReport,
    *,
    compare: Callable[[Snapshot, Snapshot], str | None] = difference,
) -> None:
    """Write a conversation into a store, unless it is there already; note in the report what came of it.

    Args:
        store: The target.
        snapshot: The conversation.
        report: Gets the outcome.
        compare: Tells where what is there is not what is wanted, `None` if it is.
    """
    try:
        present = await _is_present(store, snapshot, compare)
        if not present:
            await _written(store, snapshot)
    except (DifferentError, *DAMAGE) as error:
        report.not_copied[snapshot.key] = str(error)
    except (SessionBusyError, VersionConflictError, OwnershipLostError) as error:
        report.not_copied[snapshot.key] = f"somebody else is at it: {error}"
    else:
        report.present += present
        report.copied += not present
        if not present:
            report.records += sum(transcript.count for transcript in snapshot.sessions)
            report.approvals += len(snapshot.approvals)


async def bring_alone(store: AgentStore, approval: Approval, report: CopyReport) -> None:
    """Write an approval of which no conversation knows any more, unless it is there already."""
    try:
        there = await store.approvals.get(approval.id)
        if there is None:
            there = await store.approvals.create(approval, version=approval.version)
            report.approvals += 1
    except (VersionConflictError, *DAMAGE) as error:
        report.not_copied[approval.id] = f"at the target {error}"
        return
    if problem := first_difference(approval_facts(approval, there)):
        report.not_copied[approval.id] = problem


async def _is_present(
    store: AgentStore, snapshot: Snapshot, compare: Callable[[Snapshot, Snapshot], str | None]
) -> bool:
    there = await settle(store, snapshot.key, half=True) if "checkpoints" in store else None
    if there is not None and there.head.status == COPYING:
        return False
    found = await read_unclaimed(store, snapshot.key)
    problem = compare(snapshot, found)
    if problem is not None and there is not None:
        raise DifferentError(problem)
    return problem is None


async def _written(store: AgentStore, snapshot: Snapshot) -> None:
    first = None if snapshot.turn is None else max(1, snapshot.turn.version - _TURN_WRITES)
    async with await Arrival.at(store, snapshot, version=first) as arrival:
        try:
            await arrival.write()
            await arrival.release()
        except (DifferentError, InvalidArgumentError, InvalidIdError, *DAMAGE):
            await arrival.undo()
            raise
