"""`perdure doctor`: whether a store opens, and whether what it holds is whole."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perdure import plugins
from perdure.contracts.resources import Resources
from perdure.contracts.store import describe
from perdure.contracts.urls import StoreURL
from perdure.errors import InvalidArgumentError, PerdureError, UnsupportedOperationError
from perdure.opening import open_store

Examination: TypeAlias = Callable[..., Iterable[tuple[str, bool]]]
"""The function `doctor(url, *, salvage)` that a plugin module may have: what it found, and whether it still is damaged."""


def doctor(
    url: Annotated[str, typer.Argument(help="URL of the store, for example file:conversations.")],
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Recover what is whole in damaged data. The damaged data is kept.")
    ] = False,
) -> None:
    """Look for damage in a store, and exit with 1 if some is left, with 2 if the store cannot be looked at.

    Without --salvage nothing is repaired, and a store that is not there is never made.
    """
    try:
        damaged = _examine(url, salvage=salvage)
    except PerdureError as error:
        text = f"{error}".rstrip(".") + "."
        print(f"perdure doctor: {text}" if error.hint.rstrip(".") in text else f"perdure doctor: {text} {error.hint}")
        raise typer.Exit(2) from None
    except OSError as error:  # a folder that may not be listed, for example
        print(f"perdure doctor: {describe(error)}")
        raise typer.Exit(2) from None
    if damaged is None:
        print("The store opens. Its plugin cannot examine what is in it.")
    elif damaged:
        print("Damage is left." if salvage else "Damage was found. --salvage recovers what is whole.")
    else:
        print("No damage is left." if salvage else "No damage was found.")
    if damaged:
        raise typer.Exit(1)


def _examine(text: str, *, salvage: bool) -> bool | None:
    """Say what is wrong, and return whether damage is left; `None` if the plugin has no examination."""
    plugin = plugins.load(StoreURL.parse(text).scheme)
    url = plugin.check(StoreURL.parse(text))
    _must_be_there(plugin, url)
    examination: Examination | None = getattr(pkgutil.resolve_name(plugin.installed.module), "doctor", None)
    if examination is None:
        if salvage:
            raise UnsupportedOperationError(f"the plugin of {url.scheme!r}", "salvage")
        asyncio.run(_open(text))
        return None
    left = False
    for finding, damaged in examination(url, salvage=salvage):
        print(finding)
        left = left or damaged
    return left


def _must_be_there(plugin: plugins.Plugin, url: StoreURL) -> None:
    """Refuse a URL that is none of a store, and one whose file or directory is missing: opening would make it."""
    resources = Resources()
    stores = [plugin.make(part, url, resources) for part in plugins.HOOKS]  # none is opened
    lasting = any(store is not None and store.capabilities.durable for store in stores)
    if lasting and url.path and not url.hosts and not Path(url.path).exists():
        raise InvalidArgumentError("url", f"names no store: {url.path} does not exist")


async def _open(url: str) -> None:
    async with open_store(url):
        pass
