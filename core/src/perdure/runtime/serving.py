"""Serving the calls on one conversation one after another, and refusing those that would wait for themselves."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.errors import SessionBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from perdure.bundle import AgentStore
    from perdure.runtime.turn.runner import Runner

_within: ContextVar[frozenset[object]] = ContextVar("perdure_within", default=frozenset())
"""The calls, on whichever conversations, that are served in the current context: none of them ends before it does."""


class Place:
    """The place of one call in the line of a conversation."""

    def __init__(self, store: AgentStore, key: str, turn: asyncio.Future[None]) -> None:
        self._ownership, self._key = store.ownership, key
        self._turn = turn
        self._seen: Runner | None = None

    async def next_runner(self) -> Runner | None:
        """Return what runs the conversation while this call waits, each once; `None` when it is this call's turn."""
        ownership = self._ownership
        running: Runner | None = ownership.running.get(self._key)
        if running is None or running is self._seen:
            with ownership.next_run(self._key) as begins:
                await asyncio.wait([begins, self._turn], return_when=asyncio.FIRST_COMPLETED)
                running = begins.result() if begins.done() else None
        self._seen = running
        return running

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Wait for this call's turn, and let nobody else be served until it ends."""
        await self._turn
        serving, call = self._ownership.serving, object()
        serving[self._key] = call
        within = _within.set(_within.get() | {call})
        try:
            yield
        finally:
            _within.reset(within)
            del serving[self._key]


class Serving:
    """The calls on one conversation, as this process serves them."""

    def __init__(self, store: AgentStore, key: str) -> None:
        self._store, self._key = store, key

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Serve a call, in call order."""
        async with self.in_line() as place, place.served():
            yield

    @contextlib.asynccontextmanager
    async def in_line(self) -> AsyncIterator[Place]:
        """Stand in line, until the block is left.

        Raises:
            SessionBusyError: It would wait for itself.
            WrongLoopError, StoreClosedError: As `enter` says.
        """
        self.enter()
        line = self._store.ownership.line(self._key)
        with self._waiting():
            turn = line.enter()
            try:
                yield Place(self._store, self._key, turn)
            finally:
                line.leave(turn)

    def enter(self) -> None:
        """Refuse another event loop and a closed store as the store itself would, before a wait that would hang there."""
        self._store.checkpoints._enter()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Have it be known, as long as the block lasts, that the calls around this one wait for the conversation.

        Raises:
            SessionBusyError: The conversation itself waits for one of them.
        """
        held, waits = _within.get(), self._store.ownership.waits
        self._refuse_circle(held)
        for call in held:
            waits.setdefault(call, []).append(self._key)
        try:
            yield
        finally:
            for call in held:
                waits[call].remove(self._key)
                if not waits[call]:
                    del waits[call]

    def _refuse_circle(self, held: frozenset[object]) -> None:
        ownership = self._store.ownership
        if ownership.serving.get(self._key) in held:
            raise self._circle("the call that makes this call")
        keys, seen = [self._key], set[object]()
        while keys:
            holder = ownership.serving.get(keys.pop())
            if holder in held:
                raise self._circle("a call that waits for the one that makes this call")
            if holder is not None and holder not in seen:
                seen.add(holder)
                keys += ownership.waits.get(holder, ())

    def _circle(self, who: str) -> SessionBusyError:
        error = SessionBusyError(self._key, who)
        error.hint = "Neither would ever end: make the call when the other one has ended, or in another session."
        error.retryable = False
        return error
