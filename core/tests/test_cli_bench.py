"""`perdure bench`, and what `perdure doctor` does on every backend."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from core.tests.cli_world import fill
from core.tests.command_line import Perdure

from perdure import open_store
from perdure.at_rest import Compression
from perdure.cli.measuring import Measured


@pytest.fixture
def perdure(tmp_path: Path) -> Perdure:
    return Perdure(tmp_path)


@pytest.mark.parametrize("url", ["sqlite:a.db?synchronous=normal", "file:deep/er?shared=true", "sqlite::memory:"])
def test_a_store_is_measured_and_nothing_is_left(perdure: Perdure, url: str) -> None:
    found = perdure.json("bench", url, "--seconds", "0.2")
    figures = [Measured(**figure) for figure in found["figures"]]
    assert [figure.what.split(" ")[0] for figure in figures] == ["append", "append", "load", "load", "list"]
    for figure in figures:
        assert figure.calls >= 3
        assert 0 < figure.median_ms <= figure.p95_ms
        assert figure.per_second > 0
    assert (found["store"], found["left"]) == (url, [])
    assert list(perdure.directory.iterdir()) == []


def test_data_that_is_there_is_not_touched(perdure: Perdure) -> None:
    asyncio.run(fill(f"sqlite:{perdure.directory / 'a.db'}"))
    before = (perdure.directory / "a.db").read_bytes()
    shown = perdure("bench", "--store", "sqlite:a.db", "--seconds", "0.2", code=0).out
    assert shown.startswith("sqlite:a.db, measured in a new store beside it\nwhat ")
    assert [path.name for path in perdure.directory.iterdir()] == ["a.db"]
    assert (perdure.directory / "a.db").read_bytes() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_measurement_leaves_nothing(perdure: Perdure, number: signal.Signals, code: int) -> None:
    def begun() -> bool:
        return any(perdure.directory.glob("perdure-bench-*/store-wal"))

    ran = perdure.interrupted("bench", "sqlite:a.db", "--seconds", "60", when=begun, by=number)
    assert (ran.code, ran.out) == (code, "perdure bench: interrupted\n")
    assert list(perdure.directory.iterdir()) == []


def test_every_backend_is_examined_on_a_terminal_and_in_a_pipe(perdure: Perdure) -> None:
    for url in ("sqlite:a.db", "file:files"):
        asyncio.run(fill(url.replace(":", f":{perdure.directory}/")))
        shown = perdure("doctor", url, code=0).out
        assert "Whole: 5 sessions with 5 records, 6 turn journals, 2 approvals.\nNo damage was found.\n" in shown
        on_terminal = perdure.on_terminal("doctor", url)
        assert on_terminal.code == 0
        assert "\x1b[1;32mNo damage was found." in on_terminal.out
        assert "reading" in on_terminal.out
        assert "reading" not in shown


def test_what_a_codec_has_written_is_not_read_without_it(perdure: Perdure) -> None:
    async def write() -> None:
        async with open_store(f"sqlite:{perdure.directory / 'a.db'}", codec=Compression()) as store:
            await store.sessions.append("a", [{"text": "x" * 5_000}])

    asyncio.run(write())
    (perdure.directory / "stored.py").write_text("from perdure.at_rest import Compression as zstd\n")
    found = perdure.json("doctor", "sqlite:a.db", code=1)
    assert (found["unread"], found["damaged"], found["counts"]) == (1, False, {})
    assert "1 were not read" in perdure("doctor", "sqlite:a.db", code=1).out
    assert perdure.json("--codec", "stored:zstd", "doctor", "sqlite:a.db")["counts"] == {"sessions": 1, "records": 1}


def test_a_store_whose_plugin_cannot_examine_it_is_opened_and_read(perdure: Perdure) -> None:
    asyncio.run(fill(f"sqlite:{perdure.directory / 'a.db'}"))
    site = perdure.directory / "kept_store-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: kept-store\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[perdure.stores]\nkept = kept\n")
    (perdure.directory / "kept.py").write_text(
        "from perdure.backend import journal_hooks\nPERDURE_CONTRACT = 1\n"
        "perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(\n"
        "    'perdure_sqlite.journal:SqliteJournal.from_url')\n"
    )
    code = "import sys; sys.path.insert(0, '.'); from perdure.cli import main; main()"
    command = [sys.executable, "-c", code, "doctor", "kept:a.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=perdure.directory)
    assert done.stdout == ("Whole: 5 sessions with 5 records, 6 turn journals, 2 approvals.\nNo damage was found.\n")


def test_a_url_is_needed_once(perdure: Perdure) -> None:
    assert "no store is given" in perdure("bench", code=2).err
    assert "no store is given" in perdure("doctor", code=2).err
