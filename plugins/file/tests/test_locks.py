"""Locks: taken over from the dead, never from the living, and refused where they do nothing."""

import asyncio
import errno
import fcntl
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    OutcomeUnknownError,
    StoreClosedError,
    StoreUnavailableError,
    StoreURL,
    StoreURLError,
    UnsupportedOperationError,
    WrongLoopError,
)
from perdure_file.directory import Place
from perdure_file.disk import Disk
from perdure_file.journal import THREADS, FileJournal
from perdure_file.plugin import Options
from perdure_file.waiting import Patience

pytestmark = pytest.mark.anyio

HOLD = """
async def main():
    journal = FileJournal(DIRECTORY)
    await journal.open()
    await journal.write([append("s", b"{}")])
    from perdure_file.directory import Place
    from perdure_file.waiting import Patience
    with journal._guards.locked(Place(key("s")), Patience(30)):
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


async def test_the_lock_of_a_killed_writer_is_free_at_once(start: Callable[..., Any], root: Path, op: Any) -> None:
    child = start(HOLD)
    assert child.stdout.readline() == "held\n", child.communicate()
    journal = FileJournal(root, busy_timeout=0.05)
    await journal.open()
    with pytest.raises(StoreUnavailableError, match="lock") as caught:
        await journal.write([op.append("s", b"{}")])
    assert caught.value.retryable
    assert (await op.read(journal, "s")).count == 1  # readers take no lock
    assert await journal.write([op.append("other")]) == (1,)  # and other keys have theirs
    child.kill()
    child.wait()
    assert await journal.write([op.append("s", b"{}")]) == (2,)
    await journal.close()


async def test_a_live_lock_is_never_broken_by_age(start: Callable[..., Any], root: Path, op: Any) -> None:
    child = start(HOLD)
    assert child.stdout.readline() == "held\n"
    os.utime(root / "default/locks/sessions/s.lock", (0, 0))
    journal = FileJournal(root, busy_timeout=0)
    await journal.open()
    with pytest.raises(StoreUnavailableError):
        await journal.write([op.append("s")])
    await journal.close()


@pytest.mark.parametrize(
    "content", [b"", b"1\n", b"<us>\n", b"4711 another-host\n"], ids=str.split("empty init us other")
)
async def test_what_stands_in_a_lock_file_locks_nothing(
    journal: FileJournal, op: Any, root: Path, content: Any
) -> None:
    lock = root / "default/locks/sessions/s.lock"
    content = content.replace(b"<us>", b"%d" % os.getpid())
    await journal.write([op.append("a")])
    lock.write_bytes(content)
    assert await journal.write([op.append("s", b"{}")]) == (1,)
    lock.write_bytes(content)
    assert await journal.write([op.append("s", b"{}")]) == (2,)
    assert lock.read_bytes() == b""


async def test_the_lock_lives_as_long_as_its_key(journal: FileJournal, op: Any, root: Path) -> None:
    lock = root / "default/locks/sessions/s.lock"
    await journal.write([op.append("s", b"{}")])
    identity = lock.stat().st_ino
    await journal.write([op.append("s", b"{}")])
    await journal.write([op.replace("s", 0)])
    assert lock.stat().st_ino == identity
    await journal.write([op.delete("s")])
    assert not lock.exists()
    assert await journal.write([op.append("s", expected=0, first=9)]) == (9,)
    assert lock.exists()


async def test_a_lock_that_another_makes_at_the_same_time_is_taken_as_it_is(root: Path, op: Any) -> None:
    class Slow(Disk):
        def open(self, name: str, flags: int, directory: int | None) -> int:
            if flags & os.O_EXCL and name == "s.lock":
                (root / "default/locks/sessions/s.lock").touch(exist_ok=False)
            return super().open(name, flags, directory)

    journal = FileJournal(root, disk=Slow())
    await journal.open()
    assert await journal.write([op.append("s")]) == (1,)
    await journal.close()


async def test_a_lock_whose_file_was_removed_while_one_waited_is_not_taken(root: Path, op: Any) -> None:
    """Two could hold it: one the file that is gone, the other the new one."""
    deleter, waiter = FileJournal(root), FileJournal(root)
    await deleter.open()
    await waiter.open()
    await deleter.write([op.append("s")])
    await waiter.write([op.append("s")])
    held, go = threading.Event(), threading.Event()

    def delete() -> None:
        with deleter._guards.locked(Place(op.key("s")), Patience(30)) as guard:
            held.set()
            go.wait(10)
            deleter._changes.apply(guard, op.delete("s"))

    thread = threading.Thread(target=delete)
    thread.start()
    held.wait(10)
    waiting = asyncio.create_task(waiter.write([op.append("s", b"{}", first=5)]))
    await asyncio.sleep(0)
    go.set()
    assert await waiting == (5,)
    thread.join()
    lock = (root / "default/locks/sessions/s.lock").open("rb")
    with lock, pytest.raises(BlockingIOError), waiter._guards.locked(Place(op.key("s")), Patience(30)):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await deleter.close()
    await waiter.close()


class NoLocks(Disk):
    """A mount that accepts every lock."""

    def lock(self, file: int) -> bool:
        return True

    def unlock(self, file: int) -> None:
        pass


class Unlockable(Disk):
    """A mount that refuses every lock."""

    def lock(self, file: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    def unlock(self, file: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("disk", [NoLocks(), Unlockable()], ids=["accepts all", "refuses all"])
async def test_a_mount_without_working_locks_is_refused_unless_one_process_is_enough(
    root: Path, op: Any, disk: Any
) -> None:
    journal = FileJournal(root, disk=disk)
    with pytest.raises(UnsupportedOperationError, match="shared") as caught:
        await journal.open()
    assert "shared=false" in caught.value.hint
    assert op.descriptors(root) == []
    alone = FileJournal(root, shared=False, disk=disk)
    assert not alone.capabilities.shared
    await alone.open()
    assert await alone.write([op.append("s", b"{}")]) == (1,)
    assert await alone.write([op.append("s", b"{}")]) == (2,)
    assert await alone.write([op.delete("s")]) == (2,)
    await alone.close()


async def test_temporary_files_of_the_dead_are_collected_and_those_of_the_living_are_not(root: Path, op: Any) -> None:
    journal = FileJournal(root)
    await journal.open()
    (root / "default/temporary/dead.tmp").write_bytes(b"half")
    name, file = journal._directory.temporary()
    other = FileJournal(root)
    await other.open()
    assert [path.name for path in (root / "default/temporary").iterdir()] == [name]
    os.close(file)
    await other.close()
    await journal.close()


async def test_what_is_in_the_temporary_folder_and_is_no_file_stays_and_stops_nothing(root: Path, op: Any) -> None:
    temporary = root / "default/temporary"
    (temporary / "lost+found").mkdir(parents=True)
    (temporary / "link").symlink_to("/nowhere")
    for number in range(5):
        (temporary / f"dead{number}.tmp").touch()
    journal = FileJournal(root)
    await journal.open()
    assert await journal.write([op.append("s", b"{}")]) == (1,)
    await journal.close()
    assert sorted(path.name for path in temporary.iterdir()) == ["link", "lost+found"]


async def test_a_journal_that_was_never_opened_refuses_calls_and_closes(root: Path, op: Any) -> None:
    journal = FileJournal(root)
    with pytest.raises(StoreClosedError):
        await op.read(journal, "s")
    await journal.close()
    assert op.paths(root.parent) == []


def test_a_forgotten_journal_with_calls_under_way_ends_without_a_word(start: Callable[..., Any], root: Path) -> None:
    child = start("""
async def main():
    journal = FileJournal(DIRECTORY)
    await journal.open()
    for number in range(100):
        asyncio.ensure_future(journal.write([append(f"s{number % 7}", b"{}")]))
    await asyncio.sleep(0)
asyncio.run(main())
""")
    assert child.communicate(timeout=60) == ("", "")
    assert child.returncode == 0


async def test_a_forked_child_is_refused_and_keeps_no_lock_of_its_parent(root: Path, op: Any) -> None:
    journal = FileJournal(root)
    await journal.open()
    await journal.write([op.append("s")])

    def child(pipe: Any) -> None:
        try:
            asyncio.run(journal.write([op.append("s")]))
        except WrongLoopError:
            pipe.send(op.descriptors(root / "default/locks/sessions/s.lock"))
        os._exit(0)

    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        child(theirs)
    assert ours.recv() == []
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it has said its last word
    assert await journal.write([op.append("s")]) == (2,)
    await journal.close()


async def test_cancelled_writes_are_whole_or_absent_and_the_next_call_is_answered(
    journal: FileJournal, op: Any
) -> None:
    written = 0
    for number in range(60):
        task = asyncio.create_task(journal.write([op.append("s", b'{"n":%d}' % number, b'{"m":%d}' % number)]))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
            written += 1
        except asyncio.CancelledError:
            pass
        found = await op.read(journal, "s")
        items = [] if found is None else list(found.items)
        assert len(items) % 2 == 0
    await journal.write([op.append("s", b"{}")])
    assert (await op.read(journal, "s")).count % 2 == 1


@pytest.fixture
async def held(root: Path, op: Any) -> AsyncIterator[tuple[FileJournal, Callable[[], None]]]:
    """Hold the lock of a key as another process does that is stopped; answer an open journal, and what lets go."""
    journal = FileJournal(root, busy_timeout=60)
    await journal.open()
    await journal.write([op.append("s", b"{}")])
    lock = (root / "default/locks/sessions/s.lock").open("rb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield journal, lock.close
    lock.close()
    await journal.close()


async def test_the_writers_of_one_key_take_one_thread_and_keep_their_order(held: Any, op: Any) -> None:
    journal, let_go = held
    before = threading.active_count()
    writes = [asyncio.create_task(journal.write([op.append("s", b"{}")])) for _ in range(THREADS + 4)]
    await asyncio.sleep(0)
    assert await op.read(journal, "other") is None
    assert await journal.write([op.append("other", b"{}", first=3)]) == (3,)
    assert threading.active_count() == before + 1
    assert not any(write.done() for write in writes)
    let_go()
    assert await asyncio.gather(*writes) == [(version,) for version in range(2, THREADS + 6)]


async def test_a_writer_that_is_cancelled_behind_another_leaves_at_once_and_has_not_written(held: Any, op: Any) -> None:
    journal, let_go = held
    first, second, third = (
        asyncio.create_task(journal.write([op.append("s", b'{"n":%d}' % number)])) for number in range(3)
    )
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not first.done()
    let_go()
    assert [await first, await third] == [(2,), (3,)]
    assert list((await op.read(journal, "s")).items) == [b"{}", b'{"n":0}', b'{"n":2}']


class Watched:
    """A mutex that tells when somebody has found it taken."""

    def __init__(self) -> None:
        self.lock, self.found_taken = threading.Lock(), threading.Event()
        self.release = self.lock.release

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self.lock.acquire(blocking=False)
        if not taken:
            self.found_taken.set()
        return taken or (blocking and self.lock.acquire(timeout=timeout))


async def test_a_cancelled_writer_waits_no_longer_behind_somebody_in_a_thread(held: Any, op: Any) -> None:
    """As a reader is who looks once more, under the lock, at what seems damaged."""
    journal, let_go = held
    let_go()
    guard = journal._guards.take(Place(op.key("s")))
    guard.mutex = mutex = Watched()
    with journal._guards.locked(guard.place, Patience(60)):
        write = asyncio.create_task(journal.write([op.append("s", b"{}")]))
        assert await asyncio.get_running_loop().run_in_executor(None, mutex.found_taken.wait, 10)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
    assert (await op.read(journal, "s")).count == 1


async def test_waiting_behind_another_writer_counts(held: Any, root: Path, op: Any) -> None:
    journal = FileJournal(root, busy_timeout=0.05)
    await journal.open()
    writes = [journal.write([op.append("s", b"{}")]) for _ in range(3)]
    for error in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(error, StoreUnavailableError)
        assert "lock" in str(error)
    await journal.close()


async def test_closing_waits_for_all_writes_that_were_called(held: Any, op: Any) -> None:
    journal, let_go = held
    writes = [asyncio.create_task(journal.write([op.append("s", b"{}")])) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await journal.write([op.append("s", b"{}")])
    let_go()
    await closing
    assert [write.result() for write in writes] == [(2,), (3,), (4,)]


def test_a_journal_whose_loop_has_died_within_a_write_closes_in_another(root: Path, op: Any) -> None:
    journal, loop = FileJournal(root), asyncio.new_event_loop()
    loop.run_until_complete(journal.open())
    write = loop.create_task(journal.write([op.append("s", b"{}")]))
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.run(journal.close())
    assert op.descriptors(root) == []
    loop.run_until_complete(write)
    loop.close()


async def test_waiting_does_not_block_the_loop(root: Path, op: Any) -> None:
    journal, other = FileJournal(root, busy_timeout=30), FileJournal(root)
    await journal.open()
    await other.open()
    await journal.write([op.append("s")])
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with other._guards.locked(Place(op.key("s")), Patience(30)):
            held.set()
            go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    waiting = asyncio.create_task(journal.write([op.append("s", b"{}")]))
    for _ in range(5):
        assert (await op.read(journal, "s")).version == 1
    assert not waiting.done()
    go.set()
    assert await waiting == (2,)
    thread.join()
    await journal.close()
    await other.close()


async def test_a_url_makes_a_journal(tmp_path: Path) -> None:
    url = StoreURL("file", str(tmp_path / "x"), namespace="n", options=Options(busy_timeout=1, shared=False))
    journal = FileJournal.from_url(url)
    assert (journal.namespace, journal.capabilities.shared) == ("n", False)
    with pytest.raises(StoreURLError, match="file:DIR"):
        FileJournal.from_url(StoreURL("file"))


async def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"precious")
    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        await FileJournal(tmp_path / "x").open()
    assert (tmp_path / "x").read_bytes() == b"precious"


async def test_all_is_private_to_its_owner(journal: FileJournal, op: Any, root: Path) -> None:
    await journal.write([op.append("s", b"{}")])
    for path in [root, *op.paths(root)]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
