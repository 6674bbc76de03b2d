"""The command line, one file a command. It needs typer and rich: `pip install 'perdure[cli]'`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

COMMANDS = ("stores", "doctor", "demo", "worker")
"""Each is a module of this package with a function of the same name. One that is not there is left out."""


def main() -> None:
    """Run the `perdure` command."""
    if any(find_spec(library) is None for library in ("rich", "typer")):
        sys.exit("perdure: the command line needs typer and rich: pip install 'perdure[cli]'")
    import typer

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)
    app.callback()(_perdure)
    for command in COMMANDS:
        name = f"perdure.cli.{command}"
        if find_spec(name) is not None:
            app.command(command)(getattr(import_module(name), command))
    app()


def _perdure() -> None:
    """Keep an agent's conversations alive."""
