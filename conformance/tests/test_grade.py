"""`perdure-conformance grade`: what counts as caught, as missed and as a false alarm, and how the command ends."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from conformance.tests.planted import BROKEN, HANGING, RIGHT
from typer.testing import CliRunner, Result

from perdure_conformance.cli import application
from perdure_conformance.grading import Clean, Grading
from perdure_conformance.laws import all_laws
from perdure_conformance.profiles import PROFILES
from perdure_conformance.reports.grade import Grade, PlantedData, grade_text
from perdure_conformance.resolve import Named
from perdure_conformance.target import Target

CATCHES = "sessions-append-refuses-another-version"
PASSES = "sessions-write-adds-one"
DRAWN = "sessions-any-json-comes-back"
LAWS = [law for law in all_laws() if law.id in (CATCHES, PASSES, DRAWN)]

MODULE = """
from dataclasses import dataclass
from typing import Any
from conformance.tests.planted import BROKEN, RIGHT

@dataclass
class Planted:
    name: str
    laws: tuple[str, ...]
    store: Any = BROKEN
    hangs: bool = False

    def target(self):
        return self.store

STORES = [Planted("broken", ("sessions-append-refuses-another-version",))]
MISSED = [*STORES, Planted("other", ("sessions-write-adds-one",))]
LAWLESS = [Planted("lawless", ())]
UNKNOWN = [Planted("unknown", ("no-such-law",))]
NONE = []
NUMBER = 3
"""


@dataclass
class Store:
    name: str
    laws: tuple[str, ...]
    store: Target = BROKEN
    hangs: bool = False

    def target(self) -> Target:
        return self.store


def graded(*planted: Store, seeds: int = 2, clean: Clean | None = None) -> Grade:
    return Grading(planted, range(seeds), PROFILES["quick"], clean=clean, laws=LAWS).run()


def only(grade: Grade) -> PlantedData:
    (planted,) = grade.planted
    return planted


# --- what counts ---


def test_a_store_is_caught_by_its_own_law_with_every_seed() -> None:
    grade = graded(Store("broken", (CATCHES,)))
    (catch,) = only(grade).own
    assert (catch.law, catch.caught, only(grade).caught, only(grade).others) == (CATCHES, 2, 2, ())
    assert catch.calls is not None
    assert catch.calls >= 2  # a write, and one more that should have been refused
    assert "expected VersionConflictError" in catch.message
    assert grade.exit_code == 0
    assert (
        "1 planted store, profile quick: 1 caught by each law that is named for it, 1 by any law (100.0 %)"
        in grade_text(grade)
    )


def test_a_store_that_another_law_catches_is_missed_by_its_own() -> None:
    grade = graded(Store("broken", (PASSES,)))
    assert only(grade).own[0].caught == 0
    assert only(grade).own[0].calls is None
    assert (only(grade).caught, only(grade).others) == (2, (CATCHES, CATCHES))
    assert grade.exit_code == 1
    assert f"broken: other laws caught it: {CATCHES}" in grade_text(grade, every_store=False)


def test_a_law_that_misses_counts_though_another_of_its_own_catches() -> None:
    grade = graded(Store("broken", (CATCHES, PASSES)))
    assert [one.caught for one in only(grade).own] == [2, 0]
    assert (only(grade).caught_by_own, only(grade).caught_by_any, grade.exit_code) == (False, True, 1)


def test_a_right_store_is_caught_by_none() -> None:
    grade = graded(Store("right", (PASSES,), RIGHT), seeds=1)
    assert (only(grade).caught, only(grade).others, grade.exit_code) == (0, (), 1)
    assert (
        "1 planted store, profile quick: 0 caught by each law that is named for it, 0 by any law (0.0 %)"
        in grade_text(grade)
    )


def test_a_store_that_hangs_is_caught_in_a_short_time() -> None:
    grade = graded(Store("hanging", (DRAWN,), HANGING, hangs=True), seeds=1)
    assert (only(grade).caught, grade.exit_code) == (1, 0)
    assert "expected an answer within 2 seconds" in only(grade).own[0].message


def test_a_right_store_raises_no_alarm() -> None:
    grade = graded(clean=Clean(Named("right", RIGHT), seeds=3, rounds=2))
    assert grade.clean is not None
    assert (grade.clean.trials, grade.clean.alarms, grade.exit_code) == (3 + 2 * 2, (), 0)
    assert "right: 1 law with 3 seeds, 2 laws 2 times: 0 false alarms in 7 trials" in grade_text(grade)


def test_a_law_that_fails_on_the_right_store_is_a_false_alarm() -> None:
    grade = graded(Store("broken", (CATCHES,)), clean=Clean(Named("broken", BROKEN), seeds=1))
    assert grade.clean is not None
    assert [alarm.law for alarm in grade.clean.alarms] == [CATCHES]
    assert grade.exit_code == 1
    assert f"FALSE ALARM {CATCHES}, seed 0" in grade_text(grade)


# --- the command ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of planted stores, in which the command is called."""
    (tmp_path / "graded_stores.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(application(), ["grade", "--quiet", *words])


def test_what_is_caught_ends_with_0_and_is_written(folder: Path) -> None:
    ran = run("--faults", "graded_stores:STORES", "--seeds", "2", "--json", "out/grade.json")
    assert ran.exit_code == 0, ran.output
    assert "wrote out/grade.json" in ran.output
    written = (folder / "out" / "grade.json").read_text()
    assert only(Grade.model_validate_json(written)).name == "broken"
    assert json.loads(written)["schema_version"] == "perdure-conformance-grade/1"


def test_the_file_is_there_though_standard_output_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(text: str) -> None:
        raise typer.Exit(2)

    monkeypatch.setattr("perdure_conformance.cli.grade.show", closed)
    assert run("--faults", "graded_stores:STORES", "--json", "grade.json").exit_code == 2
    assert (folder / "grade.json").exists()


def test_the_grade_is_shown_though_its_file_is_not_written(folder: Path) -> None:
    (folder / "grade.json").mkdir()
    ran = run("--faults", "graded_stores:STORES", "--json", "grade.json")
    assert (ran.exit_code, "graded in" in ran.output, "could not be written" in ran.output) == (2, True, True), (
        ran.output
    )


def test_one_of_them_alone(folder: Path) -> None:
    by_law = run("--faults", "graded_stores:MISSED", "--only", CATCHES)
    assert (by_law.exit_code, "1 planted store," in by_law.output) == (0, True), by_law.output
    by_name = run("--faults", "graded_stores:MISSED", "--only", "broken")
    assert (by_name.exit_code, "1 planted store," in by_name.output) == (0, True), by_name.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "name planted stores: --faults module:attribute"),
        (["--faults", "no_such_module:STORES"], 2, "no_such_module"),
        (["--faults", "graded_stores:MISSING"], 2, "MISSING"),
        (["--faults", "graded_stores:NUMBER"], 2, "not iterable"),
        (["--faults", "graded_stores:LAWLESS"], 2, "lawless names no law"),
        (["--faults", "graded_stores:UNKNOWN"], 2, "'no-such-law', which there is not"),
        (["--faults", "graded_stores:STORES", "--only", "nothing"], 2, "of the name 'nothing'"),
        (["--faults", "graded_stores:STORES", "--clean", "1", "--right", "nosuch"], 2, "nosuch"),
        (["--faults", "graded_stores:STORES", "--profile", "slow"], 2, "there is no profile 'slow'"),
        (["--faults", "graded_stores:NONE"], 3, "graded in"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_use_and_nothing_to_try(words: list[str], code: int, told: str) -> None:
    ran = run(*words)
    assert (ran.exit_code, told in ran.output + ran.stderr) == (code, True), ran.output


def test_the_stores_of_the_project_are_the_default_in_its_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    ran = run("--only", "ReversesBatches")
    assert (ran.exit_code, "1 planted store," in ran.output) == (0, True), ran.output
