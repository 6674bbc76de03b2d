"""An approval store of one SQL table, and no journal."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Self, TypeVar

from perdure.backend import (
    Approval,
    ApprovalStore,
    Capabilities,
    InvalidArgumentError,
    Page,
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    VersionConflictError,
)

T = TypeVar("T")

# The approval itself is JSON in one column. The others are computed from it, so they never contradict it: they are there for
# people, for the filters and for the order. The instants are ISO 8601 in UTC, which sorts as text does.
TABLE = """
CREATE TABLE IF NOT EXISTS approvals (
    id TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    approval TEXT NOT NULL,
    session_id TEXT AS (json_extract(approval, '$.session_id')),
    run_id TEXT AS (json_extract(approval, '$.run_id')),
    status TEXT AS (json_extract(approval, '$.status')),
    tool TEXT AS (json_extract(approval, '$.tool_name')),
    arguments TEXT AS (json_extract(approval, '$.arguments')),
    created_at TEXT AS (json_extract(approval, '$.created_at')),
    expires_at TEXT AS (json_extract(approval, '$.expires_at')),
    decided_at TEXT AS (json_extract(approval, '$.decision.decided_at')),
    decided_by TEXT AS (json_extract(approval, '$.decision.decided_by')),
    note TEXT AS (json_extract(approval, '$.decision.note')),
    edited_arguments TEXT AS (json_extract(approval, '$.decision.arguments'))
)
"""
INDEX = "CREATE INDEX IF NOT EXISTS approvals_by_age ON approvals (created_at, id)"

GET = "SELECT id, version, approval FROM approvals WHERE id = ?"
LIST = """
SELECT id, version, approval, created_at FROM approvals
WHERE (:session_id IS NULL OR session_id = :session_id)
  AND (:run_id IS NULL OR run_id = :run_id)
  AND (:status IS NULL OR status = :status)
  AND (:before IS NULL OR coalesce(decided_at, created_at) < :before)
  AND (:after_at IS NULL OR (created_at, id) > (:after_at, :after_id))
ORDER BY created_at, id
LIMIT :limit
"""

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqlApprovals(ApprovalStore):
    """Keeps approvals in a table of an SQLite file, which other programs may read.

    Where: the table `approvals` of the file.
    Survives: the process, and the loss of power.
    Shared by: processes of one host.
    Limits: one writer at a time; who waits longer than `patience` seconds for it gets `StoreUnavailableError`.
    """

    capabilities = Capabilities(delete=True, list=True, durable=True, shared=True)

    def __init__(self, file: str | os.PathLike[str], *, patience: float = 20.0) -> None:
        """Choose the file; nothing is opened yet."""
        self._file, self._patience = os.fspath(file), patience
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"approvals in {self._file}"

    async def open(self) -> Self:
        """Connect, and make the table if it is not there."""
        self._thread = ThreadPoolExecutor(max_workers=1)  # one thread owns the connection, so calls come one by one
        try:
            await self._call("open", self._connect)
        except BaseException:
            self._thread.shutdown()
            self._thread = None
            raise
        return self

    async def __aenter__(self) -> Self:
        """Open; see `open`."""
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        """Close; see `close`."""
        await self.close()

    async def close(self) -> None:
        """Let the calls under way end and close the file. Afterwards each call raises `StoreClosedError`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await _ended(thread.submit(self._connection.close))
            thread.shutdown()

    async def _create(self, approval: Approval) -> Approval:
        def work(connection: sqlite3.Connection) -> Approval:
            stored = _find(connection, approval.id)
            return _put(connection, approval, approval.version) if stored is None else stored

        return await self._write("create", work)

    async def _get(self, approval_id: str) -> Approval | None:
        return await self._call("get", lambda: _find(self._connection, approval_id))

    async def _settle(self, approval: Approval) -> Approval | None:
        def work(connection: sqlite3.Connection) -> Approval | None:
            stored = _find(connection, approval.id)
            if stored is None or stored.decided:
                return stored
            return _put(connection, approval, stored.version + 1)

        return await self._write("decide", work)

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
        after_at, after_id = (None, None) if cursor is None else _position(cursor)
        wanted = {
            "session_id": session_id,
            "run_id": run_id,
            "status": status,
            "before": None if before is None else before.isoformat(),
            "after_at": after_at,
            "after_id": after_id,
            "limit": limit + 1,  # one more tells whether there is another page
        }
        rows = await self._call("list", lambda: self._connection.execute(LIST, wanted).fetchall())
        approvals = tuple(_approval(row[:3]) for row in rows[:limit])
        return Page(approvals, json.dumps([rows[limit - 1][3], rows[limit - 1][0]]) if len(rows) > limit else None)

    async def _delete(self, approval_id: str, *, expected_version: int | None) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT version FROM approvals WHERE id = ?", (approval_id,)).fetchone()
            actual = 0 if row is None else row[0]
            if expected_version not in (None, actual):
                raise VersionConflictError(approval_id, expected_version, actual)
            connection.execute("DELETE FROM approvals WHERE id = ?", (approval_id,))
            return row is not None

        return await self._write("delete", work)

    # --- the one way to the database ---

    async def _write(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Look and write in one transaction, which takes the lock for writing at its start."""

        def transaction() -> T:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.rollback()
                raise
            self._commit(connection)
            return result

        return await self._call(operation, transaction)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.commit()
        except sqlite3.Error as error:
            if connection.in_transaction:  # it is refused, and not half done
                connection.rollback()
                raise
            raise RuntimeError(f"the commit failed: {error}") from error  # perdure takes it for "outcome unknown"

    async def _call(self, operation: str, work: Callable[[], T]) -> T:
        """Run work in the thread. A cancelled call ends when its work has, and not before."""
        if self._thread is None:
            raise StoreClosedError(self.title)
        return await _ended(self._thread.submit(self._mapped, operation, work))

    def _mapped(self, operation: str, work: Callable[[], T]) -> T:
        """Raise perdure's errors for the driver's: whatever fails before the commit has written nothing."""
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) in DAMAGE:
                raise StoreCorruptedError(self.title, str(error)) from error
            raise StoreUnavailableError(operation, self.title, str(error)) from error

    def _connect(self) -> None:
        self._connection = sqlite3.connect(self._file, timeout=self._patience, isolation_level=None)
        try:
            for statement in ("PRAGMA synchronous = FULL", "BEGIN IMMEDIATE", TABLE, INDEX, "COMMIT"):
                self._connection.execute(statement)
        except BaseException:
            self._connection.close()
            raise


async def _ended(call: Future[T]) -> T:
    """Wait until a call has ended, whatever is cancelled meanwhile; then pass the cancellation on, or its result."""
    waiting = asyncio.wrap_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        waiting.exception()  # a failure that nobody waits for any more is no news
        raise cancelled
    return waiting.result()


def _find(connection: sqlite3.Connection, approval_id: str) -> Approval | None:
    row = connection.execute(GET, (approval_id,)).fetchone()
    return None if row is None else _approval(row)


def _put(connection: sqlite3.Connection, approval: Approval, version: int) -> Approval:
    row = (approval.id, version, approval.encode().decode())
    connection.execute("INSERT OR REPLACE INTO approvals (id, version, approval) VALUES (?, ?, ?)", row)
    return replace(approval, version=version)


def _approval(row: tuple[str, int, str]) -> Approval:
    return Approval.decode(row[2].encode(), row[1], f"approval {row[0]}")


def _position(cursor: str) -> tuple[str, str]:
    try:
        at, approval_id = json.loads(cursor)
        return datetime.fromisoformat(at).isoformat(), str(approval_id)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("cursor", "is not a cursor of this listing") from error
