"""The threads in which the disk is waited for. A call goes over in one hop, and its answer comes back in one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from queue import SimpleQueue
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """Some threads, started when they are needed. They are daemons: a store that nobody closed holds up no exit."""

    def __init__(self, most: int, name: str) -> None:
        """Take how many there may be, and what they are called."""
        self._most, self._name = most, name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._unfinished = 0  # of the calls, begun or not
        self._threads: list[Thread] = []
        self._dismissed = False
        # Whoever holds it may come to collect garbage, and with it a journal: that dismisses its threads.
        self._counting = RLock()

    async def run(self, work: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
        """Run work in a thread. Cancelled before it begins, it does not begin.

        Args:
            work: What to do.
            give_up: Called when this is cancelled later; the cancellation is passed on when the work has ended. `None`:
                it is passed on at once.

        Raises:
            OSError: There is no thread, and none can be started, or they are dismissed. Nothing was done.
        """
        call = _Call(work)
        self._send(call)
        try:
            await call.answer
        except asyncio.CancelledError:
            if not call.withdraw() and give_up is not None:
                give_up()
                await call.ended()
            raise
        result: T = call.take()
        return result

    def dismiss(self) -> None:
        """Let the threads end, after the calls that have been made. Further ones are refused."""
        with self._counting:
            self._dismissed = True
            for _ in self._threads:
                self._calls.put(None)

    def join(self) -> None:
        """Wait until the threads have ended, after the calls that have been made."""
        self.dismiss()
        while self._threads:
            self._threads.pop().join()

    def _send(self, call: _Call) -> None:
        with self._counting:
            if self._dismissed:
                raise OSError("the store was closed meanwhile")
            if self._unfinished >= len(self._threads) < self._most:
                self._start()
            self._unfinished += 1
            self._calls.put(call)

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more: the call waits for one of those that are there
            if not self._threads:
                raise OSError(errno.EAGAIN, str(error)) from error
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.work()
            with self._counting:
                self._unfinished -= 1
            call.reply()
            del call  # an idle thread keeps nothing


class _Call:
    """A call on its way over and back.

    Attributes:
        answer: Done when the work is, in the loop that made the call. What came of it is not in it: a task keeps what it
            has waited for, and with it what was read, as long as it goes on.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[None] = self._loop.create_future()
        self._work = [work]  # whoever takes it off does it, or sees to it that nobody does
        self._result: Any = None
        self._error: BaseException | None = None
        self._over = False

    def withdraw(self) -> bool:
        """Keep the work from being done, unless it has begun."""
        with contextlib.suppress(IndexError):
            self._work.pop()
            return True
        return False

    def work(self) -> None:
        """Do the work, in a thread."""
        try:
            work = self._work.pop()
        except IndexError:
            return
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
            self._error = error

    def reply(self) -> None:
        """Tell the loop that the work is done."""
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._replied)

    async def ended(self) -> None:
        """Wait until the work has ended, whatever is cancelled meanwhile."""
        while not self._over:
            self.answer = self._loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await self.answer

    def take(self) -> Any:
        """Return what came of the work, or raise it; once, for nothing is kept."""
        result, error = self._result, self._error
        self._result = self._error = None
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # or it would hold the frame that holds it

    def _replied(self) -> None:
        self._over = True
        if not self.answer.done():
            self.answer.set_result(None)
