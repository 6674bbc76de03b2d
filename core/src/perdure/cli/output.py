"""What commands print: JSON of one shape, text without control characters, tables, and failures.

JSON goes to standard output and is all that is there:

    {"command": "ls", "exit_code": 0, "result": {...}}
    {"command": "show", "exit_code": 1, "error": {"type": "...", "message": "...", "hint": "...", "retryable": false}}
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from perdure import codec
from perdure.cli.exit_codes import ExitCode
from perdure.errors import PerdureError

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
"""The option `--json` of every command: `as_json: JsonOption = False`."""

_UNSAFE: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text, so that it reads as something else
    "\u2028\u2029\ud800-\udfff"  # line ends of another kind, and halves of characters, which no stream can encode
    "]"
)
_BREAK: Final = re.compile("[\t\n]")
_WIDE: Final = 1_000_000


class CommandError(PerdureError):
    """A command cannot do what it was asked for.

    Attributes:
        exit_code: What the command ends with.
    """

    def __init__(self, problem: str, hint: str = "", exit_code: ExitCode = ExitCode.FOUND) -> None:
        """Remember the problem, the way out and the exit code."""
        super().__init__(problem, hint, exit_code)
        self.problem, self.hint, self.exit_code = problem, hint, exit_code

    def __str__(self) -> str:
        """Say what the problem is."""
        return self.problem


# --- JSON ---


def print_json(command: str, result: object, *, code: ExitCode = ExitCode.DONE) -> None:
    """Print the result of a command as JSON.

    Args:
        command: The command, such as `approvals list`.
        result: What it has to say. Dataclasses, times (ISO 8601) and durations (seconds) may be in it.
        code: What the command ends with; raise `typer.Exit(code)` afterwards where it is not 0.
    """
    _print_document({"command": command, "exit_code": int(code), "result": result})


def print_json_failure(command: str, error: Exception, code: ExitCode) -> None:
    """Print how a command failed as JSON."""
    facts = {
        "type": type(error).__name__,
        "message": str(error),
        "hint": getattr(error, "hint", ""),
        "retryable": getattr(error, "retryable", False),
    }
    _print_document({"command": command, "exit_code": int(code), "error": facts})


def _print_document(document: dict[str, object]) -> None:
    # ASCII: nothing in it can steer a terminal, and every stream can encode it.
    try:
        text = json.dumps(document, indent=2, default=_plain)
    except ValueError:  # a number of more digits than Python writes by itself: the codec does, in ASCII as well
        text = codec.encode(_all_plain(document)).decode("ascii")
    sys.stdout.write(text + "\n")


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, Iterable) else str(value)


def _all_plain(value: Any) -> object:
    if isinstance(value, dict):
        return {str(key): _all_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else _all_plain(_plain(value))


# --- text ---


def safe(text: str) -> str:
    """Return text with every character escaped that could steer a terminal; tabs and newlines stay."""
    return _UNSAFE.sub(_escaped, text)


def safe_line(text: str) -> str:
    """Return text as one line, with every character escaped that could steer a terminal."""
    return _BREAK.sub(_escaped, safe(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def console(*, stderr: bool = False) -> Console:
    """Return where text is printed: as given, coloured on a terminal alone, and wrapped there alone."""
    made = Console(markup=False, highlight=False, emoji=False, stderr=stderr)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def say(text: str = "", *, style: str | None = None, stderr: bool = False) -> None:
    """Print a line of text, made safe."""
    console(stderr=stderr).print(safe(text), style=style, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns, each cell made safe and on one line; `None` is shown as `-`."""
    shown = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not shown.is_terminal)
    for row in rows:
        table.add_row(*("-" if cell is None else safe_line(str(cell)) for cell in row))
    with shown.capture() as captured:
        shown.print(table)
    sys.stdout.writelines(line.rstrip(" ") + "\n" for line in captured.get().splitlines())


def when(instant: datetime | None) -> str:
    """Return an instant as people read it: in UTC, to the second."""
    return "-" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def when_stored(text: str) -> str:
    """Return an instant that is stored as text as `when` does, and what is none as it is."""
    try:
        return when(datetime.fromisoformat(text))
    except ValueError:
        return text


# --- failures ---


def explained(error: Exception) -> str:
    """Return what went wrong and what to do next."""
    text = str(error) or type(error).__name__
    hint = getattr(error, "hint", "")
    return text if not hint or hint.rstrip(".") in text else f"{text.rstrip('.')}. {hint}"


def warn(text: str) -> None:
    """Print a warning to standard error."""
    say(f"perdure: {text}", style="yellow", stderr=True)
