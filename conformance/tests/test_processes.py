"""The kit's other processes: real ones, forked from a clean process, and gone with the kit whatever ends it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure_conformance.checks import LawBrokenError
from perdure_conformance.processes import Worker

PATIENCE = 60.0
LINUX = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="the end of a process that is no child is told by a pidfd"
)

OPENER = """
import os, sys, threading
from pathlib import Path

import perdure

async def talks(text):
    print("chatter")
    os.write(1, b"more of it, as a child of the store's may say\\n")
    return await perdure.open_store(f"memory:{sys.stdin.readline() or text}")

async def hangs(text):
    Path(text).write_text(str(os.getpid()))
    threading.Event().wait()

async def ends(text):
    print("these are my last words", file=sys.stderr)
    sys.stderr.flush()
    os._exit(7)

async def tells(text):
    Path(text).write_text(" ".join([os.environ["TOLD"], os.getcwd(), str(len(os.listdir("/proc/%d/task" % os.getppid())))]))
    os._exit(0)
"""

KIT = """
import asyncio, sys
from perdure_conformance.cli.surroundings import prepare
from perdure_conformance.processes import Worker

async def main():
    worker = await Worker.start(sys.argv[1])
    worker.send("open")
    print("asked", flush=True)
    await worker.read_line("open")

prepare()
asyncio.run(main())
"""


@pytest.fixture
def opener(tmp_path: Path) -> str:
    """Return what the URLs of the openers begin with."""
    file = tmp_path / "opener.py"
    file.write_text(OPENER)
    return f"python:{file}"


def test_a_worker_that_ends_tells_its_last_words(opener: str) -> None:
    async def told() -> None:
        worker = await Worker.start(f"{opener}:ends:")
        try:
            await worker.call("open")
        finally:
            await worker.kill()

    with pytest.raises(LawBrokenError, match="these are my last words"):
        asyncio.run(told())


def test_what_a_store_prints_in_a_worker_is_no_answer(opener: str) -> None:
    async def answered() -> tuple[object, object]:
        worker = await Worker.start(f"{opener}:talks:x")
        try:
            return await worker.call("create", key="s1.turn-1.s0.c0"), await worker.call("load", key="s1")
        finally:
            await worker.kill()

    version, absent = asyncio.run(answered())
    assert isinstance(version, int)
    assert absent is None


def test_a_worker_ends_as_it_was_told_or_is_killed() -> None:
    async def codes() -> tuple[int, int | None]:
        left, killed = [await Worker.start("memory:x") for _ in range(2)]
        code = await left.end("leave")
        await left.kill()
        await killed.call("open")
        await killed.kill()
        return code, await killed.end("leave")

    assert asyncio.run(codes()) == (0, -signal.SIGKILL)


@LINUX
def test_a_worker_has_the_environment_of_the_kit_and_a_parent_with_one_thread(
    opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", "later than the server was started")
    monkeypatch.chdir(tmp_path)

    async def told() -> str:
        worker = await Worker.start(f"{opener}:tells:{tmp_path / 'told'}")
        await worker.end("open")
        await worker.kill()
        return (tmp_path / "told").read_text()

    assert asyncio.run(told()) == f"later than the server was started {tmp_path} 1"


@LINUX
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_kit_that_is_ended(how: signal.Signals, opener: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    kit = subprocess.Popen([sys.executable, "-c", KIT, f"{opener}:hangs:{told}"], stderr=subprocess.DEVNULL)
    worker = os.pidfd_open(int(told.read_text()))
    kit.send_signal(how)
    kit.wait(PATIENCE)
    assert select.select([worker], [], [], PATIENCE)[0], "a worker that hangs is still there"
    os.close(worker)
