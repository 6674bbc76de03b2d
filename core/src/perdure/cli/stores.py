"""`perdure stores`: which stores are installed, and which of them are broken."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from perdure import plugins
from perdure.errors import PluginError


def stores(
    check: Annotated[bool, typer.Option("--check", help="Load each plugin, and exit with 1 if one is broken.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the installed stores. Without --check no plugin is imported."""
    rows = [_row(plugin, check) for plugin in plugins.installed()]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        Console(markup=False, highlight=False, emoji=False).print(_table(rows))
    else:
        print(f"No stores are installed. Try: {plugins.install_command('sqlite')}")
    if any(row.get("problem") for row in rows):
        raise typer.Exit(1)


def _row(plugin: plugins.InstalledPlugin, check: bool) -> dict[str, Any]:
    row = {"scheme": plugin.scheme, "distribution": plugin.distribution, "version": plugin.version}
    return {**row, "problem": _problem(plugin.scheme)} if check else row


def _problem(scheme: str) -> str | None:
    """Load a plugin and say why that fails, if it does."""
    try:
        plugins.load(scheme)
    except PluginError as error:
        return f"{error}. {error.hint}"
    return None


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("ok" if value is None else value for value in row.values()))
    return table
