"""Reading all that a store keeps, to see whether it is what the contract and the runtime wrote. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import IDLE, CheckpointHead
from perdure.contracts.findings import Finding
from perdure.contracts.records import decode_object
from perdure.errors import CodecError, StoreCorruptedError
from perdure.journal.contract import Journal, JournalSnapshot, Key, Part
from perdure.journal.walking import walk
from perdure.runtime.turn.state import TurnState

CHUNK: Final = 500
"""How many items are read at a time."""


class Examination:
    """One pass over a journal.

    Attributes:
        counts: How many heads of each part, and `records`, were read and found to be whole.
        unread: How many could not be read for want of the codec or the key that wrote them.
    """

    def __init__(self, journal: Journal, known: Sequence[str] = (), parts: Sequence[Part] = tuple(Part)) -> None:
        """Examine parts of an open journal; damage of a place that a text in `known` names is not told again."""
        self._journal = journal
        self._known = known
        self._parts = parts
        self.counts: Counter[str] = Counter()
        self.unread = 0

    async def findings(self) -> AsyncIterator[Finding | None]:
        """Yield what is wrong, and `None` for each head that is whole or was not read."""
        for part in self._parts:
            damaged: list[StoreCorruptedError] = []
            try:
                async for name in walk(self._journal, part, damaged):
                    yield await self._look(Key(part, name))
            except StoreCorruptedError as error:
                damaged.append(error)
            for one in damaged:
                yield self._damage(one)

    async def _look(self, key: Key) -> Finding | None:
        try:
            await self._read(key)
        except CodecError:
            self.unread += 1
        except StoreCorruptedError as error:
            return self._damage(error)
        return None

    def _damage(self, error: StoreCorruptedError) -> Finding | None:
        place = error.where.partition(",")[0]
        known = any(place in text for text in self._known)
        return None if known else Finding(f"{error.where}: {error.problem}", damaged=True)

    async def _read(self, key: Key) -> None:
        """Read one head and its items, and raise what is wrong with them."""
        if key.part is Part.SESSIONS:
            await self._read_session(key)
        else:
            found = await self._journal.read(key)
            if found is not None:  # else it was deleted meanwhile
                _check(key, found)
        self.counts[key.part] += 1

    async def _read_session(self, key: Key) -> None:
        """Read a transcript in chunks, of which each is as of one instant."""
        start = 0
        while (found := await self._journal.read(key, after=start, limit=CHUNK)) is not None:
            if start == 0 and found.head.data:
                decode_object(found.head.data, f"session {key.id}: state")
            for place, item in enumerate(found.items, found.start):
                decode_object(item, f"session {key.id}: records[{place}]")
            self.counts["records"] += len(found.items)
            start += CHUNK
            if start >= found.count:
                return


def _check(key: Key, found: JournalSnapshot) -> None:
    """Raise if a turn journal or an approval is not what the runtime writes."""
    if key.part is Part.APPROVALS:
        approval = Approval.decode(found.head.data or b"", found.version, f"approval {key.id}")
        _require(approval.id == key.id, f"approval {key.id}", f"it is that of {approval.id!r}")
        _require(approval.status == found.head.status, f"approval {key.id}", "it is listed by another status")
        return
    where = f"turn journal {key.id}: head"
    head = CheckpointHead.from_record(decode_object(found.head.data or b"", where), where)
    _require(head.status == found.head.status, where, "it is listed by another status")
    _require(head.session_id in (None, key.id), where, f"it is that of {head.session_id!r}")
    entries = [decode_object(item, f"turn journal {key.id}: entries[{n}]") for n, item in enumerate(found.items)]
    if head.status != IDLE:
        TurnState.of(head.run_id or "", entries)


def _require(holds: bool, where: str, problem: str) -> None:
    if not holds:
        raise StoreCorruptedError(where, problem)
