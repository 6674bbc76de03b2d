"""What the stores of one bundle share: opened once, in order, and closed once, in reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from perdure.contracts.store import describe
from perdure.errors import PerdureError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Resource(Protocol):
    """Something with an asynchronous `open` and `close`: a connection, a pool, a journal."""

    async def open(self) -> None:
        """Connect, or raise and leave nothing open."""

    async def close(self) -> None:
        """Release everything. Also called after an `open` that failed."""


R = TypeVar("R", bound=Resource)


class Resources:
    """The resources of one opening, by key. The hooks of a plugin get them; `open_store` opens and closes them."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Resource] = {}
        self._attempted: list[Resource] = []
        self._closing: asyncio.Task[None] | None = None

    def get(self, key: Hashable, factory: Callable[[], R]) -> R:
        """Return the resource of a key, made by `factory` the first time.

        Args:
            key: What it is, the same for all hooks that share it, with the kind first: `("pool", url)`.
            factory: Makes it, without any input or output. `open` is called later, once.
        """
        if key not in self._made:
            self._made[key] = factory()
        return self._made[key]  # type: ignore[return-value]  # reason: one key, one factory

    async def open(self) -> None:
        """Open all, in the order in which they were made. The first failure ends it; call `close` then too.

        Raises:
            PerdureError: What the resource raised; a foreign exception becomes `StoreUnavailableError`.
        """
        for resource in self._made.values():
            self._attempted.append(resource)
            try:
                await resource.open()
            except PerdureError:
                raise
            except Exception as error:
                raise StoreUnavailableError("open", _title(resource), describe(error)) from error

    async def close(self) -> None:
        """Close all that were opened or whose opening failed, once, in reverse order, also when cancelled meanwhile.

        Raises:
            PerdureError: The first failure, after all were closed; later ones are notes of it.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await finish(self._closing)

    async def _close(self) -> None:
        errors: list[PerdureError] = []
        while self._attempted:
            try:
                await _close(self._attempted.pop())
            except PerdureError as error:
                errors.append(error)
        for later in errors[1:]:
            errors[0].add_note(f"then: {later}")
        if errors:
            raise errors[0]


async def finish(task: asyncio.Task[None]) -> None:
    """Wait until a task is done, whatever is cancelled meanwhile; then pass the cancellation on, or its error."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def _close(resource: Resource) -> None:
    try:
        await resource.close()
    except PerdureError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # of a task of its own: nobody cancels this one
        raise StoreUnavailableError("close", _title(resource), describe(error)) from error


def _title(resource: Resource) -> str:
    return str(getattr(resource, "title", type(resource).__name__))
