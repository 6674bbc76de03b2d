"""`perdure bench`: how fast a store is, on the disk or the server that it will be on."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from perdure import plugins
from perdure.bundle import AgentStore
from perdure.cli.codecs import codec_of_command
from perdure.cli.exit_codes import ExitCode
from perdure.cli.measuring import Measured, measure
from perdure.cli.output import CommandError, JsonOption, print_json, print_table, say
from perdure.cli.store_url import StoreOption, UrlArgument, is_path, one_of
from perdure.contracts.urls import StoreURL
from perdure.opening import open_store


def bench(
    url: UrlArgument = None,
    store: StoreOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="About how long to measure, all in all.")] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Measure appends, loads and listings on your own disk or server, with the options of the URL.

    Your data is not touched: for a path, a new store is made in a directory beside it and removed again; on a server, a
    namespace of its own is used and emptied again.
    """
    text = one_of(url, store)
    shown = str(_checked(text))
    measured, left = asyncio.run(_measure(text, seconds))
    code = ExitCode.FOUND if left else ExitCode.DONE
    if as_json:
        print_json("bench", {"store": shown, "figures": [asdict(one) for one in measured], "left": left}, code=code)
    else:
        say(f"{shown}, measured in a new store beside it" if is_path(text) else shown)
        print_table(
            ("what", "calls", "per second", "median ms", "95 % ms"),
            (
                (one.what, one.calls, _short(one.per_second), _short(one.median_ms), _short(one.p95_ms))
                for one in measured
            ),
        )
        say(f"Sessions of this run are left: {', '.join(left)}" if left else "Nothing of it is left in the store.")
    raise typer.Exit(code)


def _checked(text: str) -> StoreURL:
    url = StoreURL.parse(text)
    return plugins.load(url.scheme).check(url)


async def _measure(text: str, seconds: float) -> tuple[list[Measured], list[str]]:
    with _place(text) as place:
        async with open_store(place, codec=codec_of_command()) as store:
            async with _emptied(store) as left:
                measured = await measure(store, seconds)
            return measured, left


@contextmanager
def _place(text: str) -> Iterator[str]:
    """Give the URL of a place where nothing else is: a directory beside a path, or a namespace."""
    _, _, options = text.partition("?")
    url = _checked(text)
    if not is_path(text):
        kept = [option for option in options.split("&") if option and not option.startswith("namespace=")]
        yield f"{text.partition('?')[0]}?{'&'.join([*kept, f'namespace=bench-{secrets.token_hex(6)}'])}"
        return
    above = next(folder for folder in Path(url.path).absolute().parents if folder.is_dir())
    directory = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=above))
    try:
        yield f"{url.scheme}:{quote(str(directory / 'store'))}{'?' if options else ''}{options}"
    finally:
        shutil.rmtree(directory)


@asynccontextmanager
async def _emptied(store: AgentStore) -> AsyncIterator[list[str]]:
    """Delete all sessions behind the block, also when it was interrupted; the list then has what is left."""
    if "sessions" not in store or not (store.sessions.capabilities.list and store.sessions.capabilities.delete):
        raise CommandError("the sessions of this store cannot be listed and deleted", "", ExitCode.CANNOT)
    left: list[str] = []
    try:
        yield left
    finally:
        while page := (await store.sessions.list(limit=200)).items:
            await asyncio.gather(*(store.sessions.delete(one.session_id) for one in page))
        left += [one.session_id for one in (await store.sessions.list()).items]


def _short(number: float) -> str:
    """Return a number with three figures that count."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
