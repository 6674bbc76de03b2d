"""`perdure export`: conversations to a file."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli.conversations import key_of
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, print_json, say
from perdure.cli.store_url import StoreOption, opened

if TYPE_CHECKING:
    from perdure.interchange import ExportReport

NOTES_SHOWN = 20


def export(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to write; - is standard output.")] = "-",
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    store: StoreOption = None,
    session: Annotated[
        list[str] | None, typer.Option(help="Only this conversation; can be given several times.")
    ] = None,
    form: Annotated[
        Literal["perdure", "openai", "claude"],
        typer.Option("--format", help="perdure: all that is stored. openai: chat messages. claude: one transcript."),
    ] = "perdure",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write conversations to a file, from which `perdure import` makes them again.

    Nothing is written to the store, but that what a process has left half done (a deletion, say) is finished or undone. A
    file is there whole or not at all. What was left out is named, and if a conversation was, the exit code is 1.
    """
    if more:
        problem = f"there is one FILE, and {file!r} was taken for it"
        raise CommandError(problem, f"Name a conversation by --session {more[-1]}.", ExitCode.CANNOT)
    if as_json and file == "-":
        raise CommandError("--json needs a FILE: standard output has the export", "Name one.", ExitCode.CANNOT)
    if form == "claude" and len(session or []) != 1:
        raise CommandError("a file of this format has one conversation", "Name it: --session ID.", ExitCode.CANNOT)
    with _written(file, overwrite=overwrite) as target:
        report = asyncio.run(_export(store, target, session, form))
    code = ExitCode.FOUND if report.not_exported else ExitCode.DONE
    if as_json:
        print_json("export", asdict(report) | {"file": file, "format": form}, code=code)
    else:
        _tell(report, file)
    raise typer.Exit(code)


async def _export(url: str | None, file: IO[bytes], session: list[str] | None, form: str) -> ExportReport:
    from perdure.interchange import export_claude, export_conversations, export_openai  # --help does without

    session = None if session is None else [key_of(one) for one in session]
    async with opened(url, reading=True) as store:
        if form == "openai":
            return await export_openai(store, file, session_ids=session)
        if form == "claude" and session:
            return await export_claude(store, file, session_id=session[0])
        return await export_conversations(store, file, session_ids=session)


@contextmanager
def _written(name: str, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open what to write to; a file gets its name when all of it is on the disk."""
    if name == "-":
        if sys.__stdout__ is None:
            raise CommandError("standard output is closed", "Name a FILE.", ExitCode.CANNOT)
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    if path.exists() and not path.is_file():  # the name of a pipe or a device would become that of a file
        hint = "Name another file, or redirect standard output."
        raise CommandError(f"{name} is no regular file", hint, ExitCode.CANNOT)
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not overwrite:
        raise CommandError(f"{name} is there already", "Name another file, or give --overwrite.", ExitCode.CANNOT)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # for its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(part).unlink()
        raise


def _tell(report: ExportReport, file: str) -> None:
    """Say what was written: to standard error, since standard output may have it."""
    counts = f"{report.conversations} conversations ({report.records} records, {report.approvals} approvals)"
    say(f"Exported {counts}{'' if file == '-' else f' to {file}'}.", style="bold", stderr=True)
    for key, reason in report.not_exported.items():
        say(f"  not exported: {key}: {reason}", style="yellow", stderr=True)
    notes = [f"{key}: {note}" for key, found in report.notes.items() for note in found]
    for text in notes[:NOTES_SHOWN]:
        say(f"  {text}", style="dim", stderr=True)
    if len(notes) > NOTES_SHOWN:
        say(f"  and {len(notes) - NOTES_SHOWN} more; --json names all", style="dim", stderr=True)
