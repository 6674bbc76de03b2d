"""Which store a command works on: `--store`, or the environment variable PERDURE_STORE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from perdure import plugins
from perdure.bundle import AgentStore
from perdure.cli.codecs import codec_of_command
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError
from perdure.contracts.resources import Resources
from perdure.contracts.urls import StoreURL
from perdure.opening import open_store

VARIABLE: Final = "PERDURE_STORE"

_HELP: Final = "The store, for example sqlite:agent.db. Other users of the machine can see arguments: a password belongs in the variable."

StoreOption: TypeAlias = Annotated[str | None, typer.Option("--store", envvar=VARIABLE, metavar="URL", help=_HELP)]
"""The option of every command that works on one store: `store: StoreOption = None`."""

OwnStoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", envvar=VARIABLE, metavar="URL", help=f"{_HELP} Default: the agent's own store."),
]
"""The same for commands that are given an agent, which may have a store of its own."""


def given(url: str | None) -> str:
    """Return the URL that was given, or say how to give one."""
    if url is not None:
        return url
    raise CommandError(
        "no store is given", f"Give --store URL, such as --store sqlite:agent.db, or set {VARIABLE}.", ExitCode.CANNOT
    )


def shown(url: str | None) -> str:
    """Return the URL that was given without its secrets."""
    parsed = StoreURL.parse(given(url))
    return str(plugins.load(parsed.scheme).check(parsed))


@asynccontextmanager
async def opened(url: str | None, *, must_exist: bool = True) -> AsyncIterator[AgentStore]:
    """Open the store of a command.

    Args:
        url: What `StoreOption` gave.
        must_exist: Whether a store that is not there is refused, and not made.

    Raises:
        CommandError: None is given, or it is not there.
        PerdureError: What `open_store` raises.
    """
    text = given(url)
    if must_exist:
        require_existing(text)
    async with open_store(text, codec=codec_of_command()) as store:
        yield store


def require_existing(text: str) -> None:
    """Refuse a URL whose file or directory is missing, since opening would make it, and one that keeps nothing."""
    parsed = StoreURL.parse(text)
    plugin = plugins.load(parsed.scheme)
    url, resources = plugin.check(parsed), Resources()
    stores = [plugin.make(part, url, resources) for part in plugins.HOOKS]  # none is opened
    kept = [store.capabilities for store in stores if store is not None]
    if url.hosts or any(one.shared and not one.durable for one in kept):
        return
    if not any(one.durable for one in kept):
        raise CommandError(
            f"{url} keeps nothing when its process ends, so there is nothing to look at",
            "Name a store on a disk or a server.",
            ExitCode.CANNOT,
        )
    if url.path and not Path(url.path).exists():
        raise CommandError(f"{url} names no store: {url.path} does not exist", "Correct the path.", ExitCode.CANNOT)
