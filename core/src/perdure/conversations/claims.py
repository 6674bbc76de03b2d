"""What changes a conversation as a whole: claims on its turn journal, dropping a turn, clearing, deleting.

A claim is an append at the version read, with a status that says what is being done and an entry that names the
session's version. Every write outside the journal is *read, prove, write*: read the target's version, append to the
journal (which fails if the claim is no longer ours), write at the version read. The journal is released last.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from perdure.archives import archive_id, archive_versions, archives_of, readable_archives_of
from perdure.contracts.approvals import is_denied_by_time
from perdure.contracts.checkpoints import (
    CLAIM_STATUSES,
    CLEARING,
    COPYING,
    DELETING,
    DISCARDING,
    IDLE,
    TURN_STATUSES,
    CheckpointHead,
)
from perdure.contracts.ids import RUN_SUFFIX, check_session_id, conversation_of, is_run, session_of
from perdure.contracts.plain import is_texts
from perdure.conversations.behind_damage import list_approvals
from perdure.conversations.half_copies import is_half_copied
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    SessionBusyError,
    SessionConflictError,
    SessionHalfCopiedError,
    StoreCorruptedError,
    VersionConflictError,
)
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.owned_journal import OwnedJournal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.bundle import AgentStore
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record
    from perdure.contracts.sessions import Transcript

ABSENT: Final = "absent"
"""What a claim notes as the status of a turn journal that it had to create."""


class Claim:
    """A claim on a conversation that this task holds, as a context manager.

    Left by an error, it stays in the journal for whoever comes next, this process included, to finish or to undo.
    """

    def __init__(
        self, store: AgentStore, journal: OwnedJournal, note: Record, *, over: bool, at: datetime | None
    ) -> None:
        self.store = store
        self.journal = journal
        self.note: Record = note
        self._over = over
        self._at = at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.journal.forget()

    @classmethod
    async def take(
        cls,
        store: AgentStore,
        key: str,
        found: Checkpoint | None,
        action: str,
        *,
        archive: bool = False,
        at: datetime | None = None,
    ) -> Claim:
        """Claim a conversation at the version read, or raise `VersionConflictError`.

        Args:
            store: The bundle.
            key: The turn journal.
            found: It as it was read; `None` if it was absent.
            action: One of the claims.
            archive: Name the archive that a compaction will write, of the version that the claim names.
            at: The instant of what the claim writes before it is closed, for one that shall not make the conversation
                look younger: if it dies on the way, the next prune must still find it old.
        """
        earlier = _last_claim(found)
        # Who finishes a claim keeps the version that it names: what came in since is not part of what was asked for.
        named = earlier["session_version"] if earlier and earlier["action"] == action else await _version(store, key)
        was = ABSENT if found is None else earlier["was"] if earlier else found.head.status
        note = claim_note(action, was, named, store.clock.now())
        archives = list(earlier.get("archives", ())) if earlier else []
        if archive:
            archives.append(archive_id(key, named))
        if archives:
            note["archives"] = archives
        base = CheckpointHead(status=action, session_id=session_of(key))
        head = replace(found.head if found is not None else base, status=action)
        journal = await OwnedJournal.take(
            store.ownership, store.checkpoints, key, found, lambda _: [note], lambda _: head, at=at
        )
        return cls(store, journal, note, over=earlier is not None, at=at)

    async def prove(self, session: Transcript | None) -> None:
        """Prove that the claim is ours before a write to the session at the version read, and name that version."""
        self.note = self.note | {"session_version": 0 if session is None else session.version}
        await self.affirm()

    async def affirm(self) -> None:
        """Prove that the claim is ours; it names the version that it named before."""
        await self.journal.append([self.note], at=self._at)

    async def close(self) -> None:
        """Release the claim on a conversation in which no turn is open any more."""
        await self.journal.replace([], idle_head(self.journal.head))

    async def let_go(self) -> None:
        """Release the claim with nothing done, or with a compaction done: put the noted status back.

        The archive of a compaction goes, unless the transcript names it, as it does when the replace has happened. What
        sleeps on an earlier claim is refused before that is looked at.
        """
        if self._over and self.note["action"] != COPYING:  # a copy writes nothing to what it reads
            session = await session_head(self.store, self.journal.key)
            if session is not None and session.rewritten != self.note["session_version"] + 1:
                await self._refuse_sleeper()
        await self._drop_archives()
        was = self.note["was"]
        if was == ABSENT:
            await self.journal.delete()
        elif was in TURN_STATUSES:
            await self.journal.give_up([self.note | {"action": "released"}], at=self._at, status=was)
        else:
            await self.journal.replace([], idle_head(self.journal.head), at=self._at)

    async def _refuse_sleeper(self) -> None:
        """Move the session's version, so that the late write of whoever slept on an earlier claim is refused."""
        while (session := await session_head(self.store, self.journal.key)) is not None:
            await self.affirm()
            with contextlib.suppress(VersionConflictError):
                await self.store.sessions.append(session.session_id, [], expected_version=session.version)
                return

    async def drop_turn(self) -> None:
        """Cancel the turn's approvals and close the journal."""
        await self.cancel_approvals("the turn was dropped")
        await self.close()

    async def cancel_approvals(self, reason: str) -> None:
        """Cancel what the turn still asks for."""
        run_id = self.journal.head.run_id
        if run_id is None or "approvals" not in self.store:
            return
        for approval in await list_approvals(self.store, run_id=run_id):
            with contextlib.suppress(ApprovalAlreadyResolvedError, ApprovalNotFoundError):
                await self.store.approvals.cancel(approval.id, reason=reason)

    async def clear(self) -> None:
        """Empty the transcript, and only then touch the approvals: a clearing that is undone leaves the turn whole."""
        while (session := await session_head(self.store, self.journal.key)) is not None:
            await self._note_archives()
            await self.prove(session)
            with contextlib.suppress(VersionConflictError):
                await self.store.sessions.replace(session.session_id, [], expected_version=session.version)
                break
        await self.drop_all()

    async def drop_all(self) -> None:
        """Drop the turn with all approvals and archives of the conversation, and close the journal."""
        head = self.journal.head
        approvals = await approvals_of(self.store, head.session_id, head.run_id)
        if approvals and self.store.approvals.capabilities.delete:
            await self.affirm()  # that none of them is of a later turn
            for approval in approvals:
                await self.store.approvals.delete(approval.id)
        else:
            await self.cancel_approvals("the conversation was cleared")
        await self._drop_archives()
        await self.close()

    async def _note_archives(self) -> None:
        """Have the next proof name the archives, so that whoever finishes the claim finds them."""
        noted = self.note.get("archives", [])
        found = await readable_archives_of(self.store, self.journal.key)
        if archives := [*found, *(name for name in noted if name not in found)]:
            self.note = self.note | {"archives": archives}

    async def _drop_archives(self) -> None:
        """Delete the archives that the claim names, but those that the transcript still stands for."""
        key = self.journal.key
        while names := self.note.get("archives"):
            try:
                kept = await archives_of(self.store, key)
            except StoreCorruptedError:
                return  # what it names cannot be known; prune removes them when the conversation is gone
            found = await archive_versions(self.store, key, [name for name in names if name not in kept])
            if not found:
                return
            await self.affirm()  # before each write, and after the versions were read
            with contextlib.suppress(VersionConflictError):  # somebody who slept wrote to one: look again
                await self._delete_archives(found)

    async def _delete_archives(self, found: Sequence[tuple[str, int]]) -> None:
        for name, version in found:
            await self.store.sessions.delete(name, expected_version=version)

    async def delete(self) -> None:
        """Delete the conversation, with what comes in meanwhile."""
        while not await self.delete_at(await session_head(self.store, self.journal.key)):
            pass

    async def delete_at(self, session: Transcript | None) -> bool:
        """Delete the conversation as it was read: its session, archives, approvals, and last the turn journal.

        Returns:
            Whether it is gone; `False` if the session is at another version, and then nothing is.
        """
        head = self.journal.head
        approvals = await approvals_of(self.store, head.session_id, head.run_id)
        await self._note_archives()
        await self.prove(session)
        if session is not None:
            try:
                await self.store.sessions.delete(session.session_id, expected_version=session.version)
            except VersionConflictError:
                return False
        await self._drop_archives()
        for approval in approvals:
            await self.store.approvals.delete(approval.id)
        await self.journal.delete()
        return True


def claim_note(action: str, was: str, session_version: int, at: datetime) -> Record:
    """Return the entry of a claim: what is done to the conversation, and as what it was found."""
    return {
        "v": 1,
        "kind": "claim",
        "at": at.isoformat(),
        "action": action,
        "was": was,
        "session_version": session_version,
    }


def idle_head(head: CheckpointHead) -> CheckpointHead:
    """Return the head of a journal in which no turn is open."""
    return CheckpointHead(status=IDLE, session_id=head.session_id, agent=head.agent, extra=head.extra)


async def settle(store: AgentStore, key: str, *, force: bool = False, half: bool = False) -> Checkpoint | None:
    """Read a turn journal, after finishing or undoing a claim whose owner is gone.

    Args:
        store: The bundle.
        key: The turn journal.
        force: Treat a live owner as gone.
        half: Return the journal of a conversation that is only half copied, instead of raising.

    Returns:
        What is left: `None`, an idle journal, or one with an open turn (which may have a live owner).

    Raises:
        SessionBusyError: A live owner holds a claim.
        SessionHalfCopiedError: A copy of it was cut short.
    """
    while True:
        found = await store.checkpoints.load(key)
        if found is None or found.head.status not in CLAIM_STATUSES:
            return found
        if not force and store.ownership.is_live(found):
            raise busy(found)
        if is_half_copied(found):
            if half:
                return found
            raise SessionHalfCopiedError(key)
        with contextlib.suppress(VersionConflictError, OwnershipLostError):  # somebody else does the same
            await _finish(store, found)


def busy(found: Checkpoint) -> SessionBusyError:
    """Return the error that names a live owner."""
    return SessionBusyError(found.key, found.head.owner, found.head.lease_expires_at)


async def _finish(store: AgentStore, found: Checkpoint) -> None:
    """Finish a claim whose owner is gone, or undo it where it cannot be finished."""
    status = found.head.status
    at = found.updated_at if status == COPYING else None  # a copy makes nothing look younger, also one that died
    with await Claim.take(store, found.key, found, status, at=at) as claim:
        named = claim.note["session_version"]
        session = await session_head(store, found.key)
        if status == DISCARDING:
            await claim.drop_turn()
        elif status == DELETING:
            await claim.delete()
        elif status == CLEARING and session is not None and session.version == named:
            await claim.clear()
        elif status == CLEARING and session is not None and session.rewritten == named + 1:
            await claim.drop_all()  # it was emptied before
        else:
            await claim.let_go()


async def drop_turn(store: AgentStore, key: str, found: Checkpoint) -> None:
    """Drop the turn in a journal at the version read, or raise `VersionConflictError`."""
    claim = await Claim.take(store, key, found, DISCARDING)
    # Whoever takes the claim over finishes it; the turn that is there now may be a later one.
    with claim, contextlib.suppress(OwnershipLostError):
        await claim.drop_turn()


def open_status(found: Checkpoint | None) -> str:
    """Return the status of the turn in a journal, also behind a claim; `idle` if none is open, or none for long."""
    if found is None or found.head.status in (DISCARDING, DELETING):
        return IDLE
    claim = _last_claim(found)
    return str(claim["was"]) if claim else found.head.status


def noted_archives(found: Checkpoint | None) -> Sequence[str]:
    """Return the archives that a claim in a turn journal names: they may exist, and be named nowhere else."""
    claim = _last_claim(found)
    return claim.get("archives", ()) if claim else ()


def _last_claim(found: Checkpoint | None) -> Record | None:
    if found is None or found.head.status not in CLAIM_STATUSES:
        return None
    claim = next((entry for entry in reversed(found.entries) if entry.get("kind") == "claim"), None)
    if claim is not None and not (
        {type(claim.get("action")), type(claim.get("was"))} == {str}
        and type(claim.get("session_version")) is int
        and is_texts(claim.get("archives", []))
    ):
        raise StoreCorruptedError(f"turn journal {found.key}: entries", "the last claim does not say what it claims")
    return claim


async def session_head(store: AgentStore, key: str) -> Transcript | None:
    """Read the transcript that a turn journal belongs to, without its records; `None` if there is none."""
    if is_run(key) or "sessions" not in store:
        return None
    return await store.sessions.load(key, limit=0)


async def _version(store: AgentStore, key: str) -> int:
    session = await session_head(store, key)
    return 0 if session is None else session.version


async def approvals_of(store: AgentStore, session_id: str | None, run_id: str | None) -> list[Approval]:
    """List the approvals of a conversation: all of a session's, or those of a run without one."""
    if "approvals" not in store:
        return []
    if session_id is not None:
        return await list_approvals(store, session_id=session_id)
    return [] if run_id is None else await list_approvals(store, run_id=run_id)


def journal_of(approval: Approval) -> str:
    """Return the key of the turn journal whose turn asks for an approval."""
    return approval.session_id or f"{conversation_of(approval.run_id)}{RUN_SUFFIX}"


async def undecided(store: AgentStore, head: CheckpointHead) -> tuple[str, ...]:
    """Return the approvals that a waiting turn still needs a decision on.

    The turn's own list counts, never what a listing shows. An approval that is missing is not waited for: whoever
    resumes asks again. One that has expired, and is denied by that, counts as decided.
    """
    left: list[str] = []
    for approval_id in head.approval_ids:
        approval = await store.approvals.get(approval_id)
        if approval is not None and not approval.decided and not is_denied_by_time(approval, store.clock.now()):
            left.append(approval_id)
    return tuple(left)


async def delete_session(store: AgentStore, session_id: str, *, force: bool = False) -> bool:
    """Delete a conversation whole: session, archives, turn journal and approvals. See `AgentStore.delete_session`."""
    check_session_id(session_id)
    for part in ("sessions", "approvals"):
        if part in store:
            getattr(store, part).require("delete")
    if "checkpoints" not in store:
        return await _delete_parts(store, session_id)
    began = await store.checkpoints.load(session_id) is not None
    while True:
        found = await settle(store, session_id, force=force, half=True)
        if found is not None and not force and store.ownership.is_live(found):
            raise busy(found)
        approvals = await approvals_of(store, session_id, None)
        if found is None and not approvals and await session_head(store, session_id) is None:
            return began  # of a deletion that was cut short, the rest is deleted now
        try:
            with await Claim.take(store, session_id, found, DELETING) as claim:
                await claim.delete()
        except VersionConflictError:
            continue  # somebody was first; only a live owner refuses
        except OwnershipLostError as error:
            raise SessionConflictError(session_id, session_id, "another owner took the deletion over") from error
        return True


async def _delete_parts(store: AgentStore, session_id: str) -> bool:
    removed = False
    for approval in await approvals_of(store, session_id, None):
        removed |= await store.approvals.delete(approval.id)
    if "sessions" in store:
        for name in reversed(await readable_archives_of(store, session_id)):
            await store.sessions.delete(name)
        removed |= await store.sessions.delete(session_id)
    return removed
