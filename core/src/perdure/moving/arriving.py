"""Writing one conversation into a store, claimed there until all of it is written and was read again."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from perdure.contracts.checkpoints import COPYING, CheckpointHead
from perdure.contracts.ids import session_of
from perdure.conversations.claims import ABSENT, busy, claim_note, settle
from perdure.conversations.half_copies import Making, begun
from perdure.errors import PerdureError, StoreError
from perdure.moving.comparing import approval_facts, first_difference, record_facts, session_facts
from perdure.moving.plans import Plan, plan
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.owned_journal import OwnedJournal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript
    from perdure.moving.snapshots import Snapshot

_NEAR: Final = 100
"""How many versions a turn journal may be behind for the difference to be made up by empty appends."""


class DifferentError(PerdureError):
    """The target has something else under an id. Nothing was changed there."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


async def nothing() -> None:
    """Prove nothing: there is no claim elsewhere to keep alive."""


class Arrival:
    """A conversation on its way into a store. As a context manager it gives the claim up, if that is still held.

    Attributes:
        journal: The claim; `None` where there is no checkpoint store.
    """

    def __init__(
        self,
        store: AgentStore,
        snapshot: Snapshot,
        found: Checkpoint | None,
        also: Callable[[], Awaitable[object]],
    ) -> None:
        self.store = store
        self.snapshot = snapshot
        self.journal: OwnedJournal | None = None
        self._also = also
        self._begun = begun(found)
        self._made = Making()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.journal is not None:
            with contextlib.suppress(StoreError, OwnershipLostError):  # the next copy goes on with it all the same
                await self.journal.give_up(at=self._began())

    @classmethod
    async def at(
        cls,
        store: AgentStore,
        snapshot: Snapshot,
        *,
        version: int | None = None,
        also: Callable[[], Awaitable[object]] = nothing,
    ) -> Arrival:
        """Claim the conversation in a store that does not have it, or only the half of it that a copy has left.

        Args:
            store: The target.
            snapshot: What is to be written.
            version: The version that its turn journal starts at; `None`: drawn at random.
            also: Keeps what else is claimed; called before each proof of this claim, which so is never ahead of it.

        Raises:
            SessionBusyError: Somebody does something to the conversation there.
            DifferentError: A turn journal is there.
            VersionConflictError: Somebody was first; look again.
        """
        if "checkpoints" not in store:
            return cls(store, snapshot, None, also)
        found = await settle(store, snapshot.key, half=True)
        if found is not None and store.ownership.is_live(found):
            raise busy(found)
        if found is not None and found.head.status != COPYING:
            raise DifferentError("its turn journal is there already")
        self = cls(store, snapshot, found, also)
        self.journal = await OwnedJournal.take(
            store.ownership,
            store.checkpoints,
            snapshot.key,
            found,
            lambda _: [self._note()],
            lambda _: self._head(),
            at=self._began(),
            version=version,
        )
        return self

    async def write(self) -> None:
        """Write what is not there yet, and read all of it again.

        Raises:
            DifferentError: The target has something else; nothing was changed.
            OwnershipLostError: Somebody else took the claim.
        """
        plans = [await self._planned(transcript) for transcript in self.snapshot.sessions]
        approvals = [approval for approval in self.snapshot.approvals if await self._is_wanted(approval)]
        missing = {planned.transcript.session_id for planned in plans if planned.done < len(planned.writes)}
        self._made = Making(frozenset(missing), frozenset(approval.id for approval in approvals))
        await self._affirm(self._note() | self._made.note())
        names = {transcript.session_id for transcript in self.snapshot.sessions}
        await self._clear(self._begun.sessions - names, self._begun.approvals - self._made.approvals)
        for planned in plans:
            await self._write(planned)
        for approval in approvals:
            await self._write_approval(approval)
        await self._verify()

    async def release(self) -> int:
        """Let the conversation go, complete: from now on it is one like any other.

        Returns:
            The version of its turn journal, 0 if it has none.
        """
        if self.journal is None:
            return 0
        turn = self.snapshot.turn
        if turn is None:
            await self.journal.delete()
            return 0
        await self.journal.replace(turn.entries, turn.head, at=turn.updated_at)
        return self.journal.version

    async def undo(self) -> None:
        """Delete what was made, never what was there before, and the turn journal last."""
        if self.journal is not None:
            await self._clear(self._made.sessions | self._begun.sessions, self._made.approvals | self._begun.approvals)
            await self.journal.delete()

    async def catch_up(self, version: int) -> None:
        """Bring the turn journal to the version that the original has, if that is not far."""
        while self.journal is not None and 0 < version - self.journal.version <= _NEAR:
            await self.journal.append(at=self._began())

    # --- the claim ---

    def _head(self) -> CheckpointHead:
        """Return the head of the claim: that of the turn, so that nobody takes its approvals for orphans."""
        key, turn = self.snapshot.key, self.snapshot.turn
        head = CheckpointHead(COPYING, session_id=session_of(key))
        return head if turn is None else replace(turn.head, status=COPYING)

    def _note(self) -> Record:
        archives = [name.session_id for name in self.snapshot.sessions if name.session_id != self.snapshot.key]
        return claim_note(COPYING, ABSENT, 0, self.store.clock.now()) | {"archives": archives}

    def _began(self) -> datetime | None:
        """Return when the turn journal was created; one that is there for the copy alone begins now."""
        return None if self.snapshot.turn is None else self.snapshot.turn.created_at

    async def _affirm(self, *entries: Record) -> None:
        """Prove that the claims are ours, and renew them."""
        if self.journal is not None:
            await self._also()
            await self.journal.append(entries, at=self._began())

    # --- its parts ---

    async def _planned(self, transcript: Transcript) -> Plan:
        """Look how much of a transcript is there."""
        turn = self.snapshot.turn
        sessions = self.store.sessions
        planned = plan(
            transcript,
            open_since=None if turn is None else turn.head.base_version,
            can_replace=sessions.capabilities.replace,
            claimed=self.journal is not None,
        )
        there = await sessions.load(transcript.session_id)
        if there is None:
            return planned
        done = there.version - planned.first_version + 1
        begun = transcript.session_id in self._begun.sessions
        least = 1 if begun or self.journal is None else len(planned.writes)  # a claim names every half
        if least <= done <= len(planned.writes) and _is_beginning(there, planned, done):
            return replace(planned, done=done)
        if begun:
            return planned  # the half of an older one: it is deleted first
        raise DifferentError(first_difference(session_facts(transcript, there)) or "the session there is another")

    async def _is_wanted(self, approval: Approval) -> bool:
        there = await self.store.approvals.get(approval.id)
        if there is None or approval.id in self._begun.approvals:
            return True
        if problem := first_difference(approval_facts(approval, there)):
            raise DifferentError(problem)
        return False

    async def _write(self, planned: Plan) -> None:
        transcript = planned.transcript
        if planned.done == 0:
            await self._clear({transcript.session_id} & self._begun.sessions, ())
        for place in range(planned.done, len(planned.writes)):
            if self.journal is not None and self.journal.is_due():
                await self._affirm()
            await self._write_part(planned, place)

    async def _write_part(self, planned: Plan, place: int) -> None:
        sessions, transcript, write = self.store.sessions, planned.transcript, planned.writes[place]
        name, version = transcript.session_id, planned.first_version + place
        if place == 0:
            state = transcript.state or None
            await sessions.append(
                *(name, write.records),
                expected_version=0,
                state=state,
                scope=transcript.scope,
                at=write.at,
                version=version,
            )
        elif write.replaces:
            await sessions.replace(name, write.records, expected_version=version - 1, at=write.at)
        else:
            await sessions.append(name, write.records, expected_version=version - 1, at=write.at)

    async def _write_approval(self, approval: Approval) -> None:
        there = await self.store.approvals.get(approval.id)
        if there is not None and first_difference(approval_facts(approval, there)) is not None:
            await self._clear((), (approval.id,))
        await self.store.approvals.create(approval, version=approval.version)

    async def _clear(self, sessions: Iterable[str], approvals: Iterable[str]) -> None:
        """Delete what a copy that was cut short has made: read, prove, write."""
        for approval_id in approvals:
            await self._affirm()
            await self.store.approvals.delete(approval_id)
        for name in sessions:
            there = await self.store.sessions.load(name, limit=0)
            if there is not None:
                await self._affirm()
                await self.store.sessions.delete(name, expected_version=there.version)

    async def _verify(self) -> None:
        """Read again what was written."""
        for transcript in self.snapshot.sessions:
            found = await self.store.sessions.load(transcript.session_id)
            if problem := first_difference(session_facts(transcript, found)):
                raise DifferentError(f"what was read again differs: {problem}")
        for approval in self.snapshot.approvals:
            there = await self.store.approvals.get(approval.id)
            if problem := first_difference(approval_facts(approval, there)):
                raise DifferentError(f"what was read again differs: {problem}")


def _is_beginning(there: Transcript, planned: Plan, done: int) -> bool:
    """Whether a session holds what the first writes of a plan make."""
    wanted = planned.transcript
    if done == len(planned.writes):
        return first_difference(session_facts(wanted, there)) is None
    facts = [
        ("count", planned.count_after(done), there.count),
        ("head", wanted.created_at, there.created_at),
        ("head", wanted.scope, there.scope),
        ("head", wanted.state, there.state),
    ]
    return first_difference([*facts, *record_facts("head", wanted.records[: there.count], there.records)]) is None
