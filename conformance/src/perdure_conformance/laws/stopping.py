"""Stand-ins for stores that are made of no journal: each call that reaches such a store passes interceptions first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from perdure.backend import ApprovalStore, Capabilities, CheckpointStore, Journal, Key, SessionStore
from perdure.backend import Part as JournalPart
from perdure_conformance.interception import InterceptedJournal, Interception
from perdure_conformance.recording import record_alike

CONTRACTS: dict[str, type[Any]] = {
    "sessions": SessionStore,
    "checkpoints": CheckpointStore,
    "approvals": ApprovalStore,
}
METHODS = {
    "sessions": ("_load", "_append", "_replace", "_delete", "_list"),
    "checkpoints": ("_load", "_append", "_replace", "_delete", "_list"),
    "approvals": ("_get", "_create", "_settle", "_delete", "_list"),
}
"""What the author of a store writes, by part."""

KINDS = {"_load": "read", "_get": "read", "_list": "scan"}
"""What kind of a call of a backend stands behind a method; all others write."""

JOURNAL_PARTS = {
    "sessions": JournalPart.SESSIONS,
    "checkpoints": JournalPart.RUNS,
    "approvals": JournalPart.APPROVALS,
}


class Asked(NamedTuple):
    """What a store is asked to write, as far as a law looks at it.

    Attributes:
        key: Where.
        items: The encoded records or entries.
    """

    key: Key
    items: tuple[bytes, ...]


class Apart(Journal):
    """Stands for the journal of a bundle that is made of none, or of several: its parts are stopped one by one."""

    title = "several stores"

    def __init__(self, capabilities: Capabilities) -> None:
        """Declare what the bundle does."""
        self.capabilities = capabilities

    async def open(self) -> None:
        """Do nothing: the stores are open."""

    async def close(self) -> None:
        """Do nothing: whoever opened the stores closes them."""

    async def read(self, *_: Any, **__: Any) -> Any:
        """Nobody reads here."""
        raise NotImplementedError

    async def write(self, *_: Any, **__: Any) -> Any:
        """Nobody writes here."""
        raise NotImplementedError

    async def scan(self, *_: Any, **__: Any) -> Any:
        """Nobody lists here."""
        raise NotImplementedError


def interceptions_of(journal: Journal) -> list[Interception]:
    """Return what a process's calls pass on their way, the outermost first."""
    found = []
    while isinstance(journal, InterceptedJournal):
        found.append(journal.interception)
        journal = journal.inner
    return found


def stopped(part: Any, name: str, interceptions: Iterable[Interception]) -> Any:
    """Return a store over another one, as another process has it, whose calls pass interceptions.

    Args:
        part: The store under test.
        name: Which part it is.
        interceptions: What happens at calls, the outermost first.
    """
    fresh = _stand_in(name)()
    fresh.inner, fresh.interceptions, fresh.capabilities = part, tuple(interceptions), part.capabilities
    fresh.bind(clock=part.clock, max_record=part.max_record)
    record_alike(fresh, part, name)
    return fresh


@cache
def _stand_in(name: str) -> type[Any]:
    methods: dict[str, Any] = {method: _passing(name, method) for method in METHODS[name]}
    return type(f"Stopped{CONTRACTS[name].__name__}", (CONTRACTS[name],), {**methods, "title": _TITLE})


_TITLE = property(lambda store: store.inner.title)


def _passing(name: str, method: str) -> Callable[..., Any]:
    kind = KINDS.get(method, "write")

    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        asked = _asked(name, arguments) if kind == "write" else ()
        made: Callable[[], Any] = partial(getattr(self.inner, method), *arguments, **options)
        for interception in reversed(self.interceptions):
            made = partial(interception.around, kind, asked, made)
        return await made()

    return call


def _asked(name: str, arguments: Sequence[Any]) -> tuple[Asked, ...]:
    first = arguments[0]
    items = arguments[1] if len(arguments) > 1 else ()
    return (Asked(Key(JOURNAL_PARTS[name], first if isinstance(first, str) else first.id), tuple(items)),)
