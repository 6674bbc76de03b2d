"""What a store plugin tells the kit: what can be done to its stores besides using them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perdure import plugins
from perdure.contracts.urls import StoreURL
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure_conformance.target import Place

HELPERS_HOOK = "conformance_helpers"
"""The function of a plugin module that takes a store URL and returns what can be done to such stores, by the names below."""

HELPERS = ("damage", "kill_server", "newer_schema", "power_loss")
"""What a plugin may offer: functions of the URL of a place, which do what the fields of a `Target` say."""


def plugin_helpers(template: str, locate: Callable[[Place], str]) -> dict[str, Callable[[Place], Any]]:
    """Return what the plugin of a URL offers to do at a place, by the fields of a `Target`; nothing if it has no hook.

    Args:
        template: The URL as it was named, perhaps with `{dir}` or `{place}` in it.
        locate: Returns the URL of a place.

    Raises:
        TypeError: The hook offers something that the kit does not know.
    """
    try:
        scheme = StoreURL.parse(template).scheme
        plugin = plugins.load(scheme)
    except PerdureError:  # reason: the opener will say it, to whoever opens
        return {}
    hook: Any = getattr(pkgutil.resolve_name(plugin.installed.module), HELPERS_HOOK, None)
    if hook is None:
        return {}
    offered: Mapping[str, Callable[[StoreURL], Any]] = hook(StoreURL.parse(template))
    unknown = sorted(set(offered) - set(HELPERS))
    if unknown:
        raise TypeError(
            f"{HELPERS_HOOK} of the plugin {scheme!r} offers {unknown[0]!r}; the kit knows {', '.join(HELPERS)}"
        )

    def at_place(helper: Callable[[StoreURL], Any]) -> Callable[[Place], Any]:
        return lambda place: helper(plugin.check(StoreURL.parse(locate(place))))

    return {name: at_place(helper) for name, helper in offered.items()}
