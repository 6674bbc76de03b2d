"""The applications in docs/examples: each is run from a copy, as its readers would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:xdist", "-p", "no:cacheprovider"],
        cwd=copy_of(name, tmp_path),
        env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert " passed" in ran.stdout


def test_the_examples_that_have_tests_are_found() -> None:
    assert {"fastapi-service", "provider-models", "terminal-chat", "testing-an-application"} <= set(TESTED)
