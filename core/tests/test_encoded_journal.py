"""Encrypted stores on every backend: what is stored, what whoever can write to it can and cannot do, and wrong keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.servers import VALKEY, shared

from perdure import AgentStore, blocking, open_store
from perdure.at_rest import Compression, EncodedJournal, Encryption, KeyRing
from perdure.backend import (
    Append,
    Delete,
    Head,
    Journal,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Replace,
    journal_stores,
)
from perdure.errors import (
    CodecError,
    CodecMissingError,
    InvalidArgumentError,
    NotEncryptedError,
    RecordTooLargeError,
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    UnsupportedOperationError,
    VersionConflictError,
    WrongKeyError,
)
from perdure.journal.stores import JournalSessions
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio

RING, OTHER = KeyRing([bytes(range(32))]), KeyRing([bytes(range(32, 64))])
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRETS = [{"text": f"the account is 471{number}"} for number in range(5)]
A, B = Key(Part.SESSIONS, "a"), Key(Part.SESSIONS, "b")


def codec() -> list[Any]:
    return [Compression(), Encryption(RING)]


@pytest.fixture(params=["memory", "file", "sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind, empty."""
    return {
        "memory": lambda: f"memory:{uuid.uuid4().hex}?",
        "file": lambda: f"file:{tmp_path}/data?",
        "sqlite": lambda: f"sqlite:{tmp_path}/agent.db?",
        "valkey": lambda: f"{shared(VALKEY).url}?namespace={uuid.uuid4().hex}",
    }[request.param]()


async def raw(url: str, action: Callable[[Journal], Awaitable[Any]]) -> Any:
    """Do what anybody can who can read and write the store, and has no key."""
    async with open_store(url) as store:
        assert isinstance(store.sessions, JournalSessions)
        return await action(store.sessions.journal)


async def stored(journal: Journal, key: Key) -> JournalSnapshot:
    found = await journal.read(key)
    assert found is not None
    return found


async def put(journal: Journal, key: Key, items: Sequence[bytes], head: Head | None = None) -> None:
    found = await stored(journal, key)
    await journal.write((Replace(key, 0, tuple(items), head or Head(), found.version, AT),))


async def fill(url: str, *, codec: Any) -> None:
    async with open_store(url, codec=codec) as store:
        for name in ("a", "b"):
            version = await store.sessions.append(name, SECRETS[:2], scope="ann", state={"title": "secret plan"})
            await store.sessions.append(name, SECRETS[2:], expected_version=version)


async def everything(url: str) -> Any:
    """All that a store holds, as it is stored."""

    async def read(journal: Journal) -> Any:
        return [await journal.read(Key(part, name)) for part in Part for name in ("a", "b", "c")]

    return await raw(url, read)


def files_of(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.rglob("*") if file.is_file()]


# --- what is stored ---


async def test_records_come_back_and_only_group_and_status_can_be_read(url: str, tmp_path: Path) -> None:
    await fill(url, codec=codec())
    async with open_store(url, codec=codec()) as store:
        found = await store.sessions.load("a")
        assert found is not None
        assert (list(found.records), found.state, found.scope) == (SECRETS, {"title": "secret plan"}, "ann")
        last = await store.sessions.load("a", last=2)
        assert last is not None
        assert (list(last.records), last.start) == (SECRETS[3:], 3)
        assert [info.state for info in (await store.sessions.list(scope="ann")).items] == [{"title": "secret plan"}] * 2
    found = await raw(url, lambda journal: stored(journal, A))
    assert found.head.group == "ann"
    kept = b"".join([found.head.data or b"", *found.items, *files_of(tmp_path)])
    assert b"account" not in kept
    assert b"secret" not in kept


async def test_a_codec_changes_no_capability_and_keeps_atomic_writes(url: str) -> None:
    async with open_store(url) as plain, open_store(url, codec=codec()) as store:
        for part in ("sessions", "checkpoints", "approvals"):
            assert getattr(store, part).capabilities == getattr(plain, part).capabilities
            assert getattr(store, part).title == getattr(plain, part).title
        assert store.atomic == plain.atomic


async def test_limits_go_by_what_the_user_gave(tmp_path: Path) -> None:
    async with open_store(f"sqlite:{tmp_path}/x.db?max_record=1000", codec=codec()) as store:
        await store.sessions.append("a", [{"x": "y" * 992}])  # 1000 bytes of JSON, and more when it is encrypted
        with pytest.raises(RecordTooLargeError):
            await store.sessions.append("a", [{"x": "y" * 993}])
        found = await store.sessions.load("a")
        assert found is not None
        assert found.count == 1


async def test_a_large_record_comes_back(tmp_path: Path) -> None:
    async with open_store(f"sqlite:{tmp_path}/x.db", codec=codec()) as store:
        record = {"x": "abc" * (1 << 20)}
        await store.sessions.append("a", [record])
        found = await store.sessions.load("a")
        assert found is not None
        assert list(found.records) == [record]
    assert sum(map(len, files_of(tmp_path))) < 1 << 20


async def test_the_blocking_facade_opens_an_encrypted_store(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/x.db"
    await fill(url, codec=codec())

    def read() -> Any:
        with blocking.open_store(url, codec=codec()) as store:
            return store.sessions.load("a")

    found = await asyncio.to_thread(read)
    assert list(found.records) == SECRETS


# --- what whoever can write to the store can and cannot do ---


async def refused(url: str, *, where: str) -> None:
    async with open_store(url, codec=codec()) as store:
        with pytest.raises(StoreCorruptedError, match="changed, or was written for another place") as raised:
            await store.sessions.load("a")
        assert where in raised.value.where


async def test_a_changed_record_is_refused(url: str) -> None:
    await fill(url, codec=codec())

    async def attack(journal: Journal) -> None:
        items = [*(await stored(journal, A)).items]
        items[3] = items[3][:-1] + bytes([items[3][-1] ^ 1])
        await put(journal, A, items)

    await raw(url, attack)
    await refused(url, where="sessions a in namespace")
    async with open_store(url, codec=codec()) as store:
        found = await store.sessions.load("a", limit=3)  # what is whole can still be read
        assert found is not None
        assert list(found.records) == SECRETS[:3]


async def test_two_swapped_records_are_refused(url: str) -> None:
    await fill(url, codec=codec())

    async def attack(journal: Journal) -> None:
        one, two, *rest = (await stored(journal, A)).items
        await put(journal, A, [two, one, *rest])

    await raw(url, attack)
    await refused(url, where="item 0")


async def test_a_record_that_was_left_out_or_repeated_is_refused(url: str) -> None:
    await fill(url, codec=codec())
    items = (await raw(url, lambda journal: stored(journal, A))).items
    await raw(url, lambda journal: put(journal, A, [items[0], *items[2:]]))
    await refused(url, where="item 1")
    await raw(url, lambda journal: put(journal, A, [*items, items[4]]))
    await refused(url, where="item 5")


async def test_a_listing_names_the_session_whose_head_is_anothers(url: str) -> None:
    """So whoever lists can go on behind it."""
    await fill(url, codec=codec())

    async def attack(journal: Journal) -> None:
        await put(journal, A, (await stored(journal, A)).items, (await stored(journal, B)).head)

    await raw(url, attack)
    async with open_store(url, codec=codec()) as store:
        with pytest.raises(StoreCorruptedError, match="its head") as raised:
            await store.sessions.list()
        assert raised.value.id == "a"


async def test_a_record_of_another_session_is_refused(url: str) -> None:
    await fill(url, codec=codec())

    async def attack(journal: Journal) -> None:
        await put(journal, A, (await stored(journal, B)).items)

    await raw(url, attack)
    await refused(url, where="item 0")


async def test_a_session_that_was_moved_to_another_namespace_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/x.db"
    await fill(url, codec=codec())
    found = await raw(url, lambda journal: stored(journal, A))
    create = Append(A, tuple(found.items), found.head, 0, AT, found.version)
    await raw(f"{url}?namespace=other", lambda journal: journal.write((create,)))
    with pytest.raises(StoreCorruptedError, match="namespace other"):
        async with open_store(f"{url}?namespace=other", codec=codec()) as store:
            await store.sessions.load("a")


async def test_records_that_were_moved_to_another_namespace_are_refused(tmp_path: Path) -> None:
    url, other = f"sqlite:{tmp_path}/x.db", f"sqlite:{tmp_path}/x.db?namespace=other"
    await fill(url, codec=codec())
    await fill(other, codec=codec())
    found = await raw(url, lambda journal: stored(journal, A))
    await raw(other, lambda journal: put(journal, A, found.items))
    with pytest.raises(StoreCorruptedError, match="namespace other: item 0"):
        async with open_store(other, codec=codec()) as store:
            await store.sessions.load("a")


async def test_a_head_of_another_session_or_scope_is_refused(url: str) -> None:
    await fill(url, codec=codec())
    mine = await raw(url, lambda journal: stored(journal, A))
    other = await raw(url, lambda journal: stored(journal, B))
    await raw(url, lambda journal: put(journal, A, mine.items, other.head))
    await refused(url, where="its head")
    await raw(url, lambda journal: put(journal, A, mine.items, Head(group="bob", data=mine.head.data)))
    await refused(url, where="its head")
    await raw(url, lambda journal: put(journal, A, mine.items, mine.head))
    async with open_store(url, codec=codec()) as store:
        assert await store.sessions.load("a") is not None


async def test_what_was_encrypted_is_refused_as_plaintext_and_a_state_cannot_be_emptied(url: str) -> None:
    await fill(url, codec=codec())
    found = await raw(url, lambda journal: stored(journal, A))
    await raw(url, lambda journal: put(journal, A, [b'{"text":"forged"}', *found.items[1:]]))
    async with open_store(url, codec=codec()) as store:
        with pytest.raises(NotEncryptedError, match="item 0"):
            await store.sessions.load("a")
    await raw(url, lambda journal: put(journal, A, found.items, Head(data=b"")))
    with pytest.raises(NotEncryptedError, match="its head"):
        async with open_store(url, codec=codec()) as store:
            await store.sessions.load("a")


async def test_dropping_the_newest_records_and_putting_back_an_old_state_is_out_of_reach(url: str) -> None:
    """What the encryption cannot notice, as its page says: each piece is genuine and stands at its own place."""
    await fill(url, codec=codec())
    old = await raw(url, lambda journal: stored(journal, A))
    async with open_store(url, codec=codec()) as store:
        await store.sessions.replace("a", [{"text": "rewritten"}], expected_version=None)
    await raw(url, lambda journal: put(journal, A, old.items[:4], old.head))
    async with open_store(url, codec=codec()) as store:
        found = await store.sessions.load("a")
        assert found is not None
        assert list(found.records) == SECRETS[:4]


# --- wrong keys, no keys, plaintext ---


@pytest.mark.parametrize(
    "wrong", [[Compression(), Encryption(OTHER)], None, Compression()], ids=["key", "none", "zstd"]
)
async def test_without_the_key_nothing_can_be_read_and_nothing_is_changed(url: str, wrong: Any) -> None:
    """B110."""
    await fill(url, codec=codec())
    async with open_store(url, codec=codec()) as store:
        approval = await _approval(store)
    before = await everything(url)
    tries: list[Callable[[AgentStore], Awaitable[Any]]] = [
        lambda store: store.sessions.load("a"),
        lambda store: store.sessions.list(),
        lambda store: store.approvals.get(approval),
        lambda store: store.decide(approval, approved=True),
        lambda store: store.prune(older_than=timedelta(0)),
        lambda store: store.delete_session("a", force=True),
    ]
    if wrong is not None:  # a store without a codec looks at nothing that a blind write does not need
        tries += [
            lambda store: store.sessions.append("a", SECRETS),
            lambda store: store.sessions.delete("a"),
            lambda store: store.approvals.delete(approval),
        ]
    for attempt in tries:
        with pytest.raises(CodecError) as raised:
            async with open_store(url, codec=wrong) as store:
                await attempt(store)
        assert isinstance(raised.value, WrongKeyError if isinstance(wrong, list) else CodecMissingError)
        assert await everything(url) == before
    async with open_store(url, codec=codec()) as store:
        found = await store.sessions.load("a")
        assert found is not None
        assert list(found.records) == SECRETS


async def _approval(store: AgentStore) -> str:
    from perdure.backend import Approval

    made = Approval("c.turn-1.s0.c0", "c.turn-1", "c1", "pay", {"to": "ann"}, AT, session_id="c")
    return (await store.approvals.create(made)).id


async def test_a_wrong_key_is_found_when_the_store_is_opened_before_anything_is_written(url: str) -> None:
    await fill(url, codec=codec())
    with pytest.raises(WrongKeyError, match="sessions a"):
        await open_store(url, codec=Encryption(OTHER))


async def test_an_opening_that_fails_leaves_nothing_open(inner: Counted) -> None:
    await EncodedJournal(inner, codec()).write((Append(A, (), Head(), 0, AT, 1),))
    with pytest.raises(WrongKeyError):
        await EncodedJournal(inner, Encryption(OTHER)).open()
    with pytest.raises(StoreClosedError):
        await inner.open()


async def test_no_turn_of_a_key_that_is_held_under_a_wrong_key_is_touched() -> None:
    """Also where the wrong key came in after the opening: an append reads the head, and a delete does."""
    inner = MemoryJournal()
    await EncodedJournal(inner, codec()).write((Append(A, (b"{}",), Head(group="g"), 0, AT, 1),))
    wrong = EncodedJournal(inner, Encryption(OTHER))
    operations: list[Operation] = [
        Append(A, (b"{}",), Head(), None, AT, 1),
        Append(A, (b"{}",), Head(), 1, AT, 1),
        Append(A, (), Head(data=b"x"), 1, AT, 1),
        Replace(A, 0, (), Head(data=b"x"), None, AT),
        Delete(A, None),
        Delete(A, 1),
    ]
    for operation in operations:
        with pytest.raises(WrongKeyError):
            await wrong.write((operation,))
    assert (await stored(inner, A)).version == 1


async def test_plaintext_is_refused_unless_asked_and_then_read_beside_what_is_encrypted(url: str) -> None:
    await fill(url, codec=None)
    before = await everything(url)
    with pytest.raises(NotEncryptedError) as raised:
        await open_store(url, codec=codec())
    assert "accept_plaintext" in raised.value.hint
    assert await everything(url) == before
    async with open_store(url, codec=Encryption(RING, accept_plaintext=True)) as store:
        await store.sessions.append("a", [{"text": "new"}])
        found = await store.sessions.load("a")
        assert found is not None
        assert list(found.records) == [*SECRETS, {"text": "new"}]
    found = await raw(url, lambda journal: stored(journal, A))
    assert [item.startswith(b"\xf5PE") for item in found.items] == [False] * 5 + [True]


async def test_compression_alone_reads_what_was_there_before(url: str) -> None:
    await fill(url, codec=None)
    async with open_store(url, codec=Compression()) as store:
        await store.sessions.append("a", [{"text": "long" * 500}])
        found = await store.sessions.load("a")
        assert found is not None
        assert found.records[-1] == {"text": "long" * 500}
    found = await raw(url, lambda journal: stored(journal, A))
    assert len(found.items[-1]) < 200


async def test_what_is_damaged_can_be_deleted() -> None:
    inner = MemoryJournal()
    journal = EncodedJournal(inner, codec())
    await journal.write((Append(A, (), Head(), 0, AT, 1),))
    found = await stored(inner, A)
    await put(inner, A, (), Head(data=(found.head.data or b"")[:-1] + b"!"))
    with pytest.raises(StoreCorruptedError):
        await journal.read(A)
    await journal.write((Delete(A, None),))
    assert await inner.read(A) is None


# --- versions ---


class Counted(MemoryJournal):
    """Counts what is asked of it, and lets another writer in before a write as often as it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rival = EncodedJournal(MemoryJournal(name), codec())
        self.reads = 0
        self.rivals = 0
        self.broken = False

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        self.reads += 1
        if self.broken:
            raise RuntimeError("no route")
        return await super().read(key, **window)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        if self.rivals:
            self.rivals -= 1
            await self.rival.write((Append(A, (b'{"rival":1}',), Head(), None, AT, 7),))
        return await super().write(operations)


@pytest.fixture
def inner() -> Counted:
    return Counted(uuid.uuid4().hex)


async def test_an_append_that_expects_no_version_goes_behind_whoever_was_first(inner: Counted) -> None:
    journal = EncodedJournal(inner, codec())
    inner.rivals = 1
    assert await journal.write((Append(A, (b'{"mine":1}',), Head(), None, AT, 1),)) == (8,)
    inner.rivals = 3
    await journal.write((Append(A, (b'{"mine":2}',), Head(), None, AT, 1),))
    found = await stored(journal, A)
    assert [*found.items] == [b'{"rival":1}', b'{"mine":1}', *[b'{"rival":1}'] * 3, b'{"mine":2}']


async def test_an_append_that_is_never_first_gives_up_and_has_written_nothing(inner: Counted) -> None:
    journal = EncodedJournal(inner, Encryption(RING))
    inner.rivals = 10_000
    with pytest.raises(StoreUnavailableError, match="other writers were first 256 times") as raised:
        await journal.write((Append(A, (b'{"mine":1}',), Head(), None, AT, 1),))
    assert raised.value.retryable
    assert b'{"mine":1}' not in (await stored(journal, A)).items


async def test_a_version_that_was_expected_and_is_not_there_is_a_conflict(inner: Counted) -> None:
    journal = EncodedJournal(inner, codec())
    operations: list[Operation] = [
        Append(A, (b"{}",), Head(), 5, AT, 1),
        Append(A, (), Head(), 5, AT, 1),
        Replace(A, 0, (), Head(data=b"x"), 5, AT),
        Replace(A, 0, (), Head(data=b"x"), None, AT),
        Replace(A, 0, (b"{}",), Head(), None, AT),
        Delete(A, 5),
    ]
    for operation in operations:
        with pytest.raises(VersionConflictError) as raised:
            await journal.write((operation,))
        assert (raised.value.key, raised.value.actual) == ("a", 0)
    inner.rivals = 1
    await journal.write((Append(B, (b"{}",), Head(), 0, AT, 1),))
    inner.rivals = 1
    with pytest.raises(VersionConflictError):
        await journal.write((Append(A, (b"{}",), Head(), (await stored(journal, A)).version, AT, 1),))


async def test_heartbeats_creations_and_decisions_read_nothing_first(inner: Counted) -> None:
    journal = EncodedJournal(inner, codec())
    whole = Head(group="g", status="in-progress", data=b"{}")
    await journal.write((Append(A, (b"{}",), whole, 0, AT, 1),))
    await journal.write((Append(A, (), whole, 1, AT, 1),))
    await journal.write((Append(A, (), whole, None, AT, 1),))
    await journal.write((Replace(A, 1, (b"{}",), whole, 3, AT),))
    assert inner.reads == 0
    await journal.write((Append(A, (b"{}",), Head(), 4, AT, 1),))
    assert inner.reads == 1
    assert [*(await stored(journal, A)).items] == [b"{}"] * 3


async def test_a_part_of_a_head_keeps_the_rest_of_it() -> None:
    journal = EncodedJournal(MemoryJournal(), codec())
    await journal.write((Append(A, (), Head("g", "s", b"d"), 0, AT, 1),))
    await journal.write((Append(A, (), Head(status="t"), None, AT, 1),))
    assert (await stored(journal, A)).head == Head("g", "t", b"d")
    await journal.write((Replace(A, 0, (), Head(data=b"e"), None, AT),))
    assert (await stored(journal, A)).head == Head("g", "t", b"e")
    await journal.write((Append(A, (), Head(), None, AT, 1),))
    assert (await stored(journal, A)).head == Head("g", "t", b"e")
    await journal.write((Append(B, (), Head(), None, AT, 1),))
    assert (await stored(journal, B)).head == Head(None, None, b"")


async def test_both_of_an_atomic_write_are_bound_and_guarded() -> None:
    journal = EncodedJournal(MemoryJournal(), codec())
    run = Key(Part.RUNS, "a")
    await journal.write((Append(A, (b"1",), Head(), 0, AT, 1), Append(run, (b"2",), Head(), None, AT, 5)))
    versions = await journal.write((Append(A, (b"3",), Head(), None, AT, 1), Append(run, (b"4",), Head(), 5, AT, 1)))
    assert versions == (2, 6)
    with pytest.raises(VersionConflictError):
        await journal.write((Append(A, (b"5",), Head(), None, AT, 1), Append(run, (b"6",), Head(), 5, AT, 1)))
    assert [[*(await stored(journal, key)).items] for key in (A, run)] == [[b"1", b"3"], [b"2", b"4"]]


async def test_a_read_that_fails_before_the_write_says_that_nothing_was_written(inner: Counted) -> None:
    journal = EncodedJournal(inner, codec())
    await journal.write((Append(A, (b"{}",), Head(), 0, AT, 1),))
    inner.broken = True
    with pytest.raises(StoreUnavailableError, match="no route"):
        await journal_stores(journal).sessions.append("a", [{}])


# --- what cannot have a codec ---


async def test_a_store_that_is_no_journal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure import plugins
    from perdure.contracts.sessions import SessionStore

    class Own(SessionStore):
        async def _load(self, *_: Any, **__: Any) -> None: ...
        async def _append(self, *_: Any, **__: Any) -> int:
            return 1

    monkeypatch.setattr(plugins.Plugin, "make", lambda *_: Own())
    with pytest.raises(UnsupportedOperationError, match="codec"):
        await open_store(f"sqlite:{tmp_path}/x.db", codec=codec())
    assert not files_of(tmp_path)


async def test_a_store_of_ones_own_is_left_alone_and_a_codec_for_nothing_is_refused() -> None:
    mine = journal_stores(MemoryJournal()).sessions
    async with open_store("memory:", sessions=mine, codec=codec()) as store:
        assert store.sessions is mine
        assert isinstance(mine.journal, MemoryJournal)
        assert isinstance(store.checkpoints.journal, EncodedJournal)  # type: ignore[attr-defined]  # reason: it is a journal's
    with pytest.raises(InvalidArgumentError, match="nothing to work on"):
        await open_store(sessions=mine, codec=codec())
    with pytest.raises(InvalidArgumentError, match="codec"):
        await open_store("memory:", codec="zstd")  # type: ignore[arg-type]  # reason: that is what is refused


async def test_a_journal_that_does_not_tell_its_namespace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryJournal, "from_url", lambda _: MemoryJournal())
    with pytest.raises(UnsupportedOperationError, match="namespace"):
        await open_store("memory:?namespace=ann", codec=codec())
