"""The journal: one table with a head for each key and a row for each item, and one transaction a call."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from perdure.backend import (
    Append,
    Capabilities,
    Delete,
    Head,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
    Replace,
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreURL,
    VersionConflictError,
)
from perdure_lmdb.environment import Environment, enter, leave

T = TypeVar("T")

THREADS = 8
DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError)


class LmdbJournal(Journal):
    """Keeps everything in an LMDB database.

    Where: a directory with `data.mdb` and `lock.mdb`.
    Survives: the process, and the loss of power.
    Shared by: threads and processes of one host.
    Limits: one writer at a time; listings by age look at every head.
    """

    capabilities = Capabilities(durable=True, shared=True, atomic=True)

    def __init__(self, directory: str | Path, *, namespace: str = "default", map_size: int = 2**30) -> None:
        """Choose the directory; nothing is opened yet."""
        self.namespace = namespace
        self.title = f"lmdb:{directory}"
        self._directory, self._map_size = os.path.realpath(directory), map_size
        self._environment: Environment | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[Any]] = set()

    @classmethod
    def from_url(cls, url: StoreURL) -> LmdbJournal:
        """Make the journal that a URL names."""
        return cls(url.path, namespace=url.namespace, **({} if url.options is None else url.options.model_dump()))

    async def open(self) -> None:
        """Open the database, or make it."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "lmdb")  # the loop's own pool would outlive the journal
            try:
                await self._in_thread(self._threads, self._enter)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Let the calls that are under way end, and give the database up."""
        threads, self._threads = self._threads, None
        if self._running:
            await asyncio.wait(self._running)
        if threads is not None:
            await self._in_thread(threads, self._leave)
            threads.shutdown()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read a key; see `Journal.read`."""
        name = self._name(key)

        def work(transaction: lmdb.Transaction) -> JournalSnapshot | None:
            found = _head(transaction, name)
            if found is None:
                return None
            start = min(after, found.count) if last is None else max(found.count - last, 0)
            stop = found.count if limit is None else min(start + limit, found.count)
            return replace(found, items=list(_items(transaction, name, start, stop)), start=start)

        return await self._transaction(work, write=False)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Check and apply operations in one transaction; see `Journal.write`."""

        def work(transaction: lmdb.Transaction) -> tuple[int, ...]:
            return tuple(_apply(transaction, self._name(operation.key), operation) for operation in operations)

        return await self._transaction(work, write=True)

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
        """List heads; see `Journal.scan`."""
        prefix = self._name(Key(part, ""))
        begin = after.id if after is not None and order == "id" else ""

        def matches(info: JournalInfo) -> bool:
            return (
                group in (None, info.head.group)
                and status in (None, info.head.status)
                and (before is None or info.updated_at < before)
            )

        def work(transaction: lmdb.Transaction) -> list[JournalInfo]:
            return _page(filter(matches, _heads(transaction, prefix, begin)), order, after, limit)

        return await self._transaction(work, write=False)

    def _name(self, key: Key) -> bytes:
        return f"{self.namespace}\0{key.part}\0{key.id}".encode()

    # --- the one way to the data ---

    async def _transaction(self, work: Callable[[lmdb.Transaction], T], *, write: bool) -> T:
        """Run work in a thread, in a transaction."""
        if self._threads is None or self._environment is None:
            raise StoreClosedError(self.title)
        environment = self._environment
        return await self._in_thread(self._threads, lambda: self._run(environment, work, write))

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """Run work in a thread. A cancelled call ends when its work has, and not before."""
        running = asyncio.get_running_loop().run_in_executor(threads, work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            running.exception()  # a failure that nobody waits for any more is no news
            raise cancelled
        return running.result()

    def _enter(self) -> None:
        try:
            self._environment = enter(self._directory, self._map_size)
        except DAMAGE as error:
            raise StoreCorruptedError(self.title, str(error)) from error
        except (lmdb.Error, OSError) as error:
            raise StoreUnavailableError("open", self.title, str(error)) from error

    def _leave(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            leave(environment)

    def _run(self, environment: Environment, work: Callable[[lmdb.Transaction], T], write: bool) -> T:
        try:
            transaction = environment.lmdb.begin(write=write)
            try:
                result = work(transaction)
            except BaseException:
                transaction.abort()
                raise
        except DAMAGE as error:
            raise StoreCorruptedError(self.title, str(error)) from error
        except lmdb.Error as error:  # before the commit, so surely nothing was written
            raise StoreUnavailableError("write" if write else "read", self.title, str(error)) from error
        transaction.commit()  # an exception from here leaves as it is: perdure takes it for "outcome unknown"
        return result


def _apply(transaction: lmdb.Transaction, name: bytes, operation: Operation) -> int:
    """Check an operation and apply it; return the version."""
    old, expected = _head(transaction, name), operation.expected_version
    actual = 0 if old is None else old.version
    lost = isinstance(operation, Replace) and (old is None or operation.keep > old.count)
    if lost or expected not in (None, actual):
        raise VersionConflictError(operation.key.id, expected, actual)
    count = 0 if old is None else old.count
    if not isinstance(operation, Append):
        kept = operation.keep if isinstance(operation, Replace) else 0
        for number in range(kept, count):
            transaction.delete(_item_key(name, number))
        count = kept
    if isinstance(operation, Delete):
        transaction.delete(_head_key(name))
        return actual
    for number, item in enumerate(operation.items, count):
        transaction.put(_item_key(name, number), item)
    new = _changed(old, operation, count + len(operation.items))
    transaction.put(_head_key(name), _packed(new))
    return new.version


def _changed(old: JournalSnapshot | None, operation: Append | Replace, count: int) -> JournalSnapshot:
    """Return the head that a write leaves."""
    if old is None:
        assert isinstance(operation, Append)
        version, at = operation.first_version, operation.at
        old = JournalSnapshot(operation.key.id, version - 1, 0, Head(data=b""), created_at=at, updated_at=at)
    version, new = old.version + 1, operation.head
    return replace(
        old,
        version=version,
        count=count,
        head=Head(
            old.head.group if new.group is None else new.group,
            old.head.status if new.status is None else new.status,
            old.head.data if new.data is None else new.data,
        ),
        updated_at=max(old.updated_at, operation.at),
        rewritten=version if isinstance(operation, Replace) else old.rewritten,
    )


# --- how heads and items lie in the table ---


def _head_key(name: bytes) -> bytes:
    return b"head\0" + name


def _item_key(name: bytes, number: int) -> bytes:
    return b"item\0" + name + b"\0" + number.to_bytes(8, "big")


def _packed(info: JournalSnapshot) -> bytes:
    """Return a head as bytes: its fields as JSON, a NUL, and its data."""
    times = (info.created_at.isoformat(), info.updated_at.isoformat())
    fields = [info.version, info.count, info.rewritten, *times, info.head.group, info.head.status]
    return json.dumps(fields).encode() + b"\0" + (info.head.data or b"")


def _unpacked(key: bytes, value: bytes) -> JournalSnapshot:
    fields, _, data = value.partition(b"\0")
    try:
        version, count, rewritten, created, updated, group, status = json.loads(fields)
        times = (datetime.fromisoformat(created), datetime.fromisoformat(updated))
    except (ValueError, TypeError) as error:
        raise StoreCorruptedError(f"the head {key!r}", str(error)) from error
    key_id = key.rpartition(b"\0")[2].decode()
    return JournalSnapshot(key_id, version, count, Head(group, status, data), *times, rewritten=rewritten)


def _head(transaction: lmdb.Transaction, name: bytes) -> JournalSnapshot | None:
    key = _head_key(name)
    value = transaction.get(key)
    return None if value is None else _unpacked(key, bytes(value))


def _items(transaction: lmdb.Transaction, name: bytes, start: int, stop: int) -> Iterator[bytes]:
    for number in range(start, stop):
        item = transaction.get(_item_key(name, number))
        if item is None:
            raise StoreCorruptedError(f"the items of {name!r}", f"number {number} is missing")
        yield bytes(item)


def _heads(transaction: lmdb.Transaction, prefix: bytes, begin: str) -> Iterator[JournalInfo]:
    """Go through the heads whose names start with a prefix, from an id on, in the order of the ids."""
    cursor, first = transaction.cursor(), _head_key(prefix)
    if cursor.set_range(first + begin.encode()):
        for key, value in cursor:
            if not bytes(key).startswith(first):
                return
            yield _unpacked(bytes(key), bytes(value))


_PLACES: dict[str, Callable[[JournalInfo], Any]] = {
    "id": lambda info: (None, info.id),
    "created": lambda info: (info.created_at, info.id),
    "recent": lambda info: (info.updated_at, info.id),
}


def _page(found: Iterator[JournalInfo], order: str, after: Position | None, limit: int) -> list[JournalInfo]:
    """Return the heads behind a position, in an order. Those of the order `id` come in it."""
    place = _PLACES[order]
    if order == "recent":
        return heapq.nlargest(limit, (info for info in found if after is None or place(info) < after), key=place)
    behind = (info for info in found if after is None or place(info) > after)
    return list(itertools.islice(behind, limit)) if order == "id" else heapq.nsmallest(limit, behind, key=place)
