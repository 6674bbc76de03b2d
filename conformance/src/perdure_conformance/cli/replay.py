"""`perdure-conformance replay`: try one failure again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure_conformance.checking import Check
from perdure_conformance.cli.output import refuse, show
from perdure_conformance.replay import Case, CaseError
from perdure_conformance.reports.text import report_text
from perdure_conformance.resolve import TargetError


def command(
    case: Annotated[Path, typer.Argument(help="A case that `check --tests FOLDER` wrote.")],
    target: Annotated[str | None, typer.Option(help="Another store than the one that failed.")] = None,
) -> None:
    """Try a law again as it was tried when it failed; the exit codes are those of check."""
    try:
        plan = Case.read(case).plan(target)
    except (CaseError, TargetError) as error:
        refuse(str(error))
    report = Check(plan).run()
    show(report_text(report, every_law=True))
    raise typer.Exit(report.exit_code)
