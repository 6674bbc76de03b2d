"""The journal on plain files."""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import weakref
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.backend import (
    Capabilities,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreURL,
    StoreURLError,
    UnsupportedOperationError,
    WrongLoopError,
    describe,
)
from perdure_file.changes import Changes
from perdure_file.directory import Directory, Place
from perdure_file.disk import DISK, Disk
from perdure_file.guards import Guards
from perdure_file.reports import TornWrite, log_torn_write
from perdure_file.threads import Threads
from perdure_file.waiting import Patience, Queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

T = TypeVar("T")

THREADS = 16
"""How many calls are in their threads at once; the others wait for one and hold nothing."""


class FileJournal(Journal):
    """A journal in plain files, one for each key: `DIR/<namespace>/<part>/<name>.jsonl`.

    Survives: what was acknowledged, the death of the process and a power loss. Each write is one `write` and one `fsync`.
    Shared by: any number of processes of one host, by kernel locks.
    Limits: a listing reads the last line of each file of its part; a `replace` rewrites what it keeps; several
    operations at once are not atomic.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        namespace: str = "default",
        busy_timeout: float = 5.0,
        shared: bool = True,
        on_torn_write: Callable[[TornWrite], None] = log_torn_write,
        disk: Disk = DISK,
        read_only: bool = False,
    ) -> None:
        """Take the path and the options of the URL.

        Args:
            directory: Where the data is, made by `open` if it is missing.
            namespace: The tenant.
            busy_timeout: How long a write waits for another one of the same key, in seconds.
            shared: Whether several processes may write.
            on_torn_write: Called, in a thread, when what was left of an unfinished write has been cut off.
            disk: The system calls.
            read_only: Whether `open` takes the directory as it is: nothing is made or collected.
        """
        self.namespace = namespace
        self.title = f"file:{directory}"
        self.capabilities = Capabilities(durable=True, shared=shared)
        root = str(Path(directory).absolute())  # a later `chdir` is harmless
        self._directory = Directory(disk, root, namespace, self.title, shared=shared)
        self._guards, self._queues = Guards(self._directory), Queues()
        self._busy_timeout = busy_timeout
        self._read_only = read_only
        self._changes = Changes(self._directory, on_torn_write)
        self._threads: Threads | None = None
        self._process = 0
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    def from_url(cls, url: StoreURL, *, read_only: bool = False) -> FileJournal:
        """Make the journal that a URL names."""
        if not url.path:
            raise StoreURLError(str(url), "names no directory. Write file:DIR.")
        options = {} if url.options is None else url.options.model_dump()
        return cls(url.path, namespace=url.namespace, read_only=read_only, **options)

    async def open(self) -> None:
        """Make the directory, see that locks work there, and collect what killed writers left."""
        if self._closing is not None:
            raise StoreClosedError(self.title)
        if self._threads is not None:
            return
        self._threads, self._process = Threads(THREADS, "perdure-file"), os.getpid()
        forgotten = weakref.finalize(self, _forget, self._threads, self._guards, self._directory, self._process)
        forgotten.atexit = False
        try:
            enter = self._directory.enter if self._read_only else self._directory.open
            await self._run(self._threads, "open", self.title, enter)
        except BaseException:
            await self.close()
            forgotten.detach()
            self._threads, self._closing = None, None
            raise

    async def close(self) -> None:
        """Let the calls under way finish, refuse new ones, and release everything."""
        loop = asyncio.get_running_loop()
        if self._closing is None:
            self._closing = loop.create_task(self._finish())
        if self._closing.get_loop() is loop:
            await asyncio.shield(self._closing)

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read the end of the file, and the items that are asked for, without a lock."""
        return await self._run(self._opened(), "read", key.id, lambda: self._read(Place(key), after, limit, last))

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Write one operation in one hop to a thread: lock, look, write, sync, release."""
        if len(operations) != 1:
            raise UnsupportedOperationError(self.title, "atomic")
        (operation,) = operations
        threads, patience = self._opened(), Patience(self._busy_timeout)
        queue = await self._queues.join(_place(operation.key), patience)
        try:
            return (
                await self._run(threads, "write", operation.key.id, lambda: self._write(operation, patience), patience),
            )
        finally:
            self._queues.leave(queue)

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """List the folder, and read the last line of each file, or in the order of ids of as many as are needed."""

        def scan() -> Sequence[JournalInfo]:
            ids = self._directory.ids(part.value)
            if order == "id":
                ids = iter(sorted(known for known in ids if after is None or known > after.id))
            heads = (self._head(Place(Key(part, known))) for known in ids)
            infos = (
                info
                for info in heads
                if info is not None  # it was deleted meanwhile
                and group in (None, info.head.group)
                and status in (None, info.head.status)
                and (before is None or info.updated_at < before)
            )
            return list(islice(infos, limit)) if order == "id" else _page(infos, order, after, limit)

        return await self._run(self._opened(), "scan", part.value, scan)

    def _opened(self) -> Threads:
        """Return the threads, if this may be used."""
        if self._threads is None or self._closing is not None:
            raise StoreClosedError(self.title)
        if self._process != os.getpid():  # `THIS_PROCESS` knows of no fork that C has made, where no thread is
            raise WrongLoopError(self.title, "was opened in another process, of which this one is a fork")
        return self._threads

    def _write(self, operation: Operation, patience: Patience) -> int:
        with self._guards.locked(_place(operation.key), patience) as guard:
            return self._changes.apply(guard, operation)

    def _read(self, place: Place, after: int, limit: int | None, last: int | None) -> JournalSnapshot | None:
        """Read without a lock; what looks damaged is read once more under it, for a writer may have been there."""
        try:
            return self._load(place, after, limit, last)
        except StoreCorruptedError:
            return self._guards.read(place, self._busy_timeout, lambda: self._load(place, after, limit, last))

    def _head(self, place: Place) -> JournalSnapshot | None:
        """Read a head for a listing; damage names the id, so that whoever lists can go on behind it."""
        try:
            return self._read(place, 0, 0, None)
        except StoreCorruptedError as error:
            error.id = place.key.id
            raise

    def _load(self, place: Place, after: int, limit: int | None, last: int | None) -> JournalSnapshot | None:
        log = self._directory.log(place)
        if log is None:
            return None
        try:
            tail = log.tail(log.size)
            commit, count = tail.commit, tail.commit.count
            start = min(after, count) if last is None else max(count - last, 0)
            stop = count if limit is None else min(start + limit, count)
            items = log.items(tail, start, stop)
            about = (place.key.id, commit.version, count, commit.head, commit.created_at, commit.updated_at)
            return JournalSnapshot(*about, items=items, start=start, rewritten=commit.rewritten)
        finally:
            log.close()

    async def _run(
        self, threads: Threads, operation: str, key: str, work: Callable[[], T], patience: Patience | None = None
    ) -> T:
        """Run work in a thread, the one way to the disk. A call that is cancelled is done whole or not begun.

        Args:
            threads: Of the open journal.
            operation: What it is, for messages.
            key: What it is about, for messages.
            work: What to do.
            patience: That of a write. Its cancellation is passed on when the thread has ended, so that whoever reads then
                reads the outcome.
        """
        try:
            return await threads.run(lambda: self._with_room(work), None if patience is None else patience.give_up)
        except OSError as error:  # where a write is in doubt, it has been said already
            raise StoreUnavailableError(operation, key, describe(error)) from error

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do work; if the process may have no more descriptors, once more without those that are only kept."""
        try:
            return work()
        except OSError as error:  # nothing was written
            if error.errno != errno.EMFILE:
                raise
        self._guards.drop_idle()
        return work()

    async def _finish(self) -> None:
        threads = self._threads
        if threads is not None and self._process == os.getpid():
            await self._queues.end()
            try:
                ending = asyncio.get_running_loop().run_in_executor(None, self._end, threads)
            except RuntimeError:  # the process may have no more threads
                self._end(threads)
            else:
                await ending

    def _end(self, threads: Threads) -> None:
        threads.join()
        self._guards.close()
        self._directory.close()


_place = lru_cache(maxsize=1024)(Place)


def _forget(threads: Threads, guards: Guards, directory: Directory, process: int) -> None:
    """Let go of what a journal had that nobody has closed and nobody has any more."""
    if process == os.getpid():  # a fork has none of the threads, and perhaps a lock that one of them held
        threads.dismiss()
        guards.close()
        directory.close()


_PLACES: dict[str, Callable[[JournalInfo], Any]] = {
    "created": lambda info: (info.created_at, info.id),
    "recent": lambda info: (info.updated_at, info.id),
}


def _page(infos: Iterable[JournalInfo], order: str, after: Position | None, limit: int) -> Sequence[JournalInfo]:
    place = _PLACES[order]
    if order == "recent":
        return heapq.nlargest(limit, (info for info in infos if after is None or place(info) < after), key=place)
    return heapq.nsmallest(limit, (info for info in infos if after is None or place(info) > after), key=place)
