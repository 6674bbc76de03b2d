"""The one way to the database: a thread that owns the connection, one hop for all calls that wait, one commit for all writes.

Whatever waits when the thread is free goes over in one hop: first the reads, each as of one instant, then all writes in
one transaction (group commit). Each call is answered after the commit has returned. The thread is aiosqlite's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import aiosqlite

from perdure.backend import StoreClosedError, WrongLoopError
from perdure_sqlite.failures import failure, in_doubt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from perdure_sqlite.database import Database

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Call:
    """One call: its work, which runs in the thread, and what came of it.

    Attributes:
        operation: What the call is, for messages.
        key: What it is about, for messages.
        where: The file, for messages.
        work: What it does.
        statements: How many statements of the work write; 0: it reads.
        answer: Where the caller waits.
        result: What the work returned.
        error: Why the call failed.
        ended: Whether `result` and `error` stand: the thread is done with the call, and what it wrote is committed.
    """

    operation: str
    key: str
    where: str
    work: Callable[[sqlite3.Connection], Any]
    statements: int
    answer: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None
    ended: bool = False

    def fail(self, error: Exception, *, unknown: bool = False) -> None:
        """Keep the contract's error for what was raised; `unknown`: the call may have written all the same."""
        self.error = failure(error, operation=self.operation, key=self.key, where=self.where, unknown=unknown)

    def deliver(self) -> None:
        """Answer the caller, unless it was cancelled."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)


class Worker(sqlite3.Connection):
    """The connection as the thread sees it."""

    def executemany(self, _sql: str, calls: Any, /) -> sqlite3.Cursor:
        """Run calls. aiosqlite offers no hop for several statements; this method is reached through its public API."""
        writes = []
        for call in calls:
            if call.statements:
                writes.append(call)
            else:
                self._read(call)
        if len(writes) == 1 and writes[0].statements == 1:
            self._write(writes[0])
        elif writes:
            self._write_together(writes)
        for call in calls:
            call.ended = True
        _answer(calls)
        return self.cursor()

    def _read(self, call: Call) -> None:
        try:
            self.execute("BEGIN")
            call.result = call.work(self)
            self.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self._roll_back()
            call.fail(error)

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
            if not self.in_transaction:  # SQLite gave up the whole transaction: the disk is full or fails
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


class Connection:
    """The connection as the event loop sees it."""

    def __init__(self, database: Database, title: str) -> None:
        """Take what to connect to; `title` is what messages call it."""
        self._database = database
        self._title = title
        self._home = (os.getpid(), asyncio.get_running_loop())
        self._waiting: list[Call] = []
        self._pump: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opening = _Opening(database)
        self._driver = _driver(self._opening)
        # Nobody is left to close it then: the thread is told to. At exit there is no need, a daemon just stops.
        self._forgotten = weakref.finalize(self, _stop, self._driver, os.getpid())
        self._forgotten.atexit = False

    @classmethod
    async def open(cls, database: Database, title: str) -> Connection:
        """Connect, and return when the file is ready for use."""
        connection = cls(database, title)
        opening = asyncio.get_running_loop().create_task(connection._open())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not opening.cancel():
                await connection.close()
            raise
        return connection

    async def _open(self) -> None:
        try:
            await self._driver
        except asyncio.CancelledError:
            self._forgotten.detach()  # aiosqlite has told the thread to end
            await self._opening.abandoned()
            raise
        if self._opening.error is not None:
            await self.close()
            raise self._opening.error

    async def read(self, operation: str, key: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work that sees the data of one instant."""
        return await self._submit(operation, key, work, 0)

    async def write(self, operation: str, key: str, work: Callable[[sqlite3.Connection], T], *, statements: int) -> T:
        """Run work that writes with so many statements: all or none, and committed when this returns."""
        return await self._submit(operation, key, work, statements)

    async def _submit(self, operation: str, key: str, work: Callable[[sqlite3.Connection], T], statements: int) -> T:
        pid, loop = self._home
        if pid != os.getpid():
            raise WrongLoopError(self._title, "was opened in another process, of which this one is a fork")
        if loop is not asyncio.get_running_loop():
            raise WrongLoopError(self._title, "belongs to another event loop")
        if self._closing is not None:
            raise StoreClosedError(self._title)
        call = Call(operation, key, self._database.path, work, statements, loop.create_future())
        self._waiting.append(call)
        if self._pump is None:
            # A task of its own, so that a caller may be cancelled without an effect on the others.
            self._pump = loop.create_task(self._send_all())
        result: T = await call.answer
        return result

    async def _send_all(self) -> None:
        calls: list[Call] = []
        try:
            while self._waiting:
                # Who was cancelled before its call went over has not written.
                calls, self._waiting = [call for call in self._waiting if not call.answer.done()], []
                await self._send(calls)
        finally:
            self._pump = None
            for call in self._waiting:  # only when somebody cancels every task of the loop
                call.fail(RuntimeError("the event loop is shutting down"))
                call.deliver()
            self._waiting = []

    async def _send(self, calls: list[Call]) -> None:
        try:
            await self._driver.executemany("", calls)
        except asyncio.CancelledError:
            # The loop is shutting down. It must not be closed before the thread has answered, which would kill the thread
            # with a traceback; the thread takes one thing after another, so when it has taken this one it has answered.
            await self._driver.executemany("", [])
            raise
        finally:
            for call in calls:
                if not call.ended:
                    call.fail(RuntimeError("the thread gave no answer"), unknown=call.statements > 0)
                call.deliver()
            calls.clear()  # the thread remembers what it did last, and through it would keep a forgotten store alive

    async def close(self) -> None:
        """Let the calls under way finish, refuse new ones, and release the file and the thread."""
        pid, loop = self._home
        if pid != os.getpid():
            return  # the connection is the parent's
        if loop is not asyncio.get_running_loop():
            self._forgotten()  # its loop is gone, and with it everybody who could wait for an answer
            return
        if self._closing is None:
            self._closing = loop.create_task(self._close())  # a task of its own: who closes may be cancelled
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._pump is not None:
            await asyncio.wait([self._pump])
        self._forgotten.detach()
        await self._driver.close()


def _answer(calls: Sequence[Call]) -> None:
    """Answer callers from the thread: by the time that the loop has heard from aiosqlite, they have asked the next thing."""
    if calls:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            calls[0].answer.get_loop().call_soon_threadsafe(_deliver, calls)


def _deliver(calls: Sequence[Call]) -> None:
    for call in calls:
        call.deliver()


class _Opening:
    """The factory of the connection, as aiosqlite calls it in its thread.

    It keeps what goes wrong instead of raising it. When connecting raises or is cancelled, aiosqlite leaves its thread to
    end on its own and to answer to a loop that may be closed by then, which would be a traceback.
    """

    def __init__(self, database: Database) -> None:
        self.path = database.path
        self._database = database
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    def __call__(self, path: str, **options: Any) -> Worker:
        self._thread = threading.current_thread()
        try:
            self._worker = self._database.connect(path, **options)
        except Exception as error:  # noqa: BLE001 - whoever opens raises it
            self.error = error
            self._worker = Worker(":memory:", **options)
        return self._worker

    async def abandoned(self) -> None:
        """Wait until the thread has ended, and close what it has opened."""
        while self._thread is None or self._thread.is_alive():  # noqa: ASYNC110 - the end of a thread sets no event
            await asyncio.sleep(0.001)
        if self._worker is not None:
            self._worker.close()


def _driver(opening: _Opening) -> aiosqlite.Connection:
    """Make aiosqlite's connection and thread, neither started yet.

    A thread is a daemon if its maker is one, and aiosqlite's must be: a store that nobody closed would keep the
    interpreter from exiting.
    """
    made: list[aiosqlite.Connection] = []
    options: dict[str, Any] = {"factory": opening, "isolation_level": None, "check_same_thread": False}
    maker = threading.Thread(target=lambda: made.append(aiosqlite.connect(opening.path, **options)), daemon=True)
    maker.start()
    maker.join()
    return made[0]


def _stop(driver: aiosqlite.Connection, pid: int) -> None:
    """Tell a forgotten connection's thread to close it and to end.

    From a thread of its own, where no loop runs: aiosqlite would answer to the one that happens to run here.
    """
    if pid == os.getpid():
        with contextlib.suppress(RuntimeError):  # the interpreter is going down and starts no thread
            threading.Thread(target=driver.stop, daemon=True).start()
