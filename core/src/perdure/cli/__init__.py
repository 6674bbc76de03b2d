"""The command line, one file a command. It needs typer and rich: `pip install 'perdure[cli]'`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from signal import SIGINT

COMMANDS = {
    "stores": "stores",
    "ls": "ls",
    "show": "show",
    "pending": "pending",
    "approvals": "approvals",
    "resume": "resume",
    "worker": "worker",
    "copy": "copy",
    "export": "export",
    "import": "import_",
    "reencrypt": "reencrypt",
    "prune": "prune",
    "delete": "delete",
    "doctor": "doctor",
    "bench": "bench",
    "demo": "demo",
}
"""By command, the module of this package that has it under the module's own name: a function, or a `typer.Typer` for a
group of commands. A module is imported when its command is asked for; one that is not there is left out."""


def main() -> None:
    """Run the `perdure` command."""
    if any(find_spec(library) is None for library in ("rich", "typer")):
        sys.exit("perdure: the command line needs typer and rich: pip install 'perdure[cli]'")
    try:
        from perdure.cli.application import run

        run(COMMANDS)
    except KeyboardInterrupt:  # before a command began, which sees to it itself
        print("perdure: interrupted", file=sys.stderr)
        sys.exit(128 + SIGINT)
