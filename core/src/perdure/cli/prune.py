"""`perdure prune`: remove old conversations."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from perdure.cli.durations import duration
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import JsonOption, print_json, say, warn
from perdure.cli.store_url import StoreOption, opened
from perdure.conversations.prune import PruneReport

_SHOWN = 20


def prune(
    older_than: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="How long ago the newest part was written, such as 7d."),
    ],
    store: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be removed, and remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove conversations of which every part is older, each whole or not at all.

    Whatever waits for an undecided approval, or has a live owner, is kept however old, and named with the reason. What is
    damaged is kept and named too, the rest is removed all the same, and the exit code is 1.
    """
    report = asyncio.run(_prune(store, older_than, dry_run=dry_run))
    code = ExitCode.FOUND if report.damaged else ExitCode.DONE
    if as_json:
        print_json("prune", asdict(report), code=code)
    else:
        _print(report)
    raise typer.Exit(code)


async def _prune(url: str | None, older_than: timedelta, *, dry_run: bool) -> PruneReport:
    async with opened(url, reading=dry_run) as store:
        return await store.prune(older_than=older_than, dry_run=dry_run)


def _print(report: PruneReport) -> None:
    verb = "Would remove" if report.dry_run else "Removed"
    parts = (("sessions", report.sessions), ("turn journals", report.runs), ("approvals", report.approvals))
    say(f"{verb} {', '.join(f'{len(ids)} {name}' for name, ids in parts)}.", style="bold")
    for name, ids in parts:
        for one in ids[:_SHOWN]:
            say(f"  {name.removesuffix('s')} {one}")
        if len(ids) > _SHOWN:
            say(f"  and {len(ids) - _SHOWN} {name} more; --json names all", style="dim")
    for key, reason in report.kept.items():
        say(f"  kept {key}: {reason}", style="yellow")
    for key, problem in report.damaged.items():
        warn(f"kept {key}: {problem}")
