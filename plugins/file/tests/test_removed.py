"""A directory that is removed, or put back from a backup, below an open store: nothing is taken for absent."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import Part, StoreUnavailableError
from perdure_file.journal import FileJournal

pytestmark = pytest.mark.anyio


async def scan(journal: FileJournal, part: Part = Part.SESSIONS) -> Any:
    return await journal.scan(part, group=None, status=None, before=None, order="id", after=None, limit=9)


@pytest.mark.parametrize("removed", [".", "default", "default/sessions"])
@pytest.mark.parametrize("restored", [True, False])
async def test_calls_say_that_the_store_must_be_opened_again(
    journal: FileJournal, root: Path, op: Any, tmp_path: Path, *, removed: str, restored: bool
) -> None:
    await journal.write([op.append("s", b"{}")])
    shutil.copytree(root, tmp_path / "backup")
    shutil.rmtree(root / removed)
    if restored:
        shutil.copytree(tmp_path / "backup", root, dirs_exist_ok=True)
    calls = [op.read(journal, "s"), op.read(journal, "other"), scan(journal)]
    calls += [
        journal.write([operation]) for operation in (op.append("s"), op.append("new", expected=0), op.delete("s"))
    ]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match="open it again"):
            await call
    await journal.close()
    again = FileJournal(root)
    await again.open()
    found = await op.read(again, "s")
    assert (found is not None) == restored
    assert await again.write([op.append("new", expected=0)]) == (1,)
    await again.close()


async def test_so_do_those_of_a_part_whose_folder_was_not_opened_before(
    journal: FileJournal, root: Path, op: Any
) -> None:
    assert await op.read(journal, "s") is None
    assert await scan(journal) == []
    shutil.rmtree(root)
    for call in (op.read(journal, "s"), scan(journal), scan(journal, Part.RUNS), journal.write([op.append("s")])):
        with pytest.raises(StoreUnavailableError):
            await call


async def test_looking_costs_one_call_where_nothing_is_found(journal: FileJournal, op: Any, disk: Any) -> None:
    await journal.write([op.append("s", b"{}")])
    disk.reset()
    assert await op.read(journal, "other") is None
    assert dict(disk.calls) == {"open": 1, "status": 1}
