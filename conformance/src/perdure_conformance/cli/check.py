"""`perdure-conformance check`: hold a store to the laws, and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure_conformance.checking import Check, Plan
from perdure_conformance.cli.output import Progress, refuse, show
from perdure_conformance.cli.surroundings import spare_the_collector
from perdure_conformance.known_failures import KnownFailure, KnownFailuresError, read_known_failures
from perdure_conformance.laws.register import all_laws
from perdure_conformance.profiles import PROFILES, Profile, find_profile
from perdure_conformance.reports.files import write_reports
from perdure_conformance.reports.model import Report
from perdure_conformance.reports.text import report_text
from perdure_conformance.resolve import Named, TargetError, find_target


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="A store URL ({dir} becomes a fresh directory, {place} a fresh name), module:attribute of a Target or a "
            "StoreConformance, or the name of an installed plugin.",
        ),
    ],
    profile: Annotated[str, typer.Option(help=f"How long and how often: {', '.join(PROFILES)}.")] = "quick",
    only: Annotated[list[str] | None, typer.Option(help="Try this law alone; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The seed of the first round.")] = None,
    max_time: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many seconds; what is left is not run.")
    ] = None,
    known_failures: Annotated[
        Path | None, typer.Option(help="TOML file of laws that the store is known to break.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.")] = None,
    badge: Annotated[Path | None, typer.Option(help="Write a badge of the levels as SVG.")] = None,
    tests: Annotated[
        Path | None, typer.Option(help="Write a test module for each failure, and a case for replay, to this folder.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each law with what became of it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Hold a store to the laws, and exit with 0 if all that it declares held.

    Exit codes: 0 all laws that ran held, 1 a law failed or a known failure did not, 2 wrong use, 3 nothing was run, 4 the
    opener failed and no other law was tried, 5 the time was over before each law was tried.
    """
    plan = Plan(
        named=_named(target),
        profile=_profile(profile).changed(seed=seed, max_time=max_time),
        only=_chosen(only),
        known=_known(known_failures),
    )
    spare_the_collector(plan.laws())
    with Progress(quiet=quiet) as progress:
        report = Check(plan, progress.heard).run()
    # The files first: standard output may be full, or closed by the store or by who reads it.
    written, problem = _written(report, json=json, junit=junit, html=html, badge=badge, tests=tests)
    show(report_text(report, every_law=verbose))
    for file in written:
        show(f"wrote {file}")
    if problem is not None:
        refuse(f"a report could not be written: {problem}")
    raise typer.Exit(report.exit_code)


def _named(text: str) -> Named:
    try:
        return find_target(text)
    except TargetError as error:
        refuse(str(error))


def _profile(name: str) -> Profile:
    try:
        return find_profile(name)
    except ValueError as error:
        refuse(str(error))


def _chosen(names: list[str] | None) -> list[str] | None:
    known = {law.id for law in all_laws()}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        refuse(f"there is no law {unknown[0]!r}; `perdure-conformance list` shows all")
    return names or None


def _known(file: Path | None) -> dict[str, KnownFailure]:
    try:
        return {} if file is None else read_known_failures(file, (law.id for law in all_laws()))
    except KnownFailuresError as error:
        refuse(str(error))


def _written(report: Report, **files: Path | None) -> tuple[list[Path], OSError | None]:
    try:
        return write_reports(report, **files), None
    except OSError as error:
        return [], error
