"""The stores of third parties in docs/examples: installed beside the wheels, as their readers would, and held to the laws."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.test_docs import blocks_of
from tests.test_wheels import MEMBERS, ROOT, run

from perdure_conformance.laws.register import Law, all_laws

EXAMPLES = ROOT / "docs" / "examples"
INSTALLED = [*(ROOT / MEMBERS[name] for name in ("perdure", "perdure_sqlite", "perdure_conformance"))]
LMDB = "lmdb"
APPROVALS = "test_laws:TestSqlApprovals"
SESSIONS = "test_laws:TestJsonLinesSessions"
NAIVE = "test_laws:TestNaiveSessions"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheels, the LMDB example among them."""
    beside = Path(sys.executable).with_name("uv")
    uv = beside if beside.exists() else Path(shutil.which("uv") or "uv")
    folder = tmp_path_factory.mktemp("examples")
    for member in (*INSTALLED, EXAMPLES / "perdure-lmdb"):
        run(uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", folder, member)
    run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    wheels = [f"{wheel.name.partition('-')[0].replace('_', '-')} @ {wheel.as_uri()}" for wheel in folder.glob("*.whl")]
    named = [wheel.replace("perdure-conformance @", "perdure-conformance[cli] @") for wheel in wheels]
    pins = ROOT / "requirements" / "dev.txt"
    run(uv, "pip", "install", "--quiet", "--python", scripts / "python", "--constraint", pins, *named)
    return scripts


@dataclass(frozen=True)
class Report:
    """What `perdure-conformance check` wrote as JSON."""

    written: dict[str, Any]
    exit_code: int

    def laws(self, outcome: str) -> set[str]:
        return {law["id"] for law in self.written["laws"] if law["outcome"] == outcome}

    def levels(self) -> dict[str, str]:
        return {level["name"]: level["standing"] for level in self.written["levels"]}


def check(scripts: Path, target: str, folder: Path, only: Iterable[str] = ()) -> Report:
    """Run the command in a folder, which must not be of this checkout: the kit leaves things there."""
    chosen = [word for law in sorted(only) for word in ("--only", law)]
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    ran = subprocess.run(
        [scripts / "perdure-conformance", "check", target, "-q", "--max-time", "600", "--json", "report.json", *chosen],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert folder.joinpath("report.json").exists(), f"{ran.stdout}\n{ran.stderr}"
    return Report(json.loads(folder.joinpath("report.json").read_bytes()), ran.returncode)


def example(name: str, folder: Path) -> Path:
    """Return a copy of an example."""
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")))


def failed_in(report: Path) -> set[str]:
    """Return the laws that a report of the command, as text, says were broken."""
    return set(re.findall(r"^FAILED (\S+)$", report.read_text(encoding="utf-8"), re.MULTILINE))


def laws(wanted: Callable[[Law], bool], *named: str) -> set[str]:
    return {law.id for law in all_laws() if law.id in named or wanted(law)}


def test_the_lmdb_example_is_found_by_its_entry_point_and_keeps_laws(scripts: Path, tmp_path: Path) -> None:
    areas = ("opening", "atomicity", "together")
    # Two processes, a kill -9, a forked child, data of a newer release, and threads that end.
    single = (
        "sessions-one-of-many-processes-wins",
        "sessions-append-survives-kill",
        "sessions-forked-child-is-refused",
        "newer-schema-is-refused",
        "sessions-opening-and-closing-leaks-nothing",
    )
    report = check(scripts, LMDB, tmp_path, laws(lambda law: law.area in areas, *single))
    assert (report.exit_code, report.laws("failed"), report.laws("not run")) == (0, set(), set())
    assert report.laws("passed") >= {*single, "sessions-fresh-place-is-empty", "atomic-write-is-all-or-none"}
    assert all(report.written["capabilities"]["sessions"].values())


def test_the_approval_example_keeps_laws_beside_no_other_part(scripts: Path, tmp_path: Path) -> None:
    races = ("approvals-cancel-and-decide-race", "approvals-decision-survives-kill")
    chosen = laws(lambda law: law.area in ("opening", "approvals"), *races)
    report = check(scripts, APPROVALS, example("sql-approvals", tmp_path), chosen)
    assert (report.exit_code, report.laws("failed"), report.laws("not run")) == (0, set(), set())
    assert set(races) <= report.laws("passed")
    assert list(report.written["capabilities"]) == ["approvals"]


def test_the_session_example_keeps_laws_with_two_methods(scripts: Path, tmp_path: Path) -> None:
    areas = ("opening", "order", "sessions")
    chosen = laws(
        lambda law: law.area in areas, "sessions-append-survives-kill", "sessions-undeclared-operation-refuses"
    )
    report = check(scripts, SESSIONS, example("plain-sessions", tmp_path), chosen)
    assert (report.exit_code, report.laws("failed")) == (0, set())
    assert {"sessions-append-survives-kill", "sessions-undeclared-operation-refuses"} <= report.laws("passed")
    assert report.levels()["complete"] == report.levels()["shared"] == "not claimed"


def test_the_naive_example_breaks_the_laws_that_its_page_names(scripts: Path, tmp_path: Path) -> None:
    folder = example("naive-sessions", tmp_path)
    page = folder.joinpath("README.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(sessions-[a-z-]+)`", page))
    assert explained < failed_in(folder / "report.txt")
    report = check(scripts, NAIVE, folder, explained)
    assert (report.exit_code, report.laws("failed")) == (1, explained)


@pytest.mark.parametrize("name", ["sql-approvals", "plain-sessions"])
def test_an_example_prints_what_its_page_shows(name: str, scripts: Path, tmp_path: Path) -> None:
    folder = example(name, tmp_path)
    page = folder.joinpath("README.md").read_text(encoding="utf-8")
    assert f"```\n{run(scripts / 'python', '-W', 'error', 'use.py', folder=folder)}```" in page


@pytest.mark.soak
def test_the_naive_example_breaks_the_laws_that_its_report_names(scripts: Path, tmp_path: Path) -> None:
    folder = example("naive-sessions", tmp_path)
    named = failed_in(folder / "report.txt")
    report = check(scripts, NAIVE, folder, named)
    assert (report.exit_code, report.laws("failed")) == (1, named)


@pytest.mark.soak
@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    ("target", "name", "granted"),
    [
        (LMDB, "perdure-lmdb", {"plain", "complete", "durable", "shared", "atomic"}),
        (APPROVALS, "sql-approvals", {"plain", "complete", "durable", "shared"}),
        (SESSIONS, "plain-sessions", {"plain", "durable"}),
    ],
)
def test_an_example_keeps_every_law_that_it_claims(
    target: str, name: str, granted: set[str], scripts: Path, tmp_path: Path
) -> None:
    report = check(scripts, target, example(name, tmp_path))
    assert (report.exit_code, report.laws("failed")) == (0, set())
    assert granted == {level for level, standing in report.levels().items() if standing == "granted"}
    page = EXAMPLES.joinpath(name, "README.md").read_text(encoding="utf-8")
    told = {
        level["name"]: " of ".join((str(level["passed"]), str(level["laws"]))) for level in report.written["levels"]
    }
    for level, laws in re.findall(r"^  ([a-z-]+) +granted +(\d+ of \d+) laws$", page, re.MULTILINE):
        assert laws == told[level], f"{name}/README.md says {laws} of {level}"
    if name == "perdure-lmdb":
        assert {name for name in report.laws("not run") if not name.endswith(("-server-kill", "-power-loss"))} == set()


@pytest.mark.soak
@pytest.mark.timeout(620)
def test_the_store_of_the_tutorial_keeps_every_law(scripts: Path, tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "write-your-own-store.md"
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.title:
            tmp_path.joinpath(block.title).write_text(block.text, encoding="utf-8")
    report = check(scripts, "test_drawer:TestDrawer", tmp_path)
    assert (report.exit_code, report.laws("failed")) == (0, set())
    granted = {level for level, standing in report.levels().items() if standing == "granted"}
    assert granted >= {"plain", "complete", "durable", "shared", "atomic"}
