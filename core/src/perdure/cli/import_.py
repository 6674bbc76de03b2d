"""`perdure import`: conversations from a file."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli.copy import tell
from perdure.cli.exit_codes import ExitCode
from perdure.cli.export import NOTES_SHOWN
from perdure.cli.output import CommandError, JsonOption, print_json, say
from perdure.cli.store_url import StoreOption, opened

if TYPE_CHECKING:
    from perdure.interchange import ImportReport

_CLAUDE = {"uuid", "parentUuid", "sessionId", "leafUuid", "isSidechain", "snapshot"}


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to read; - is standard input.")],
    store: StoreOption = None,
    form: Annotated[
        Literal["auto", "perdure", "openai", "claude"],
        typer.Option("--format", help="auto: by what the first line looks like."),
    ] = "auto",
    session: Annotated[
        str | None, typer.Option(help="The session id to give; openai needs one where the file names none.")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="The scope to create the sessions for; not for perdure.")] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="Leave damaged lines out, and name them, instead of refusing the file.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read conversations from a file: an export of perdure, chat messages of OpenAI's form, or a Claude-shaped transcript.

    Each conversation comes in whole or not at all, and the same file again changes nothing. What could not be carried over
    as it was is named; if a conversation did not come in, or a part of the file was left out, the exit code is 1.
    """
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        report = asyncio.run(_import(store, source, form, session, scope, strict=not recover))
    left = any(note.outcome == "left-out" for note in report.notes)
    code = ExitCode.FOUND if report.not_copied or left else ExitCode.DONE
    if as_json:
        print_json("import", asdict(report) | {"complete": report.complete}, code=code)
    else:
        _tell(report)
    raise typer.Exit(code)


async def _import(
    url: str | None, file: IO[bytes], form: str, session: str | None, scope: str | None, *, strict: bool
) -> ImportReport:
    from perdure.interchange import import_claude, import_conversations, import_openai  # --help does without

    first = _read(file.readline)
    if form == "auto" and not first:
        raise CommandError(
            "the file is empty, and so does not tell its format", "Give --format, or another file.", ExitCode.CANNOT
        )
    kind = _looks_like(first) if form == "auto" else form
    if kind == "perdure" and (session is not None or scope is not None):
        problem = "an export of perdure names its sessions and their scopes"
        raise CommandError(problem, "Leave --session and --scope out.", ExitCode.CANNOT)
    async with opened(url, must_exist=False) as store:
        if kind == "openai":
            return await import_openai(store, first + _read(file.read), session_id=session, scope=scope, strict=strict)
        lines = chain([first], iter(partial(_read, file.readline), b""))
        if kind == "claude":
            return await import_claude(store, lines, session_id=session, scope=scope, strict=strict)
        return await import_conversations(store, lines)


def _read(read: Callable[[], bytes]) -> bytes:
    """Read, and let Ctrl-C through: the event loop's handler only cancels the task, of which a read that waits hears nothing."""
    handler = signal.getsignal(signal.SIGINT)
    if handler in (signal.SIG_IGN, None):
        return read()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return read()
    finally:
        signal.signal(signal.SIGINT, handler)


def _looks_like(first: bytes) -> str:
    """Return the format of which a first line could be."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return "openai"  # a list or an object over several lines, or what its reader refuses
    if not isinstance(value, dict):
        return "openai"
    if value.get("type") == "export":
        return "perdure"
    return "claude" if _CLAUDE & value.keys() else "openai"


def _tell(report: ImportReport) -> None:
    tell(report, "imported")
    for name in report.sessions[:NOTES_SHOWN]:
        say(f"  session {name}", style="dim")
    for note in report.notes[:NOTES_SHOWN]:
        say(f"  {note}", style="yellow")
    if len(report.notes) > NOTES_SHOWN:
        say(f"  and {len(report.notes) - NOTES_SHOWN} more; --json names all", style="dim")
