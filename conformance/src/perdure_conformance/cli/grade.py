"""`perdure-conformance grade`: hold the kit itself to stores that are broken on purpose, and to one that is right."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.contracts.store import describe
from perdure_conformance.cli.output import Progress, refuse, show
from perdure_conformance.cli.surroundings import spare_the_collector
from perdure_conformance.grading import Clean, Grading, Planted
from perdure_conformance.laws.register import all_laws
from perdure_conformance.profiles import PROFILES, Profile, find_profile
from perdure_conformance.reports.grade import Grade, grade_text
from perdure_conformance.resolve import TargetError, find_target

OURS = "conformance.tests.faults.every:FAULTS"
"""The planted stores of the project itself, which only its repository has."""


def command(
    faults: Annotated[
        str | None,
        typer.Option(
            help="module:attribute of the planted stores. In the repository of perdure the default is its own; "
            "elsewhere there is none.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Try this planted store alone, or those of this law; may be given several times."),
    ] = None,
    profile: Annotated[str, typer.Option(help=f"How much of a law to try: {', '.join(PROFILES)}.")] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="With how many seeds to try each planted store, from 0 on.")] = 1,
    clean: Annotated[
        int, typer.Option(min=0, help="With how many seeds to try the laws that draw cases on a store that is right.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often to try each of the other laws on it.")] = 1,
    right: Annotated[str, typer.Option(help="The store that is right, as `check` takes it.")] = "memory:{place}",
    json: Annotated[Path | None, typer.Option(help="Write the grade as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, and only what was missed.")] = False,
) -> None:
    """Grade the kit: does it catch stores that are broken on purpose, and leave a right one alone?

    Exit codes: 0 each law caught the stores that it is named for, with every seed, and none failed on the right store; 1 not so;
    2 wrong use; 3 nothing was tried.
    """
    # Planted stores break the tasks that use them; what asyncio says of those is no part of the grade.
    logging.getLogger("asyncio").addHandler(logging.NullHandler())
    chosen = _chosen(_planted(faults), only)
    spare_the_collector(all_laws())
    with Progress(quiet=quiet) as progress:
        grading = Grading(
            planted=chosen,
            seeds=range(seeds),
            profile=_profile(profile),
            clean=_clean(right, clean, rounds) if clean else None,
            listener=progress.noted,
        )
        grade = grading.run()
    # The file first: standard output may be full or closed.
    problem = None if json is None else _written(json, grade)
    show(grade_text(grade, every_store=not quiet))
    if problem is not None:
        refuse(f"the grade could not be written: {problem}")
    if json is not None:
        show(f"wrote {json}")
    raise typer.Exit(grade.exit_code)


def _written(json: Path, grade: Grade) -> OSError | None:
    try:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(grade.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        return error
    return None


def _planted(text: str | None) -> Sequence[Planted]:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if text is None:
        if not Path(*OURS.partition(":")[0].split(".")).with_suffix(".py").exists():
            refuse(
                "name planted stores: --faults module:attribute. Those of perdure are in its repository, not in the wheel"
            )
        text = OURS
    module, _, attribute = text.partition(":")
    try:
        found: Any = pkgutil.resolve_name(f"{importlib.import_module(module).__name__}:{attribute}")
        planted = [_checked(one) for one in found]
    except Exception as error:  # noqa: BLE001  # reason: whatever somebody's module raises is told to them
        refuse(f"{text!r} names no planted stores: {describe(error)}")
    return planted


def _checked(one: Any) -> Planted:
    """Return a planted store, or raise if it is none."""
    known = {law.id for law in all_laws()}
    if not one.laws:
        raise ValueError(f"{one.name} names no law that is meant to catch it")
    unknown = [name for name in one.laws if name not in known]
    if unknown:
        raise ValueError(f"{one.name} names the law {unknown[0]!r}, which there is not")
    planted: Planted = one
    return planted


def _profile(name: str) -> Profile:
    try:
        return find_profile(name)
    except ValueError as error:
        refuse(str(error))


def _chosen(planted: Sequence[Planted], only: Iterable[str] | None) -> Sequence[Planted]:
    if not only:
        return planted
    wanted = set(only)
    chosen = [one for one in planted if wanted & {one.name, *one.laws}]
    unknown = wanted - {name for one in chosen for name in (one.name, *one.laws)}
    if unknown:
        refuse(f"there is no planted store, and none for a law, of the name {min(unknown)!r}")
    return chosen


def _clean(text: str, seeds: int, rounds: int) -> Clean:
    try:
        return Clean(find_target(text), seeds, rounds)
    except TargetError as error:
        refuse(str(error))
