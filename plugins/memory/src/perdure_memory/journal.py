"""The memory backend: a dictionary under one lock."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from perdure.backend import (
    THIS_PROCESS,
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
    StoreURL,
    VersionConflictError,
    WrongLoopError,
)
from perdure_memory.kept import Entry, Kept

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(slots=True)
class _Data:
    """What all handles of one name share."""

    parts: defaultdict[tuple[str, Part], Kept] = field(default_factory=lambda: defaultdict(Kept))
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=lambda: THIS_PROCESS.pid)


_named: dict[str, _Data] = {}
_naming = threading.Lock()


class MemoryJournal(Journal):
    """Keeps everything in this process.

    Where: one dictionary; `MemoryJournal()` has its own, all handles of `MemoryJournal(name)` share one.
    Survives: nothing but `close()`; a named one lives as long as the process.
    Shared by: event loops and threads of one process. A forked child is refused.
    Limits: memory.
    """

    capabilities = Capabilities(atomic=True)

    def __init__(self, name: str | None = None, *, namespace: str = "default") -> None:
        """Choose the data: private, or shared under a name within this process."""
        self.namespace = namespace
        self.title = f"memory:{name or ''}"
        self._closed = False
        with _naming:
            self._data = _Data() if name is None else _named.setdefault(name, _Data())

    @classmethod
    def from_url(cls, url: StoreURL) -> MemoryJournal:
        """Make the journal that a URL names."""
        return cls(url.path or None, namespace=url.namespace)

    async def open(self) -> None:
        """Refuse a forked child, whose copy of the data would drift apart."""
        self._enter()

    async def close(self) -> None:
        """Close this handle; named data stays."""
        self._closed = True

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read a key; see `Journal.read`."""
        with self._enter():
            entry = self._data.parts[self.namespace, key.part].entries.get(key.id)
            if entry is None:
                return None
            count = len(entry.items)
            start = min(after, count) if last is None else max(count - last, 0)
            stop = count if limit is None else min(start + limit, count)
            return JournalSnapshot(
                *(key.id, entry.version, count, entry.head, entry.created_at, entry.updated_at),
                items=tuple(entry.items[start:stop]),
                start=start,
                rewritten=entry.rewritten,
            )

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Check every operation, then apply all; see `Journal.write`."""
        with self._enter():
            for operation in operations:
                self._check(operation)
            return tuple(map(self._apply, operations))

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
        with self._enter():
            kept = self._data.parts[self.namespace, part]
            found = ((name, kept.entries[name]) for name in kept.ids(order, after))
            infos = (
                JournalInfo(name, entry.version, len(entry.items), entry.head, entry.created_at, entry.updated_at)
                for name, entry in found
                if group in (None, entry.head.group)
                and status in (None, entry.head.status)
                and (before is None or entry.updated_at < before)
            )
            return list(islice(infos, limit))

    def _enter(self) -> threading.Lock:
        """Return the lock, the one way to the data."""
        if self._closed:
            raise StoreClosedError(self.title)
        if self._data.process != THIS_PROCESS.pid:
            raise WrongLoopError(self.title, "was opened in another process, of which this one is a fork")
        return self._data.lock

    def _check(self, operation: Operation) -> None:
        """Raise if a key has not what is expected."""
        part, name = operation.key
        entry = self._data.parts[self.namespace, part].entries.get(name)
        actual = 0 if entry is None else entry.version
        expected = operation.expected_version
        unseen = isinstance(operation, Replace) and (entry is None or operation.keep > len(entry.items))
        if unseen or (expected is not None and expected != actual):
            raise VersionConflictError(name, expected, actual)

    def _apply(self, operation: Operation) -> int:
        """Apply a checked operation, and return its version."""
        part, name = operation.key
        kept = self._data.parts[self.namespace, part]
        if isinstance(operation, Delete):
            return kept.remove(name)
        entry = kept.entries.get(name)
        if entry is not None:
            entry.version += 1
            entry.updated_at = max(entry.updated_at, operation.at)
        elif isinstance(operation, Append):
            entry = Entry(operation.first_version, operation.at, operation.at)
        else:
            raise AssertionError("a replace of an absent key passed the check")
        if isinstance(operation, Replace):
            del entry.items[operation.keep :]
            entry.rewritten = entry.version
        entry.items.extend(operation.items)
        entry.head = _merged(entry.head, operation.head)
        kept.put(name, entry)
        return entry.version


def _merged(old: Head, new: Head) -> Head:
    if new.group is None and new.status is None and new.data is None:
        return old
    return Head(
        old.group if new.group is None else new.group,
        old.status if new.status is None else new.status,
        old.data if new.data is None else new.data,
    )
