"""Items that a backend decodes many together come back as those that are decoded one by one."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perdure import codec
from perdure.backend import Append, CheckpointHead, DecodableItems, Head, JournalSnapshot, Key, Part, journal_stores
from perdure.clock import SYSTEM_CLOCK
from perdure.contracts.checkpoints import FINISHED
from perdure.errors import CodecMissingError, StoreCorruptedError
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio


class Together(DecodableItems):
    """Decodes what begins with a brace, and leaves the rest to whoever reads."""

    def __init__(self, items: list[bytes]) -> None:
        self._items = items

    def decoded(self) -> Iterator[Any]:
        return (codec.decode(item) if item.startswith(b"{") else item for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("nobody needs the bytes")


class TogetherJournal(MemoryJournal):
    """A journal that answers such items."""

    answered: "weakref.ref[Together]"

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        if found is None:
            return None
        items = Together(list(found.items))
        self.answered = weakref.ref(items)
        return replace(found, items=items)


@pytest.fixture
async def journal() -> TogetherJournal:
    journal = TogetherJournal()
    await journal.open()
    return journal


async def put(journal: TogetherJournal, *items: bytes) -> None:
    await journal.write((Append(Key(Part.SESSIONS, "s"), items, Head(), None, SYSTEM_CLOCK.now(), 1),))


async def test_records_and_entries_come_back_in_every_window(journal: TogetherJournal) -> None:
    stores = journal_stores(journal)
    records: list[dict[str, Any]] = [{"n": n, "text": "é\ud800"} for n in range(5)]
    await stores.sessions.append("s", records)
    for window, expected in (({}, records), ({"last": 2}, records[-2:]), ({"after": 1, "limit": 2}, records[1:3])):
        found = await stores.sessions.load("s", **window)
        assert found is not None
        assert list(found.records) == expected
    head = CheckpointHead(FINISHED, run_id="s.r", session_id="s")
    await stores.checkpoints.append("s", records, expected_version=0, head=head)
    checkpoint = await stores.checkpoints.load("s")
    assert checkpoint is not None
    assert list(checkpoint.entries) == records
    await journal.close()


@pytest.mark.parametrize(
    ("item", "error"),
    [(b"no JSON", StoreCorruptedError), (b"[1]", StoreCorruptedError), (b"\xf5P1", CodecMissingError)],
)
async def test_what_cannot_be_decoded_names_its_place(
    journal: TogetherJournal, item: bytes, error: type[Exception]
) -> None:
    await put(journal, b"{}", b"{}", item)
    with pytest.raises(error, match=r"records\[2\]"):
        await journal_stores(journal).sessions.load("s", after=1)
    await journal.close()


async def test_nobody_keeps_the_items_that_were_decoded(journal: TogetherJournal) -> None:
    await put(journal, b'{"n":1}')
    found = await journal_stores(journal).sessions.load("s")
    assert found is not None
    gc.collect()
    assert journal.answered() is None
    assert list(found.records) == [{"n": 1}]
    await journal.close()
