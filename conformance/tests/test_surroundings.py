"""What the command makes of the environment that it is called in."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from perdure_conformance.cli.surroundings import CACHE, prepare


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
