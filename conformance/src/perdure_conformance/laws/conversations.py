"""Conversations that laws about the bundle start from, made by store calls alone, and all that is left of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal
from perdure_conformance.laws.tapped import ELSEWHERE
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, PARTS, SESSIONS, Stores, request

WEEK = timedelta(days=7)
WHOLE: dict[str, Any] = {"parts": PARTS, "needs": ("list", "delete")}
"""What a law about whole conversations needs."""


@dataclass(frozen=True)
class Left:
    """The keys that the listings of a bundle show."""

    sessions: list[str]
    runs: list[str]
    approvals: list[str]


NOTHING = Left([], [], [])


async def left(store: Stores) -> Left:
    """Return all keys that are listed."""
    return Left(await SESSIONS.ids(store), await CHECKPOINTS.ids(store), sorted(await APPROVALS.ids(store)))


def head_of(session_id: str, status: str = "idle", *, turn: int = 1, **more: Any) -> CheckpointHead:
    """Return the head of a session's turn journal; an idle one names no run."""
    run_id = None if status == "idle" else f"{session_id}.turn-{turn}"
    return CheckpointHead(status, run_id=run_id, session_id=session_id, **more)


async def lived(store: Stores, session_id: str = "s1", *, at: datetime | None = None) -> str:
    """Make a conversation at rest, with a record, an idle turn journal and an approval that was decided; return its id."""
    now = at or store.clock.now()
    asked = request(f"{session_id}.turn-1.s0.c0", created_at=now)
    await store.sessions.append(session_id, [{"of": session_id}], state={"of": session_id}, scope="ann", at=now)
    await store.approvals.create(asked)
    await store.approvals.decide(asked.id, approved=True, at=now)
    await store.checkpoints.append(session_id, [], expected_version=0, head=head_of(session_id), at=now)
    return asked.id


async def waiting(
    store: Stores, session_id: str = "s1", *, calls: int = 1, status: str = "awaiting-approval", **changes: Any
) -> list[Approval]:
    """Make a conversation whose turn waits for so many decisions; return the approvals."""
    now = store.clock.now()
    if "sessions" in store:
        await store.sessions.append(session_id, [], at=now)
    asked = [
        await store.approvals.create(request(f"{session_id}.turn-1.s0.c{call}", created_at=now, **changes))
        for call in range(calls)
    ]
    head = head_of(session_id, status, approval_ids=[one.id for one in asked])
    await store.checkpoints.append(session_id, [{"kind": "input"}], expected_version=0, head=head, at=now)
    return asked


async def owned(store: Stores, session_id: str = "s1", *, lease: timedelta = timedelta(seconds=30)) -> int:
    """Make a conversation whose turn a process of another machine runs; return the version of its turn journal."""
    now = store.clock.now()
    await store.sessions.append(session_id, [])
    head = head_of(session_id, "in-progress", owner=ELSEWHERE.new_owner(), lease=lease, lease_expires_at=now + lease)
    return await store.checkpoints.append(session_id, [{"kind": "input"}], expected_version=0, head=head)


async def status_of(store: Stores, session_id: str = "s1") -> str:
    """Return the status of a turn journal that must be there."""
    found = await store.checkpoints.load(session_id)
    assert found is not None, f"the turn journal of {session_id} was written, but load answers None"
    return found.head.status


async def whole(bench: Bench) -> dict[str, list[Any]]:
    """Return all that is stored, as the parts' reads give it, by part."""
    store = bench.store
    return {part.name: [await part.read(store, key) for key in await part.ids(store)] for part in PARTS}


async def unchanged(bench: Bench, before: dict[str, list[Any]], what: str) -> None:
    """Demand that all that is stored is what it was."""
    after = await whole(bench)
    for name, seen in before.items():
        equal(after[name], seen, f"{name} after {what}")


def edited(head: CheckpointHead, **changes: Any) -> CheckpointHead:
    """Return a head with some fields changed."""
    return replace(head, **changes)
