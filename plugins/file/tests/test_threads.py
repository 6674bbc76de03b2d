"""Calls that go over to a thread: answered, cancelled before and after they have begun, and forgotten."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import StoreUnavailableError
from perdure_file.journal import FileJournal
from perdure_file.threads import Threads

pytestmark = pytest.mark.anyio


class Gate:
    """Work that waits until it is let through."""

    def __init__(self) -> None:
        self.begun, self.open, self.passed = threading.Event(), threading.Event(), False

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(10)
        self.passed = True
        return "passed"

    async def has_begun(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, 10)


class Failure(Exception):  # noqa: N818 - a plain name
    pass


def fail() -> None:
    raise Failure("as it was raised")


async def test_calls_are_answered_and_errors_raised_as_they_are() -> None:
    threads = Threads(2, "t")
    assert await asyncio.gather(*(threads.run(lambda n=n: n) for n in range(9))) == [*range(9)]  # type: ignore[misc]  # reason: a default binds the number
    with pytest.raises(Failure, match="as it was raised"):
        await threads.run(fail)
    threads.join()


async def test_there_are_as_many_threads_as_calls_at_once_and_no_more_than_the_most() -> None:
    threads, gates = Threads(2, "some"), [Gate() for _ in range(3)]

    def running() -> int:
        return sum(thread.name.startswith("some") for thread in threading.enumerate())

    for _ in range(5):
        await threads.run(threading.get_ident)
    assert running() == 1
    calls = [asyncio.create_task(threads.run(gate)) for gate in gates]
    for gate in gates[:2]:
        await gate.has_begun()
    assert running() == 2
    assert not gates[2].begun.is_set()
    for gate in gates:
        gate.open.set()
    assert await asyncio.gather(*calls) == ["passed"] * 3
    threads.join()
    assert running() == 0


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Let no further thread be started."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


async def test_where_no_further_thread_can_be_started_calls_wait_for_those_that_are_there() -> None:
    threads, gate = Threads(9, "few"), Gate()
    first = asyncio.create_task(threads.run(gate))
    await gate.has_begun()
    with no_more_threads():
        others = [asyncio.create_task(threads.run(lambda n=n: n)) for n in range(5)]  # type: ignore[misc]  # reason: a default binds the number
        await asyncio.sleep(0)
    gate.open.set()
    assert await first == "passed"
    assert await asyncio.gather(*others) == [*range(5)]
    threads.join()


async def test_threads_are_started_again_when_they_can_be() -> None:
    threads, gate = Threads(9, "again"), Gate()
    await threads.run(threading.get_ident)
    with no_more_threads():
        await asyncio.gather(*(threads.run(threading.get_ident) for _ in range(20)))
    first = asyncio.create_task(threads.run(gate))
    await gate.has_begun()
    await threads.run(threading.get_ident)
    assert not gate.passed
    gate.open.set()
    assert await first == "passed"
    threads.join()


async def test_without_any_thread_a_call_is_refused_and_not_made_later() -> None:
    threads, gate = Threads(9, "none"), Gate()
    with no_more_threads(), pytest.raises(OSError, match="can't start new thread"):
        await threads.run(gate)
    assert await threads.run(threading.get_ident) != threading.get_ident()
    threads.join()
    assert not gate.begun.is_set()


async def test_threads_that_are_dismissed_refuse_a_call() -> None:
    threads, gate = Threads(9, "dismissed"), Gate()
    first = asyncio.create_task(threads.run(gate))
    await gate.has_begun()
    threads.dismiss()
    with pytest.raises(OSError, match="was closed"):
        await threads.run(threading.get_ident)
    gate.open.set()
    assert await first == "passed"
    threads.join()


async def test_writes_that_wait_while_another_loop_closes_the_store_are_refused(
    journal: FileJournal, op: Any, disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, dismiss = Gate(), Threads.dismiss

    def dismiss_and_open(self: Threads) -> None:
        dismiss(self)
        gate.open.set()

    await journal.write([op.append("s", b"{}")])
    disk.faults["sync"] = [lambda _: gate()]
    writes = [asyncio.create_task(journal.write([op.append("s", b"{}")])) for _ in range(3)]
    await gate.has_begun()
    monkeypatch.setattr(Threads, "dismiss", dismiss_and_open)
    await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(journal.close()))
    assert await writes[0] == (2,)
    for write in writes[1:]:
        with pytest.raises(StoreUnavailableError, match="was closed meanwhile"):
            await write


async def test_a_store_without_any_thread_is_unavailable_and_one_is_enough(root: Path, op: Any) -> None:
    journal = FileJournal(root)
    with no_more_threads(), pytest.raises(StoreUnavailableError, match="can't start new thread"):
        await journal.open()
    await journal.open()
    with no_more_threads():
        writes = [journal.write([op.append(f"s{number}", b"{}")]) for number in range(5)]
        assert await asyncio.gather(*writes) == [(1,)] * 5
        await journal.close()


async def test_a_call_that_is_cancelled_before_it_begins_is_not_made() -> None:
    threads, gate, other = Threads(1, "t"), Gate(), Gate()
    first = asyncio.create_task(threads.run(gate))
    await gate.has_begun()
    for give_up in (None, fail):
        waiting = asyncio.create_task(threads.run(other, give_up))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    gate.open.set()
    assert await first == "passed"
    threads.join()
    assert not other.begun.is_set()


async def test_a_cancellation_is_passed_on_at_once_or_when_the_work_has_ended() -> None:
    threads, reading, writing = Threads(2, "t"), Gate(), Gate()
    told: list[str] = []
    read = asyncio.create_task(threads.run(reading))
    write = asyncio.create_task(threads.run(writing, lambda: told.append("give up")))
    await reading.has_begun()
    await writing.has_begun()
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    for _ in range(3):
        write.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not write.done()
    assert told == ["give up"]
    writing.open.set()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert writing.passed
    reading.open.set()
    threads.join()


async def test_nothing_keeps_what_came_of_a_call() -> None:
    class Answer:
        pass

    threads = Threads(1, "t")
    answer = await threads.run(Answer)
    left = weakref.ref(answer)
    gc.disable()
    try:
        del answer
        assert left() is None
        errors: list[weakref.ref[Failure]] = []
        try:
            await threads.run(fail)
        except Failure as error:
            errors.append(weakref.ref(error))
        assert errors[0]() is None
    finally:
        gc.enable()
    threads.join()


def test_a_call_of_a_loop_that_is_closed_meanwhile_ends_without_a_word(recwarn: Any) -> None:
    threads, gate = Threads(1, "t"), Gate()

    async def leave() -> Callable[[], object]:
        asyncio.get_running_loop().create_task(threads.run(gate))
        await gate.has_begun()
        return gate.open.set

    asyncio.run(leave())()
    threads.join()
    assert gate.passed
    assert [*recwarn] == []
