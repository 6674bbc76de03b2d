"""What the tests of the SQLite backend share."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure.backend import Append, Head, Key, Part
from perdure_sqlite.journal import SqliteJournal

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

# What every script of a child process begins with.
PRELUDE = """
import asyncio, os, sys
from datetime import UTC, datetime
from perdure.backend import *
from perdure_sqlite.journal import SqliteJournal
AT = datetime(2026, 1, 2, tzinfo=UTC)
PATH = sys.argv[1]
def append(id, *items, expected=None, first=1):
    return Append(Key(Part.SESSIONS, id), items, Head(), expected, AT, first)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(path)
    await journal.open()
    yield journal
    await journal.close()


@pytest.fixture
def append() -> Callable[..., Append]:
    """Make an append to a session."""

    def make(name: str, *items: bytes, expected: int | None = None, first: int = 1, at: datetime = AT) -> Append:
        return Append(Key(Part.SESSIONS, name), items, Head(), expected, at, first)

    return make


@pytest.fixture
def start(path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Start a process that runs a script on the file."""

    def run(script: str, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.fixture
def together(start: Callable[..., "subprocess.Popen[str]"]) -> Callable[..., list[str]]:
    """Run a script in eight processes that go on together from each `ready()`; answer what each printed at last."""
    barrier = "\ndef ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"

    def run(script: str, *, rounds: int = 1) -> list[str]:
        children = [start(barrier + script, str(number)) for number in range(8)]
        for _ in range(rounds):
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n", child.communicate()
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
        ended = [(*child.communicate(timeout=60), child.returncode) for child in children]
        assert [(error, code) for _, error, code in ended] == [("", 0)] * 8
        return [output for output, _, _ in ended]

    return run
