"""Loops, processes and interpreters that end, with the store closed or not."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    Append,
    Key,
    OutcomeUnknownError,
    Part,
    StoreClosedError,
    StoreUnavailableError,
    WrongLoopError,
)
from perdure_sqlite.journal import SqliteJournal
from perdure_sqlite.worker import Call, Worker

Maker = Callable[..., Append]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def settled(measure: Callable[[], int], at_most: int) -> bool:
    """Wait until a measure is low enough; threads that were told to end take a moment."""
    deadline = time.monotonic() + 20
    while measure() > at_most and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.01)
    return measure() <= at_most


def test_300_loops_leave_neither_descriptors_nor_threads(path: Path, append: Maker) -> None:
    async def use() -> None:
        journal = SqliteJournal(path)
        await journal.open()
        await journal.write([append("s", b"1")])  # and no close

    threads = threading.active_count()
    asyncio.run(use())
    assert settled(threading.active_count, threads)
    before = descriptors()
    for _ in range(300):
        asyncio.run(use())
    assert settled(threading.active_count, threads)
    assert settled(descriptors, before)


def test_failed_openings_leave_neither_descriptors_nor_threads(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)

    async def use() -> None:
        with pytest.raises(Exception, match="not a database"):
            await SqliteJournal(path).open()

    threads, before = threading.active_count(), descriptors()
    for _ in range(50):
        asyncio.run(use())
    assert settled(threading.active_count, threads)
    assert settled(descriptors, before)


def test_one_store_does_not_go_from_loop_to_loop(path: Path, append: Maker) -> None:
    threads = threading.active_count()
    journal = SqliteJournal(path)

    async def use() -> None:
        await journal.open()
        await journal.write([append("s", b"1")])

    asyncio.run(use())
    with pytest.raises(WrongLoopError):
        asyncio.run(use())
    asyncio.run(journal.close())
    assert settled(threading.active_count, threads)


def test_a_forked_child_is_refused_and_the_parent_goes_on(path: Path, start: Callable[..., Any]) -> None:
    child = start(
        """
async def main():
    journal = SqliteJournal(PATH)
    await journal.open()
    await journal.write([append("s", b"1", first=1)])
    pid = os.fork()
    if pid == 0:
        try:
            await journal.write([append("s", b"2")])
        except WrongLoopError:
            await journal.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(await journal.write([append("s", b"3", expected=1)]))
    await journal.close()
asyncio.run(main())
"""
    )
    assert (*child.communicate(timeout=30), child.returncode) == ("(2,)\n", "", 0)


USE = """
async def use():
    global kept
    kept = SqliteJournal(PATH)
    await kept.open()
    await kept.write([append("s", b"1", b"2")])
"""
RUN = "async def main():\n    await use()\nasyncio.run(main())"
EXIT = "async def main():\n    await use()\n    sys.exit(0)\nasyncio.run(main())"
BARE_LOOP = "loop = asyncio.new_event_loop()\nloop.run_until_complete(use())\nloop.close()"
IN_FLIGHT = """
async def main():
    await use()
    global tasks
    tasks = [asyncio.create_task(kept.write([append(str(n), b'1', b'2')])) for n in range(100)]
    for _ in range(int(sys.argv[2])):
        await asyncio.sleep(0)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("ending", "turns"),
    [(RUN, 0), (EXIT, 0), (BARE_LOOP, 0), (IN_FLIGHT, 0), (IN_FLIGHT, 1), (IN_FLIGHT, 2), (IN_FLIGHT, 20)],
)
def test_an_interpreter_ends_quietly_without_close(
    path: Path, start: Callable[..., Any], ending: str, turns: int
) -> None:
    child = start(USE + ending, str(turns))
    assert (*child.communicate(timeout=30), child.returncode) == ("", "", 0)
    asyncio.run(whole(path))


async def whole(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    for info in await journal.scan(
        Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=1000
    ):
        assert info.count == 2
    await journal.close()


@pytest.mark.anyio
async def test_close_lets_the_writes_under_way_finish(
    path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    original = Worker.run

    def wait(worker: Worker, calls: Sequence[Call]) -> None:
        begun.set()
        assert may_end.wait(10)
        original(worker, calls)

    journal = SqliteJournal(path)
    await journal.open()
    monkeypatch.setattr(Worker, "run", wait)
    first = asyncio.create_task(journal.write([append("s", b"1", first=1)]))
    while not begun.is_set():  # noqa: ASYNC110 - it is the thread that sets it
        await asyncio.sleep(0)
    second = asyncio.create_task(journal.write([append("s", b"2")]))
    await asyncio.sleep(0)
    closing = [asyncio.create_task(journal.close()) for _ in range(2)]
    closing[0].cancel()
    await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await journal.write([append("s", b"3")])
    may_end.set()
    assert await first == (1,)
    assert await second == (2,)
    await closing[1]


def test_a_close_from_another_loop_lets_the_calls_that_wait_finish(
    path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that had not gone over to the thread were never answered."""
    begun, may_end = threading.Event(), threading.Event()
    original = Worker.run

    def wait(worker: Worker, calls: Sequence[Call]) -> None:
        begun.set()
        assert may_end.wait(10)
        original(worker, calls)

    async def use() -> Sequence[object]:
        journal = SqliteJournal(path)
        await journal.open()
        monkeypatch.setattr(Worker, "run", wait)
        first = asyncio.create_task(journal.write([append("s", b"1", first=1)]))
        while not begun.is_set():  # noqa: ASYNC110 - it is the thread that sets it
            await asyncio.sleep(0)
        second = asyncio.create_task(journal.write([append("s", b"2")]))
        await asyncio.sleep(0)
        await asyncio.to_thread(asyncio.run, journal.close())
        third = asyncio.create_task(journal.write([append("s", b"3")]))
        may_end.set()
        return await asyncio.wait_for(asyncio.gather(first, second, third, return_exceptions=True), 20)

    threads = threading.active_count()
    first, second, third = asyncio.run(use())
    assert (first, second, type(third)) == ((1,), (2,), StoreClosedError)
    assert settled(threading.active_count, threads)


def test_who_waits_in_a_loop_that_stood_still_during_the_close_is_refused(
    path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call had not gone over to the thread, which is gone."""
    may_end = threading.Event()
    original = Worker.run

    def wait(worker: Worker, calls: Sequence[Call]) -> None:
        assert may_end.wait(10)
        original(worker, calls)

    async def begin() -> Sequence[Any]:
        journal = SqliteJournal(path)
        await journal.open()
        monkeypatch.setattr(Worker, "run", wait)
        first = asyncio.create_task(journal.write([append("a", b"1", first=1)]))
        for _ in range(3):  # until it has gone over
            await asyncio.sleep(0)
        return journal, first, asyncio.create_task(journal.write([append("b", b"1")]))

    async def end(*writes: asyncio.Task[object]) -> list[object]:
        await asyncio.wait(writes, timeout=10)
        return [write.exception() or write.result() if write.done() else "waits" for write in writes]

    with asyncio.Runner() as runner:
        journal, *writes = runner.run(begin())
        thread = threading.Thread(target=asyncio.run, args=(journal.close(),))
        thread.start()
        thread.join()
        may_end.set()
        first, second = runner.run(end(*writes))
    assert (first, type(second)) == ((1,), StoreClosedError)


@pytest.mark.anyio
async def test_memory_is_private_and_gone_after_close(append: Maker) -> None:
    one, other = SqliteJournal(":memory:"), SqliteJournal(":memory:")
    await one.open()
    await other.open()
    await one.write([append("s", b"1", first=1)])
    assert await other.read(Key(Part.SESSIONS, "s")) is None
    assert not one.capabilities.durable
    assert not one.capabilities.shared
    assert one.capabilities.atomic
    await one.close()
    await other.close()


@pytest.mark.anyio
async def test_a_hop_that_breaks_answers_those_who_wait(
    path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(path)
    await journal.open()

    def broken(worker: Worker, calls: Sequence[Call]) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "run", broken)
        answers = await asyncio.gather(
            journal.write([append("s", b"1", first=1)]), journal.read(Key(Part.SESSIONS, "s")), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [OutcomeUnknownError, StoreUnavailableError]
    assert await journal.write([append("s", b"2", expected=0, first=1)]) == (1,)
    await journal.close()


@pytest.mark.parametrize("opened", ["before", "then"])
def test_a_store_is_closed_in_a_callback_at_exit(tmp_path: Path, opened: str) -> None:
    """Also in one that runs behind the finalizers': from then on a call of a finalizer does nothing."""
    code = f"""
import atexit

def end():
    from perdure.blocking import open_store
    (store or open_store("sqlite:b.db")).close()
    print("closed")

store = None
atexit.register(end)
from perdure.blocking import open_store
first = open_store("sqlite:a.db")
store = first if {opened == "before"} else None
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "closed\n", "")
