"""The applications in docs/examples: each is run from a copy, as its readers would."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from core.tests.command_line import Program

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
TESTED = sorted(path.parent.name for path in EXAMPLES.glob("*/test_*.py") if path.name != "test_laws.py")


def copy_of(name: str, folder: Path) -> Path:
    """Return a copy of an example."""
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.timeout(
    400
)  # those of the service and the chat start some ten processes, which a busy machine may not hurry
@pytest.mark.parametrize("name", TESTED)
def test_the_tests_of_an_example_pass(name: str, tmp_path: Path) -> None:
    folder, here = copy_of(name, tmp_path), os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    python = Program("python", folder, here, errors_in_out=True)
    ran = python("-m", "pytest", "-q", "-W", "error", "-p", "anyio", "-p", "no:cacheprovider")
    assert ran.code == 0, ran.out
    assert " passed" in ran.out


def test_the_examples_that_have_tests_are_found() -> None:
    assert {"fastapi-service", "provider-models", "terminal-chat", "testing-an-application"} <= set(TESTED)
