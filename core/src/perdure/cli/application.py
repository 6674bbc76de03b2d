"""The `perdure` command: its sub-commands, each imported when it is asked for, and what becomes of their errors."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from perdure.cli.codecs import VARIABLE as CODEC
from perdure.cli.exit_codes import ExitCode, code_of
from perdure.cli.output import CommandError, explained, print_json_failure, say, warn
from perdure.contracts.store import describe
from perdure.contracts.urls import StoreURL
from perdure.errors import PerdureError, StoreURLError

HELP: Final = """Keep an agent's conversations alive.

Exit codes: 0 done; 1 something is wrong or was refused; 2 wrong use, or the store cannot be looked at; 3 a write may or may
not have happened; 130 interrupted.
"""
USAGE_ERROR: Final[Any] = typer.BadParameter.__mro__[1]
"""Typer's error of wrong use, which it does not export."""

_URL: Final = re.compile(r"(?:--?[a-z-]+=)?([A-Za-z][A-Za-z0-9+.-]*:.*)", re.DOTALL)


def run(commands: Mapping[str, str]) -> NoReturn:
    """Run the command line that this process was started with, and exit."""
    _prepare_streams()
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # reason: it has no use for the other arguments
    _show_logged_warnings()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        application(commands)()
    except SystemExit as ended:
        # Typer ends on its own when it cannot print its help.
        closed = isinstance(ended.__context__, BrokenPipeError)
        _flush_and_exit(ExitCode.PIPE_CLOSED if closed else ended.code)
    except OSError as error:  # every other one was told
        _give_output_up(error)
    _flush_and_exit(ExitCode.DONE)


def _prepare_streams() -> None:
    """See to it that there are streams, also where they were closed, and that no locale fails a command."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  # reason: for the whole run
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # reason: for the whole run
        if reconfigure := getattr(getattr(sys, name), "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _interrupt(number: int, _: object) -> None:
    """End as Ctrl-C does, so that what was begun is given back; only the exit code is another one."""
    global _interrupted_by  # noqa: PLW0603  # reason: a signal's handler is handed nothing of ours
    _interrupted_by = number
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):  # as in what a shell has started in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


_interrupted_by = int(signal.SIGINT)


def application(commands: Mapping[str, str]) -> typer.Typer:
    """Return the command with all its commands.

    Args:
        commands: By command, the module of `perdure.cli` that has it under the module's own name.
    """
    modules = {name: module for name, module in commands.items() if find_spec(f"perdure.cli.{module}")}
    group = type("Commands", (Commands,), {"modules": modules})
    app = typer.Typer(
        cls=group, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP, rich_markup_mode="markdown"
    )
    app.callback()(_perdure)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # for this alone

        print(f"perdure {version('perdure')}")
        raise typer.Exit


def _perdure(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    codec: Annotated[
        str | None,
        typer.Option(
            envvar=CODEC,
            metavar="MODULE:OBJECT",
            help="What the store is encrypted or compressed with: a codec, a list of them, or a function that returns either.",
        ),
    ] = None,
) -> None:
    if codec is not None:
        os.environ[CODEC] = codec  # the processes that a command starts open the same store


class Commands(TyperGroup):
    """The commands. Only the one that is asked for is imported; `--help` imports all, but not what they need to run.

    Attributes:
        modules: By command, its module.
    """

    modules: Mapping[str, str] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, imported at its first use."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _imported(cmd_name, self.modules[cmd_name])
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and tell how it failed if it did."""
        arguments = arguments_of_command(ctx)
        with _told(self._called(ctx, arguments), arguments):
            return super().invoke(ctx)

    def _called(self, ctx: Any, arguments: Sequence[str]) -> str:
        """Return which command was called, such as `approvals list`; "" if there is none of that name."""
        name = arguments[0] if arguments else ""
        if name not in self.modules:
            return ""
        group: Mapping[str, object] = {}
        with suppress(Exception):  # a command that cannot be imported says so when it is run
            group = getattr(self.get_command(ctx, name), "commands", {})
        return " ".join(arguments[:2]) if len(arguments) > 1 and arguments[1] in group else name


def arguments_of_command(ctx: Any) -> list[str]:
    """Return what follows the options of all commands; its first part has another name in click 8.1 than in later ones."""
    first: Any = getattr(ctx, "_protected_args", None) or getattr(ctx, "protected_args", ())
    return [*first, *ctx.args]


def _imported(name: str, module: str) -> Any:
    """Return the command of a module."""
    found = getattr(import_module(f"perdure.cli.{module}"), module)
    if not isinstance(found, typer.Typer):
        function, found = (
            found,
            typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"),
        )
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


# --- failures ---


@contextmanager
def _told(command: str, arguments: Sequence[str]) -> Iterator[None]:
    """Turn what ends a command into what it prints and its exit code."""
    try:
        yield
    except USAGE_ERROR as error:
        error.message = without_secrets(error.message, arguments)
        if getattr(error, "option_name", "") == "--codec":
            error.message += f". It goes before the command: perdure --codec MODULE:OBJECT {command}"
        if not _wants_json(arguments):
            raise
        hint = f"perdure {command} --help".replace("  ", " ")
        _tell(command, CommandError(error.format_message(), f"Try '{hint}'.", ExitCode.CANNOT), arguments)
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        say(f"perdure {command}: interrupted", stderr=True)
        raise typer.Exit(128 + _interrupted_by) from None
    except BrokenPipeError:
        raise typer.Exit(ExitCode.PIPE_CLOSED) from None
    except (PerdureError, OSError) as error:
        _tell(command, error, arguments)
    except Exception as error:  # noqa: BLE001  # reason: its exit code must differ from that of a finding
        traceback.print_exception(error)
        _tell(command, error, arguments, ExitCode.FAULT)


def _tell(command: str, error: Exception, arguments: Sequence[str], code: ExitCode | None = None) -> NoReturn:
    code = code_of(error) if code is None else code
    if _wants_json(arguments):
        print_json_failure(command, error, code)
    else:
        say(f"perdure {command}: {explained(error)}", style="red", stderr=True)
    raise typer.Exit(code) from None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON is asked for, also where the arguments are too wrong to be read."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def without_secrets(message: str, arguments: Sequence[str]) -> str:
    """Return a message about arguments with the URLs among them shown without secrets."""
    for argument in arguments:
        found = _URL.fullmatch(argument)
        if found is not None:
            message = message.replace(found[1], _shown(found[1]))
    return message


def _shown(url: str) -> str:
    try:
        return str(StoreURL.parse(url))
    except StoreURLError as error:
        return error.url


def _show_warning(message: Warning | str, *_: object) -> None:
    """Show a warning to people: what it says, and not where it was raised."""
    warn(str(message))


def _show_logged_warnings() -> None:
    """Show on standard error what perdure logs as a warning, but for the runs that failed: commands tell of those."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("perdure: %(message)s"))
    handler.addFilter(lambda record: record.name != "perdure.runs")
    logging.getLogger("perdure").addHandler(handler)


def _flush_and_exit(code: object) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_output_up(error)
    sys.exit(code)  # type: ignore[arg-type]  # reason: what another exit had


def _give_output_up(error: OSError) -> NoReturn:
    """Exit where the output cannot be written, quietly if nobody is left to read it."""
    # The interpreter would complain of what is left in the buffer when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(ExitCode.PIPE_CLOSED)
    say(f"perdure: the output could not be written: {describe(error)}", style="red", stderr=True)
    sys.exit(ExitCode.CANNOT)
