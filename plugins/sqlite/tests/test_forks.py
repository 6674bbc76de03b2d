"""Processes that fork while a store is open, and open the same file in the child."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, cast

import pytest

from perdure.backend import Append, Key, Part
from perdure_sqlite import forks
from perdure_sqlite.journal import SqliteJournal

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]

PARENT = """
import threading
to_parent, from_child = os.pipe()[::-1]
from_parent, to_child = os.pipe()
async def child():
    journal = SqliteJournal(PATH)
    await journal.open()
    await journal.write([append("child", b"0", expected=0, first=1)])
    os.write(to_parent, b".")
    os.read(from_parent, 1)
    await journal.write([append("child", b"1", expected=1)])
    os.kill(os.getpid(), 9)
async def main():
    journals = [SqliteJournal(PATH) for _ in range(2)]
    for number, journal in enumerate(journals):
        await journal.open()
        await journal.write([append(f"parent{number}", b"0")])
    if os.fork() == 0:
        thread = threading.Thread(target=lambda: asyncio.run(child()))
        thread.start()
        thread.join()
        os._exit(1)
    os.read(from_child, 1)
    for journal in journals:
        await journal.write([append("parent", b"0")])
        await journal.close()
    os.write(to_child, b".")
    print(os.waitstatus_to_exitcode(os.wait()[1]))
asyncio.run(main())
"""


async def test_a_child_loses_nothing_when_its_parent_closes(path: Path, start: Callable[..., Any]) -> None:
    """It took its parent's locks for its own, so the parent removed the log as the last one to close the file."""
    assert start(PARENT).communicate(timeout=60) == ("-9\n", "")
    journal = SqliteJournal(path)
    await journal.open()
    found = await journal.read(Key(Part.SESSIONS, "child"))
    assert found is not None
    assert list(found.items) == [b"0", b"1"]
    await journal.close()


BUSY = """
import threading
from perdure_sqlite.worker import Worker
run, within, forking = Worker.run, threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)
def wait(worker, calls):
    worker.execute("BEGIN IMMEDIATE")
    within.set()
    assert forking.wait(30)
    worker.execute("ROLLBACK")
    run(worker, calls)
async def child():
    journal = SqliteJournal(PATH, busy_timeout=0)
    await journal.open()
    print(await journal.write([append("s", b"2", expected=1)]), flush=True)
    await journal.close()
async def main():
    journal = SqliteJournal(PATH)
    await journal.open()
    Worker.run = wait
    writing = asyncio.create_task(journal.write([append("s", b"1", first=1)]))
    while not within.is_set():
        await asyncio.sleep(0)
    if os.fork() == 0:
        Worker.run = run
        thread = threading.Thread(target=lambda: asyncio.run(child()))
        thread.start()
        thread.join()
        os._exit(0)
    os.wait()
    print(await writing)
    await journal.close()
asyncio.run(main())
"""


def test_a_fork_waits_for_the_call_that_is_within_sqlite(start: Callable[..., Any]) -> None:
    assert start(BUSY).communicate(timeout=60) == ("(2,)\n(1,)\n", "")


async def test_what_was_inherited_without_a_word_is_closed_at_the_next_opening(path: Path, append: Maker) -> None:
    """As in a server that forks in C, and calls nothing that is registered."""
    inherited, idle = forks.Seat(), forks.Seat()
    inherited.process = idle.process = 0
    inherited.connection = sqlite3.connect(":memory:", check_same_thread=False)
    forks._seats.extend([inherited, idle])
    journal = SqliteJournal(path)
    await journal.open()
    assert not {inherited, idle} & {*forks._seats}
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        inherited.connection.execute("SELECT 1")
    assert await journal.write([append("s", b"1", first=1)]) == (1,)
    await journal.close()


class Interrupted:
    """A lock at which a signal comes, the first time that somebody waits for it."""

    def __init__(self, handler: Callable[[], None]) -> None:
        self.signals = [handler]
        self.lock = Lock()

    def acquire(self) -> None:
        if self.signals:
            self.signals.pop()()
        assert self.lock.acquire(timeout=10)

    def release(self) -> None:
        self.lock.release()


def seats(monkeypatch: pytest.MonkeyPatch, handler: Callable[[], None]) -> list[forks.Seat]:
    made = [forks.Seat() for _ in range(3)]
    made[1].within = cast("Lock", Interrupted(handler))
    monkeypatch.setattr(forks, "_seats", made)
    monkeypatch.setattr(forks, "_changing", Interrupted(lambda: None))
    return made


def test_a_signal_that_ends_the_waiting_of_a_fork_frees_what_that_holds_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The locks of others were released, and its own never again."""

    def end() -> None:
        raise KeyboardInterrupt

    first, interrupted, busy = seats(monkeypatch, end)
    with busy.within:
        with pytest.raises(KeyboardInterrupt):
            forks._wait()
        forks._go_on()
    for lock in (forks._changing, first.within, interrupted.within):
        lock.acquire()


def test_the_handler_of_a_signal_may_fork_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for itself."""

    def fork() -> None:
        forks._wait()
        forks._go_on()

    made = seats(monkeypatch, fork)
    forks._wait()
    assert made[2].within.locked()
    forks._go_on()
    for lock in (forks._changing, *(seat.within for seat in made)):
        lock.acquire()
