"""The pytest plugin and the test class, in runs of pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core.tests.command_line import Program

from perdure_conformance.laws import all_laws
from perdure_conformance.pytest_plugin import chosen_laws

SOME = ("sessions-write-adds-one", "sessions-append-refuses-another-version", "sessions-one-of-many-processes-wins")
ONLY = [word for law in SOME for word in ("--law", law)]
IN_PROCESS = ONLY[:4]
"""Those that start no process of their own, where the point is another plugin."""
PLANTED = Path(__file__).with_name("planted.py")

CLASS = """
import perdure
from perdure_conformance.testing import StoreConformance

class TestMyStore(StoreConformance):
    def opener(self, place):
        return perdure.open_store(
            f"file:{place.directory}/x?namespace={place.namespace}", clock=place.clock)
"""


def run(folder: Path, *words: str, plugins: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run pytest in a folder, with no plugin but the kit's and those named."""
    named = [word for plugin in ("perdure_conformance.pytest_plugin", *plugins) for word in ("-p", plugin)]
    here = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder)}
    python = Program("python", folder, here, errors_in_out=True)
    ran = python("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *named, *words)
    return ran.code, ran.out


def test_the_plugin_is_installed() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="pytest11", name="perdure-conformance")
    assert found.value == "perdure_conformance.pytest_plugin"


def test_the_plugin_does_not_import_the_kit_until_it_is_asked() -> None:
    code = "import perdure_conformance.pytest_plugin as plugin, sys; print('perdure_conformance.laws' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout == "False\n"


# --- pytest --store URL --pyargs perdure_conformance ---


def test_a_url_is_held_to_the_laws(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--store", "file:{dir}/x", *ONLY, "--pyargs", "perdure_conformance", "-v")
    assert code == 0, said
    assert all(f"[file-{law}] PASSED" in said for law in SOME), said


def test_every_law_is_a_test(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--store", "memory:{place}", "--pyargs", "perdure_conformance", "--collect-only", "-q")
    assert code == 0, said
    assert said.count("::test_law[memory-") == len(all_laws())


def test_a_broken_store_fails_with_its_calls(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_bytes(PLANTED.read_bytes())
    code, said = run(tmp_path, "--store", "planted:BROKEN", *ONLY, "--pyargs", "perdure_conformance")
    assert code == 1, said
    assert "FAILED sessions-append-refuses-another-version" in said
    assert "store.sessions.append('s1', [{'n': 2}], expected_version=0)" in said
    assert "perdure-conformance check planted:BROKEN --only" in said
    assert "1 failed, 1 passed, 1 skipped" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a store: pytest --store URL"),
        (["--store", "nosuch:x"], "is no installed store, and no object of a module"),
        (["--store", "memory:{place}", "--law", "no-law"], "there is no law 'no-law'"),
        (["--store", "planted:failing"], "--store: 'planted:failing' makes no target: RuntimeError: no licence"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "planted.py").write_bytes(PLANTED.read_bytes())
    code, said = run(tmp_path, *words, "--pyargs", "perdure_conformance")
    assert code not in (0, 1), said
    assert told in said


# --- law_tests ---

MODULE = """
from perdure_conformance.pytest_support import law_tests
from perdure_conformance.target import Target

test_law = law_tests(Target.from_url("memory:{{place}}"){more})

def test_of_something_else():
    pass
"""


def test_a_module_of_laws_heeds_the_option(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(MODULE.format(more=""))
    code, said = run(tmp_path, "-v", *IN_PROCESS)
    assert (code, said.count("PASSED")) == (0, 3), said
    assert f"{len(all_laws()) - 2} deselected" in said
    code, said = run(tmp_path, "--law", "sessions-write-add-one")
    assert (code, "there is no law 'sessions-write-add-one'" in said) == (4, True), said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (', only=["sessions-write-adds-one", "sessions-write-add-one"]', "there is no law 'sessions-write-add-one'"),
        (', profile="fulll"', "there is no profile 'fulll', only quick, full, nightly"),
    ],
)
def test_a_module_of_laws_that_there_are_not_is_wrong(tmp_path: Path, more: str, told: str) -> None:
    (tmp_path / "test_mine.py").write_text(MODULE.format(more=more))
    code, said = run(tmp_path)
    assert (code, told in said) == (2, True), said


# --- the class ---


def test_a_class_with_a_profile_that_there_is_not_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS + "\n    profile = 'fulll'\n")
    code, said = run(tmp_path, *ONLY)
    assert (code, "there is no profile 'fulll', only quick, full, nightly" in said) == (2, True), said


def test_the_class_is_one_test_for_each_law(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS)
    code, said = run(tmp_path, "--collect-only", "-q")
    assert code == 0, said
    assert said.count("TestMyStore::test_law[") == len(all_laws())
    code, said = run(tmp_path, "-v", *ONLY)
    assert (code, said.count("PASSED")) == (0, 3), said


def test_the_base_class_itself_is_no_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("from perdure_conformance.testing import StoreConformance\n")
    code, said = run(tmp_path, "-q")
    assert code == 5, said


SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
"""Without it some releases warn."""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_class_runs_beside_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS)
    code, said = run(tmp_path, "-q", f"--asyncio-mode={mode}", *SCOPE, *IN_PROCESS, plugins=("pytest_asyncio.plugin",))
    assert (code, "2 passed" in said) == (0, True), said


def test_the_class_runs_beside_anyio(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS + "\nimport pytest\npytestmark = pytest.mark.anyio\n")
    code, said = run(tmp_path, "-q", *IN_PROCESS, plugins=("anyio",))
    assert (code, "2 passed" in said) == (0, True), said


def test_the_class_runs_beside_anyio_in_auto_mode(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS)
    code, said = run(tmp_path, "-q", "-o", "anyio_mode=auto", *IN_PROCESS, plugins=("anyio",))
    assert (code, "2 passed" in said) == (0, True), said


def test_an_id_that_names_no_law_is_told_by_workers_too(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS)
    code, said = run(tmp_path, "-n", "2", "--law", "no-law", plugins=("xdist.plugin",))
    assert (code, "there is no law 'no-law'" in said, "INTERNALERROR" in said) == (4, True, False), said


def test_the_laws_of_a_set_come_in_the_order_of_the_catalogue() -> None:
    """Workers of xdist refuse to work together unless all of them collect the same tests in the same order."""
    ids = [law.id for law in all_laws()]
    assert [law.id for law in chosen_laws(frozenset(ids))] == ids
    assert [law.id for law in chosen_laws([ids[5], ids[2], ids[5]])] == [ids[2], ids[5]]
