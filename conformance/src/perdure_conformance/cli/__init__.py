"""The command line, one file a command. It needs typer and rich: `pip install 'perdure-conformance[cli]'`."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "check": "check",
    "list": "listing",
    "explain": "explain",
    "replay": "replay",
    "grade": "grade",
}
"""By command, the module of this package that has a function `command`. One that is not there is left out."""


def main() -> None:
    """Run the `perdure-conformance` command."""
    if any(find_spec(library) is None for library in ("rich", "typer")):
        sys.exit("perdure-conformance: the command line needs typer and rich: pip install 'perdure-conformance[cli]'")
    # Laws make runs fail on purpose; what perdure logs about them is no part of the report.
    logging.getLogger("perdure").addHandler(logging.NullHandler())
    from perdure_conformance.cli.surroundings import leave, prepare
    from perdure_conformance.no_exit import no_exit

    prepare()
    command = application()
    try:
        with no_exit():
            command()
    except SystemExit as end:
        leave(end.code)


def application() -> typer.Typer:
    """Return the command with all its commands."""
    import typer

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False, add_completion=False)
    app.callback()(_conformance)
    for command, module in COMMANDS.items():
        name = f"perdure_conformance.cli.{module}"
        if find_spec(name) is not None:
            app.command(command)(import_module(name).command)
    return app


def _conformance() -> None:
    """Hold a store to the laws of perdure's contract."""
