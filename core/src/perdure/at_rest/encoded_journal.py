"""A journal around another one, which keeps what a codec makes of the data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from perdure.at_rest.codecs import AnyCodec, Location, one_codec
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.store import unavailable
from perdure.errors import StoreCorruptedError, StoreUnavailableError, VersionConflictError
from perdure.journal.contract import (
    Append,
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
)
from perdure.journal.walking import walk

T = TypeVar("T")

ATTEMPTS: Final = 256
"""How often a write that expects no version is tried; each failure means that another writer was first."""

LONGEST_GAP: Final = 10_000
"""How many items in a row may be gone before one that is still recognised."""

LARGE: Final = 1 << 16
"""So many bytes are encoded or decoded in a thread, so that the event loop goes on."""


class EncodedJournal(Journal):
    """Keeps the items and the heads' data of another journal encoded; ids, groups, statuses, times and versions are readable.

    An item is bound to its index. So an append must know how many items there are: it reads the head first, and is then
    guarded by the version that it read. One that expects no version begins anew when another writer was first.
    """

    def __init__(self, inner: Journal, codec: AnyCodec) -> None:
        """Wrap a journal, which is opened and closed with this one."""
        self.inner = inner
        self.codec = one_codec(codec)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # reason: nobody sets it
        """What the inner journal declares; some know only when they are open."""
        return self.inner.capabilities

    @property
    def namespace(self) -> str:  # type: ignore[override]  # reason: the same
        """The inner journal's."""
        return self.inner.namespace

    @property
    def title(self) -> str:  # type: ignore[override]  # reason: the same
        """The inner journal's."""
        return self.inner.title

    async def open(self) -> None:
        """Open the inner journal, and see that the codec reads what is in it: one key of each part.

        Raises:
            CodecError: It does not; nothing was written.
        """
        await self.inner.open()
        try:
            for part in Part:
                with contextlib.suppress(StoreCorruptedError):  # whoever reads it is told
                    await self.scan(part, group=None, status=None, before=None, order="id", after=None, limit=1)
        except BaseException:
            await self.inner.close()
            raise

    async def close(self) -> None:
        """Close the inner journal."""
        await self.inner.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read and decode; see `Journal.read`."""
        found = await self.inner.read(key, after=after, limit=limit, last=last)
        if found is None:
            return None

        def decoded() -> JournalSnapshot:
            items = [
                self.codec.decode(item, self._item(key, index)) for index, item in enumerate(found.items, found.start)
            ]
            return replace(found, head=self._decoded_head(key, found.head), items=items)

        return await _in_time(decoded, sum(map(len, found.items)))

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
        """List heads and decode them; see `Journal.scan`."""
        found = await self.inner.scan(
            part, group=group, status=status, before=before, order=order, after=after, limit=limit
        )

        def decoded() -> Sequence[JournalInfo]:
            return [self._decoded_info(part, info) for info in found]

        return await _in_time(decoded, sum(len(info.head.data or b"") for info in found))

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Encode and write; see `Journal.write`."""
        settled = await self._settled(operations)
        for _ in range(ATTEMPTS):
            encoded = await self._encoded(settled)
            try:
                return await self.inner.write(encoded)
            except VersionConflictError:
                again = await self._settled(operations)
                if again == settled:
                    raise  # nothing was read that does not hold any more: it is the caller's own version that does not
                settled = again
        raise StoreUnavailableError("write", _ids(operations), f"other writers were first {ATTEMPTS} times")

    async def is_current(self, key: Key) -> bool | None:
        """Whether everything of a key is in the form that the codec writes now; `None` if the key is absent."""
        with unavailable("read", key.id):
            found = await self.inner.read(key)
        if found is None:
            return None
        return all(map(self.codec.is_current, (found.head.data or b"", *found.items)))

    async def read_behind_gaps(self, key: Key) -> JournalSnapshot | None:
        """Read all of a key, also items that moved to the front because some before them are gone, in their order.

        Raises:
            StoreCorruptedError: An item was not written for this key, or not behind those before it.
        """
        with unavailable("read", key.id):
            found = await self.inner.read(key)
        if found is None:
            return None

        def decoded() -> JournalSnapshot:
            items: list[bytes] = []
            place = 0
            for item in found.items:
                data, place = self._next_item(key, item, place)
                items.append(data)
            return replace(found, head=self._decoded_head(key, found.head), items=items)

        return await asyncio.to_thread(decoded)

    def _next_item(self, key: Key, item: bytes, place: int) -> tuple[bytes, int]:
        """Decode an item that was written for a place, or for a later one; return the place behind that too."""
        for candidate in range(place, place + LONGEST_GAP):
            with contextlib.suppress(StoreCorruptedError):
                return self.codec.decode(item, self._item(key, candidate)), candidate + 1
        return self.codec.decode(item, self._item(key, place)), place  # says what is wrong

    async def ids(self, part: Part) -> AsyncIterator[str]:
        """List the ids of a part, whether or not what they name can be read; those whose head is damaged come last."""
        damaged: list[StoreCorruptedError] = []
        async for name in walk(self.inner, part, damaged):
            yield name
        for error in damaged:
            yield str(error.id)

    # --- writing ---

    async def _settled(self, operations: Sequence[Operation]) -> list[_Settled]:
        with unavailable("write", _ids(operations)):
            return [await self._settle(operation) for operation in operations]

    async def _settle(self, operation: Operation) -> _Settled:
        """Find out what the codec has to know of an operation, from the store where the operation does not tell."""
        if isinstance(operation, Delete):
            await self._require_key(operation.key)
            return _Settled(operation, 0)
        if not _must_look(operation):
            return _settled_by(operation, None)
        found = await self.read(operation.key, limit=0)
        version = 0 if found is None else found.version
        absent = found is None and isinstance(operation, Replace)
        if absent or operation.expected_version not in (None, version):
            raise VersionConflictError(operation.key.id, operation.expected_version, version)
        return _settled_by(replace(operation, expected_version=version), found)

    async def _require_key(self, key: Key) -> None:
        """Let nothing be deleted with a wrong key; what is damaged may go."""
        with contextlib.suppress(StoreCorruptedError):
            await self.read(key, limit=0)

    async def _encoded(self, settled: Sequence[_Settled]) -> list[Operation]:
        operations = [one.operation for one in settled]
        size = sum(sum(map(len, one.items)) for one in operations if not isinstance(one, Delete))
        with unavailable("encode", _ids(operations)):
            return await _in_time(lambda: [*map(self._encode, settled)], size)

    def _encode(self, settled: _Settled) -> Operation:
        operation = settled.operation
        if isinstance(operation, Delete):
            return operation
        key, head = operation.key, operation.head
        if head.data is not None:
            head = replace(head, data=self.codec.encode(head.data, self._head(key, head)))
        items = [
            self.codec.encode(item, self._item(key, index)) for index, item in enumerate(operation.items, settled.start)
        ]
        return replace(operation, head=head, items=tuple(items))

    # --- places ---

    def _item(self, key: Key, index: int) -> Location:
        return Location(self.namespace, key.part.value, key.id, index)

    def _head(self, key: Key, head: Head) -> Location:
        return Location(self.namespace, key.part.value, key.id, None, head.group, head.status)

    def _decoded_info(self, part: Part, info: JournalInfo) -> JournalInfo:
        try:
            return replace(info, head=self._decoded_head(Key(part, info.id), info.head))
        except StoreCorruptedError as error:
            error.id = info.id  # whoever lists can go on behind it
            raise

    def _decoded_head(self, key: Key, head: Head) -> Head:
        return replace(head, data=self.codec.decode(head.data or b"", self._head(key, head)))


class _Settled(NamedTuple):
    """An operation whose head is whole or left alone, and the index of the first of its items."""

    operation: Operation
    start: int


def _must_look(operation: Append | Replace) -> bool:
    """Whether the number of items, or what a head that is not given whole shall keep, must be read first."""
    head = operation.head
    given = sum(field is not None for field in (head.group, head.status, head.data))
    if isinstance(operation, Replace):
        return 0 < given < 3
    if operation.expected_version == 0:
        return False  # it creates the key: there is nothing
    return bool(operation.items) or 0 < given < 3 or (given == 0 and operation.expected_version is None)


def _settled_by(operation: Append | Replace, found: JournalSnapshot | None) -> _Settled:
    """Settle an operation by the head that was read; `None`: it creates the key, or needs nothing of what is there."""
    head = operation.head
    if found is not None and head != Head():
        # The group and the status are bound to the data, so whoever sets one of them sets all.
        head = Head(
            found.head.group if head.group is None else head.group,
            found.head.status if head.status is None else head.status,
            found.head.data if head.data is None else head.data,
        )
    elif operation.expected_version == 0 and head.data is None:
        head = replace(head, data=b"")  # so that no head is without a seal
    start = operation.keep if isinstance(operation, Replace) else 0 if found is None else found.count
    return _Settled(replace(operation, head=head), start)


def _ids(operations: Sequence[Operation]) -> str:
    return ", ".join(operation.key.id for operation in operations)


async def _in_time(work: Callable[[], T], size: int) -> T:
    """Do work on so many bytes, in a thread if they are many."""
    return work() if size < LARGE else await asyncio.to_thread(work)
