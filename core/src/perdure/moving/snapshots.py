"""One conversation as it was read, with all that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perdure.archives import archives_of
from perdure.contracts.checkpoints import CLAIM_STATUSES
from perdure.contracts.ids import is_run, session_of
from perdure.conversations.claims import approvals_of, busy, open_status
from perdure.errors import SessionBusyError
from perdure.ownership.leases import unowned_head

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.sessions import Transcript

_ATTEMPTS = 10
"""How often a conversation is read again that is written to while it is read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation as of one instant, in memory.

    Attributes:
        key: The session id, or `<name>.run` for a run without a session.
        sessions: Its archives, the oldest first, and its transcript last; empty for a run without a session.
        turn: Its turn journal without an owner, or `None`.
        approvals: Its approvals, oldest first.
    """

    key: str
    sessions: tuple[Transcript, ...] = ()
    turn: Checkpoint | None = None
    approvals: tuple[Approval, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing of the conversation."""
        return not self.sessions and self.turn is None and not self.approvals

    @property
    def is_alone(self) -> bool:
        """Whether it is an approval of which no conversation knows any more, under its own id."""
        nothing_else = not self.sessions and self.turn is None
        return nothing_else and [approval.id for approval in self.approvals] == [self.key]


async def load_turn(store: AgentStore, key: str) -> Checkpoint | None:
    """Read a turn journal; `None` also where there is no checkpoint store."""
    return await store.checkpoints.load(key) if "checkpoints" in store else None


async def read_snapshot(store: AgentStore, key: str, found: Checkpoint | None) -> Snapshot:
    """Read what belongs to a conversation; whoever calls sees to it that nobody writes meanwhile.

    Args:
        store: The bundle.
        key: The conversation.
        found: Its turn journal as it was read before.

    Raises:
        StoreCorruptedError: A part cannot be read.
    """
    sessions: list[Transcript] = []
    if not is_run(key) and "sessions" in store:
        for name in (*reversed(await archives_of(store, key)), key):
            transcript = await store.sessions.load(name)
            if transcript is not None:
                sessions.append(transcript)
    approvals = await approvals_of(store, session_of(key), found.head.run_id if found is not None else None)
    return Snapshot(key, tuple(sessions), None if found is None else unowned(found), tuple(approvals))


async def read_unclaimed(store: AgentStore, key: str) -> Snapshot:
    """Read a conversation without claiming it: as of one instant, or not at all.

    A turn that somebody runs is in it as it stands in its journal, as after a crash at that instant.

    Raises:
        SessionBusyError: Somebody does something to the conversation as a whole, or writes to it all the time.
        StoreCorruptedError: A part cannot be read.
    """
    found = await load_turn(store, key)
    for _ in range(_ATTEMPTS):
        if found is not None and found.head.status in CLAIM_STATUSES:
            raise busy(found)
        snapshot = await read_snapshot(store, key, found)
        stayed = await has_stayed(store, snapshot)
        before, found = found, await load_turn(store, key)  # looked at last: every change begins in it
        if stayed and _same_version(before, found):
            return snapshot
    raise SessionBusyError(key, None if found is None else found.head.owner, None)


async def has_stayed(store: AgentStore, snapshot: Snapshot) -> bool:
    """Whether nothing was written to the transcripts and approvals of a conversation since they were read."""
    for known in snapshot.sessions:
        now = await store.sessions.load(known.session_id, limit=0)
        if now is None or now.version != known.version:
            return False
    run_id = None if snapshot.turn is None else snapshot.turn.head.run_id
    approvals = await approvals_of(store, session_of(snapshot.key), run_id)
    return [_version(approval) for approval in approvals] == [_version(approval) for approval in snapshot.approvals]


def _same_version(one: Checkpoint | None, other: Checkpoint | None) -> bool:
    return (None if one is None else one.version) == (None if other is None else other.version)


def _version(approval: Approval) -> tuple[str, int]:
    return approval.id, approval.version


def unowned(found: Checkpoint) -> Checkpoint:
    """Return a turn journal as its owner, and claims on it, would leave it."""
    head = replace(unowned_head(found.head), status=open_status(found))
    return replace(found, head=head, entries=[entry for entry in found.entries if entry.get("kind") != "claim"])
