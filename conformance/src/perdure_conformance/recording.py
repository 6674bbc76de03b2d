"""The record of a law's calls: what it asked of which store, and what came, so that a failure can be told as store calls."""

from __future__ import annotations

import asyncio
import functools
import marshal
import math
import pickle
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure_conformance.parts import Stores

KEPT = 60
"""How many calls of a law are kept, the last ones."""

WITHOUT_REFERENCES = 2
"""The version of marshal's format that is the fastest: what a call is asked with is copied, and most calls are of laws that hold."""

COPIED = 2**14
"""How long such a copy may be, in bytes; of what is longer the text is kept at once."""

SHOWN = 240
"""About how many characters of a value a recorded call shows."""

METHODS: Mapping[str, tuple[str, ...]] = {
    "": ("write", "decide", "delete_session", "prune", "close"),
    "sessions": ("load", "append", "replace", "delete", "list"),
    "checkpoints": ("load", "append", "replace", "delete", "list"),
    "approvals": ("create", "get", "decide", "cancel", "list", "delete"),
}
"""What is recorded, by part; those of the bundle itself stand under the empty name."""


class RecordedCall:
    """One call, and what became of it."""

    __slots__ = ("_asked", "_said", "_value")

    def __init__(self, text: str | Callable[[], str], answer: str = "") -> None:
        """Note that a call begins, by its text or what makes it; it may be answered already."""
        self._asked = text
        self._said = answer
        self._value: tuple[object, ...] = ()

    @property
    def text(self) -> str:
        """The call as Python, long values cut."""
        if not isinstance(self._asked, str):
            self._asked = self._asked()
        return self._asked

    @property
    def runs(self) -> bool:
        """Whether nothing came of it yet."""
        return not self._value and not self._said

    @property
    def answer(self) -> str:
        """What it answered, or the error that it raised; empty while it runs."""
        return shown(self._value[0]) if self._value else self._said

    def answered(self, value: object) -> None:
        """Note what the call answered. It becomes text only if somebody asks: most calls are of laws that hold."""
        self._value = (value,)

    def says(self, answer: str) -> None:
        """Note what became of the call, in words."""
        self._said = answer

    def failed(self, error: BaseException) -> None:
        """Note what the call raised."""
        self._said = printable(f"raises {type(error).__name__}: {error}"[:SHOWN])


@dataclass(slots=True)
class CallLog:
    """The last calls of a law, in the order in which they were made.

    Attributes:
        calls: The last calls.
        total: How many there were.
        patience: How long a call may take, in seconds.
        hung: The first call that took longer.
        on_hang: What is done about it; `None`: calls may take as long as they like.
    """

    calls: deque[RecordedCall] = field(default_factory=lambda: deque(maxlen=KEPT))
    total: int = 0
    patience: float = math.inf
    hung: RecordedCall | None = None
    on_hang: Callable[[], object] | None = None

    def begin(self, text: str | Callable[[], str]) -> RecordedCall:
        """Note that a call begins."""
        call = RecordedCall(text)
        self.calls.append(call)
        self.total += 1
        return call

    def call(self, name: str, arguments: Sequence[object], options: Mapping[str, object]) -> RecordedCall:
        """Note that a method is called with these arguments, as they are now."""
        made = functools.partial(_call_text, name)
        copied = _copied((arguments, options))
        return self.begin(made(arguments, options) if copied is None else lambda: made(*copied()))

    def timer(self, call: RecordedCall) -> asyncio.TimerHandle | None:
        """Start the time of a call; whoever made it cancels the timer when it has ended."""
        return None if self.on_hang is None else asyncio.get_running_loop().call_later(self.patience, self._hangs, call)

    def _hangs(self, call: RecordedCall) -> None:
        if self.hung is None and self.on_hang is not None:
            self.hung = call
            self.on_hang()

    @contextmanager
    def timed(self, call: RecordedCall) -> Iterator[None]:
        """Watch the time of a call that is made within."""
        timer = self.timer(call)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def running(self) -> list[RecordedCall]:
        """Return the calls of which nothing came yet."""
        return [call for call in self.calls if call.runs]


def _copied(value: Any) -> Callable[[], Any] | None:
    """Return what gives a value as it is now; `None` for what is long, and for objects that cannot be copied."""
    try:
        now, load = marshal.dumps(value, WITHOUT_REFERENCES), marshal.loads
    except ValueError:  # more than JSON
        try:
            now, load = pickle.dumps(value, pickle.HIGHEST_PROTOCOL), pickle.loads
        except Exception:  # noqa: BLE001  # reason: whatever an odd value does, the law that is told of it goes on
            return None
    return None if len(now) > COPIED else lambda: load(now)


def _call_text(name: str, arguments: Sequence[object], options: Mapping[str, object]) -> str:
    given = [*(shown(value) for value in arguments), *(f"{key}={shown(value)}" for key, value in options.items())]
    return f"{name}({', '.join(given)})"


def record(stores: Stores, name: str, log: CallLog) -> None:
    """Have every call on the public methods of an open bundle noted.

    The bundle and its parts become instances of a subclass of their own class: they stay what they are, copies of them
    are noted too, and a call takes no step more.
    """
    for part, methods in METHODS.items():
        if part and part not in stores:
            continue
        owner: Any = getattr(stores, part) if part else stores
        if _NOTED_AS in vars(owner):
            continue
        owner.__class__ = _recording(type(owner), methods)  # type: ignore[arg-type]  # reason: every class is hashable
        owner.__dict__[_NOTED_AS] = (".".join(filter(None, (name, part))), log)


def record_alike(store: object, noted: object, part: str) -> None:
    """Have the calls of a store noted as those of another one are, if they are."""
    if _NOTED_AS in vars(noted):
        store.__class__ = _recording(type(store), METHODS[part])  # type: ignore[arg-type]  # reason: every class is hashable
        store.__dict__[_NOTED_AS] = vars(noted)[_NOTED_AS]


_NOTED_AS = "_noted_as"


@functools.cache
def _recording(owner: type, methods: tuple[str, ...]) -> type:
    """Return the subclass of a class whose methods note their calls."""
    noting = {name: _noting(getattr(owner, name)) for name in methods}
    return type(owner.__name__, (owner,), {**noting, "__module__": owner.__module__, "__doc__": owner.__doc__})


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        known: tuple[str, CallLog] | None = vars(self).get(_NOTED_AS)
        if known is None:
            return method(self, *arguments, **options)
        name, log = known
        noted = log.call(f"{name}.{method.__name__}", arguments, options)
        try:
            answer = method(self, *arguments, **options)
        except BaseException as error:
            noted.failed(error)
            raise
        return _Watched(answer, noted, log) if isinstance(answer, Coroutine) else answer

    return call


class _Watched(Coroutine[Any, Any, Any], Generator[Any, Any, Any]):
    """A coroutine that notes how it ends, and is otherwise the one that it wraps."""

    def __init__(self, inner: Coroutine[Any, Any, Any], noted: RecordedCall, log: CallLog) -> None:
        self._inner, self._noted, self._log = inner, noted, log
        self._timer: asyncio.TimerHandle | None = None

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._inner.throw, *error)

    def close(self) -> None:
        self._stop_timer()
        self._inner.close()

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        try:
            waits = step(*values)
        except StopIteration as end:
            self._stop_timer()
            self._noted.answered(end.value)
            raise
        except BaseException as error:
            self._stop_timer()
            self._noted.failed(error)
            raise
        if self._timer is None:
            self._timer = self._log.timer(self._noted)
        return waits

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def shown(value: object, limit: int = SHOWN) -> str:
    """Return a value as Python source of limited length; what is cut says how long it was.

    Args:
        value: Any value; only as much of it is looked at as is shown.
        limit: About how many characters.
    """
    try:
        return _shown(value, limit, DEEPEST)
    except Exception:  # noqa: BLE001  # reason: whatever an odd value does, the law that is told of it goes on
        return f"<{type(value).__name__}>"


def printable(text: str) -> str:
    """Return text with what no report can hold (NUL, lone surrogates, control characters) written as escapes."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


DEEPEST = 8
"""How deep into a value a recorded call looks."""


def _shown(value: object, limit: int, depth: int) -> str:
    if value is None or (type(value) is str and len(value) <= limit):
        return repr(value)  # most values are one of these, and every call of every law is noted
    if isinstance(value, (str, bytes, bool, int, float, datetime, timedelta)):
        return _scalar(value, limit)
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        entries = (f"{_shown(key, limit, 1)}: " for key in value)
        return _joined("{", "}", limit, depth, zip(entries, value.values(), strict=True))
    if isinstance(value, tuple):
        return _joined("(", ",)" if len(value) == 1 else ")", limit, depth, (("", one) for one in value))
    if isinstance(value, list):
        return _joined("[", "]", limit, depth, (("", one) for one in value))
    if is_dataclass(value) and not isinstance(value, type):
        return _joined(f"{type(value).__name__}(", ")", limit, depth, _fields(value))
    return f"<{type(value).__name__}>"


def _scalar(value: Any, limit: int) -> str:
    if isinstance(value, (str, bytes)) and len(value) > limit:
        return f"{value[: limit // 2]!r}... ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    if isinstance(value, int) and value.bit_length() > 512:
        return f"<an integer of {value.bit_length()} bits>"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value).replace("datetime.", "")


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    """Return the fields of a dataclass that say more than their default."""
    for one in fields(value):
        own = getattr(value, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if one.init and (default is MISSING or own != default):
            yield f"{one.name}=", own


def _joined(begin: str, end: str, limit: int, depth: int, pieces: Iterable[tuple[str, object]]) -> str:
    parts: list[str] = []
    room = limit
    for prefix, value in pieces:
        if room <= 0:
            parts.append("...")
            break
        parts.append(prefix + _shown(value, max(room, 8), depth - 1))
        room -= len(parts[-1]) + 2
    return f"{begin}{', '.join(parts)}{end}"
