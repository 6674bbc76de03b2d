"""One event loop in one thread, which serves every blocking call of the process."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, ParamSpec, TypeVar

from perdure.errors import PerdureError

P = ParamSpec("P")
T = TypeVar("T")

POLL: Final = 0.2 if os.name == "nt" else None
"""How long to wait at a time, in seconds: on Windows a lock that is waited for lets no Ctrl-C through."""

EXIT_WAIT: Final = 1.0
"""How long the end of the process waits until the turns that still run have been given up, in seconds."""


class BlockingCallError(PerdureError):
    """A blocking call was made where it cannot wait: its thread's event loop would stop, or nobody is left to do it.

    Nothing was done.

    Attributes:
        call: What was called.
        reason: Whose event loop it is, or that the interpreter is shutting down.
    """

    hint = (
        "Use the async API here: the same names of `perdure` instead of `perdure.blocking`, with `await`. "
        "Or make the call in another thread, as `await asyncio.to_thread(...)` does."
    )

    def __init__(self, call: str, reason: str) -> None:
        """Remember the call and the reason."""
        super().__init__(call, reason)
        self.call, self.reason = call, reason

    def __str__(self) -> str:
        """Say what cannot wait where."""
        return f"{self.call} cannot wait here: {self.reason}"


def refuse_at_shutdown(call: str) -> None:
    """Refuse a call while the interpreter shuts down: other threads stand still by then, the loop's too."""
    if sys.is_finalizing():
        error = BlockingCallError(call, "the interpreter is shutting down")
        error.hint = "Make the call before the program ends, not in a __del__ or a generator that the interpreter ends."
        raise error


class LoopThread:
    """An event loop that runs in a daemon thread for as long as the process lives."""

    def __init__(self) -> None:
        refuse_at_shutdown("The first blocking call")
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads())
        self._unwatched: set[asyncio.Task[Any]] = set()
        threading.Thread(target=self._serve, name="perdure-blocking", daemon=True).start()

    def call(self, name: str, function: Callable[[], T]) -> T:
        """Call a plain function in the loop's thread, where nothing else runs meanwhile.

        Raises:
            BlockingCallError: The interpreter is shutting down.
        """
        refuse_at_shutdown(name)
        if _running_loop() is self._loop:
            return function()

        async def called() -> T:
            return function()

        return _Call(self._loop, called).result()

    def wait(self, name: str, function: Callable[[], Awaitable[T]]) -> T:
        """Call a function in the loop, and wait for what it gives to be awaited.

        It runs in a copy of the caller's context. If the wait is interrupted, it is cancelled, and has ended when the
        interruption goes on.

        Raises:
            BlockingCallError: An event loop runs in this thread, and would stand still; or the interpreter is shutting down.
        """
        refuse_at_shutdown(name)
        running = _running_loop()
        if running is not None:
            own = "this is the thread of the blocking API's own event loop, as in an async tool, model or listener"
            raise BlockingCallError(
                name, own if running is self._loop else "an event loop runs in this thread, and would stand still"
            )

        async def awaited() -> T:
            return await function()

        return _Call(self._loop, awaited).result()

    def wait_if_possible(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Do as `wait` does; where that cannot be, let it run, and return at once."""
        if _running_loop() is None:
            return self.wait(name, function)

        async def awaited() -> None:
            await function()

        def start() -> None:
            task = self._loop.create_task(awaited())
            self._unwatched.add(task)
            task.add_done_callback(self._unwatched.discard)

        return self._loop.call_soon_threadsafe(start)

    def end(self) -> None:
        """Cancel what still runs, and wait for a bounded time until it has ended."""
        ended = threading.Event()

        async def cancel() -> None:
            # Kept: one that will not be cancelled goes with the process, and is not taken apart before, with much noise.
            self._unwatched |= asyncio.all_tasks()
            tasks = self._unwatched - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            ended.set()

        if _running_loop() is None:
            asyncio.run_coroutine_threadsafe(cancel(), self._loop)
            ended.wait(EXIT_WAIT)

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # a tool raised it: its caller gets it, and all others are served
                continue


class _Call(Generic[T]):
    """One call that a thread waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._function = function
        self._ended = threading.Event()
        self._task: asyncio.Task[T] | None = None

    def result(self) -> T:
        try:
            self._loop.call_soon_threadsafe(self._start)
            self._wait()
        except BaseException as interruption:
            self._loop.call_soon_threadsafe(self._cancel)
            self._wait()
            self._note_failure(interruption)
            raise
        task, self._task = self._task, None
        assert task is not None
        try:
            return task.result()
        finally:
            del task  # the traceback of what it raised holds this frame

    def _wait(self) -> None:
        while not self._ended.wait(POLL):
            pass

    def _note_failure(self, interruption: BaseException) -> None:
        task = self._task
        if task is not None and not task.cancelled() and (error := task.exception()) is not None:
            interruption.add_note(f"Then the call that was waited for failed: {type(error).__name__}: {error}")

    # --- in the loop ---

    def _start(self) -> None:
        self._task = self._loop.create_task(self._function())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is None:  # the interruption came before it was handed over
            self._ended.set()
        else:
            self._task.cancel()

    def _end(self, _: asyncio.Task[T]) -> None:
        self._ended.set()


class _Threads(ThreadPoolExecutor):
    """Runs each plain function in a daemon thread of its own.

    A pool of so many threads would come to a stop when all of them have tools that call the blocking API and so wait
    for tools themselves; and a pool's threads are waited for when the process ends, however long a tool takes.
    """

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a function."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # reason: whoever waits gets it
                future.set_exception(error)

        threading.Thread(target=work, name="perdure-blocking-call", daemon=True).start()
        return future


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Process:
    """The loop of this process, and those that forks have left behind: closing one would disturb the parent's."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may call, in the midst of anything
        self.loop: LoopThread | None = None
        self.left_behind: list[LoopThread] = []

    def forget(self) -> None:
        """Be without a loop, as in a forked child, which has none of its parent's threads."""
        self.lock = threading.RLock()
        if self.loop is not None:
            self.left_behind.append(self.loop)
        self.loop = None

    def get(self) -> LoopThread:
        with self.lock:
            made = self.loop or LoopThread()
            self.loop = self.loop or made
            return self.loop

    def end(self) -> None:
        if self.loop is not None:
            self.loop.end()


_process: Final = _Process()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_process.forget)
atexit.register(_process.end)


def loop_thread() -> LoopThread:
    """Return the loop of this process; the first call makes it."""
    return _process.loop or _process.get()
