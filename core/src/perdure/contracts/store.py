"""What the three stores share: who may call them from where, and what becomes of a foreign exception."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC
from typing import TYPE_CHECKING, Final, TypeVar, final

from perdure.clock import SYSTEM_CLOCK
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.process import THIS_PROCESS
from perdure.contracts.records import MAX_RECORD, check_first_version
from perdure.contracts.watching import Watch
from perdure.errors import (
    OutcomeUnknownError,
    PerdureError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedOperationError,
    WrongLoopError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from perdure.clock import Clock
    from perdure.contracts.watching import StoreSink

R = TypeVar("R")

_SAME_LIFE: Final = 2**20
"""How far versions of one life of a key may be apart: one that is created again starts anywhere in 40 bits."""


class Store(ABC):
    """Base of the three stores. A store needs no `super().__init__()`: what it needs has defaults in the class.

    Attributes:
        capabilities: What the store declares.
        clock: The clock for instants that the caller leaves out; `open_store` and `AgentStore` bind it.
        max_record: The limit of one encoded record, in bytes.
    """

    capabilities: Capabilities = Capabilities()
    clock: Clock = SYSTEM_CLOCK
    max_record: int = MAX_RECORD

    _event_sink: StoreSink | None = None
    _home: tuple[int, asyncio.AbstractEventLoop] | None = None
    _closed: bool = False

    @property
    def title(self) -> str:
        """A short name for messages."""
        return type(self).__name__

    @final
    def bind(self, *, clock: Clock | None = None, max_record: int | None = None, sink: StoreSink | None = None) -> None:
        """Set the clock, the limit and who is told of calls; called by the bundle that the store becomes part of."""
        if clock is not None:
            self.clock = clock
        if max_record is not None:
            self.max_record = max_record
        if sink is not None:
            self._event_sink = sink

    @final
    def seal(self) -> None:
        """Refuse every later call with `StoreClosedError`; called by the bundle that opened the store."""
        self._closed = True

    @final
    def _enter(self) -> None:
        """Refuse a closed store, another event loop and a forked child; the first call says where home is."""
        if self._closed:
            raise StoreClosedError(self.title)
        home = self._home
        if home is not None and home[0] != THIS_PROCESS.pid:
            raise WrongLoopError(self.title, "was opened in another process, of which this one is a fork")
        loop = asyncio.get_running_loop()
        if home is None:
            self._home = (THIS_PROCESS.pid, loop)
        elif home[1] is not loop:
            raise WrongLoopError(self.title, "belongs to another event loop")

    @final
    def require(self, capability: str) -> None:
        """Raise `UnsupportedOperationError` unless the store declares a capability."""
        if not getattr(self.capabilities, capability):
            raise UnsupportedOperationError(self.title, capability)

    @final
    async def _reading(self, operation: str, key: str, read: Callable[[], Awaitable[R]]) -> R:
        self._enter()
        sink = self._event_sink
        if sink is None or not sink.wanted:
            return await _answer(read, StoreUnavailableError, operation, key)
        with Watch(sink, self.clock, operation) as watch:
            answer = await _answer(read, StoreUnavailableError, operation, key)
            watch.moved(answer)
            return answer

    @final
    async def _writing(self, operation: str, key: str, write: Callable[[], Awaitable[R]], *given: object) -> R:
        self._enter()
        sink = self._event_sink
        if sink is None or not sink.wanted:
            return await _answer(write, OutcomeUnknownError, operation, key)
        with Watch(sink, self.clock, operation) as watch:
            watch.moved(*given)
            return await _answer(write, OutcomeUnknownError, operation, key)


async def _answer(
    call: Callable[[], Awaitable[R]],
    failure: type[OutcomeUnknownError | StoreUnavailableError],
    operation: str,
    key: str,
) -> R:
    """Await a call of the backend; what it raises that is not ours becomes `failure`."""
    try:
        return await call()
    except PerdureError:
        raise
    except Exception as error:
        raise failure(operation, key, describe(error)) from error


@contextlib.contextmanager
def unavailable(what: str, key: str) -> Iterator[None]:
    """Say of a foreign exception that is none of a write itself that nothing was written."""
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        raise StoreUnavailableError(what, key, describe(error)) from error


def describe(error: BaseException) -> str:
    """Return an exception as one short line, also one whose own text fails."""
    text = ""
    with contextlib.suppress(Exception):
        text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def draw_version() -> int:
    """Draw the first version of a new key: 40 random bits, never 0, so that no version of a key comes twice."""
    return int.from_bytes(os.urandom(5), "big") or 1


def in_one_life(earlier: int, later: int) -> bool:
    """Whether a key at a later version is the one that it was at an earlier version, never deleted between."""
    return 0 <= later - earlier < _SAME_LIFE


def first_version(given: object, expected_version: int | None) -> int:
    """Return the version that the key gets if it is absent: the one that was given, if it is valid, else a drawn one.

    A write at a version of 1 or more creates nothing, so nothing is drawn for it.
    """
    if given is not None:
        return check_first_version(given, expected_version)
    return 1 if expected_version else draw_version()
