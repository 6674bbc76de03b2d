"""What the commands print: text, refusals, and progress on long checks."""

from __future__ import annotations

import contextlib
import os
import sys
from types import TracebackType
from typing import NoReturn, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from perdure_conformance.reports.model import ExitCode
from perdure_conformance.runner import Outcome, Verdict

STYLES = {
    r"^(FAILED|KNOWN FAILURE) .*$|\bfailed$|\brefused\b": "bold red",
    r"\bgranted\b|^held$": "green",
    r"^[a-z][a-z ]+$": "bold",
    r"^  (law|failed|why|calls|replay|known):": "cyan",
}
"""What is coloured on a terminal."""

EVERY = 50
"""After how many steps a line tells the progress where there is no terminal."""


def show(text: str) -> None:
    """Print text, coloured on a terminal and never wrapped."""
    shown = Text(text)
    for pattern, style in STYLES.items():
        shown.highlight_regex(f"(?m){pattern}", style)
    try:
        _Console(highlight=False, soft_wrap=True).print(shown)
    except (OSError, ValueError) as error:
        refuse(f"standard output could not be written: {error}")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let who reads go before the end, as `head` does: how the command ends is the verdict's."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if self.stderr else sys.stdout).fileno())


def _tell(text: str) -> None:
    """Print a line on standard error, if it can be written: nothing depends on that."""
    with contextlib.suppress(OSError, ValueError):
        _Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(text)


def refuse(message: str) -> NoReturn:
    """Say what is wrong with how the command was used, and end it."""
    _tell(f"perdure-conformance: {message}")
    raise typer.Exit(ExitCode.WRONG_USE)


class Progress:
    """Tells on standard error how far a check is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        """Decide how to tell."""
        self._console = _Console(stderr=True, markup=False, highlight=False)
        self._quiet = quiet
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._failed = 0

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("the opener")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def heard(self, number: int, total: int, verdict: Verdict) -> None:
        """Take note of one trial."""
        self._failed += verdict.outcome is Outcome.FAILED
        self.noted(number, total, verdict.law.id, f", {self._failed} failed" if self._failed else "")

    def noted(self, number: int, total: int, name: str, more: str = "") -> None:
        """Take note of one step of something long, whatever it was."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=number, total=total, description=f"{name}{more}")
        elif not self._quiet and number % EVERY == 0:
            _tell(f"{number} of {total}{more}")
