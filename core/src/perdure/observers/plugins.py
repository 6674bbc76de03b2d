"""Find the installed observers, and call one so that whatever it does hurts nobody else."""

from __future__ import annotations

import inspect
import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Context
    from importlib import metadata

    from perdure.events import ObservedEvent

GROUP: Final = "perdure.observers"
"""The entry-point group of observers. An entry's name is free, its value the module."""

HOOK: Final = "perdure_event"

SWITCHED_OFF: Final = "PERDURE_OBSERVERS_OFF"
"""The environment variable with the entries of installed observers that are not to be loaded, set apart by commas."""

_log = logging.getLogger("perdure.observers")


@dataclass(frozen=True, slots=True, eq=False)
class Observer:
    """A checked observer.

    Attributes:
        plugin: The module or object.
        title: What it is called in messages.
    """

    plugin: object
    title: str
    _hook: Any

    @classmethod
    def of(cls, plugin: object, title: str = "") -> Observer:
        """Check an observer.

        Raises:
            InvalidArgumentError: It has no hook, or one that cannot be called.
        """
        import pluggy  # a process without observers does not need it

        from perdure.contracts import hookspecs

        manager = pluggy.PluginManager("perdure")  # of its own, so that no observer sees another's calls
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(plugin)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise InvalidArgumentError("plugin", f"is no observer: {' '.join(str(error).split())}") from error
        implementations = getattr(manager.hook, HOOK).get_hookimpls()
        if not implementations:
            raise InvalidArgumentError("plugin", f"has no function {HOOK} that is marked by @hookimpl")
        if any(inspect.iscoroutinefunction(one.function) for one in implementations):
            raise InvalidArgumentError("plugin", f"has an async {HOOK}; hooks are plain functions")
        return cls(plugin, title or getattr(plugin, "__name__", type(plugin).__name__), getattr(manager.hook, HOOK))

    def tell(self, event: ObservedEvent, context: Context) -> None:
        """Call the hook in a context; what it raises is logged."""
        try:
            context.run(self._hook, event=event)
        except BaseException:  # noqa: BLE001  # reason: not even an exit within an observer ends the thread of all
            facts = {"observer": self.title, "event": getattr(event, "type", type(event).__name__)}
            _log.exception("an observer raised; the event is lost to it", extra={"perdure": facts})


def installed() -> list[Observer]:
    """Import the installed observers. One that does not load is logged; whatever is broken hurts no other."""
    observers: dict[int, Observer] = {}
    off = {name.strip() for name in os.environ.get(SWITCHED_OFF, "").split(",")}
    for entry, source in sorted(_entries(), key=lambda declared: declared[0].name):
        observer = None if entry.name in off else _load(entry, source)
        if observer is not None:
            observers.setdefault(id(observer.plugin), observer)
    return list(observers.values())


def _load(entry: metadata.EntryPoint, source: str) -> Observer | None:
    try:
        return Observer.of(entry.load(), entry.name)
    except BaseException:  # noqa: BLE001  # reason: an import may raise anything, SystemExit too
        facts = {"observer": entry.name, "module": entry.value, "distribution": source}
        _log.exception(
            "the observer %r of %s does not load, and is ignored", entry.name, source, extra={"perdure": facts}
        )
        return None


def _entries() -> Iterator[tuple[metadata.EntryPoint, str]]:
    """Return what is declared, and by whom; of a distribution that is there twice, the first on the path counts."""
    from importlib import metadata  # and what reads mail: nobody waits for the observers' thread

    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            entries = tuple(distribution.entry_points.select(group=GROUP))
            if not entries:
                continue
            name, version = distribution.name, distribution.version
            normalised = re.sub(r"[-_.]+", "-", name).lower()
        except Exception:  # noqa: BLE001, S112  # reason: a distribution that is broken must not hide all others
            continue
        if normalised not in seen:
            seen.add(normalised)
            yield from ((entry, f"{name} {version}") for entry in entries)
