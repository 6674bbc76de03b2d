"""Observers take note of events, in a thread of their own: an observer that is slow or broken holds no turn up.

An observer is a module (or any object) with a hook:

    from perdure.backend import hookimpl

    @hookimpl
    def perdure_event(event): ...

The hook is called in a copy of the context of whoever sent the event: `perdure.place.place()` says there which run it
belongs to, and the context variables of others, such as the current span of a tracer, have the sender's values.

Installed observers are the entry points of the group `perdure.observers`; they are looked for, in that thread, when
the first event of the process is sent. `register` adds one from code.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from perdure.events import StoreCalled
from perdure.observers.plugins import Observer, installed

if TYPE_CHECKING:
    from perdure.events import ObservedEvent

BACKLOG: Final = 10_000
"""How many events wait for the observers; while so many wait, new ones are dropped."""

CLOSE_WAIT: Final = 3.0
"""How long the closing of a bundle waits for the observers, in seconds."""

EXIT_WAIT: Final = 1.0
"""How long the end of the process waits for them, in seconds."""

_log = logging.getLogger("perdure.observers")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Stands in the queue behind events, and tells that they were heard of."""

    reached: Callable[[], object]


_WAKE: Final = _Mark(lambda: None)
"""Has the thread look whether there is anything left to do."""


class Observers:
    """The observers of a process, and what they have not heard of yet.

    Attributes:
        wanted: Whether events are to be sent at all; also while it is not known yet whether there is an observer.
        dropped: How many events were dropped since too many waited.
    """

    def __init__(self, find: Callable[[], Sequence[Observer]] = installed, backlog: int = BACKLOG) -> None:
        self.wanted = True
        self.dropped = 0
        self._find = find
        self._backlog = backlog
        self._found = False
        self._observers: tuple[Observer, ...] = ()
        self._leaving = False
        self._told = 0
        self._hung_at: int | None = None
        self.forget()

    def forget(self) -> None:
        """Be without a thread and without events, as in a forked child: both are the parent's."""
        self._lock = threading.RLock()  # an event may be sent by the collector, in the midst of anything
        self._rest()

    def _rest(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._full = False

    def register(self, plugin: object) -> None:
        """Add an observer; see `perdure.observers.register`."""
        observer = Observer.of(plugin)
        with self._lock:
            if all(known.plugin is not plugin for known in self._observers):
                self._observers = (*self._observers, observer)
            self.wanted = not self._leaving

    def unregister(self, plugin: object) -> None:
        """Take an observer away; with the last one the thread ends."""
        with self._lock:
            self._observers = tuple(known for known in self._observers if known.plugin is not plugin)
            self.wanted = not self._leaving and (bool(self._observers) or not self._found)
            if self._thread is not None:
                self._queue.put(_WAKE)

    def put(self, event: ObservedEvent) -> None:
        """Have the observers hear of an event, soon; what an observer itself causes is not told."""
        if threading.get_ident() == self._ident:
            return
        if self._queue.qsize() >= self._backlog:
            self._drop()
        else:
            self._queue.put((event, copy_context()))
        if self._thread is None:
            self._start()

    def _drop(self) -> None:
        self.dropped += 1
        if not self._full:
            self._full = True
            facts = {"backlog": self._backlog, "dropped": self.dropped}
            _log.warning("observers are too slow; events are dropped until they catch up", extra={"perdure": facts})

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            if not self.wanted:  # the last observer has just gone
                self._rest()
                return
            import_module("importlib.metadata")  # a child forked while the thread imports it would hang
            self._thread = threading.Thread(
                target=self._work, args=(self._queue,), name="perdure-observers", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:  # the process may have no more threads, or ends
                self._thread, self.wanted = None, False
                _log.exception("observers hear nothing: their thread could not be started")

    # --- in the thread ---

    def _work(self, queue: SimpleQueue[Any]) -> None:
        self._ident = threading.get_ident()
        self._look()
        while not self._leaving and not self._nobody(queue):
            item = queue.get()
            if isinstance(item, _Mark):
                item.reached()
            else:
                for observer in self._observers:
                    observer.tell(*item)
                    self._told += 1
            if queue.empty():
                self._full = False

    def _look(self) -> None:
        """Find the installed observers, once; those that were registered come behind them."""
        if self._found:
            return
        try:
            found = self._find()
        except Exception:  # noqa: BLE001  # reason: a turn never fails since observers cannot be found
            _log.exception("the installed observers could not be listed")
            found = ()
        with self._lock:
            known = [observer.plugin for observer in found]
            others = (observer for observer in self._observers if all(observer.plugin is not one for one in known))
            self._observers, self._found = (*found, *others), True

    def _nobody(self, queue: SimpleQueue[Any]) -> bool:
        """Whether there is no observer (any more): then the thread ends, and nothing is sent from now on."""
        if self._observers:
            return False
        with self._lock:
            if self._observers:
                return False
            self.wanted = False
            self._rest()
        while not queue.empty():
            item = queue.get()
            if isinstance(item, _Mark):
                item.reached()
        return True

    # --- waiting for it ---

    def _mark(self, reached: Callable[[], object]) -> bool:
        """Have a function called when all that was sent was heard of; False if nothing is to be waited for."""
        with self._lock:
            if self._thread is None or self._leaving or threading.get_ident() == self._ident:
                return False
            self._queue.put(_Mark(reached))
            return True

    async def catch_up(self, seconds: float) -> bool:
        """Wait until all that was sent was heard of; see `perdure.observers.catch_up`."""
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()

        def reached() -> None:
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                loop.call_soon_threadsafe(heard.set)

        if self._hung_at == self._told:
            return False  # one observer hangs: only the first closing waits for it
        if not self._mark(reached):
            return True
        try:
            async with asyncio.timeout(seconds):
                await heard.wait()
        except TimeoutError:
            self._hung_at = self._told
            _log.warning("observers have not heard of all events yet; nobody waits for them any longer")
            return False
        return True

    def leave(self) -> None:
        """Wait, for a bounded time, until the observers have heard of everything, and tell them nothing more."""
        heard = threading.Event()
        if self._mark(heard.set):
            heard.wait(EXIT_WAIT)
        self._leaving, self.wanted = True, False
        self._queue.put(_WAKE)


_observers: Final = Observers()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_observers.forget)
atexit.register(_observers.leave)


def register(plugin: object) -> None:
    """Add an observer to this process. One that is there already is not added twice.

    Args:
        plugin: A module, or any object, with a function `perdure_event(event)` that `@hookimpl` marks.

    Raises:
        InvalidArgumentError: It has no such function, or an async one.
    """
    _observers.register(plugin)


def unregister(plugin: object) -> None:
    """Take an observer away from this process; nothing happens if it is not there."""
    _observers.unregister(plugin)


def wanted() -> bool:
    """Return whether there may be an observer: if not, an event for observers alone need not be made."""
    return _observers.wanted


def observe(event: ObservedEvent) -> None:
    """Tell every observer of an event; returns at once, and does nothing where there is no observer."""
    if _observers.wanted:
        _observers.put(event)


async def catch_up(seconds: float = CLOSE_WAIT) -> bool:
    """Wait until the observers have heard of all that was sent so far; closing a bundle does this.

    Args:
        seconds: How long to wait at most.

    Returns:
        Whether they have.
    """
    return await _observers.catch_up(seconds)


def dropped() -> int:
    """Return how many events this process has dropped since its observers were too slow."""
    return _observers.dropped


class StoreCalls:
    """Makes events of the calls of one part of a bundle."""

    def __init__(self, part: str) -> None:
        self._part = part

    @property
    def wanted(self) -> bool:
        """Whether there may be an observer."""
        return _observers.wanted

    def called(self, operation: str, *, seconds: float, outcome: str, size: int, at: datetime) -> None:
        """Send `store.called`."""
        duration = timedelta(seconds=seconds)
        observe(StoreCalled(part=self._part, operation=operation, duration=duration, outcome=outcome, size=size, at=at))


STORE_CALLS: Final = {part: StoreCalls(part) for part in ("sessions", "checkpoints", "approvals")}
"""Who is told of the calls of each part."""
