"""Which store a command works on: `--store`, or the environment variable PERDURE_STORE."""

from __future__ import annotations

import os
import pkgutil
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
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.resources import Resources
from perdure.contracts.urls import StoreURL
from perdure.journal.contract import Journal
from perdure.journal.stores import journal_stores
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


UrlArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="URL", help="The store; the same as --store.", show_default=False)
]
"""The store as an argument, for commands about stores rather than about conversations."""


def one_of(argument: str | None, option: str | None) -> str:
    """Return the URL that was given as an argument, or else as the option or the variable."""
    return given(option if argument is None else argument)


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


class NoStoreError(CommandError):
    """There is no store where a URL names one."""

    def __init__(self, url: StoreURL, problem: str) -> None:
        """Say why there is none."""
        super().__init__(f"{url} names no store: {url.path} {problem}", "Correct the path.", ExitCode.CANNOT)


@asynccontextmanager
async def opened(url: str | None, *, must_exist: bool = True, reading: bool = False) -> AsyncIterator[AgentStore]:
    """Open the store of a command.

    Args:
        url: What `StoreOption` gave.
        must_exist: Whether a store that is not there is refused, and not made.
        reading: Whether the command only reads. Then nothing is made in a directory, and a file that may not be written
            is opened as it is.

    Raises:
        CommandError: None is given, or it is not there.
        PerdureError: What `open_store` raises.
    """
    text = given(url)
    if must_exist:
        require_existing(text)
    if reading and (journal := _read_only(text)) is not None:
        async with _open_journal(journal) as store:
            yield store
        return
    async with open_store(text, codec=codec_of_command()) as store:
        yield store


def _read_only(text: str) -> Journal | None:
    """Return a journal that only reads, where the plugin has one and it is safe beside processes that write.

    A database file that may be written is not opened so: somebody may begin to write it meanwhile, and only locks, which
    are files too, keep what is read apart from that.
    """
    url = StoreURL.parse(text)
    path = Path(url.path)
    if url.hosts or not url.path or not (path.is_dir() or not os.access(path, os.W_OK)):
        return None
    plugin = plugins.load(url.scheme)
    make = getattr(pkgutil.resolve_name(plugin.installed.module), "read_only", None)
    return None if make is None else make(plugin.check(url))


@asynccontextmanager
async def _open_journal(journal: Journal) -> AsyncIterator[AgentStore]:
    codec = codec_of_command()
    if codec is not None:
        from perdure.at_rest.encoded_journal import EncodedJournal  # most stores have no codec

        journal = EncodedJournal(journal, codec)
    try:
        await journal.open()
        stores = journal_stores(journal)
        yield AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)
    finally:
        await journal.close()


def require_existing(text: str, *, or_empty: bool = False) -> None:
    """Refuse a URL whose file or directory is missing or, unless it may be, empty, and one that keeps nothing.

    Opening would make a store there.

    Raises:
        NoStoreError: It is missing, or empty.
        CommandError: It keeps nothing.
    """
    url, kept = _declared(text)
    if not url.hosts and not any(one.durable or one.shared for one in kept):
        raise CommandError(
            f"{url} keeps nothing when its process ends, so there is nothing to look at",
            "Name a store on a disk or a server.",
            ExitCode.CANNOT,
        )
    if url.hosts or not url.path:
        return
    path = Path(url.path)
    if not path.exists():
        raise NoStoreError(url, "does not exist")
    if not or_empty and _is_empty(path):
        raise NoStoreError(url, "is empty")


def _is_empty(path: Path) -> bool:
    return not any(path.iterdir()) if path.is_dir() else path.is_file() and path.stat().st_size == 0


def is_path(text: str) -> bool:
    """Whether a URL names a file or a directory, there or not: neither a server, nor a socket, nor memory."""
    url, kept = _declared(text)
    return bool(url.path) and not url.hosts and any(one.durable for one in kept) and not Path(url.path).is_socket()


def _declared(text: str) -> tuple[StoreURL, list[Capabilities]]:
    """Return a URL, checked, and what its stores declare; none is opened."""
    parsed = StoreURL.parse(text)
    plugin = plugins.load(parsed.scheme)
    url, resources = plugin.check(parsed), Resources()
    stores = [plugin.make(part, url, resources) for part in plugins.HOOKS]
    return url, [store.capabilities for store in stores if store is not None]
