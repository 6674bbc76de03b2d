"""What is worth keeping for whoever asks for it next, up to so many bytes."""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def memory_of(value: Any) -> int:
    """Return about how many bytes of memory a JSON value takes."""
    if type(value) is dict:
        return getsizeof(value) + sum(map(memory_of, value.values()))
    if type(value) in (list, tuple):
        return getsizeof(value) + sum(map(memory_of, value))
    return getsizeof(value)


class Recent(Generic[T]):
    """Objects by name: one for a name as long as somebody holds it, and those that were used last also after that.

    Attributes:
        limit: How many bytes those may take that nobody else holds; 0: none is kept.
    """

    def __init__(self, limit: int) -> None:
        """Keep nothing yet."""
        self.limit = limit
        self._held: WeakValueDictionary[str, T] = WeakValueDictionary()
        self._kept: dict[str, tuple[T, int]] = {}  # the one that was used last is the last one
        self._bytes = 0

    def of(self, name: str, make: Callable[[], T]) -> T:
        """Return the object of a name, or make it."""
        found = self._held.get(name)
        if found is None:
            found = self._held[name] = make()
        return found

    def __contains__(self, name: str) -> bool:
        """Whether an object is kept, also if nobody else holds it."""
        return name in self._kept

    def keep(self, name: str, used: T, weight: int) -> None:
        """Keep what was just used and takes so many bytes, and let go of those of which the use is longest ago.

        What was forgotten is not kept any more, whoever still uses it.
        """
        if self._held.get(name) is not used:
            return
        self._let_go(name)
        if weight > self.limit:
            return
        self._kept[name] = used, weight
        self._bytes += weight
        while self._bytes > self.limit:
            self._let_go(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        """Let go of an object for good: whoever holds it may go on with it, and whoever asks for it next gets another."""
        self._held.pop(name, None)
        self._let_go(name)

    def clear(self) -> None:
        """Let go of all."""
        for name in [*self._held]:
            self.forget(name)

    def _let_go(self, name: str) -> None:
        _, weight = self._kept.pop(name, (None, 0))
        self._bytes -= weight
