"""Replay: a generated test fails on the broken store alone and needs nothing of the kit; a case is tried again as it was."""

import ast
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conformance.tests import planted
from core.tests.command_line import Program
from typer.testing import CliRunner

from perdure_conformance.cli import application
from perdure_conformance.laws import all_laws
from perdure_conformance.recording import RecordedCall, shown
from perdure_conformance.replay import Case, CaseError
from perdure_conformance.resolve import Named
from perdure_conformance.runner import Outcome, Trace, Verdict, run_law
from perdure_conformance.standalone import NotStandaloneError, written_test
from perdure_conformance.target import Target

LAWS = {law.id: law for law in all_laws()}
DIRECTED = "sessions-append-refuses-another-version"
DRAWN = "sessions-follow-the-model"
PLAIN = """
import perdure
from dataclasses import replace
from perdure.backend import Append, journal_hooks
from perdure_memory.journal import MemoryJournal

class NoVersionCheck(MemoryJournal):
    async def write(self, operations):
        changed = [replace(one, expected_version=None) if isinstance(one, Append) else one for one in operations]
        return await super().write(changed)
"""
"""A plugin module of a broken store."""

HOOKS = "perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks({})\nPERDURE_CONTRACT = 1\n"


HIDE_THE_KIT = """
import sys

for name in ["perdure_conformance", *sys.modules]:
    if name.partition(".")[0] == "perdure_conformance":
        sys.modules[name] = None
"""


def failed(law: str, named: Named) -> Verdict:
    verdict = run_law(named.target, LAWS[law], seed=0, examples=5)
    assert verdict.outcome is Outcome.FAILED, str(verdict)
    return verdict


def run_pytest(file: Path, **environment: str) -> str:
    """Run a test module as a stranger would, without the kit, and return what pytest says of it last."""
    (file.parent / "conftest.py").write_text("" if "kit" in environment else HIDE_THE_KIT, encoding="utf-8")
    here = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment
    ran = Program("python", file.parent, here)("-m", "pytest", "-q", "-p", "no:cacheprovider", file.name)
    return ran.out


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """Install a broken store under the scheme `faulty` and the right one under `sound`, found through PYTHONPATH."""
    (tmp_path / "faulty_plugin.py").write_text(PLAIN + HOOKS.format("NoVersionCheck"), encoding="utf-8")
    (tmp_path / "sound_plugin.py").write_text(PLAIN + HOOKS.format("MemoryJournal"), encoding="utf-8")
    info = tmp_path / "perdure_planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure-planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.stores]\nfaulty = faulty_plugin\nsound = sound_plugin\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("law", [DIRECTED, pytest.param(DRAWN, marks=pytest.mark.soak)])
def test_a_generated_test_fails_on_the_broken_store_and_passes_on_the_right_one(
    law: str, tmp_path: Path, plugin: dict[str, str]
) -> None:
    verdict = failed(law, Named("conformance.tests.planted:BROKEN", planted.BROKEN))
    named = Named("faulty:{place}", Target.from_url("faulty:{place}"))
    text = written_test(named, verdict)
    assert "perdure_conformance" not in ast.unparse(ast.parse(text))
    file = tmp_path / "test_generated.py"
    file.write_text(text, encoding="utf-8")
    broken = run_pytest(file, **plugin)
    assert "1 failed" in broken, broken
    assert ("expected VersionConflictError" if law == DIRECTED else "expected a conflict") in broken
    right = run_pytest(file, STORE="sound:{place}", **plugin)
    assert "1 passed" in right, right


def test_a_generated_test_opens_the_url_of_a_target_that_its_plugin_names(
    tmp_path: Path, plugin: dict[str, str]
) -> None:
    verdict = failed(DIRECTED, Named("conformance.tests.planted:BROKEN", planted.BROKEN))
    named = Named("faulty", Target.from_url("faulty:{place}?token=hunter2"))
    text = written_test(named, verdict)
    assert "hunter2" not in text
    file = tmp_path / "test_generated.py"
    file.write_text(written_test(Named("faulty", Target.from_url("faulty:{place}")), verdict), encoding="utf-8")
    broken = run_pytest(file, **plugin)
    assert "expected VersionConflictError" in broken, broken


def test_a_generated_test_opens_an_object_of_a_module(tmp_path: Path) -> None:
    named = Named("conformance.tests.planted:BROKEN", planted.BROKEN)
    file = tmp_path / "test_generated.py"
    file.write_text(written_test(named, failed(DIRECTED, named)), encoding="utf-8")
    assert "1 failed" in run_pytest(file, kit="is needed by the module of the target")
    right = run_pytest(file, kit="", STORE=f"{planted.__file__}:RIGHT")
    assert "1 passed" in right, right


def test_a_generated_test_says_what_it_is_about() -> None:
    named = Named("conformance.tests.planted:BROKEN", planted.BROKEN)
    heading = ast.get_docstring(ast.parse(written_test(named, failed(DIRECTED, named)))) or ""
    assert heading.startswith(f"{DIRECTED} fails on conformance.tests.planted:BROKEN.")
    assert "store.sessions.append('s1', [{'n': 2}], expected_version=0)" in heading


def test_a_law_of_several_processes_has_no_generated_test() -> None:
    law = LAWS["sessions-append-survives-kill"]
    verdict = Verdict(law, "x", Outcome.FAILED, "expected it, got nothing", 0.0)
    with pytest.raises(NotStandaloneError):
        written_test(Named("memory:{place}", planted.RIGHT), verdict)


def test_most_laws_have_a_generated_test_and_each_is_python() -> None:
    trace = Trace((RecordedCall('store.x("""\\")', "\0\ud800"),), 3)
    named = Named("memory:{place}", Target.from_url("memory:{place}"))
    some = list(LAWS.values())[::6]
    written = 0
    for law in some:
        verdict = Verdict(law, "x", Outcome.FAILED, 'expected """ and \\, got \ud800', 0.0, trace)
        with contextlib.suppress(NotStandaloneError):
            compile(written_test(named, verdict).encode(), law.id, "exec")
            written += 1
    assert written > 0.7 * len(some)


# --- cases ---


def test_a_case_is_replayed(tmp_path: Path) -> None:
    run = CliRunner()
    target = "conformance.tests.planted:BROKEN"
    ran = run.invoke(
        application(), ["check", target, "-q", "--only", DIRECTED, "--tests", str(tmp_path), "--seed", "7"]
    )
    assert ran.exit_code == 1, ran.output
    case = tmp_path / f"{DIRECTED}.json"
    assert (tmp_path / f"test_{DIRECTED.replace('-', '_')}.py").exists()
    assert json.loads(case.read_text())["seed"] == 7
    again = run.invoke(application(), ["replay", str(case)])
    assert again.exit_code == 1
    assert "expected VersionConflictError" in again.output
    right = run.invoke(application(), ["replay", str(case), "--target", "memory:{place}"])
    assert right.exit_code == 0, right.output


def test_a_drawn_case_is_found_again_by_its_seed() -> None:
    first, second = (failed(DRAWN, Named("x", planted.BROKEN)) for _ in range(2))
    assert first.trace.case == second.trace.case


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "Invalid JSON"), ("{}", "target: Field required"), (None, "No such file")],
)
def test_what_is_no_case_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "case.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CaseError, match=told):
        Case.read(file)
    ran = CliRunner().invoke(application(), ["replay", str(file)])
    assert (ran.exit_code, told in ran.stderr.replace("\n", " ")) == (2, True)


def test_a_case_of_an_unknown_law_is_refused(tmp_path: Path) -> None:
    case = Case(target="memory:", law="gone-law", examples=1, seed=0, case=None, message="")
    file = tmp_path / "case.json"
    file.write_text(case.model_dump_json())
    with pytest.raises(CaseError, match="no law 'gone-law'"):
        Case.read(file)


# --- what a recorded call shows ---


def endless() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [1, True, None, -0.0], "a": ("x",)}, "{'b': [1, True, None, -0.0], 'a': ('x',)}"),
        (float("inf"), "float('inf')"),
        ("\0\ud800", "'\\x00\\ud800'"),
        (2**20_000, "<an integer of 20001 bits>"),
        (Odd(), "<Odd>"),
    ],
    ids=["json", "infinity", "text", "large", "odd"],
)
def test_a_value_is_shown_as_python(value: Any, text: str) -> None:
    assert shown(value) == text


LARGE = {
    "text": "x" * 10**6,
    "list": [1] * 10**6,
    "endless": endless(),
    "dict": {str(n): {"n": [n]} for n in range(9999)},
}


@pytest.mark.parametrize("kind", LARGE)
def test_however_large_a_value_is_little_of_it_is_shown(kind: str) -> None:
    assert len(shown(LARGE[kind])) < 2_000
