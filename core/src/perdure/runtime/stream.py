"""A turn shown as it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from perdure.errors import StreamError
from perdure.events import RunDone, RunFailed
from perdure.runtime.results import AWAITING

if TYPE_CHECKING:
    from types import TracebackType

    from perdure.events import RunEvent
    from perdure.observers.listening import Channel, Channels
    from perdure.runtime.inputs import Call
    from perdure.runtime.results import TurnResult
    from perdure.runtime.turns import Turns


class RunStream:
    """The events of one input, as an async context manager that is iterated; made by `session.stream`."""

    def __init__(self, call: Call, turns: Turns, channel: Channel, channels: Channels) -> None:
        self._call = call
        self._turns = turns
        self._channel = channel
        self._channels = channels
        self._events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        self._task: asyncio.Task[TurnResult] | None = None
        self._failed = False
        self._done: set[str | None] = set()
        self._detached = False
        self._interrupted = False
        call.sink = self._take

    @property
    def result(self) -> TurnResult:
        """How the turn ended, or that it waits for approvals; raises what `send` would have raised."""
        if self._task is None or not self._task.done():
            raise StreamError("the stream has no result yet")
        if self._task.cancelled():
            raise StreamError("the stream was left before its input became a turn, or its turn was interrupted")
        return self._task.result()

    def detach(self) -> None:
        """Let the turn go on when the block is left. What it raises is logged; closing the store ends it as a crash would."""
        self._detached = True

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise StreamError("the stream was entered before")
        self._task = asyncio.create_task(self._turns.take(self._call))
        self._task.add_done_callback(self._ended)
        try:
            await asyncio.sleep(0)  # the input stands in line before whatever is called next
        except asyncio.CancelledError:
            await self._interrupt(self._task)
            raise
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        if self._task is None:
            raise StreamError("the stream was not entered")
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # whoever asks again is told the same
            raise StopAsyncIteration
        return event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._task
        if task is None:
            return
        if self._detached and not task.done():
            self._channels.detach(task)
            return
        try:
            if error is not None and not isinstance(error, Exception):
                await self._interrupt(task)
            elif not task.done():
                await self._abort(task)
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self._interrupt(task)
            raise
        await self._channel.catch_up()
        if error is None and not (task.cancelled() and self._interrupted):
            task.result()

    async def _interrupt(self, task: asyncio.Task[TurnResult]) -> None:
        self._interrupted = True
        task.cancel()
        await asyncio.wait([task])

    async def _abort(self, task: asyncio.Task[TurnResult]) -> None:
        """Drop the turn that this stream opened; one that it found pending, or only joined, is left as it is."""
        self._call.aborted = self._interrupted = True
        if self._call.runner is not None:
            await self._call.runner.abort()
        elif not self._call.opening:
            await self._interrupt(task)

    def _take(self, event: RunEvent) -> None:
        if isinstance(event, RunFailed):
            self._failed = True
        if isinstance(event, RunDone):
            self._done.add(event.run_id)
        self._events.put_nowait(event)

    def _ended(self, task: asyncio.Task[TurnResult]) -> None:
        """Tell of an end that no turn has told of, and end the iteration."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._failed:
            self._channel.emit(RunFailed, None, self._take, error=error)
        elif error is None and not task.cancelled():
            self._tell_end(task.result())
        self._events.put_nowait(None)
        self._call.sink = self._call.runner = None  # which have this

    def _tell_end(self, result: TurnResult) -> None:
        """Tell of the end of a turn that had ended before: everybody else was told then."""
        if result.run_id not in self._done and result.finish_reason != AWAITING:
            self._take(self._channel.make(RunDone, result.run_id, result=result))
