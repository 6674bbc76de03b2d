"""The kit's checks of our stores, by the names of their plugins, as an author of a store runs it; the docs say what it grants.

`tests/test_laws.py` tries the same laws, with the effort of `quick`, one test id for each; so the whole checks are for the soak.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.servers import VALKEY
from tests.kit_tables import CHOICE, STORES, choice, levels, page_of, shown

from perdure_conformance.checking import Check, Plan
from perdure_conformance.profiles import PROFILES
from perdure_conformance.reports.files import json_text
from perdure_conformance.reports.text import report_text
from perdure_conformance.resolve import TargetError, find_target

PATIENCE = 600.0
"""After how many seconds a check is cut: the tests share their machine with others, and are no measure of `quick`."""


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a real server where the plugin of Redis finds it and starts it."""
    (tmp_path / "valkey-server").symlink_to(VALKEY)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def checked(
    store: str, profile: str = "quick", patience: float = PATIENCE, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Check a store, and return the report as JSON; no law may fail."""
    report = Check(Plan(find_target(store), PROFILES[profile].changed(max_time=patience), only=only)).run()
    assert report.exit_code == 0, report_text(report)
    written: dict[str, Any] = json.loads(json_text(report))
    return written


@pytest.mark.parametrize("store", STORES)
def test_the_docs_say_what_a_store_declares(store: str) -> None:
    report = checked(store, only=["sessions-fresh-place-is-empty"])
    declared, _, granted = shown(page_of(store), store).partition("\n\n")
    assert declared == levels(report).partition("\n\n")[0]
    told = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1] for line in granted.splitlines()[2:]}
    claimed = {level["name"]: level["standing"] != "not claimed" for level in report["levels"]}
    assert {name: standing != "not claimed" for name, standing in told.items()} == claimed
    assert set(told.values()) <= {"granted", "not claimed", "not tested"}


@pytest.mark.soak
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("store", STORES)
def test_quick_grants_what_the_docs_say(store: str) -> None:
    report = checked(store)
    assert shown(page_of(store), store) == levels(report), "`python -m tests.kit_tables levels` writes it anew"
    header, line, row = choice({store: report}).splitlines()
    assert shown(CHOICE, "all").splitlines()[:2] == [header, line]
    assert row in shown(CHOICE, "all").splitlines()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", STORES)
def test_full_holds(store: str) -> None:
    checked(store, "full", 3500)


def test_redis_without_a_server_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.prefix) / "nowhere"))
    with pytest.raises(TargetError, match="neither valkey-server nor redis-server is in the PATH; name a server"):
        find_target("redis")
