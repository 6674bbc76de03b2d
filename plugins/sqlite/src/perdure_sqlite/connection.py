"""The connection as the event loop sees it: calls that wait go over to the thread in one hop.

The thread is the store's own. One of a library answers each call by a wake-up of its own, and dies of a loop that was
closed meanwhile; so calls that share a commit would need a second task, a second wake-up and somebody who waits for both.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.backend import StoreClosedError, WrongLoopError
from perdure_sqlite.worker import Call, Hops, serve

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Coroutine, Sequence

    from perdure_sqlite.database import Database

T = TypeVar("T")


class Connection:
    """The connection as the event loop sees it."""

    def __init__(self, database: Database, title: str) -> None:
        """Take what to connect to, and start the thread; `title` is what messages call it."""
        loop = asyncio.get_running_loop()
        self._database = database
        self._title = title
        self._home = (os.getpid(), loop)
        self._waiting: list[Call] = []
        self._hops: Hops = SimpleQueue()
        self._opened: asyncio.Future[Exception | None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._busy = False
        self._closing = False
        # A daemon: a store that nobody closed does not keep the interpreter from exiting.
        Thread(target=serve, args=(database, self._hops, self._opened, self._ended), daemon=True).start()
        # Nobody is left to close it then: the thread is told to. At exit there is no need, it just stops.
        self._forgotten = weakref.finalize(self, self._hops.put, None)
        self._forgotten.atexit = False

    @classmethod
    async def open(cls, database: Database, title: str) -> Connection:
        """Connect, and return when the file is ready for use."""
        connection = cls(database, title)
        try:
            error = await connection._opened
        except asyncio.CancelledError:
            connection._end()
            raise
        if error is not None:
            raise error
        return connection

    def read(self, operation: str, key: str, work: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        """Run work that sees the data of one instant."""
        return self._submit(operation, key, work, 0)

    def write(
        self, operation: str, key: str, work: Callable[[sqlite3.Connection], T], *, statements: int
    ) -> Coroutine[Any, Any, T]:
        """Run work that writes with so many statements: all or none, and committed when this returns."""
        return self._submit(operation, key, work, statements)

    async def _submit(self, operation: str, key: str, work: Callable[[sqlite3.Connection], T], statements: int) -> T:
        pid, loop = self._home
        if pid != os.getpid():
            raise WrongLoopError(self._title, "was opened in another process, of which this one is a fork")
        if loop is not asyncio.get_running_loop():
            raise WrongLoopError(self._title, "belongs to another event loop")
        if self._closing:
            raise StoreClosedError(self._title)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._send)
        call = Call(operation, key, self._database.path, work, statements, loop.create_future())
        self._waiting.append(call)
        await call.answer
        result: T = call.take()
        return result

    def _send(self) -> None:
        """Let all that wait go over, once every task that could run has asked for what it wants."""
        calls = [call for call in self._waiting if not call.answer.done()]  # who was cancelled by now has not written
        self._waiting = []
        if self._closing and not self._forgotten.alive:  # closed from another loop, while this one stood still
            for call in calls:
                call.fail(StoreClosedError(self._title))
                call.deliver()
        elif calls:
            self._hops.put((calls, self._deliver))
        else:
            self._busy = False
            if self._closing:
                self._end()

    def _deliver(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.deliver()
        self._home[1].call_soon(self._send)  # behind the tasks that were answered, so that their next calls share a hop

    def _end(self) -> None:
        """Tell the thread to stop, once; also at exit, where calling the finalizer does nothing any more."""
        if self._forgotten.detach() is not None:
            self._hops.put(None)

    async def close(self) -> None:
        """Let the calls under way finish, refuse new ones, and release the file and the thread."""
        pid, loop = self._home
        if pid != os.getpid():
            return  # the connection is the parent's
        if loop is asyncio.get_running_loop():
            self._refuse()
            await asyncio.shield(self._ended)  # others may be closing it too
            return
        try:
            if loop.is_running():  # in another thread: who waits there is answered first
                loop.call_soon_threadsafe(self._refuse)
                return
        except RuntimeError:  # it was closed meanwhile
            pass
        self._closing = True
        self._end()  # its loop is gone, and with it everybody who could wait for an answer

    def _refuse(self) -> None:
        """Refuse calls from now on, and let the thread stop behind those under way."""
        if not self._closing:
            self._closing = True
            if not self._busy:
                self._end()
