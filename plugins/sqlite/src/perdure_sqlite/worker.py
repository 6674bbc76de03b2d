"""The thread that owns the connection: it takes all calls that wait, and makes one commit of all writes among them.

First the reads, each as of one instant, then all writes in one transaction (group commit). Each call is answered after
the commit has returned, all of them by one wake-up of the event loop.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure_sqlite.failures import BUSY, failure, in_doubt, primary_code
from perdure_sqlite.forks import Seat, seat

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence
    from queue import SimpleQueue

    from perdure_sqlite.database import Database


@dataclass(slots=True, eq=False)
class Call:
    """One call: its work, which runs in the thread, and what came of it.

    Attributes:
        operation: What the call is, for messages.
        key: What it is about, for messages.
        where: The file, for messages.
        work: What it does.
        statements: How many statements of the work write; 0: it reads.
        answer: Where the caller waits. It does not hold the result, which would be there as long as the task goes on.
        result: What the work returned.
        error: Why the call failed.
    """

    operation: str
    key: str
    where: str
    work: Callable[[sqlite3.Connection], Any]
    statements: int
    answer: asyncio.Future[None]
    result: Any = None
    error: Exception | None = None

    def fail(self, error: Exception, *, unknown: bool = False) -> None:
        """Keep the contract's error for what was raised; `unknown`: the call may have written all the same."""
        self.error = failure(error, operation=self.operation, key=self.key, where=self.where, unknown=unknown)

    def take(self) -> Any:
        """Hand the result over to the caller."""
        result, self.result = self.result, None
        return result

    def deliver(self) -> None:
        """Answer the caller, unless it was cancelled."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(self.error)


class Worker(sqlite3.Connection):
    """The connection as the thread sees it."""

    def run(self, calls: Sequence[Call]) -> None:
        """Run the calls of one hop. When it returns, each has its result or its error, and what it wrote is committed."""
        if self.in_transaction:  # memory ran out before the hop before could take back what it did
            self.execute("ROLLBACK")
        writes = []
        for place, call in enumerate(calls, start=1):
            if call.statements:
                writes.append(call)
                continue
            error = self._read(call)
            if error is not None and primary_code(error) == BUSY:  # whoever else is here has waited as long in vain
                self._fail_all([*writes, *calls[place:]], error, unknown=False)
                return
        if len(writes) == 1 and writes[0].statements == 1:
            self._write(writes[0])
        elif writes:
            self._write_together(writes)

    def _read(self, call: Call) -> Exception | None:
        try:
            self.execute("BEGIN")
            call.result = call.work(self)
            self.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self._roll_back()
            call.fail(error)
            return error
        return None

    def _write(self, call: Call) -> None:
        """Run a single statement, which commits itself."""
        try:
            call.result = call.work(self)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.fail(error, unknown=in_doubt(error))

    def _write_together(self, calls: Sequence[Call]) -> None:
        try:
            self.execute("BEGIN IMMEDIATE")
            for call in calls:
                self._write_member(call)
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._roll_back()
            self._fail_all(calls, error, unknown=False)
            return
        try:
            self.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is the callers'
            self._roll_back()
            self._fail_all(calls, error, unknown=in_doubt(error) or self.in_transaction)

    def _write_member(self, call: Call) -> None:
        """Run one call of a group; if it is refused, take back what it did and leave the others alone."""
        several = call.statements > 1  # a single statement that fails takes itself back
        if several:
            self.execute("SAVEPOINT member")
        try:
            call.result = call.work(self)
        except Exception as error:
            # SQLite gave up the whole transaction: the disk is full or fails; or nobody knows how far the call came.
            if not self.in_transaction or in_doubt(error):
                raise
            if several:
                self.execute("ROLLBACK TO member")
            call.fail(error)
        if several:
            self.execute("RELEASE member")

    def _fail_all(self, calls: Iterable[Call], error: Exception, *, unknown: bool) -> None:
        for call in calls:  # a refusal rested on what the others had written, so it falls with them
            call.fail(error, unknown=unknown and call.error is None)

    def _roll_back(self) -> None:
        if self.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # the first error is the one to report
                self.execute("ROLLBACK")


Hops: TypeAlias = "SimpleQueue[tuple[list[Call], Callable[[list[Call]], None]] | None]"
"""What goes over to the thread: the calls of a hop, and what is to be called with them in their loop; `None` ends it."""


def serve(
    database: Database, hops: Hops, opened: asyncio.Future[Exception | None], ended: asyncio.Future[None]
) -> None:
    """Be the thread: connect, say in `opened` what went wrong if something did, run calls, and close at the end.

    It knows nothing of whoever started it, who can be forgotten while it waits.
    """
    with seat() as taken:
        try:
            with taken.within:
                # The thread of a fork may close it, in the child.
                worker = database.connect(database.path, isolation_level=None, check_same_thread=False)
                taken.connection = worker
        except Exception as error:  # noqa: BLE001 - whoever opens raises it
            _tell(opened, _settle, opened, error)
            return
        _tell(opened, _settle, opened, None)
        while _served(worker, hops, taken):
            pass
        with taken.within:
            worker.close()
    _tell(ended, _settle, ended, None)


def _served(worker: Worker, hops: Hops, taken: Seat) -> bool:
    """Wait for a hop and run it. Between two of these the thread holds on to nothing that a caller gave it."""
    hop = hops.get()
    if hop is None:
        return False
    calls, deliver = hop
    try:
        with taken.within:
            worker.run(calls)
    except Exception as error:  # noqa: BLE001 - it is the callers', who would wait for ever
        for call in calls:
            call.fail(error, unknown=call.statements > 0)
    _tell(calls[0].answer, deliver, calls)
    return True


def _tell(future: asyncio.Future[Any], call: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
        future.get_loop().call_soon_threadsafe(call, *arguments)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
