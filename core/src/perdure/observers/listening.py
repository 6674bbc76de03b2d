"""Who hears of a conversation's events: streams, listeners of this process, and observers. None of them holds a turn up.

A stream takes events as they are sent. A listener has a queue of its own: an async function is awaited in the loop, a
plain one is called in a thread, one event after another. What a listener raises is logged and goes no further.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from perdure import codec
from perdure.events import Event, RunEvent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import EllipsisType

    from perdure.clock import Clock

E = TypeVar("E", bound=Event)

BACKLOG: Final = 10_000
"""How many events wait for a listener that is slow; beyond, the oldest are dropped, which `seq` shows."""

CATCH_UP: Final = 1.0
"""How long a call that has ended waits for its listeners to have heard of it, in seconds."""

_log = logging.getLogger("perdure.listeners")
_LOST: Final = "a listener raised; the event is lost to it"
_RAISED: Final = (Exception, asyncio.CancelledError)
"""What a listener may raise of its own, and never holds a turn up with: also a cancellation of what it waited for."""


def _always(_: type[Event]) -> bool:
    return True


_hearing: ContextVar[Listener | None] = ContextVar("perdure_hearing", default=None)


def _for_others(fact: Any) -> Any:
    """Return a fact for whoever hears of it: what they change, to hide a secret before they log it, the turn does not see."""
    copy = getattr(type(fact), "for_others", None)  # of a message, a result or an approval
    return codec.copied(fact) if copy is None else copy(fact)


class Listener:
    """A function that hears of events, and what it has not heard of yet.

    Attributes:
        scope: Of which conversations; `None`: of all.
    """

    def __init__(self, function: Callable[[Any], Awaitable[None] | None], scope: str | None) -> None:
        self._function = function
        self.scope = scope
        self._context = copy_context()  # of whoever listens, not of the turn that is told of
        self._waiting: deque[RunEvent] = deque(maxlen=BACKLOG)
        self._lagging = False
        self._task: asyncio.Task[None] | None = None

    def put(self, event: RunEvent) -> None:
        """Have the function hear of an event, soon."""
        if len(self._waiting) == BACKLOG and not self._lagging:
            self._lagging = True
            _log.warning("a listener is too slow; the oldest events are dropped", extra=self._named())
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), context=self._context.copy())

    def may_hear(self, scope: str | EllipsisType | None) -> bool:
        """Whether it listens to conversations of a scope."""
        return self.scope is None or scope in (..., self.scope)

    @property
    def work(self) -> asyncio.Task[None] | None:
        """The task in which the function hears of what it has not heard yet; `None` within the function itself."""
        return None if self._task is None or self._task.done() or _hearing.get() is self else self._task

    async def _work(self) -> None:
        _hearing.set(self)
        while self._waiting:
            batch = list(self._waiting)
            self._waiting.clear()
            self._lagging = False
            if inspect.iscoroutinefunction(self._function):
                for event in batch:
                    await self._tell(event)
            else:
                for coroutine in await asyncio.to_thread(self._call, batch):
                    await self._finish(coroutine)

    async def _tell(self, event: RunEvent) -> None:
        try:
            answer = self._function(event)
            if inspect.isawaitable(answer):
                await answer
        except _RAISED as error:
            self._report(error)

    def _call(self, batch: list[RunEvent]) -> list[Awaitable[None]]:
        """Call a plain function; return what it gave to be awaited."""
        answers: list[Awaitable[None]] = []
        for event in batch:
            try:
                answer = self._function(event)
            except BaseException:  # noqa: BLE001  # reason: an exit in a thread ends neither the process nor what comes next
                _log.exception(_LOST, extra=self._named())
            else:
                if inspect.isawaitable(answer):
                    answers.append(answer)
        return answers

    async def _finish(self, answer: Awaitable[None]) -> None:
        try:
            await answer
        except _RAISED as error:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        """Log what the function raised; pass on a cancellation that is meant for the task that calls it."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise error
        _log.error(_LOST, exc_info=error, extra=self._named())

    def _named(self) -> dict[str, Any]:
        return {"perdure": {"listener": repr(self._function)}}


class Channel:
    """The events of one conversation in this process, in their order.

    Attributes:
        scope: That of the conversation; `...`: it was not read yet, and nothing of it is told.
    """

    def __init__(
        self,
        session_id: str | None,
        clock: Clock,
        observe: Callable[[RunEvent], None],
        is_observed: Callable[[type[Event]], bool] = _always,
    ) -> None:
        """Open the channel of a session, or of a run without one.

        Args:
            session_id: The session; `None`: none.
            clock: What events are dated by.
            observe: Takes each event that was sent.
            is_observed: Whether it wants events of a kind.
        """
        self._session_id = session_id
        self._clock = clock
        self._observe = observe
        self._is_observed = is_observed
        self.scope: str | EllipsisType | None = ...
        self._seq = 0
        # Another tuple with each change: one may be made while an event is told.
        self._listeners: tuple[Listener, ...] = ()

    def tell(
        self,
        kind: type[Event],
        run_id: str | None,
        sink: Callable[[Any], object] | None = None,
        *,
        resumed: bool = False,
        **facts: Any,
    ) -> None:
        """Send an event as `emit` does; where nobody hears it, it is only counted."""
        if sink is None and not self._listeners and not self._is_observed(kind):
            self._seq += 1
        else:
            self.emit(kind, run_id, sink, resumed=resumed, **facts)

    def emit(
        self,
        kind: type[E],
        run_id: str | None,
        sink: Callable[[Any], object] | None = None,
        *,
        resumed: bool = False,
        **facts: Any,
    ) -> E:
        """Send an event to the stream that is given, to the listeners, and to the observers."""
        self._seq += 1
        event = self.make(kind, run_id, resumed=resumed, **facts)
        if sink is not None:
            sink(event)
        told: Any = event
        for listener in self._listeners:
            if listener.may_hear(self.scope):
                listener.put(told)
        self._observe(told)
        return event

    def make(self, kind: type[E], run_id: str | None, *, resumed: bool = False, **facts: Any) -> E:
        """Return an event without sending it; it has the number of the last one that was sent."""
        at = self._clock.now()
        own = {name: _for_others(fact) for name, fact in facts.items()}
        return kind(run_id=run_id, session_id=self._session_id, seq=self._seq, at=at, resumed=resumed, **own)

    @property
    def is_scoped(self) -> bool:
        """Whether one of the listeners hears of conversations of one scope alone."""
        return any(listener.scope is not None for listener in self._listeners)

    def on(self, function: Callable[[Any], Awaitable[None] | None], scope: str | None = None) -> Callable[[], None]:
        """Have a function hear of every event from now on, unless of another scope; return a function that ends it."""
        listener = Listener(function, scope)
        self._listeners = (*self._listeners, listener)

        def off() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return off

    async def catch_up(self) -> None:
        """Wait, for a bounded time for all of them, until the listeners have heard of everything."""
        working = [task for listener in self._listeners if (task := listener.work) is not None]
        if working:
            await asyncio.wait(working, timeout=CATCH_UP)


class Channels:
    """The channels of a bundle; one lasts as long as somebody holds it.

    Attributes:
        background: Turns that go on without anybody who waits for them; closing the bundle ends them as a crash would.
    """

    def __init__(
        self, observe: Callable[[RunEvent], None], is_observed: Callable[[type[Event]], bool] = _always
    ) -> None:
        self._observe = observe
        self._is_observed = is_observed
        self._channels: WeakValueDictionary[str, Channel] = WeakValueDictionary()
        self.background: set[asyncio.Task[Any]] = set()

    def of(self, key: str, session_id: str | None, clock: Clock) -> Channel:
        """Return the channel of a conversation."""
        return self._channels.setdefault(key, Channel(session_id, clock, self._observe, self._is_observed))

    def detach(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that nobody waits for, and log what it raises."""
        self.background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a detached turn failed", exc_info=error)

    async def close(self) -> None:
        """Cancel what runs in the background, and wait until it has given its turns up."""
        tasks = tuple(self.background)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
