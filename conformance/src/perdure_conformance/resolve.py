"""Find the target that a text names: a store URL, an object of a module, or an installed plugin."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import plugins
from perdure.contracts.store import describe
from perdure.contracts.urls import StoreURL
from perdure.errors import PerdureError
from perdure_conformance.target import Target

HOOK = "conformance_targets"
"""The function of a plugin module that names its targets: it returns store URLs or `Target` objects by name."""

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(/[\w.-]+)?")


class TargetError(ValueError):
    """A text names no target; the message says why and what would."""


@dataclass(frozen=True, slots=True)
class Named:
    """A target, and the text that names it, without secrets."""

    text: str
    target: Target


def find_target(text: str) -> Named:
    """Return the target that a text names.

    Args:
        text: A store URL; `module:attribute` of a `Target`, of a `StoreConformance` subclass, or of a function without
            arguments that returns either; or the name of an installed plugin, with `/name` if it names several targets.

    Raises:
        TargetError: It names none.
    """
    if _NAME.fullmatch(text):
        return Named(text, _of_plugin(text))
    scheme = text.partition(":")[0].lower()
    installed = any(plugin.scheme == scheme for plugin in plugins.installed())
    if not installed and _OBJECT.fullmatch(text):
        return Named(text, _of_module(text))
    return Named(_checked_url(text), _of_url(text))


def _of_url(text: str, name: str | None = None) -> Target:
    try:
        return Target.from_url(text, name=name)
    except Exception as error:
        raise TargetError(f"the plugin of {text.partition(':')[0]!r} failed with {describe(error)}") from error


def _checked_url(text: str) -> str:
    """Return a URL without its secrets, or raise if its plugin would refuse it."""
    try:
        shown = str(StoreURL.parse(text))
        url = StoreURL.parse(text.replace("{dir}", "/dir").replace("{place}", "place"))
        plugins.load(url.scheme).check(url)
    except PerdureError as error:
        raise TargetError(_with_hint(error)) from error
    return shown


def _with_hint(error: PerdureError) -> str:
    """Return what an error says, and what to do next unless it says that itself."""
    return ". ".join(
        filter(None, (str(error).rstrip("."), *("" if note in str(error) else note for note in error.__notes__)))
    )


def _of_module(text: str) -> Target:
    module, _, attribute = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = pkgutil.resolve_name(f"{importlib.import_module(module).__name__}:{attribute}")
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text!r} is no installed store, and no object of a module: {describe(error)}") from error
    return as_target(found, text)


def as_target(found: Any, text: str) -> Target:
    """Return the target that an object is or makes.

    Raises:
        TargetError: It is none and makes none.
    """
    from perdure_conformance.testing import StoreConformance

    try:
        if callable(found) and not isinstance(found, type):
            found = found()
        made = found() if isinstance(found, type) else found
        target = made.target() if isinstance(made, StoreConformance) else made
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text!r} makes no target: {describe(error)}") from error
    if isinstance(target, Target):
        return target
    raise TargetError(f"{text!r} is a {type(target).__name__}, neither a Target nor a StoreConformance")


def plugin_targets(name: str) -> dict[str, Target]:
    """Return the targets that an installed plugin names; none if it has no hook for them.

    Raises:
        TargetError: It is not installed, does not load, or its hook fails.
    """
    try:
        module = pkgutil.resolve_name(plugins.load(name).installed.module)
        hook = getattr(module, HOOK, None)
        declared: Mapping[str, str | Target] = {} if hook is None else hook()
    except PerdureError as error:
        raise TargetError(_with_hint(error)) from error
    except Exception as error:
        raise TargetError(f"{HOOK} of the plugin {name!r} failed with {describe(error)}") from error
    return {
        key: _of_url(value, key) if isinstance(value, str) else as_target(value, f"{name}/{key}")
        for key, value in declared.items()
    }


def _of_plugin(text: str) -> Target:
    name, _, chosen = text.partition("/")
    targets = plugin_targets(name.lower())
    if not targets:
        raise TargetError(f"the plugin {name!r} names no targets; name a store URL, for example '{name}:{{dir}}/data'")
    if chosen in targets:
        return targets[chosen]
    if not chosen and len(targets) == 1:
        return next(iter(targets.values()))
    raise TargetError(f"the plugin {name!r} names several targets: {', '.join(f'{name}/{key}' for key in targets)}")
