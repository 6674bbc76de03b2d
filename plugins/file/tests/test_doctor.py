"""`perdure doctor file:DIR`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer

from perdure.cli.doctor import doctor
from perdure.cli.exit_codes import code_of
from perdure.errors import InvalidArgumentError, PerdureError
from perdure_file.doctor import doctor as examine
from perdure_file.journal import FileJournal


def ended_by(url: str, *, salvage: bool = False) -> int:
    """Run the command, in a thread since it has a loop of its own, and return its exit code."""

    def run() -> int:
        try:
            doctor(url, salvage=salvage)
        except typer.Exit as ended:
            return ended.exit_code
        except (PerdureError, OSError) as error:
            return code_of(error)
        raise AssertionError

    with ThreadPoolExecutor() as threads:
        return threads.submit(run).result()


@pytest.fixture
async def damaged(journal: FileJournal, op: Any, file_of: Callable[..., Path]) -> Path:
    for number in range(3):
        await journal.write([op.append("s", b'{"n":%d}' % number)])
    path = file_of("s")
    path.write_bytes(path.read_bytes().replace(b'{"item":{"n":1}}', b'{"item":{"n":1'))
    return path


@pytest.mark.anyio
async def test_damage_is_reported_repaired_when_told_and_gone(
    damaged: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = damaged.read_bytes()
    assert ended_by(f"file:{root}") == 1
    told = capsys.readouterr().out
    assert f"{damaged}: 2 items proven" in told
    assert "line 4, offset" in told
    assert "Files examined: 1.\n" in told
    assert told.count("DAMAGED") == 1
    assert told.endswith("Damage was found.\n")
    assert damaged.read_bytes() == content
    assert ended_by(f"file:{root}", salvage=True) == 0
    told = capsys.readouterr().out
    assert "2 items recovered" in told
    assert told.endswith("No damage is left.\n")
    assert ended_by(f"file:{root}") == 0
    told = capsys.readouterr().out
    assert "Whole: 1 sessions with 2 records, 0 turn journals, 0 approvals.\n" in told
    assert told.endswith("No damage was found.\n")


@pytest.mark.anyio
async def test_what_cannot_be_recovered_is_left_and_the_way_out_is_told(
    journal: FileJournal, root: Path, file_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of("a.turn-1", "approvals")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert ended_by(f"file:{root}", salvage=True) == 1
    told = capsys.readouterr().out
    assert "restore a backup, or remove the file" in told
    assert told.endswith("Damage is left.\n")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("url", ["sqlite:x.db", "sqlite:deep/x.db", "file:x", "file:", "file://x/y"])
def test_a_store_that_is_missing_is_not_made(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended_by(url) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_or_cannot_salvage_is_said(tmp_path: Path) -> None:
    for url, salvage in ((f"file:{tmp_path / 'nowhere'}", False), ("memory:", True), ("what:", False)):
        assert ended_by(url, salvage=salvage) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, problem in (("file", "is a file, where a directory is needed: "), ("nowhere", "does not exist: ")):
        with pytest.raises(InvalidArgumentError, match=problem):
            list(examine(tmp_path / name))
