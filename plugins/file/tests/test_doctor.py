"""`perdure doctor file:DIR`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from perdure.cli.doctor import doctor
from perdure_file.journal import FileJournal


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
    with pytest.raises(typer.Exit) as ended:
        doctor(f"file:{root}")
    assert ended.value.exit_code == 1
    told = capsys.readouterr().out
    assert f"{damaged}: 2 items proven" in told
    assert "line 4, offset" in told
    assert told.endswith("Files examined: 1.\nDamage was found. --salvage recovers what is whole.\n")
    assert damaged.read_bytes() == content
    doctor(f"file:{root}", salvage=True)
    told = capsys.readouterr().out
    assert "2 items recovered" in told
    assert told.endswith("No damage is left.\n")
    doctor(f"file:{root}")
    assert capsys.readouterr().out == "Files examined: 1.\nNo damage was found.\n"


@pytest.mark.anyio
async def test_what_cannot_be_recovered_is_left_and_the_way_out_is_told(
    journal: FileJournal, root: Path, file_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of("a.turn-1", "approvals")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(typer.Exit) as ended:
        doctor(f"file:{root}", salvage=True)
    assert ended.value.exit_code == 1
    told = capsys.readouterr().out
    assert "restore a backup, or remove the file" in told
    assert told.endswith("Damage is left.\n")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("url", ["sqlite:x.db", "sqlite:deep/x.db", "file:x", "file:", "file://x/y"])
def test_a_store_that_is_missing_is_not_made(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as ended:
        doctor(url)
    assert ended.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_or_cannot_salvage_is_said(tmp_path: Path) -> None:
    for url, salvage in ((f"file:{tmp_path / 'nowhere'}", False), ("memory:", True), ("what:", False)):
        with pytest.raises(typer.Exit) as ended:
            doctor(url, salvage=salvage)
        assert ended.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_an_examination_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    doctor("memory:")
    assert capsys.readouterr().out == "The store opens. Its plugin cannot examine what is in it.\n"
