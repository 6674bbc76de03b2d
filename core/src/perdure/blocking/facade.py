"""Makes a class whose methods wait of one whose methods are awaited. Nothing here knows any method by its name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FunctionType, TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from perdure.blocking.loop import LoopThread, loop_thread
from perdure.errors import WrongLoopError

HIDDEN: Final = frozenset({"bind", "seal", "channels", "ownership", "transcripts", "journal"})
"""Public names that no blocking object has: they are there for the bundle and the runtime, within the loop."""

Leave = Callable[[Any, type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]]

T = TypeVar("T")

_END: Final = object()


class Facade:
    """Stands for an object that lives in the event loop of the blocking API.

    Methods and properties are called in the loop's thread, so that any number of threads may share the object;
    attributes are read where they are. Two that stand for the same object are equal.
    """

    __slots__ = ("__weakref__", "_home", "_target")
    _kinds: ClassVar[dict[type[Any], type[Facade]]] = {}
    _of: ClassVar[type[Any]]

    _target: Any
    _home: LoopThread | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        loop = loop_thread()
        self._target = loop.call(self._of.__name__, _bound(loop, self._of, args, kwargs))
        # An agent without a store has nothing of the loop: a forked child may give it one.
        self._home = None if getattr(self._target, "store", self) is None else loop

    @classmethod
    def _standing_for(cls, target: Any, home: LoopThread | None) -> Self:
        """Return one that stands for an object that is there."""
        made = cls.__new__(cls)
        made._target, made._home = target, home
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in HIDDEN:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _shown(getattr(self._target, name), self._home)

    def __dir__(self) -> list[str]:
        own = [name for name in vars(self._target) if not name.startswith("_") and name not in HIDDEN]
        return sorted({*super().__dir__(), *own})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facade) and self._target is other._target

    def __hash__(self) -> int:
        return hash(id(self._target))

    def __repr__(self) -> str:
        return f"<perdure.blocking.{type(self).__name__} of {self._target!r}>"


def facade_of(of: type[Any]) -> type[Facade]:
    """Make the class that stands for a class of the async API.

    Args:
        of: The class.
    """
    members: dict[str, Any] = {"__slots__": (), "__module__": "perdure.blocking", "__doc__": of.__doc__, "_of": of}
    members["__signature__"] = inspect.signature(of)
    for name in dir(of):
        member = inspect.getattr_static(of, name)
        if name == "__contains__" or not (name.startswith("_") or name in HIDDEN):
            members |= _made(of, name, member)
    if hasattr(of, "__aenter__"):
        members |= {"__enter__": _enter, "__exit__": _exit_by(of.__aexit__)}
    if hasattr(of, "__anext__"):
        members |= {"__iter__": _itself, "__next__": _next}
    made = Facade._kinds[of] = type(of.__name__, (Facade,), members)
    return made


def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that waits for what another one gives to be awaited."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        loop = loop_thread()
        return _shown(loop.wait(function.__name__, _bound(loop, function, args, kwargs)), loop)

    return called


def waits(function: Callable[..., Any]) -> bool:
    """Whether what a function returns is to be awaited."""
    returned = str(function.__annotations__.get("return", ""))
    return inspect.iscoroutinefunction(function) or returned.startswith(("Coroutine[", "Awaitable["))


def _made(of: type[Any], name: str, member: Any) -> dict[str, Any]:
    if isinstance(member, property) and member.fget is not None:
        return {name: property(_called(of, member.fget, waiting=False), doc=member.__doc__)}
    if isinstance(member, FunctionType):
        return {name: _called(of, member, waiting=waits(member))}
    return {}


def _called(of: type[Any], function: FunctionType | Callable[[Any], Any], *, waiting: bool) -> Callable[..., Any]:
    title = f"{of.__name__}.{function.__name__}"

    @functools.wraps(function)
    def method(self: Facade, /, *args: Any, **kwargs: Any) -> Any:
        loop = _loop_of(self)
        call = _bound(loop, function, (self, *args), kwargs)
        answer = loop.wait(title, call) if waiting else loop.call(title, call)
        return self if answer is self._target else _shown(answer, loop)

    return method


def _loop_of(facade: Facade) -> LoopThread:
    """Return the loop that an object lives in; refuse one that was made before a fork."""
    loop = loop_thread()
    if facade._home not in (None, loop):
        raise WrongLoopError(facade._of.__name__, "was opened in another process, of which this one is a fork")
    return loop


def _bound(
    loop: LoopThread, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Bind a function to arguments, each as the async API knows it."""

    def inner(value: Any) -> Any:
        if not isinstance(value, Facade):
            return value
        _loop_of(value)
        return value._target

    return functools.partial(function, *map(inner, args), **{name: inner(value) for name, value in kwargs.items()})


def _shown(value: Any, home: LoopThread | None) -> Any:
    """Return what a caller without an event loop gets for an answer or an attribute."""
    for kind in type(value).__mro__:
        if kind in Facade._kinds:
            return Facade._kinds[kind]._standing_for(value, home)
    if hasattr(value, "__anext__"):
        return Items(value, home or loop_thread())
    if isinstance(value, FunctionType):
        return _plain(value, home or loop_thread())
    return value


def _plain(function: FunctionType, loop: LoopThread) -> Callable[..., Any]:
    """Return a function that calls one of the loop's own, such as the one that ends a listener."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return loop.call(function.__name__, _bound(loop, function, args, kwargs))

    return called


class Items(Iterator[T]):
    """An async iterator as an iterator; `close` ends it early."""

    def __init__(self, items: Any, loop: LoopThread) -> None:
        self._items, self._loop = items, loop

    def __next__(self) -> T:
        item: T = _next_of(self._loop, self._items)
        return item

    def close(self) -> None:
        """End it; nothing happens if it has ended."""
        if hasattr(self._items, "aclose"):
            self._loop.wait("close", self._items.aclose)


def _next_of(loop: LoopThread, items: Any) -> Any:
    item = loop.wait(f"{type(items).__name__}.__next__", lambda: anext(items, _END))
    if item is _END:
        raise StopIteration
    return _shown(item, loop)


def _itself(self: Facade) -> Facade:
    return self


def _next(self: Facade) -> Any:
    return _next_of(_loop_of(self), self._target)


def _enter(self: Facade) -> Any:
    target, loop = self._target, _loop_of(self)
    try:
        answer = loop.wait(f"{self._of.__name__}.__enter__", target.__aenter__)
    except Exception:
        raise
    except BaseException as interruption:  # maybe after it was entered, and nobody else would leave it
        leave = functools.partial(target.__aexit__, type(interruption), interruption, interruption.__traceback__)
        loop.wait_if_possible(f"{self._of.__name__}.__exit__", leave)
        raise
    return self if answer is target else _shown(answer, loop)


def _exit_by(leave: Leave) -> Callable[..., None]:
    def __exit__(  # noqa: N807  # reason: it is that method
        self: Facade, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.is_finalizing():  # of a generator that was never ended; its turn was, and stays pending
            return
        loop = loop_thread()
        if self._home in (None, loop):  # else a child was forked within the block, which is its parent's to leave
            # A generator with the block in it may be closed anywhere: by the collector also in the thread of a loop.
            loop.wait_if_possible(f"{self._of.__name__}.__exit__", lambda: leave(self._target, kind, error, trace))

    return __exit__
