"""The journal: two LMDB tables, and one transaction a call."""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    WrongLoopError,
)

T = TypeVar("T")


@dataclass
class _Environment:
    """An open database. LMDB allows one for each directory in a process, so all journals there share it.

    Attributes:
        users: How many journals and calls hold it; the last one closes it.
    """

    directory: str
    map_size: int
    users: int = 0
    process: int = 0

    def open(self) -> None:
        Path(self.directory).mkdir(parents=True, exist_ok=True)
        self.lmdb = lmdb.open(self.directory, map_size=self.map_size, max_dbs=2, max_readers=512)
        self.heads, self.items = self.lmdb.open_db(b"heads"), self.lmdb.open_db(b"items")
        self.process = os.getpid()


_environments: dict[str, _Environment] = {}
_lock = threading.Lock()


def _enter(directory: str, map_size: int) -> _Environment:
    """Return the environment of a directory, open, with one user more."""
    with _lock:
        known = _environments.get(directory)
        if known is None or known.process != os.getpid():
            known = _Environment(directory, map_size)
            known.open()
            _environments[directory] = known
        known.users += 1
        return known


def _leave(environment: _Environment) -> None:
    """Give an environment up; the last user closes it."""
    with _lock:
        environment.users -= 1
        if environment.users == 0 and environment.process == os.getpid():
            del _environments[environment.directory]
            environment.lmdb.close()


class LmdbJournal(Journal):
    """Keeps everything in an LMDB database.

    Where: a directory with `data.mdb` and `lock.mdb`.
    Survives: the process, and the loss of power.
    Shared by: threads and processes of one host. A forked child is refused.
    Limits: one writer at a time; listings by age look at every head.
    """

    capabilities = Capabilities(durable=True, shared=True, atomic=True)

    def __init__(self, directory: str | Path, *, namespace: str = "default", map_size: int = 2**30) -> None:
        """Choose the directory; nothing is opened yet."""
        self.namespace = namespace
        self.title = f"lmdb:{directory}"
        self._directory, self._map_size = os.path.realpath(directory), map_size
        self._environment: _Environment | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: StoreURL) -> LmdbJournal:
        """Make the journal that a URL names."""
        return cls(url.path, namespace=url.namespace, map_size=url.options["map_size"])

    async def open(self) -> None:
        """Open the database, or make it."""
        if self._environment is None:
            try:
                self._environment = await asyncio.to_thread(_enter, self._directory, self._map_size)
            except (lmdb.Error, OSError) as error:
                raise StoreUnavailableError("open", self.title, str(error)) from error

    async def close(self) -> None:
        """Give the database up; calls that are under way end first."""
        self._closed = True
        environment, self._environment = self._environment, None
        if environment is not None:
            await asyncio.to_thread(_leave, environment)

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read a key; see `Journal.read`."""

        def work(transaction: lmdb.Transaction, environment: _Environment) -> JournalSnapshot | None:
            info = _head(transaction, environment, self._place(key))
            if info is None:
                return None
            start = min(after, info.count) if last is None else max(info.count - last, 0)
            stop = info.count if limit is None else min(start + limit, info.count)
            items = tuple(_items(transaction, environment, self._place(key), start, stop))
            if len(items) != max(stop - start, 0):
                raise StoreCorruptedError(
                    f"{self.title}, {key.part} {key.id}", f"items {start} to {stop} are not all there"
                )
            return replace(info, items=items, start=start)

        return await self._transaction(work, write=False)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Check and apply operations in one transaction; see `Journal.write`."""

        def work(transaction: lmdb.Transaction, environment: _Environment) -> tuple[int, ...]:
            return tuple(self._apply(transaction, environment, operation) for operation in operations)

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

        def matches(info: JournalSnapshot) -> bool:
            return (
                group in (None, info.head.group)
                and status in (None, info.head.status)
                and (before is None or info.updated_at < before)
            )

        def work(transaction: lmdb.Transaction, environment: _Environment) -> list[JournalInfo]:
            prefix = self._place(Key(part, ""))
            begin = after.id if after is not None and order == "id" else ""
            found = (info for info in _heads(transaction, environment, prefix, begin) if matches(info))
            return _page(found, order, after, limit)

        return await self._transaction(work, write=False)

    # --- the one way to the data ---

    async def _transaction(self, work: Callable[[lmdb.Transaction, _Environment], T], *, write: bool) -> T:
        """Run work in a transaction of its own, in a thread."""
        if self._environment is None or self._closed:
            raise StoreClosedError(self.title)
        if self._environment.process != os.getpid():
            raise WrongLoopError(self.title, "was opened in another process, of which this one is a fork")
        environment = self._environment
        with _lock:
            environment.users += 1  # it stays open while the thread works, also if this call is cancelled
        running = asyncio.ensure_future(asyncio.to_thread(self._run, environment, work, write))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # a cancelled call has written all or nothing when it ends, not later
            raise

    def _run(self, environment: _Environment, work: Callable[[lmdb.Transaction, _Environment], T], write: bool) -> T:
        try:
            transaction = environment.lmdb.begin(write=write)
            try:
                result = work(transaction, environment)
            except lmdb.Error as error:
                transaction.abort()
                raise StoreUnavailableError("write" if write else "read", self.title, str(error)) from error
            except BaseException:
                transaction.abort()
                raise
            transaction.commit()  # what goes wrong here is of unknown outcome, as any other exception is
            return result
        finally:
            _leave(environment)

    def _place(self, key: Key) -> bytes:
        return f"{self.namespace}\0{key.part}\0{key.id}".encode()

    def _apply(self, transaction: lmdb.Transaction, environment: _Environment, operation: Operation) -> int:
        place, expected = self._place(operation.key), operation.expected_version
        old = _head(transaction, environment, place)
        actual = 0 if old is None else old.version
        if expected not in (None, actual):
            raise VersionConflictError(operation.key.id, expected, actual)
        if isinstance(operation, Delete):
            if old is not None:
                _cut(transaction, environment, place, 0, old.count)
                transaction.delete(place, db=environment.heads)
            return actual
        if isinstance(operation, Replace):
            if old is None or operation.keep > old.count:
                raise VersionConflictError(operation.key.id, expected, actual)
            _cut(transaction, environment, place, operation.keep, old.count)
        new = _changed(old, operation)
        for number, item in enumerate(operation.items, new.count - len(operation.items)):
            transaction.put(_numbered(place, number), item, db=environment.items)
        transaction.put(place, _packed(new), db=environment.heads)
        return new.version


def _changed(old: JournalSnapshot | None, operation: Append | Replace) -> JournalSnapshot:
    """Return the head that a write leaves."""
    if old is None:
        assert isinstance(operation, Append)
        head = Head(operation.head.group, operation.head.status, operation.head.data or b"")
        count, version = len(operation.items), operation.first_version
        return JournalSnapshot(operation.key.id, version, count, head, operation.at, operation.at)
    kept = operation.keep if isinstance(operation, Replace) else old.count
    new = operation.head
    return replace(
        old,
        version=old.version + 1,
        count=kept + len(operation.items),
        head=Head(
            old.head.group if new.group is None else new.group,
            old.head.status if new.status is None else new.status,
            old.head.data if new.data is None else new.data,
        ),
        updated_at=max(old.updated_at, operation.at),
        rewritten=old.version + 1 if isinstance(operation, Replace) else old.rewritten,
    )


# --- how a head and an item lie in the tables ---


def _packed(info: JournalSnapshot) -> bytes:
    """Return a head as bytes: its fields as JSON, a NUL, and its data."""
    times = (info.created_at.isoformat(), info.updated_at.isoformat())
    fields = [info.version, info.count, info.rewritten, *times, info.head.group, info.head.status]
    return json.dumps(fields).encode() + b"\0" + (info.head.data or b"")


def _unpacked(place: bytes, value: bytes) -> JournalSnapshot:
    fields, _, data = value.partition(b"\0")
    try:
        version, count, rewritten, created, updated, group, status = json.loads(fields)
        times = (datetime.fromisoformat(created), datetime.fromisoformat(updated))
    except ValueError as error:
        raise StoreCorruptedError(f"the head of {place!r}", str(error)) from error
    key_id = place.rpartition(b"\0")[2].decode()
    return JournalSnapshot(key_id, version, count, Head(group, status, data), *times, rewritten=rewritten)


def _numbered(place: bytes, number: int) -> bytes:
    return place + b"\0" + number.to_bytes(8, "big")


def _head(transaction: lmdb.Transaction, environment: _Environment, place: bytes) -> JournalSnapshot | None:
    value = transaction.get(place, db=environment.heads)
    return None if value is None else _unpacked(place, bytes(value))


def _items(
    transaction: lmdb.Transaction, environment: _Environment, place: bytes, start: int, stop: int
) -> Iterator[bytes]:
    cursor = transaction.cursor(db=environment.items)
    end = _numbered(place, stop)
    if start < stop and cursor.set_range(_numbered(place, start)):
        for name, value in cursor.iternext():
            if name >= end:
                return
            yield bytes(value)


def _cut(transaction: lmdb.Transaction, environment: _Environment, place: bytes, start: int, stop: int) -> None:
    for number in range(start, stop):
        transaction.delete(_numbered(place, number), db=environment.items)


def _heads(
    transaction: lmdb.Transaction, environment: _Environment, prefix: bytes, begin: str
) -> Iterator[JournalSnapshot]:
    cursor = transaction.cursor(db=environment.heads)
    if cursor.set_range(prefix + begin.encode()):
        for name, value in cursor.iternext():
            if not bytes(name).startswith(prefix):
                return
            yield _unpacked(bytes(name), bytes(value))


_PLACES: dict[str, Callable[[JournalInfo], Any]] = {
    "id": lambda info: (None, info.id),
    "created": lambda info: (info.created_at, info.id),
    "recent": lambda info: (info.updated_at, info.id),
}


def _page(found: Iterator[JournalSnapshot], order: str, after: Position | None, limit: int) -> list[JournalInfo]:
    place = _PLACES[order]
    if order == "recent":
        return heapq.nlargest(limit, (info for info in found if after is None or place(info) < after), key=place)
    behind = (info for info in found if after is None or place(info) > after)
    if order == "id":  # they come in this order
        return [info for _, info in zip(range(limit), behind, strict=False)]
    return heapq.nsmallest(limit, behind, key=place)
