"""`perdure copy`: every conversation of one store to another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from perdure.cli.codecs import codec_of_command, load_codec
from perdure.cli.durations import duration
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError, JsonOption, console, print_json, safe_line, say
from perdure.cli.store_url import require_existing, shown
from perdure.opening import open_store

if TYPE_CHECKING:
    from perdure.at_rest.codecs import Codec
    from perdure.moving import CopyReport
    from perdure.moving.copying import OnProgress
    from perdure.moving.copying import Progress as Step

_CODEC = "module:attribute of its codec, or none. Default: --codec, or PERDURE_CODEC."


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the store to copy from.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL of the store to copy to; it may be new.")],
    wait: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="How long to wait, in all, for turns that run."),
    ] = "60s",  # type: ignore[assignment]  # reason: the parser makes a duration of it
    from_codec: Annotated[str | None, typer.Option(help=f"Of FROM: {_CODEC}")] = None,
    to_codec: Annotated[str | None, typer.Option(help=f"Of TO: {_CODEC}")] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy every conversation, with its archives, pending turn and approvals, at the versions that they have.

    It can be cut anywhere and be run again: what is there already is left alone, and what is half there is finished. What
    differs at the target is never overwritten; it is named, and the exit code is 1.
    """
    if shown(source) == shown(target):
        raise CommandError("both are the same store", "Name another one to copy to.", ExitCode.CANNOT)
    require_existing(source)
    with _shown_progress() as progress:
        codecs = _codec(from_codec), _codec(to_codec)
        report = asyncio.run(_copy(source, target, codecs, wait, progress))
    code = ExitCode.DONE if report.complete else ExitCode.FOUND
    if as_json:
        print_json("copy", asdict(report) | {"complete": report.complete}, code=code)
    else:
        tell(report, "copied")
    raise typer.Exit(code)


async def _copy(
    source: str, target: str, codecs: tuple[Codec | None, Codec | None], wait: timedelta, progress: OnProgress
) -> CopyReport:
    from perdure.moving import copy_conversations  # --help does without

    async with open_store(source, codec=codecs[0]) as one, open_store(target, codec=codecs[1]) as other:
        return await copy_conversations(one, other, wait=wait, progress=progress)


def _codec(given: str | None) -> Codec | None:
    if given == "none":
        return None
    return codec_of_command() if given is None else load_codec(given)


@contextmanager
def _shown_progress() -> Iterator[OnProgress]:
    """Show a bar on a terminal, and nothing elsewhere."""
    errors = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("copying", total=None)

        def show(step: Step) -> None:
            bar.update(task, completed=step.done, total=step.total, description=safe_line(step.key)[:40])

        yield show


def tell(report: CopyReport, verb: str) -> None:
    """Print what came of a copy or an import."""
    counts = f"{report.copied} conversations {verb} ({report.records} records, {report.approvals} approvals)"
    say(f"{counts[0].upper()}{counts[1:]}; {report.present} were there already.", style="bold")
    for key, reason in report.not_copied.items():
        say(f"  not {verb}: {key}: {reason}", style="yellow")
    if report.not_copied:
        say("Nothing that was there was overwritten. Mend what is named, and run it again.")
