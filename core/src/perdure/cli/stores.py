"""`perdure stores`: which stores are installed, what they can do, and which of them are broken and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure import plugins
from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import JsonOption, explained, print_json, print_table, say
from perdure.contracts.urls import CORE_OPTIONS
from perdure.errors import PluginError

if TYPE_CHECKING:
    from pydantic import BaseModel


def stores(
    load: Annotated[
        bool,
        typer.Option("--load/--no-load", help="Import each plugin, to see whether it works and what options it has."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """List the installed stores with their options, and exit with 1 if one is broken."""
    found = [_row(plugin, load=load) for plugin in plugins.installed()]
    code = ExitCode.FOUND if any(row.get("problem") for row in found) else ExitCode.DONE
    if as_json:
        print_json("stores", {"stores": found, "common_options": CORE_OPTIONS}, code=code)
    elif found:
        _print(found, load=load)
    else:
        say(f"No stores are installed. Try: {plugins.install_command('sqlite')}")
    raise typer.Exit(code)


def _row(plugin: plugins.InstalledPlugin, *, load: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"scheme": plugin.scheme, "distribution": plugin.distribution, "version": plugin.version}
    if not load:
        return row
    try:
        return row | {"options": _options(plugins.load(plugin.scheme).options), "problem": None}
    except PluginError as error:
        return row | {"options": [], "problem": explained(error)}


def _options(model: type[BaseModel]) -> list[dict[str, Any]]:
    from pydantic_core import PydanticUndefined  # --help does without

    return [
        {"name": name, "default": None if field.default is PydanticUndefined else field.default}
        for name, field in model.model_fields.items()
    ]


def _print(rows: list[dict[str, Any]], *, load: bool) -> None:
    columns = ["scheme", "distribution", "version", *(["status", "options"] if load else [])]
    print_table(columns, ([row[name] for name in columns[:3]] + (_state(row) if load else []) for row in rows))
    if load:
        say(f"\nEvery store also takes the options {' and '.join(CORE_OPTIONS)}.")


def _state(row: dict[str, Any]) -> list[str]:
    options = ", ".join(option["name"] for option in row["options"])
    return [row["problem"] or "ok", options]
