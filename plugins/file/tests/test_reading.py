"""What is written comes back, in every window, and other tools can read it."""

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.backend import Head, SchemaVersionError, StoreCorruptedError, VersionConflictError, codec, journal_stores
from perdure_file.disk import Disk
from perdure_file.items import Items
from perdure_file.journal import FileJournal
from perdure_file.lines import _sealed, check_writes, is_torn, read_commit, read_items, write_batch

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 2, tzinfo=UTC)


async def test_each_line_is_an_object_and_says_what_it_is(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    record = b'{"role":"user","content":"z\\u00e9 \xe2\x82\xac"}'
    await journal.write([op.append("Order-7", record, first=41, data=b'{"title":"t"}', group="g", status="open")])
    await journal.write([op.append("Order-7", record, b"\x00 raw", expected=41)])
    lines = [json.loads(line) for line in file_of("Order-7").read_bytes().split(b"\n")[:-1]]
    assert [next(iter(line)) for line in lines] == ["perdure", "item", "commit", "item", "base64", "commit"]
    assert {**lines[0], "check": ""} == {
        "perdure": "file",
        "format": 1,
        "part": "sessions",
        "id": "Order-7",
        "check": "",
    }
    assert [line["item"] for line in lines if "item" in line] == [json.loads(record)] * 2
    commit = lines[-1]["commit"]
    assert (commit["version"], commit["count"], commit["items"]) == (42, 3, 2)
    assert (commit["group"], commit["status"], commit["data"]) == ("g", "open", {"title": "t"})
    assert commit["updated_at"] == "2026-01-02T03:04:05.678901Z"
    assert record in file_of("Order-7").read_bytes()  # an item is there as it was given


async def test_a_newer_format_is_refused_and_stays_as_it_is(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s", b"{}")])
    content = _sealed(b'{"perdure":"file","format":2,"what":"ever"') + b"something new\n"
    file_of("s").unlink()
    file_of("s").write_bytes(content)
    for call in (
        lambda: journal.read(op.key("s")),
        lambda: journal.write([op.append("s", b"{}")]),
        lambda: journal.write([op.replace("s", 0)]),
        lambda: journal.write([op.delete("s")]),
        lambda: journal.scan(op.key("").part, group=None, status=None, before=None, order="id", after=None, limit=9),
    ):
        with pytest.raises(SchemaVersionError) as caught:
            await call()
        assert (caught.value.found, caught.value.supported) == (2, 1)
    assert file_of("s").read_bytes() == content


async def test_reading_and_listing_leave_no_file_open(journal: FileJournal, op: Any, root: Path) -> None:
    await journal.write([op.append("s", b"{}")])
    window: dict[str, Any] = {"group": None, "status": None, "before": None, "order": "id", "after": None, "limit": 9}
    before: list[str] = []
    for number in range(4):
        if number == 1:
            before = op.descriptors(root)
        assert await journal.read(op.key("s")) is not None
        assert len(await journal.scan(op.key("").part, **window)) == 1
    assert op.descriptors(root) == before


async def test_unknown_fields_of_a_commit_are_let_be(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("s", b"{}", first=5)])
    path = file_of("s")
    *lines, last = path.read_bytes().splitlines(keepends=True)
    fields = json.loads(last)["commit"] | {"future": [1]}
    path.write_bytes(b"".join(lines) + _sealed(b'{"commit":' + json.dumps(fields).encode()))
    assert (await op.read(journal, "s")).version == 5


@pytest.mark.parametrize("size", [1, 100, 70_000])
async def test_every_window_is_the_same_as_of_a_list(root: Path, op: Any, size: int) -> None:
    class NoSync(Disk):
        def sync(self, file: int) -> None:
            pass

    journal = FileJournal(root, disk=NoSync())
    await journal.open()
    everything: list[bytes] = []
    for number in range(40):
        items = [b'{"n":%d,"x":"%s"}' % (number, b"y" * (size + 13 * part)) for part in range((number * 7) % 4)]
        everything += items
        await journal.write([op.append("s", *items)])
    count = len(everything)
    for after in range(0, count + 2, 3):
        for limit in (None, 0, 1, 7, 100):
            found = await op.read(journal, "s", after=after, limit=limit)
            assert list(found.items) == everything[after:][:limit]
            assert (found.start, found.count) == (min(after, count), count)
    for last in range(count + 2):
        found = await op.read(journal, "s", last=last)
        assert list(found.items) == (everything[-last:] if last else [])
        assert found.start == max(count - last, 0)
    await journal.close()


async def test_items_decode_to_what_their_bytes_are(journal: FileJournal, op: Any) -> None:
    """Where one of them cannot be decoded together with others, it stays bytes, and so do those that are read with it."""
    plain = [b'{"n":%d,"x":[1.0,"\xc3\xa9"],"item":{"commit":1}}' % number for number in range(3)]
    odd = [b'{"half":"\\ud800"}', b'{"n":123456789012345678901234567890}', b"[1]", b"null", b"{}", b"\x00 no JSON"]

    def value(item: Any) -> Any:
        return codec.decode(item) if isinstance(item, bytes) and item != odd[-1] else item

    for number, items in enumerate([plain, *([*plain, item, *plain] for item in odd)]):
        for item in items:
            await journal.write([op.append(f"s{number}", item)])
        for start, stop in ((0, 7), (1, 3), (2, 7)):
            expected = items[start:stop]
            found = (await op.read(journal, f"s{number}", after=start, limit=stop - start)).items
            assert len(found) == len(expected)
            for _ in range(2):
                assert [value(one) for one in found.decoded()] == [value(one) for one in expected]
            assert found == expected
            assert found != items[:-1]
            assert (found[0], found[-1:], list(found.decoded())) == (expected[0], expected[-1:], expected)
            assert found == (await op.read(journal, f"s{number}", after=start, limit=len(found))).items
    assert all(type(one) is dict for one in (await op.read(journal, "s0")).items.decoded())


@pytest.mark.parametrize("claimed", [0, 1, 3])
async def test_a_commit_that_counts_other_items_than_are_there_is_damage(
    journal: FileJournal, op: Any, file_of: Callable[..., Path], claimed: int
) -> None:
    await journal.write([op.append("s", b"{}", b"{}")])
    path = file_of("s")
    *lines, last = path.read_bytes().splitlines(keepends=True)
    commit = json.loads(last)["commit"] | {"items": claimed, "count": claimed + 1}
    path.write_bytes(b"".join(lines) + _sealed(b'{"commit":' + json.dumps(commit).encode()))
    with pytest.raises(StoreCorruptedError):
        list((await op.read(journal, "s")).items)
    commit["count"] = claimed
    path.write_bytes(b"".join(lines) + _sealed(b'{"commit":' + json.dumps(commit).encode()))
    if claimed:
        for look in (list, Items.decoded):
            with pytest.raises(StoreCorruptedError, match="number of its items"):
                list(look((await op.read(journal, "s")).items))
    else:
        assert (await op.read(journal, "s")).items == []


async def test_a_large_head_and_large_items_are_found_from_the_end(journal: FileJournal, op: Any) -> None:
    state, record = b'{"s":"%s"}' % (b"s" * 3_000_000), b'{"r":"%s"}' % (b"r" * 3_000_000)
    await journal.write([op.append("s", record, record, data=state)])
    await journal.write([op.append("s", b"{}", expected=None)])
    await journal.write([op.append("s", record)])
    found = await op.read(journal, "s")
    assert (list(found.items), found.head.data) == ([record, record, b"{}", record], state)
    assert list((await op.read(journal, "s", after=2, limit=1)).items) == [b"{}"]


async def test_replace_keeps_a_prefix_and_what_the_head_does_not_set(journal: FileJournal, op: Any) -> None:
    await journal.write([op.append("s", b"0", b"1", b"2", first=7, group="g", status="x", data=b"d")])
    for keep, expected in ((4, None), (0, 3)):
        with pytest.raises(VersionConflictError):
            await journal.write([op.replace("s", keep, expected=expected)])
    assert await journal.write([op.replace("s", 2, b"new", expected=7)]) == (8,)
    found = await op.read(journal, "s")
    assert (list(found.items), found.rewritten, found.head) == ([b"0", b"1", b"new"], 8, Head("g", "x", b"d"))
    await journal.write([op.append("s")])
    assert (await op.read(journal, "s")).rewritten == 8


TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)
HEADS = st.builds(Head, st.none() | TEXT, st.none() | TEXT, st.binary(max_size=20) | st.just(b'{"a":"\\ud800"}'))
ITEMS = st.lists(
    st.binary(max_size=30)
    | TEXT.map(lambda text: json.dumps({"text": text}).encode())
    | st.sampled_from([b"{}", b" {}", b"1", b'""', b"nul", b'"', b'{"commit":{}}', b'{"a":"\\ud800"}', b"\n", b"", b"\xef\xbb\xbf[]", "[]".encode("utf-16")]),
    max_size=5,
)  # fmt: skip


@given(ITEMS, HEADS)
@settings(max_examples=60)
def test_any_bytes_and_any_head_come_back_and_every_line_is_json(items: list[bytes], head: Head) -> None:
    about: dict[str, Any] = {
        "version": 2**70,
        "before": 3,
        "offset": 100,
        "rewritten": 1,
        "created_at": AT,
        "updated_at": AT,
    }
    data, _ = write_batch(items, head=head, **about)
    commit = read_commit(data.split(b"\n")[-2] + b"\n")
    assert check_writes(b"?\n" + data, 98, 3 + len(items), 0) == (2, 3, 4)
    assert read_items(b"?\n" + data, 2) == items
    assert commit.head == Head(head.group, head.status, head.data or b"")
    assert (commit.version, commit.count, commit.created_at) == (2**70, 3 + len(items), AT)
    assert all(len(json.loads(line)) in (1, 2) for line in data.decode("utf-8", "replace").split("\n")[:-1])
    assert not is_torn(data)


@given(ITEMS, HEADS, st.data())
@settings(max_examples=60)
def test_every_beginning_of_a_write_is_torn_and_none_with_a_spoiled_end_is(
    items: Any, head: Head, choose: st.DataObject
) -> None:
    data, _ = write_batch(items, version=1, before=0, offset=9, rewritten=0, created_at=AT, updated_at=AT, head=head)
    cut = choose.draw(st.integers(0, len(data) - 1))
    assert is_torn(data[:cut])
    assert is_torn(data[:cut] + b"\0" * 9) or cut == len(data) - 1


def test_what_looks_like_the_end_of_a_commit_and_is_of_its_head_ends_none() -> None:
    head = Head(data=b'{"a":1,"check":"0123abcd"}')
    about: dict[str, Any] = {"before": 0, "offset": 9, "rewritten": 0, "created_at": AT, "updated_at": AT}
    data, _ = write_batch([b"{}"], version=1, head=head, **about)
    for cut in range(len(data) - 1):
        assert is_torn(data[:cut])
        assert is_torn(data[:cut] + b"\0" * 9)
    assert is_torn(data[:-1])
    for spoiled in (b"\0", b" ", b"x", b"\0" * 9):
        assert not is_torn(data[:-1] + spoiled)


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
async def test_the_files_are_readable_with_jq_as_the_reference_page_says(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    stores = journal_stores(journal)
    records: list[dict[str, Any]] = [{"n": 1, "text": "a\0\u2028"}, {"n": -0.0}, {"n": 10**20}]
    await stores.sessions.append("Alice", records[:1], state={"title": "t"}, scope="acme")
    await stores.sessions.append("Alice", records[1:])

    def jq(*arguments: str, text: bytes) -> list[Any]:
        told = subprocess.run(["jq", "-c", *arguments], input=text, capture_output=True, check=True).stdout
        return [json.loads(line) for line in told.splitlines()]

    content = file_of("Alice").read_bytes()
    assert len(jq(".", text=content)) == 6
    assert [item["n"] for item in jq('select(has("item")).item', text=content)] == [1, 0, 10**20]
    last = content.splitlines(keepends=True)[-1]
    (told,) = jq(".commit | {version, count, group, data}", text=last)
    assert (told["count"], told["group"], told["data"]) == (3, "acme", {"title": "t"})
    # Half of a surrogate pair, which jq refuses and others take: its line, and no other, can be passed over.
    await stores.sessions.append("Alice", [{"text": "\ud800"}, {"n": 3}])
    found = jq("-R", 'fromjson? | select(has("item")).item', text=file_of("Alice").read_bytes())
    assert [item["n"] for item in found if "n" in item] == [1, 0, 10**20, 3]
