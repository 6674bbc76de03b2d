"""A journal between a bundle and its backend, in which a "process" can be stopped, killed or lied to at any call.

One `InterceptedJournal` is one process: kill it, and every later call of it dies too, so that no clean-up of a coroutine
that is still unwinding reaches the data. Several of them over one backend are several processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.backend import Capabilities, Journal, OutcomeUnknownError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from perdure.backend import JournalInfo, JournalSnapshot, Key, Operation, Part, Position

T = TypeVar("T")


class Died(BaseException):  # reason: not an error that a program handles: the process is gone
    """The process was killed at a call."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a journal.

    Attributes:
        number: Its place among the counted calls, from 1.
        kind: `read`, `write` or `scan`.
        operations: What a `write` writes.
    """

    number: int
    kind: str
    operations: Sequence[Operation] = ()

    def __str__(self) -> str:
        parts = [f"{type(operation).__name__} {operation.key.part}" for operation in self.operations]
        return f"call {self.number} ({self.kind}{': ' + ', '.join(parts) if parts else ''})"


@dataclass
class Interception:
    """What happens at calls: by default nothing but counting.

    Attributes:
        counted: Which kinds of calls are counted.
        before: Called before each counted call; may wait, or raise what the process shall see in place of the call.
        after: Called after each counted call took effect; may wait or raise.
        calls: The counted calls so far.
        dead: Whether the process is dead.
    """

    counted: tuple[str, ...] = ("write",)
    before: Callable[[Call], Awaitable[None]] | None = None
    after: Callable[[Call], Awaitable[None]] | None = None
    calls: list[Call] = field(default_factory=list)
    dead: bool = False

    async def around(self, kind: str, operations: Sequence[Operation], method: Callable[[], Awaitable[T]]) -> T:
        """Run one call of the backend, with what is to happen before and after it."""
        if self.dead:
            raise Died
        if kind not in self.counted:
            return await method()
        call = Call(len(self.calls) + 1, kind, operations)
        self.calls.append(call)
        try:
            if self.before is not None:
                await self.before(call)
            if self.dead:
                raise Died
            result = await method()
            if self.after is not None:
                await self.after(call)
        except Died:
            self.dead = True
            raise
        return result


class InterceptedJournal(Journal):
    """One process's way to a backend's journal."""

    def __init__(self, inner: Journal, interception: Interception, *, atomic: bool | None = None) -> None:
        """Wrap a journal that somebody else opens and closes.

        Args:
            inner: The backend's journal.
            interception: What happens at calls.
            atomic: Declare `atomic` or not; `None`: as the backend does.
        """
        self.inner = inner
        self.interception = interception
        own = inner.capabilities
        self.capabilities = Capabilities(
            durable=own.durable, shared=own.shared, atomic=own.atomic if atomic is None else atomic
        )
        self.namespace = inner.namespace
        self.title = inner.title

    async def open(self) -> None:
        """Do nothing: the backend is open."""

    async def close(self) -> None:
        """Do nothing: the backend is closed by whoever opened it."""

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read through."""
        return await self.interception.around(
            "read", (), lambda: self.inner.read(key, after=after, limit=limit, last=last)
        )

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Write through."""
        return await self.interception.around("write", operations, lambda: self.inner.write(operations))

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """Scan through."""
        filters: dict[str, Any] = {"group": group, "status": status, "before": before}
        return await self.interception.around(
            "scan", (), lambda: self.inner.scan(part, **filters, order=order, after=after, limit=limit)
        )


def at(number: int, outcome: str) -> Interception:
    """Return an interception that does one thing at one write.

    Args:
        number: Which write, from 1.
        outcome: `die-before`, `die-after`; `unavailable` (nothing is written, and the caller is told so), `lost` (nothing
            is written, and the outcome is unknown), `unknown` (it is written, and the outcome is unknown).
    """

    async def before(call: Call) -> None:
        if call.number != number:
            return
        if outcome == "die-before":
            raise Died
        if outcome == "unavailable":
            raise StoreUnavailableError("write", "key", "the test says so")
        if outcome == "lost":
            raise OutcomeUnknownError("write", "key", "the test lost the request")

    async def after(call: Call) -> None:
        if call.number != number:
            return
        if outcome == "die-after":
            raise Died
        if outcome == "unknown":
            raise OutcomeUnknownError("write", "key", "the test lost the answer")

    return Interception(before=before, after=after)


OUTCOMES = ("die-before", "die-after", "unavailable", "lost", "unknown")
