"""The three stores made of one journal: each call of a store is one operation of the journal."""

from __future__ import annotations

import base64
import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from perdure import codec
from perdure.contracts.approvals import PENDING, Approval, ApprovalStore, touched_at
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.checkpoints import CheckpointReplace, CheckpointStore, SettledHead, StoredCheckpoint
from perdure.contracts.ids import check_approval_id, check_session_id, conversation_of
from perdure.contracts.records import Page, check_expected
from perdure.contracts.sessions import SessionAppend, SessionStore, StoredTranscript
from perdure.contracts.store import Store, first_version
from perdure.errors import InvalidArgumentError, StoreCorruptedError, VersionConflictError
from perdure.journal.contract import (
    Append,
    Delete,
    Head,
    Journal,
    JournalInfo,
    Key,
    Operation,
    Part,
    Position,
    Replace,
    session_key,
    turns_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNCHANGED = Head()


@dataclass(frozen=True, slots=True)
class JournalStores:
    """The three stores of one journal."""

    sessions: JournalSessions
    checkpoints: JournalCheckpoints
    approvals: JournalApprovals


def journal_stores(journal: Journal) -> JournalStores:
    """Make the three stores of a journal. Opening and closing it stays with the caller."""
    return JournalStores(JournalSessions(journal), JournalCheckpoints(journal), JournalApprovals(journal))


def _capabilities(journal: Journal) -> Capabilities:
    own = journal.capabilities
    return Capabilities(replace=True, delete=True, list=True, durable=own.durable, shared=own.shared, atomic=own.atomic)


class JournalStore(Store):
    """What the three have in common.

    Attributes:
        journal: What it is made of.
        part: Where it is in the journal.
    """

    part: ClassVar[Part]
    _named: ClassVar[str]

    def __init__(self, journal: Journal) -> None:
        """Keep the journal; it is neither opened nor closed here."""
        self.journal = journal

    @property
    def title(self) -> str:
        """The journal's name."""
        return f"{self.journal.title} {self._named}"


class JournalSessions(JournalStore, SessionStore):
    """Transcripts: items are records, the head's group is the scope and its data the state."""

    part = Part.SESSIONS
    _named = "sessions"

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: nobody sets it
        """What the journal declares; some know only when they are open."""
        return _capabilities(self.journal)

    async def _load(
        self, session_id: str, *, after: int, limit: int | None, last: int | None
    ) -> StoredTranscript | None:
        found = await self.journal.read(session_key(session_id), after=after, limit=limit, last=last)
        if found is None:
            return None
        return StoredTranscript(
            session_id=session_id,
            version=found.version,
            count=found.count,
            created_at=found.created_at,
            updated_at=found.updated_at,
            records=found.items,
            start=found.start,
            rewritten=found.rewritten,
            state=found.head.data or None,
            scope=found.head.group,
        )

    def operation(self, append: SessionAppend) -> Append:
        """Settle an append as `append` does, and return it as an operation of the journal."""
        key, expected = session_key(check_session_id(append.session_id)), check_expected(append.expected_version)
        items, state, at = self._settle_write(append.records, append.state, append.at)
        return Append(key, items, Head(data=state), expected, at, first_version(None, expected))

    async def _append(
        self,
        session_id: str,
        records: tuple[bytes, ...],
        *,
        expected_version: int | None,
        state: bytes | None,
        scope: str | None,
        at: datetime,
        first_version: int,
    ) -> int:
        expected = expected_version
        head = _UNCHANGED if scope is None and state is None else Head(group=scope, data=state)
        while True:
            # The creating write sets the scope. One that names it asserts that the session is absent, or has it already.
            if scope is not None and expected_version != 0:
                expected = await self._version_in_scope(session_id, scope, expected_version)
            operation = Append(session_key(session_id), records, head, expected, at, first_version)
            try:
                return (await self.journal.write((operation,)))[0]
            except VersionConflictError:
                if scope is None or expected_version is not None:
                    raise

    async def _version_in_scope(self, session_id: str, scope: str, expected_version: int | None) -> int:
        found = await self.journal.read(session_key(session_id), limit=0)
        version = 0 if found is None else found.version
        if expected_version not in (None, version):
            raise VersionConflictError(session_id, expected_version, version)
        if found is not None and found.head.group != scope:
            raise InvalidArgumentError("scope", f"cannot change: session {session_id} was created for another one")
        return version

    async def _replace(
        self,
        session_id: str,
        records: tuple[bytes, ...],
        *,
        expected_version: int | None,
        keep: int,
        state: bytes | None,
        at: datetime,
    ) -> int:
        key = session_key(session_id)
        return (await self.journal.write((Replace(key, keep, records, Head(data=state), expected_version, at),)))[0]

    async def _delete(self, session_id: str, *, expected_version: int | None) -> bool:
        return (await self.journal.write((Delete(session_key(session_id), expected_version),)))[0] != 0

    async def _list(
        self, *, scope: str | None, before: datetime | None, order: str, cursor: str | None, limit: int
    ) -> Page[StoredTranscript]:
        infos = await self.journal.scan(
            Part.SESSIONS,
            group=scope,
            status=None,
            before=before,
            order=order,
            after=read_cursor(cursor, order),
            limit=limit + 1,
        )
        items = tuple(
            StoredTranscript(
                session_id=info.id,
                version=info.version,
                count=info.count,
                created_at=info.created_at,
                updated_at=info.updated_at,
                state=info.head.data or None,
                scope=info.head.group,
            )
            for info in infos[:limit]
        )
        return Page(items, write_cursor(infos, order, limit))


class JournalCheckpoints(JournalStore, CheckpointStore):
    """Turn journals: items are entries, the head's group is the agent, its status the turn's, its data the head."""

    part = Part.RUNS
    _named = "checkpoints"

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: nobody sets it
        """What the journal declares; some know only when they are open."""
        return _capabilities(self.journal)

    async def _load(self, key: str) -> StoredCheckpoint | None:
        found = await self.journal.read(turns_key(key))
        return None if found is None else self._stored(found, found.items)

    async def _append(
        self,
        key: str,
        entries: tuple[bytes, ...],
        *,
        expected_version: int | None,
        head: SettledHead,
        at: datetime,
        first_version: int,
    ) -> int:
        operation = Append(turns_key(key), entries, _head(head), expected_version, at, first_version)
        return (await self.journal.write((operation,)))[0]

    def operation(self, replace: CheckpointReplace) -> Replace:
        """Settle a replace as `replace` does, and return it as an operation of the journal."""
        expected = check_expected(replace.expected_version)
        items, head, at = self._settle_write(replace.key, replace.entries, replace.head, replace.at)
        return Replace(turns_key(replace.key), 0, items, _head(head), expected, at)

    async def write_together(self, key: str, operations: Sequence[Operation]) -> tuple[int, ...]:
        """Apply several operations of one conversation, all or none, with the errors of a single one."""
        return await self._writing("write", key, lambda: self.journal.write(operations), operations)

    async def _replace(
        self, key: str, entries: tuple[bytes, ...], *, expected_version: int | None, head: SettledHead, at: datetime
    ) -> int:
        operation = Replace(turns_key(key), 0, entries, _head(head), expected_version, at)
        return (await self.journal.write((operation,)))[0]

    async def _delete(self, key: str, *, expected_version: int | None) -> bool:
        return (await self.journal.write((Delete(turns_key(key), expected_version),)))[0] != 0

    async def _list(
        self,
        *,
        status: str | None,
        agent: str | None,
        before: datetime | None,
        order: str,
        cursor: str | None,
        limit: int,
    ) -> Page[StoredCheckpoint]:
        infos = await self.journal.scan(
            Part.RUNS,
            group=agent,
            status=status,
            before=before,
            order=order,
            after=read_cursor(cursor, order),
            limit=limit + 1,
        )
        items = tuple(self._stored(info, ()) for info in infos[:limit])
        return Page(items, write_cursor(infos, order, limit))

    @staticmethod
    def _stored(info: JournalInfo, entries: Sequence[bytes]) -> StoredCheckpoint:
        return StoredCheckpoint(
            key=info.id,
            version=info.version,
            count=info.count,
            head=info.head.data or b"",
            created_at=info.created_at,
            updated_at=info.updated_at,
            entries=entries,
        )


class JournalApprovals(JournalStore, ApprovalStore):
    """Approvals: no items; the head's group is the conversation, its status the approval's, its data the approval."""

    part = Part.APPROVALS
    _named = "approvals"

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: nobody sets it
        """What the journal declares; some know only when they are open."""
        return _capabilities(self.journal)

    async def _create(self, approval: Approval) -> Approval:
        while True:
            stored = await self._get(approval.id)
            if stored is not None:
                return stored
            with contextlib.suppress(VersionConflictError):
                return _versioned(approval, await self._put(approval, 0, approval.created_at))

    async def _get(self, approval_id: str) -> Approval | None:
        found = await self.journal.read(Key(Part.APPROVALS, approval_id))
        return None if found is None else _approval(found)

    async def _settle(self, approval: Approval) -> Approval | None:
        while True:
            stored = await self._get(approval.id)
            if stored is None or stored.status != PENDING:
                return stored
            if stored != replace(approval, status=PENDING, decision=None, version=stored.version):
                return None  # what is decided here was deleted, and another request has its id
            with contextlib.suppress(VersionConflictError):
                return _versioned(approval, await self._put(approval, stored.version, touched_at(approval)))

    async def _put(self, approval: Approval, expected_version: int, at: datetime) -> int:
        head = Head(group=conversation_of(approval.id), status=approval.status, data=approval.encode())
        key = Key(Part.APPROVALS, approval.id)
        return (await self.journal.write((Append(key, (), head, expected_version, at, approval.version),)))[0]

    async def _list(
        self,
        *,
        session_id: str | None,
        run_id: str | None,
        status: str | None,
        before: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> Page[Approval]:
        conversations = {conversation_of(given) for given in (session_id, run_id) if given is not None}
        if len(conversations) > 1:
            return Page(())
        after = read_cursor(cursor, "created")
        group = conversations.pop() if conversations else None
        scan = partial(self.journal.scan, Part.APPROVALS, group=group, status=status, before=before)
        if before is not None and after is None and not await scan(order="recent", after=None, limit=1):
            return Page(())  # without passing over all that are younger
        items: list[Approval] = []
        while True:
            infos = await scan(order="created", after=after, limit=limit + 1)
            for info in infos:
                if len(items) == limit:
                    return Page(tuple(items), write_position(after, "created"))
                approval = _approval(info)
                # The journal has a decided copy at its creation, so it may come here though it was decided later.
                in_time = before is None or touched_at(approval) < before
                if in_time and session_id in (None, approval.session_id) and run_id in (None, approval.run_id):
                    items.append(approval)
                after = Position(info.created_at, info.id)
            if len(infos) <= limit:
                return Page(tuple(items))

    async def _delete(self, approval_id: str, *, expected_version: int | None) -> bool:
        return (await self.journal.write((Delete(Key(Part.APPROVALS, approval_id), expected_version),)))[0] != 0


def _head(head: SettledHead) -> Head:
    return Head(group=head.agent, status=head.status, data=head.data)


def _approval(info: JournalInfo) -> Approval:
    approval = Approval.decode(info.head.data or b"", info.version, f"approval {info.id}")
    if approval.id != info.id:
        raise StoreCorruptedError(f"approval {info.id}", f"what is stored is the approval {approval.id}")
    return approval


def _versioned(approval: Approval, version: int) -> Approval:
    return Approval.decode(approval.encode(), version, f"approval {approval.id}")


_POSITIONS: dict[str, Callable[[JournalInfo], Position]] = {
    "id": lambda info: Position(None, info.id),
    "created": lambda info: Position(info.created_at, info.id),
    "recent": lambda info: Position(info.updated_at, info.id),
}


def write_cursor(infos: Sequence[JournalInfo], order: str, limit: int) -> str | None:
    """Return the cursor behind the first `limit` heads, or `None` if there are no more."""
    return write_position(_POSITIONS[order](infos[limit - 1]), order) if len(infos) > limit else None


def write_position(position: Position | None, order: str) -> str | None:
    """Return a position in an order as opaque text."""
    if position is None:
        return None
    at = None if position.at is None else position.at.isoformat()
    return base64.urlsafe_b64encode(codec.encode([order, at, position.id], "cursor")).decode("ascii")


def read_cursor(cursor: str | None, order: str) -> Position | None:
    """Return the position that a cursor names, or raise if it belongs to another listing."""
    if cursor is None:
        return None
    try:
        kind, at, key = codec.decode(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
        position = Position(None if at is None else datetime.fromisoformat(at), check_approval_id(key))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("cursor", "is not a cursor of this listing") from error
    if kind != order or (at is None) != (order == "id") or (position.at and position.at.utcoffset() is None):
        raise InvalidArgumentError("cursor", f"belongs to a listing in another order than {order}")
    return position
