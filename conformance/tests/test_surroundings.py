"""What the command makes of the environment that it is called in."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perdure_conformance.cli.surroundings import CACHE, prepare
from perdure_conformance.no_exit import no_exit


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which nothing is said, of a user who has no home, as in many containers."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    here: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", here)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return here


@pytest.mark.parametrize(
    ("said", "folder"),
    [
        ({}, Path(tempfile.gettempdir(), "perdure-conformance")),
        ({"HOME": "/somewhere"}, Path("/somewhere/.cache/perdure-conformance")),
        ({"HOME": "/somewhere", "XDG_CACHE_HOME": "/caches"}, Path("/caches/perdure-conformance")),
        ({CACHE: "/own"}, Path("/own")),
    ],
    ids=["no home", "a home", "a folder of caches", "a folder of its own"],
)
def test_what_hypothesis_keeps_goes_to_the_caches(
    environment: dict[str, str], said: dict[str, str], folder: Path
) -> None:
    environment |= said
    prepare()
    assert environment[CACHE] == str(folder)


ENDING = """
import atexit, os
from perdure_conformance.cli.surroundings import leave

atexit.register(lambda: os._exit(0))
leave(4)
"""


def test_what_a_store_has_done_at_the_end_does_not_choose_the_code() -> None:
    assert subprocess.run([sys.executable, "-c", ENDING], stderr=subprocess.DEVNULL, check=False).returncode == 4


def test_a_forked_child_of_the_store_may_end_itself() -> None:
    with no_exit():
        child = os.fork()
        if child == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
