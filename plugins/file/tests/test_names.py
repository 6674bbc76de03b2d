"""Ids and the files they become."""

import os
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.backend import Part, StoreCorruptedError
from perdure_file.doctor import doctor
from perdure_file.journal import FileJournal
from perdure_file.names import DEVICES, to_id, to_name

IDS = st.from_regex(r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}\Z")

CONFUSABLE = [
    "A", "a", "AB", "Ab", "aB", "ab", "a-b", "a_b", "a.b", "ab-", "ab_", "nul", "NUL", "Nul", "con", "CON", "con.run", "CON.run",
    "aux.turn-1", "prn", "com1", "COM9", "lpt1", "conx", "a.", "a..", "-", "--", "-rf", "_", "0", "00", "x--", "x--a",
    "a.lock", "a.jsonl", "a.jsonl.jsonl", "a.tmp", "lock", "default", "sessions", "a" * 200, "A" * 200, "Ab" * 100, "z" * 199 + "Z",
]  # fmt: skip


def test_confusable_ids_have_names_that_no_file_system_takes_for_one() -> None:
    names = [f"{to_name(key_id)}.jsonl" for key_id in CONFUSABLE]
    assert len({name.casefold() for name in names}) == len(CONFUSABLE)
    assert [to_id(to_name(key_id)) for key_id in CONFUSABLE] == CONFUSABLE


@given(IDS)
def test_a_name_is_safe_everywhere_and_gives_back_the_id(id: str) -> None:
    name = to_name(id)
    assert to_id(name) == id
    assert name == name.lower()
    assert set(name) <= set(string.ascii_lowercase + string.digits + "_-.,")
    assert not name.startswith(".")
    assert name.partition(".")[0] not in DEVICES
    assert len(f"{name}.jsonl") <= 255


@given(st.text(string.ascii_letters + string.digits + "_-.,", max_size=12))
def test_no_two_names_give_one_id(name: str) -> None:
    found = to_id(name)
    assert found is None or to_name(found) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "a,", "a,0", "a,2", "a,1,1", "con", ",a", "con.x", "é", "a b", "0,1", "a\n", ".", ".a", "._alice,1"],
)
def test_what_no_id_is_called_has_no_id(name: str) -> None:
    assert to_id(name) is None


async def listed(journal: FileJournal) -> list[str]:
    window: dict[str, Any] = {"group": None, "status": None, "before": None, "after": None}
    return [info.id for info in await journal.scan(Part.SESSIONS, order="id", limit=1000, **window)]


@pytest.mark.anyio
async def test_confusable_ids_are_different_keys_and_listed_exactly(journal: FileJournal, op: Any) -> None:
    for version, name in enumerate(CONFUSABLE, 1):
        await journal.write([op.append(name, b'"%s"' % name.encode(), first=version)])
    for version, name in enumerate(CONFUSABLE, 1):
        found = await op.read(journal, name)
        assert (found.id, found.version, list(found.items)) == (name, version, [b'"%s"' % name.encode()])
    assert await listed(journal) == sorted(CONFUSABLE)


@pytest.mark.anyio
async def test_what_a_system_puts_beside_a_file_is_left_alone(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("Alice", b"{}")])
    beside = file_of("Alice").with_name(f"._{file_of('Alice').name}")
    beside.write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert await listed(journal) == ["Alice"]
    assert [report.path for report in doctor(file_of("Alice").parents[2])] == [file_of("Alice")]


@pytest.mark.anyio
async def test_namespaces_that_differ_in_case_are_apart(root: Path, op: Any) -> None:
    journals = [FileJournal(root, namespace=name) for name in ("A", "a", "a-b", "nul", "default")]
    for version, journal in enumerate(journals, 1):
        await journal.open()
        await journal.write([op.append("s", first=version)])
    for version, journal in enumerate(journals, 1):
        assert (await op.read(journal, "s")).version == version
        await journal.close()
    assert len({path.parent.parent.name.casefold() for path in op.files(root) if path.name == "s.jsonl"}) == len(
        journals
    )


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["file", "part", "namespace", "temporary", "locks", "lock"])
async def test_a_link_in_the_store_is_not_followed_out_of_it(tmp_path: Path, root: Path, op: Any, what: str) -> None:
    outside = FileJournal(tmp_path / "outside")
    await outside.open()
    await outside.write([op.append("s", b'{"secret":1}')])
    await outside.write([op.append("other", b"{}")])
    await outside.close()
    inside = FileJournal(root)
    await inside.open()
    await inside.write([op.append("s", b"{}")])
    await inside.close()
    names = {
        "file": "default/sessions/s.jsonl",
        "part": "default/sessions",
        "namespace": "default",
        "temporary": "default/temporary",
        "locks": "default/locks",
        "lock": "default/locks/sessions/s.lock",
    }
    link, target = root / names[what], tmp_path / "outside" / names[what]
    target.parent.mkdir(parents=True, exist_ok=True)
    link.rename(tmp_path / "moved")
    link.symlink_to(target)
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()}

    async def use() -> None:
        journal = FileJournal(root)
        await journal.open()
        try:
            if what in ("file", "part"):
                with pytest.raises(StoreCorruptedError, match="link"):
                    await op.read(journal, "s")
                with pytest.raises(StoreCorruptedError, match="link"):
                    await journal.scan(
                        op.key("").part, group=None, status=None, before=None, order="id", after=None, limit=9
                    )
            await journal.write([op.append("s", b"{}")])
        finally:
            await journal.close()

    with pytest.raises(StoreCorruptedError, match="link"):
        await use()
    assert {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()} == before


@pytest.mark.anyio
async def test_a_pipe_or_a_directory_in_the_place_of_a_file_is_damage(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    await journal.write([op.append("a")])
    os.mkfifo(file_of("pipe"))
    file_of("dir").mkdir()
    for name in ("pipe", "dir"):
        with pytest.raises(StoreCorruptedError):
            await op.read(journal, name)
        with pytest.raises(StoreCorruptedError):
            await journal.write([op.append(name)])


@pytest.mark.anyio
async def test_the_store_itself_may_be_a_link(tmp_path: Path, op: Any) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    journal = FileJournal(tmp_path / "link")
    await journal.open()
    await journal.write([op.append("s")])
    await journal.close()
    assert (tmp_path / "real/default/sessions/s.jsonl").exists()
