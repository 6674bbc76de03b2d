"""What was checked once is known again: by what it is, so that nothing is missed that has changed since."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import StoreCorruptedError
from perdure_file import known, log
from perdure_file.disk import Disk
from perdure_file.journal import FileJournal
from perdure_file.lines import check_writes

pytestmark = pytest.mark.anyio

SIZE = 4000
"""Of an item, so that a few of them are a piece that is worth knowing."""


class NoSync(Disk):
    """Syncs nothing: these tests are about what is in the file."""

    def sync(self, file: int) -> None:
        pass


@pytest.fixture
async def journal(root: Path) -> Any:
    journal = FileJournal(root, disk=NoSync())
    await journal.open()
    yield journal
    await journal.close()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes have been checked write by write, piece by piece."""
    sizes: list[int] = []

    def counted(data: bytes, *rest: Any) -> tuple[int, int, int]:
        place, count, missing = check_writes(data, *rest)
        sizes.append(len(data) - place)
        return place, count, missing

    monkeypatch.setattr(log, "check_writes", counted)
    return sizes


async def fill(journal: FileJournal, op: Any, name: str, numbers: range, size: int = SIZE) -> list[bytes]:
    items = [b'{"n":%d,"x":"%s"}' % (number, b"x" * size) for number in numbers]
    for item in items:
        await journal.write([op.append(name, item)])
    return items


async def test_a_second_reading_checks_whole_pieces_and_what_has_been_added(
    journal: FileJournal, op: Any, checked: list[int]
) -> None:
    items = await fill(journal, op, "s", range(200))
    assert (await op.read(journal, "s")).items == items
    assert sum(checked) > 200 * SIZE
    for number in range(200, 260):
        checked.clear()
        assert (await op.read(journal, "s")).items == items
        assert sum(checked) <= 10 * (SIZE + 400), number
        items += await fill(journal, op, "s", range(number, number + 1))


async def test_windows_of_a_known_file_are_those_of_a_list(journal: FileJournal, op: Any) -> None:
    items = await fill(journal, op, "s", range(100))
    await op.read(journal, "s")
    for start in range(0, 101, 7):
        for limit in (1, 20, 100):
            found = (await op.read(journal, "s", after=start, limit=limit)).items
            assert found == items[start : start + limit]
            assert len(list(found.decoded())) == len(found)
        assert (await op.read(journal, "s", last=start)).items == items[100 - start :]


async def test_a_spoiled_byte_of_a_known_piece_is_damage_and_names_its_place(
    journal: FileJournal, op: Any, file_of: Callable[..., Path]
) -> None:
    items = await fill(journal, op, "s", range(40))
    path = file_of("s")
    content = path.read_bytes()
    for offset in range(0, len(content), 1999):
        assert (await op.read(journal, "s")).items == items
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([content[offset] ^ 1]))
        line = content.count(b"\n", 0, offset)
        with pytest.raises(StoreCorruptedError) as caught:
            await op.read(journal, "s")
        told = int(str(caught.value).partition(", line ")[2].partition(",")[0])
        assert told in (line, line + 1), (offset, caught.value)
        path.write_bytes(content)


@pytest.mark.parametrize("size", [SIZE, SIZE - 1, 90_000, 900_000], ids=str)
async def test_a_file_in_the_place_of_a_known_one_is_read_as_it_is(
    journal: FileJournal, root: Path, op: Any, size: int
) -> None:
    await fill(journal, op, "s", range(60))
    await op.read(journal, "s")
    other = FileJournal(root, disk=NoSync())
    await other.open()
    await other.write([op.delete("s")])
    items = await fill(other, op, "s", range(100, 160 if size <= SIZE else 105), size)
    await other.close()
    for _ in range(2):
        assert (await op.read(journal, "s")).items == items


async def test_only_the_files_that_were_read_last_are_remembered(journal: FileJournal, op: Any) -> None:
    for number in range(known.KEPT + 20):
        await journal.write([op.append(f"s{number}", b"{}")])
        await op.read(journal, f"s{number}")
    await journal.scan(op.key("").part, group=None, status=None, before=None, order="id", after=None, limit=9)
    files = list(journal._directory._known._files)
    assert len(files) == known.KEPT
    assert files[-1].endswith(f"s{known.KEPT + 19}.jsonl")
