"""Find the installed store plugins, load the one that is asked for, and explain every failure.

Listing imports nothing. A plugin that is broken hurts nobody until its own scheme is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import pluggy

from perdure.contracts import hookspecs
from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.hookspecs import CONTRACT
from perdure.contracts.sessions import SessionStore
from perdure.contracts.store import Store, describe
from perdure.errors import PerdureError, PluginConflictError, PluginLoadError, UnknownSchemeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib import metadata

    from pydantic import BaseModel

    from perdure.contracts.resources import Resources
    from perdure.contracts.urls import StoreURL

GROUP: Final = "perdure.stores"
"""The entry-point group of store plugins. An entry's name is the URL scheme, its value the plugin module."""


class Hook(NamedTuple):
    """The hook of one part of a bundle, and what it answers."""

    name: str
    kind: type[Store]


HOOKS: Final = {
    "sessions": Hook("perdure_session_store", SessionStore),
    "checkpoints": Hook("perdure_checkpoint_store", CheckpointStore),
    "approvals": Hook("perdure_approval_store", ApprovalStore),
}
"""The hooks by part."""

FIRST_PARTY: Final = {
    "memory": "memory",
    "file": "file",
    "sqlite": "sqlite",
    "redis": "redis",
    "rediss": "redis",
    "redis+unix": "redis",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
}
"""The schemes of our own plugins, with the extra that installs each."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A store plugin as its distribution declares it, not imported.

    Attributes:
        scheme: The URL scheme that it claims.
        distribution: The name of the distribution.
        version: The distribution's version.
        module: The plugin module.
    """

    scheme: str
    distribution: str
    version: str
    module: str


@dataclass(frozen=True, slots=True)
class Plugin:
    """A store plugin, imported and checked."""

    installed: InstalledPlugin
    options: type[BaseModel]
    hooks: pluggy.HookRelay

    def check(self, url: StoreURL) -> StoreURL:
        """Return the URL with its options checked, or raise `StoreURLError`."""
        from perdure.contracts.options import check_options  # and pydantic: only who opens needs it

        with _blaming(self.installed, "its Options"):
            return check_options(url, self.options)

    def make(self, part: str, url: StoreURL, resources: Resources) -> Store | None:
        """Ask for the store of one part, not yet open; `None` if the plugin has none for this URL.

        Raises:
            PluginLoadError: The hook failed, or answered something else than a store.
        """
        name, kind = HOOKS[part]
        with _blaming(self.installed, name):
            answer = getattr(self.hooks, name)(url=url, resources=resources)
        if answer is None or isinstance(answer, kind):
            return answer
        if inspect.isawaitable(answer):
            getattr(answer, "close", lambda: None)()
            raise _broken(self.installed, f"{name} answered an awaitable; hooks are plain functions")
        raise _broken(self.installed, f"{name} answered a {type(answer).__name__}, not a {kind.__name__}")


def installed() -> tuple[InstalledPlugin, ...]:
    """List the installed store plugins by scheme, without importing any.

    A distribution that is there twice (an editable install beside a stale one) counts once, as Python imports it: the
    first on the path. What a place of the path holds is read once, until the date of that folder or archive changes, so
    an installation while the process runs is seen, and a removal too. What comes without a change of date is not: an
    edit within a distribution's own folder, or the rest of an installation that was looked at halfway. `find` therefore
    reads all again before it says that there is no such plugin.
    """
    path: Sequence[object] = sys.path  # Python passes over what is no text in it
    return _installed(tuple(_place(entry) for entry in path if isinstance(entry, str)))


class _Place(NamedTuple):
    """A place of the path, with what changes when a distribution comes to it, or goes; none of it if nothing is there."""

    entry: str
    device: int = 0
    inode: int = 0
    changed_ns: int = 0


def _place(entry: str) -> _Place:
    try:
        found = os.stat(entry or ".")  # noqa: PTH116  # reason: an entry may be anything, and this runs at every opening
    except (OSError, ValueError, TypeError):
        return _Place(entry)
    return _Place(entry, found.st_dev, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=1)
def _installed(places: tuple[_Place, ...]) -> tuple[InstalledPlugin, ...]:
    first: dict[str, tuple[InstalledPlugin, ...]] = {}
    for place in places:
        for found in _declared_in(place):
            first.setdefault(_normalised(found[0].distribution), found)
    declared = (plugin for plugins in first.values() for plugin in plugins)
    return tuple(sorted(declared, key=lambda plugin: (plugin.scheme, plugin.distribution)))


@lru_cache(maxsize=256)
def _declared_in(place: _Place) -> tuple[tuple[InstalledPlugin, ...], ...]:
    """Read the metadata of every distribution in a place, by distribution; it costs more than most openings.

    Each place is kept for itself, since one of them is often the working folder, which changes with each file in it: a
    database, say, that comes and goes with every opening.
    """
    from importlib import metadata  # and what reads mail: only who opens or lists stores needs it

    try:
        return tuple(filter(None, map(_declared, metadata.distributions(path=[place.entry]))))
    except Exception:  # noqa: BLE001  # reason: a place that cannot be one must not hide all others
        return ()


def find(scheme: str) -> InstalledPlugin:
    """Return the one installed plugin of a scheme, not imported.

    Raises:
        UnknownSchemeError: There is none.
        PluginConflictError: Several distributions claim the scheme.
    """
    found = _claiming(scheme)
    if not found:
        _forget()
        found = _claiming(scheme)
    if not found:
        raise _unknown(scheme, sorted({plugin.scheme for plugin in installed()}))
    distributions = list(dict.fromkeys(plugin.distribution for plugin in found))
    if len(distributions) > 1:
        raise PluginConflictError(scheme, distributions)
    return found[0]


def _claiming(scheme: str) -> list[InstalledPlugin]:
    return [plugin for plugin in installed() if plugin.scheme == scheme]


def _forget() -> None:
    """Forget what is installed, here and in `importlib`, which goes by the dates of folders too."""
    importlib.invalidate_caches()
    _installed.cache_clear()
    _declared_in.cache_clear()


def load(scheme: str) -> Plugin:
    """Import and check the plugin of a scheme, and no other.

    Raises:
        UnknownSchemeError, PluginConflictError: As `find`.
        PluginLoadError: The plugin does not import, or breaks the contract of plugins.
    """
    from importlib import metadata

    found = find(scheme)
    from perdure.contracts.options import (
        options_model,
    )  # pydantic: if that fails, no plugin is to blame

    with _blaming(found, "its import", ours_pass=False):
        module = metadata.EntryPoint(name=scheme, value=found.module, group=GROUP).load()
    with _blaming(found, "its declarations"):
        _check_contract(found, module)
        model = options_model(module)
        if model is None:
            raise _broken(found, "its Options is no pydantic model")
        return Plugin(found, model, _hooks(found, module))


def _declared(distribution: metadata.Distribution) -> tuple[InstalledPlugin, ...]:
    """Return the plugins that a distribution declares; one whose metadata cannot be read declares none."""
    try:
        entries = distribution.entry_points.select(group=GROUP)
        name, version = (_field(distribution, "Name"), _field(distribution, "Version")) if entries else ("", "")
    except Exception:  # noqa: BLE001  # reason: whatever is broken in one distribution must not hide all others
        return ()
    place = f"the unnamed distribution in {distribution.locate_file('')}"
    return tuple(
        InstalledPlugin(entry.name.lower(), name or place, version or "of unknown version", entry.value)
        for entry in entries
    )


def _field(distribution: metadata.Distribution, name: str) -> str:
    fields = distribution.metadata
    return fields[name] if name in fields else ""  # noqa: SIM401  # reason: the protocol has no `get`


def _normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _unknown(scheme: str, schemes: list[str]) -> UnknownSchemeError:
    known = dict.fromkeys((*schemes, *FIRST_PARTY))
    near = difflib.get_close_matches(scheme, [name for name in known if name != scheme], n=1)
    extra = FIRST_PARTY.get(scheme)
    return UnknownSchemeError(scheme, schemes, near[0] if near else None, install_command(extra) if extra else "")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of perdure."""
    return f"pip install 'perdure[{extra}]'"


def _check_contract(found: InstalledPlugin, module: object) -> None:
    declared = getattr(module, "PERDURE_CONTRACT", None)
    if declared is None:
        raise _broken(found, f"it has no PERDURE_CONTRACT, and this release of perdure speaks contract {CONTRACT}")
    if type(declared) is not int or declared != CONTRACT:
        raise _broken(found, f"it speaks contract {declared!r}, and this release of perdure speaks contract {CONTRACT}")


def _hooks(found: InstalledPlugin, module: object) -> pluggy.HookRelay:
    """Register the module once: that costs more than most openings."""
    key = (found, id(module))
    if key not in _registered:
        _registered[key] = (module, _register(found, module))
    return _registered[key][1]


_registered: Final[dict[tuple[InstalledPlugin, int], tuple[object, pluggy.HookRelay]]] = {}
"""The hooks of each module, which is kept beside them, so that its id stays its own."""


def _register(found: InstalledPlugin, module: object) -> pluggy.HookRelay:
    """Register the module alone, so that no plugin ever sees another's calls."""
    manager = pluggy.PluginManager("perdure")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, found.module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _broken(found, " ".join(str(error).split())) from error
    marked = {caller.name for caller in manager.get_hookcallers(module) or ()}
    names = [hook.name for hook in HOOKS.values()]
    for name in names:
        if getattr(module, name, None) is not None and name not in marked:
            raise _broken(found, f"{name} is not marked as a hook by @hookimpl")
    if not marked.intersection(names):
        raise _broken(found, f"it has none of the hooks {', '.join(names)}")
    return manager.hook


@contextmanager
def _blaming(found: InstalledPlugin, what: str, *, ours_pass: bool = True) -> Iterator[None]:
    """Turn whatever a plugin raises into `PluginLoadError`, but for Ctrl-C and, unless it is imported, our own errors."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (ours_pass and isinstance(error, PerdureError)):
            raise
        raise _broken(found, f"{what} failed with {describe(error)}") from error


def _broken(found: InstalledPlugin, problem: str) -> PluginLoadError:
    return PluginLoadError(found.scheme, found.distribution, found.version, problem)
