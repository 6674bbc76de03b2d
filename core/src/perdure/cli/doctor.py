"""`perdure doctor`: whether a store opens, and whether what it holds is whole."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

import typer

from perdure import plugins
from perdure.contracts.urls import StoreURL
from perdure.errors import PerdureError, UnsupportedOperationError
from perdure.opening import open_store

Examination: TypeAlias = Callable[..., Iterable[tuple[str, bool]]]
"""The function `doctor(url, *, salvage)` that a plugin module may have: what it found, and whether it still is damaged."""


def doctor(
    url: Annotated[str, typer.Argument(help="URL of the store, for example file:conversations.")],
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Recover what is whole in damaged data. The damaged data is kept.")
    ] = False,
) -> None:
    """Look for damage in a store, and exit with 1 if there is some. Without --salvage nothing is repaired."""
    try:
        damaged = _examine(url, salvage=salvage)
    except PerdureError as error:
        text = f"{error}".rstrip(".") + "."
        print(f"perdure doctor: {text}" if error.hint.rstrip(".") in text else f"perdure doctor: {text} {error.hint}")
        raise typer.Exit(2) from None
    if damaged is None:
        print("The store opens. Its plugin cannot examine what is in it.")
    else:
        print("Damage was found." if damaged else "All is whole.")
    if damaged:
        raise typer.Exit(1)


def _examine(text: str, *, salvage: bool) -> bool | None:
    """Say what is wrong, and return whether damage is left; `None` if the plugin has no examination."""
    plugin = plugins.load(StoreURL.parse(text).scheme)
    url = plugin.check(StoreURL.parse(text))
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


async def _open(url: str) -> None:
    async with open_store(url):
        pass
