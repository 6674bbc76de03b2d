"""What the demo does, process by process, and what it shows of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from perdure.cli.demo.checks import Check, Story, checks
from perdure.cli.demo.processes import ProcessFailedError, run, started
from perdure.cli.demo.reading import OLD_SESSION, SESSION, Reading, Report
from perdure.cli.demo.tools import EFFECTS
from perdure.cli.demo.worker import Job
from perdure.contracts.urls import DEFAULT_NAMESPACE, StoreURL
from perdure.errors import PerdureError
from perdure.opening import open_store


def show_demo(store: str | None, *, keep: bool, as_json: bool) -> None:
    """Run the demo on a store, and exit with 1 if not everything held, with 2 if the store cannot carry it."""
    console = _console(quiet=as_json)
    directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    try:
        url = _in_own_namespace(f"sqlite:{quote(directory.as_posix())}/agent.db" if store is None else store)
        held = asyncio.run(_show(url, directory, console, keep=keep, as_json=as_json))
    except (_RefusedError, ProcessFailedError, PerdureError) as error:
        _console(stderr=True).print(f"perdure demo: {_explained(error)}", style="red", soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, ProcessFailedError) else 2) from None
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if keep:
        console.print(f"\nKept: {StoreURL.parse(url)}\nKept: {directory}", soft_wrap=True)
    if not held:
        raise typer.Exit(1)


class _RefusedError(Exception):
    """The demo cannot run on the store."""


def _console(*, quiet: bool = False, stderr: bool = False) -> Console:
    return Console(markup=False, highlight=False, emoji=False, quiet=quiet, stderr=stderr)


def _explained(error: Exception) -> str:
    hint = error.hint if isinstance(error, PerdureError) else ""
    return str(error) if hint in str(error) else f"{error}. {hint}"


# --- the store ---


def _in_own_namespace(url: str) -> str:
    """Return the URL with a namespace that nobody else uses: prune must not see anybody's conversations."""
    if StoreURL.parse(url).namespace != DEFAULT_NAMESPACE:
        raise _RefusedError("it works in a namespace of its own; leave `namespace` out of the URL")
    return f"{url}{'&' if '?' in url else '?'}namespace=demo-{secrets.token_hex(4)}"


async def _require_usable(url: str) -> None:
    """Refuse a store that cannot carry the demo, before anything is written to it."""
    async with open_store(url) as store:
        for name in ("sessions", "checkpoints", "approvals"):
            capabilities = getattr(store, name).capabilities
            for capability, lack in (
                ("shared", "cannot be shared by several processes"),
                ("durable", "forgets when a process ends"),
                ("list", "cannot list"),
                ("delete", "cannot delete"),
            ):
                if name not in store or not getattr(capabilities, capability):
                    raise _RefusedError(
                        f"{StoreURL.parse(url).scheme}: {lack if name in store else 'has no store'} ({name}). "
                        "Name a durable store that several processes can share, for example sqlite:demo.db."
                    )


async def _clean(url: str) -> None:
    """Remove the demo's own conversations."""
    async with open_store(url) as store:
        for session_id in (SESSION, OLD_SESSION):
            await store.delete_session(session_id, force=True)


# --- the processes ---


async def _show(url: str, directory: Path, console: Console, *, keep: bool, as_json: bool) -> bool:
    """Run the demo and show it; return whether everything held."""
    await _require_usable(url)
    console.print(f"Store: {StoreURL.parse(url)}\n", soft_wrap=True)
    try:
        story = await _tell(url, str(directory), console)
    finally:
        if not keep:
            await _clean(url)
    results = checks(story)
    if as_json:
        print(json.dumps({"story": asdict(story), "checks": [asdict(check) for check in results]}, indent=2))
    show_checks(results, console)
    return all(check.holds for check in results)


async def _tell(url: str, directory: str, console: Console) -> Story:
    """Run the four processes, one after the other, and show what each reads back."""
    async with started(Job("start", url, directory)) as process:
        first = await process.report()
        ended_by = await process.kill()
    _show_process(console, 1, first, "starts a turn of three calls; one needs an approval", found=False)
    _show_between(console, f"{ended_by}, after the charge and before its result was stored", "bold red")

    resumed = await run(Job("resume", url, directory))
    _show_process(console, 2, resumed, "resumes the turn")

    if not resumed.left.undecided:
        raise ProcessFailedError("process 2 left no approval to answer")
    approval_id = resumed.left.undecided[0]
    _show_between(console, f"waiting for the approval {approval_id}", "bold yellow")
    answered = await run(Job("answer", url, directory, approval_id))
    _show_process(console, 3, answered, "answers that approval by its id; the turn goes on to its end")

    pruned = await run(Job("prune", url, directory))
    _show_process(console, 4, pruned, "prunes what is older than a week")
    return Story(ended_by, first, resumed, answered, pruned)


# --- what is shown ---


def _show_process(console: Console, number: int, report: Report, does: str, *, found: bool = True) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=9, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(f"process {number}", f"pid {report.pid} {does}", style="bold")
    if found:
        grid.add_row("  found", _described(report.found))
    if report.pruned or report.would_prune:
        grid.add_row("  dry run", f"would remove {_named(report.would_prune)}")
        grid.add_row("  prune", f"removed {_named(report.pruned)}; {_named(report.left.sessions)} is still there")
    else:
        grid.add_row("  asked", f"the model {report.model_requests}x")
        grid.add_row("  left", _described(report.left))
    console.print(grid)
    console.print()


def _show_between(console: Console, text: str, style: str) -> None:
    console.print(f"{'':11}{text}\n", style=style, soft_wrap=True)


def _described(reading: Reading) -> str:
    turn = f"turn: {reading.status}"
    if reading.calls:
        turn += f", {sum(stored for _, stored in reading.calls)} of {len(reading.calls)} results stored"
    effects = [f"{effect} {len(reading.effects[tool])}x" for tool, effect in EFFECTS.items()]
    asked = f"the bank was asked {len(reading.charge_requests)}x to charge"
    return f"{turn}\nshop: {', '.join(effects)}; {asked}\ntranscript: {len(reading.messages)} messages"


def _named(sessions: Sequence[str]) -> str:
    return ", ".join(sessions) or "nothing"


def show_checks(results: Sequence[Check], console: Console) -> None:
    """Show what must hold, what was read, and whether all is well."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("what must hold", overflow="fold")
    table.add_column("what was read", overflow="fold")
    table.add_column("", no_wrap=True)
    for check in results:
        table.add_row(check.claim, check.read, "ok" if check.holds else "FAILED", style=None if check.holds else "red")
    console.print(table)
    failed = sum(not check.holds for check in results)
    if failed:
        console.print(f"{failed} of {len(results)} checks failed.", style="bold red")
    else:
        console.print(f"All {len(results)} checks hold.", style="bold green")
